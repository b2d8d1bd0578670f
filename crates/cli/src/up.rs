//! `millrace up` and `millrace down`: engines that stay.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use millrace_engine::Config;

use crate::arguments::{DownArguments, UpArguments};
use crate::notify::Notifier;
use crate::{client, config_file, engine_process, logs};

/// How long an engine may take to end.
const PATIENCE: Duration = Duration::from_secs(10);

pub fn up(arguments: UpArguments) -> anyhow::Result<ExitCode> {
    let arguments = config_file::merged(arguments)?;
    let name = arguments.name.clone().context("give the engine a --name")?;
    let config = arguments.link.config(name, false)?;
    ensure!(
        arguments.foreground || config.audit.as_deref() != Some("-"),
        "--audit - is standard error, which an engine in the background has not; give a file, or --foreground"
    );
    if arguments.foreground {
        let manager = Notifier::open();
        return match millrace_engine::start(&config, |device| {
            println!("ready {}", device.unwrap_or("-"));
            manager.ready(&served(&config, device));
        }) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) => Err(error.into()),
        };
    }
    let (file, log) = logs::create(&config.name)?;
    let spawned = engine_process::spawn(&config, Some(file));
    // Whoever starts the engine sees its first warnings; `millrace logs` shows the later ones.
    eprint!("{}", std::fs::read_to_string(log).unwrap_or_default());
    let (engine, device) = spawned?;
    let what = served(&config, device.as_deref());
    println!(
        "engine {} runs (pid {}): {what}; attach with `millrace run --engine {} -- PROGRAM`",
        config.name,
        engine.id(),
        config.name
    );
    Ok(ExitCode::SUCCESS)
}

/// What an engine serves, for people.
fn served(config: &Config, device: Option<&str>) -> String {
    match (&config.link, device) {
        (Some(link), Some(device)) => format!("{} on {device}", link.addresses()),
        _ => "loopback".to_owned(),
    }
}

pub fn down(arguments: &DownArguments) -> anyhow::Result<ExitCode> {
    let user = arguments.engine_user;
    client::down(&client::connect(&arguments.name, user)?.socket)?;
    let end = Instant::now() + PATIENCE;
    while client::is_running(&arguments.name, user) {
        if Instant::now() > end {
            bail!(
                "the engine {:?} was told to end and has not ended after {} s",
                arguments.name,
                PATIENCE.as_secs()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    logs::remove_if_empty(&arguments.name, user);
    Ok(ExitCode::SUCCESS)
}
