//! millrace: run programs on a user-level TCP/IP stack, unmodified.

mod addresses;
mod arguments;
mod client;
mod config_file;
mod doctor;
mod engine_process;
mod fabric;
mod link;
mod load;
mod logs;
mod nic;
mod notify;
mod output;
mod program;
mod run;
mod scale;
mod ss;
mod table;
mod up;

use std::process::ExitCode;

use arguments::{Arguments, Command};

/// Exit status when millrace itself fails, as `env` and `timeout` have it.
const FAILED: u8 = 125;

fn main() -> ExitCode {
    let outcome = match Arguments::of_this_process().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Up(arguments) => up::up(arguments),
        Command::Config(arguments) => config_file::config(&arguments),
        Command::Down(arguments) => up::down(&arguments),
        Command::Logs(arguments) => logs::logs(&arguments),
        Command::Scale(arguments) => scale::scale(&arguments),
        Command::Ss(arguments) => ss::ss(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Nic(arguments) => nic::nic(&arguments),
        Command::Load(arguments) => load::load(&arguments),
        Command::Fabric(arguments) => fabric::fabric(&arguments),
        Command::Engine(arguments) => engine_process::serve(&arguments),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("millrace: {error:#}");
            ExitCode::from(
                error
                    .downcast_ref::<program::Refused>()
                    .map_or(FAILED, program::Refused::exit_status),
            )
        }
    }
}
