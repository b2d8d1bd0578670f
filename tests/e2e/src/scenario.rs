//! How a scenario becomes tests: one on the kernel, which shows that the scenario is right, one on
//! millrace.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::world::{Link, Stack, World};
use crate::{directory, namespace, turn};

/// Makes of each named function `fn(&World) -> Result<()>` a module with one test for each stack.
#[macro_export]
macro_rules! on_both_stacks {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn kernel() {
                $crate::scenario::run($crate::Stack::Kernel, super::$name);
            }
            #[test]
            fn millrace() {
                $crate::scenario::run($crate::Stack::Millrace, super::$name);
            }
        }
    )* };
}

/// As [`on_both_stacks`], with a third test: on millrace with two shards.
#[macro_export]
macro_rules! on_both_stacks_and_two_shards {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn kernel() {
                $crate::scenario::run($crate::Stack::Kernel, super::$name);
            }
            #[test]
            fn millrace() {
                $crate::scenario::run($crate::Stack::Millrace, super::$name);
            }
            #[test]
            fn millrace_with_two_shards() {
                $crate::scenario::run_on_shards(2, super::$name);
            }
        }
    )* };
}

/// As [`on_both_stacks_and_two_shards`], with a fourth test: on millrace with two shards and an I/O
/// thread.
#[macro_export]
macro_rules! on_both_stacks_and_a_pipeline {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn kernel() {
                $crate::scenario::run($crate::Stack::Kernel, super::$name);
            }
            #[test]
            fn millrace() {
                $crate::scenario::run($crate::Stack::Millrace, super::$name);
            }
            #[test]
            fn millrace_with_two_shards() {
                $crate::scenario::run_on_shards(2, super::$name);
            }
            #[test]
            fn millrace_with_a_pipeline() {
                $crate::scenario::run_on_pipeline($crate::Link::Tap, 1, 2, super::$name);
            }
        }
    )* };
}

/// Makes of each named function a test on millrace alone: for what the kernel has no counterpart
/// of.
#[macro_export]
macro_rules! on_millrace {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn millrace() {
                $crate::scenario::run($crate::Stack::Millrace, super::$name);
            }
        }
    )* };
}

/// Makes of each named function tests on millrace over each link on a device that is there, with
/// one shard and with two, and over AF_XDP with an I/O thread before these.
#[macro_export]
macro_rules! over_devices {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn xdp() {
                $crate::scenario::run_over($crate::Link::Xdp, 1, super::$name);
            }
            #[test]
            fn xdp_with_two_shards() {
                $crate::scenario::run_over($crate::Link::Xdp, 2, super::$name);
            }
            #[test]
            fn xdp_with_a_pipeline() {
                $crate::scenario::run_on_pipeline($crate::Link::Xdp, 1, 2, super::$name);
            }
            #[test]
            fn macvtap() {
                $crate::scenario::run_over($crate::Link::Macvtap, 1, super::$name);
            }
            #[test]
            fn macvtap_with_two_shards() {
                $crate::scenario::run_over($crate::Link::Macvtap, 2, super::$name);
            }
        }
    )* };
}

/// Makes of each named function tests on millrace over AF_XDP, with one shard and with two.
#[macro_export]
macro_rules! over_xdp {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn millrace() {
                $crate::scenario::run_over($crate::Link::Xdp, 1, super::$name);
            }
            #[test]
            fn millrace_with_two_shards() {
                $crate::scenario::run_over($crate::Link::Xdp, 2, super::$name);
            }
        }
    )* };
}

/// Runs a scenario in a fresh world and checks that it left nothing behind.
pub fn run(stack: Stack, scenario: impl FnOnce(&World) -> Result<()>) {
    run_in(stack, Link::Tap, 1, 0, scenario);
}

/// Runs a scenario on millrace, in engines with this many shards.
pub fn run_on_shards(shards: u16, scenario: impl FnOnce(&World) -> Result<()>) {
    run_in(Stack::Millrace, Link::Tap, shards, 0, scenario);
}

/// Likewise, on a link of this kind.
pub fn run_over(link: Link, shards: u16, scenario: impl FnOnce(&World) -> Result<()>) {
    run_in(Stack::Millrace, link, shards, 0, scenario);
}

/// Likewise, where so many I/O threads own the queues of the link.
pub fn run_on_pipeline(
    link: Link,
    io_threads: u16,
    shards: u16,
    scenario: impl FnOnce(&World) -> Result<()>,
) {
    run_in(Stack::Millrace, link, shards, io_threads, scenario);
}

/// Likewise with an I/O thread, and all shards but the last with queues of their own.
pub fn run_mixed(link: Link, shards: u16, scenario: impl FnOnce(&World) -> Result<()>) {
    let world = prepare().and_then(|()| World::create_on(Stack::Millrace, link, shards));
    let result = world.and_then(|mut world| {
        (world.io_threads, world.mixed) = (1, true);
        scenario(&world)?;
        world.finish()
    });
    if let Err(error) = result {
        panic!("mixed over {link:?} with {shards} shards: {error:#}");
    }
}

fn run_in(
    stack: Stack,
    link: Link,
    shards: u16,
    io_threads: u16,
    scenario: impl FnOnce(&World) -> Result<()>,
) {
    let result = prepare()
        .and_then(|()| World::create_on(stack, link, shards))
        .and_then(|mut world| {
            world.io_threads = io_threads;
            scenario(&world)?;
            world.finish()
        });
    if let Err(error) = result {
        panic!(
            "on {stack:?} over {link:?} with {shards} shards and {io_threads} I/O threads: {error:#}"
        );
    }
}

/// What every run needs: root, room for descriptors, nothing of earlier runs, and nobody beside it
/// who wants to be alone.
pub fn prepare() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("root is needed: network namespaces and TAP devices are created; run it with sudo");
    }
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    turn::with_others();
    namespace::sweep()?;
    directory::sweep()
}

/// A duration.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// Asks until `condition` holds; fails with `what` after `limit`, and at once if asking fails.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    while !condition()? {
        if Instant::now() > deadline {
            bail!("not within {limit:?}: {what}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Resident memory of a process, in bytes.
pub fn resident(pid: rustix::process::Pid) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line
        .and_then(|line| line.split_whitespace().next())
        .and_then(|number| number.parse::<u64>().ok());
    Ok(kilobytes.unwrap_or(0) * 1024)
}

/// How many descriptors a process has open.
pub fn descriptors(pid: rustix::process::Pid) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()))?.count())
}
