//! Threads and processes that share sockets and epoll sets, in every order that comes up: wake-ups
//! that threads take from each other, and random programs against an oracle
//! (`tests/programs/rounds.c`, `tests/programs/interleave`).

use std::process::Command;

use millrace_e2e::{
    Context, Link, Result, SUBJECT, Stack, World, command, compile, scenario, seconds,
};

const PORT: &str = "7000";
const ROUNDS: &str = "1000";

/// On whatever cores there are, and on one.
const CORES: [&[&str]; 2] = [&[], &["0"]];

/// Runs a statement of `rounds` with the other end across the link, and within millrace.
fn check_rounds(world: &World, statement: &str) -> Result<()> {
    let program = compile::program("rounds")?;
    let subject = SUBJECT.to_string();
    for core in CORES {
        let words = [&[&program, statement, &subject, PORT, ROUNDS], core].concat();
        let server = match world.stack {
            Stack::Kernel => command(&words),
            Stack::Millrace => world.on_subject(&words),
        };
        let server = world.start_on_subject(server)?;
        let echo = world.peer(&[&program, "echo", &subject, PORT])?;
        server.wait(seconds(60))?.success()?;
        echo.wait(seconds(20))?.success()?;
        // What turns round in a shard does not meet an I/O thread.
        if world.stack == Stack::Millrace && world.io_threads == 0 {
            let core = core.concat();
            let both = format!(
                "{program} echo 127.0.0.1 {PORT} & exec {program} {statement} 127.0.0.1 {PORT} {ROUNDS} {core}"
            );
            let run = on_loopback(world, &["sh", "-c", &both]);
            world.start_on_subject(run)?.wait(seconds(60))?.success()?;
        }
    }
    Ok(())
}

/// A command that talks to itself: on the kernel, or on millrace.
fn on_loopback(world: &World, words: &[&str]) -> Command {
    match world.stack {
        Stack::Kernel => command(words),
        Stack::Millrace => {
            let shards = world.shards.to_string();
            let run = ["run", "--loopback", "--shards", &shards, "--"];
            world.millrace(&[&run, words].concat())
        }
    }
}

/// Makes a module with a test for each stack of each statement of `rounds`.
macro_rules! statements {
    ($($name:ident: $statement:literal,)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn kernel() {
                scenario::run(Stack::Kernel, |world| check_rounds(world, $statement));
            }
            #[test]
            fn millrace() {
                scenario::run(Stack::Millrace, |world| check_rounds(world, $statement));
            }
            #[test]
            fn millrace_with_two_shards() {
                scenario::run_on_shards(2, |world| check_rounds(world, $statement));
            }
            #[test]
            fn millrace_with_a_pipeline() {
                scenario::run_on_pipeline(Link::Tap, 1, 2, |world| check_rounds(world, $statement));
            }
        })*
    };
}

statements! {
    a_socket_put_in_again_is_reported: "readd",
    a_sleeper_hears_of_the_first_socket: "sleeper",
    a_handler_ends_a_sleep: "interrupted",
}

/// Sets that two processes share, and looks that a signal interrupts
/// (`tests/programs/shared_sets.c`).
fn check_shared_sets(world: &World) -> Result<()> {
    let program = compile::program("shared_sets")?;
    for statement in ["kept", "silent", "masked"] {
        let run = on_loopback(world, &[&program, statement]);
        let ended = world.start_on_subject(run)?.wait(seconds(60))?;
        ended.success().context(statement)?;
    }
    Ok(())
}

#[test]
fn sets_of_two_processes_on_the_kernel() {
    scenario::run(Stack::Kernel, check_shared_sets);
}

#[test]
fn sets_of_two_processes_on_one_shard() {
    scenario::run(Stack::Millrace, check_shared_sets);
}

#[test]
fn sets_of_two_processes_on_two_shards() {
    scenario::run_on_shards(2, check_shared_sets);
}

/// Seeds whose programs have shown a flaw once, and what it was where that has a name.
const KEPT: [&str; 11] = [
    "4", "8", "16", "29", "296", "501",
    // A call on a socket that another thread is closing.
    "12005", "12113",
    // A set in another one that has nothing to report, by epoll_wait and by poll.
    "12007", "12081", // A process without threads of its own that starts late.
    "23001",
];

/// Programs that have been made as small as they go (`interleave -s`), and what they have shown.
const SMALLEST: [(&str, &str); 3] = [
    (
        "a handler runs while a socket takes the place of what is polled",
        "21741:1.10,1.11,1.12,1.14,1.18,1.19,3.3,3.4,6.6,6.7,6.8,6.9,",
    ),
    (
        "a set is closed while another thread looks into it",
        "28725:0.2,0.3,0.4,0.5,0.6,1.10,1.11,1.14,1.15,1.16,1.17,6.5,6.8,6.9,6.15,6.18,6.19,6.22,6.23,",
    ),
    (
        "a set that is closed under a wait is in another one",
        "28142:0.0,0.1,0.2,0.3,0.6,2.2,2.3,2.4,2.10,2.11,2.12,2.13,2.14,3.0,3.1,3.2,3.13,3.14,3.15,3.18,3.19,5.6,5.7,5.8,7.5,7.6,7.7,7.8,7.9,",
    ),
];

/// Runs the random programs of some seeds; those that have shown a flaw more than once.
fn check_programs(world: &World, seeds: std::ops::Range<u32>) -> Result<()> {
    let program = compile::program("interleave")?;
    let run = |words: &[&str]| -> Result<()> {
        let words = [&[&program[..]], words].concat();
        let run = on_loopback(world, &words);
        world.start_on_subject(run)?.wait(seconds(120))?.success()?;
        Ok(())
    };
    run(&[&seeds.start.to_string(), &seeds.end.to_string()])?;
    KEPT.iter().try_for_each(|seed| run(&["-n", "5", seed]))?;
    for (shows, program) in SMALLEST {
        run(&["-n", "50", "-k", program]).context(shows)?;
    }
    Ok(())
}

/// What shows that the oracle is right.
#[test]
fn random_programs_on_the_kernel() {
    scenario::run(Stack::Kernel, |world| check_programs(world, 0..200));
}

#[test]
fn random_programs_on_one_shard() {
    scenario::run(Stack::Millrace, |world| check_programs(world, 0..250));
}

#[test]
fn random_programs_on_two_shards() {
    scenario::run_on_shards(2, |world| check_programs(world, 250..500));
}
