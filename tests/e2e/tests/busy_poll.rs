//! Busy polling of an AF_XDP queue. veth is told to leave frames to whoever polls for a minute, so
//! that they come at once by busy polling, or not at all; and whether it is real is detected:
//! before Linux 6.13 sockets knew the poller of a veth queue, and since then they do not.

use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use millrace_e2e::{
    Context as _, Link, Process, Result, SUBJECT, World, engine, ensure, scenario, seconds,
    wait_until,
};
use millrace_port::xdp::{self, BusyPoll, Config, Mode, Xdp};
use millrace_port::{FRAME_MAX, Port as _};
use rustix::process::Signal;

/// Nobody listens there: what counts is the frame.
const PORT: u16 = 9;
/// Datagrams, one after the other.
const DATAGRAMS: usize = 20;
/// Leaves frames to whoever polls, and polls itself after a minute.
const DEFER: &str = "cd /sys/class/net/veth0 && echo 100000 > napi_defer_hard_irqs && echo 60000000000 > gro_flush_timeout";

fn open(busy_poll: BusyPoll) -> Result<Xdp> {
    let mut opened = xdp::open(&Config {
        device: "veth0".into(),
        queues: None,
        mode: Mode::Auto,
        busy_poll,
        ports: 1,
        mac: None,
        shared: Vec::new(),
    })?;
    ensure!(
        opened
            .notes
            .iter()
            .all(|note| !note.contains("not busy-polled")),
        "{:?}",
        opened.notes
    );
    Ok(opened.ports.remove(0))
}

/// Whether the datagram comes within a second of looks.
fn comes(port: &mut Xdp) -> Result<bool> {
    let mut buffer = vec![0; FRAME_MAX];
    for _ in 0..1000 {
        while let Some(meta) = port.receive(&mut buffer)? {
            // After an Ethernet and an IPv4 header of their shortest lengths, and two bytes of the
            // source port.
            if buffer[..meta.len].get(36..38) == Some(&PORT.to_be_bytes()[..]) {
                return Ok(true);
            }
        }
        sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Has the kernel at the other end send a datagram.
fn send(world: &World) -> Result<()> {
    let line = format!("echo here > /dev/udp/{SUBJECT}/{PORT}");
    world
        .run_on_peer(&["bash", "-c", &line], seconds(10))?
        .success()
        .map(drop)
}

/// How many of the datagrams come, of which the first tells the socket who its poller is; and who
/// that is.
fn count(world: &World, busy_poll: BusyPoll) -> Result<(usize, Option<u32>)> {
    let host = world.subject_namespace();
    host.enter(|| {
        let mut port = open(busy_poll)?;
        let neighbour = format!(
            "neigh replace {SUBJECT} lladdr {} nud permanent dev veth0",
            port.capabilities().mac
        );
        world.peer_namespace().ip(&neighbour)?;
        let mut came = 0;
        for _ in 0..DATAGRAMS {
            send(world)?;
            if !comes(&mut port)? {
                break;
            }
            if came == 0 {
                on_device(world, DEFER)?;
            }
            came += 1;
        }
        Ok((came, port.gauges()[0].poller()))
    })
}

/// Runs a line of the shell where the engine's device is, beside the engine.
fn on_device(world: &World, line: &str) -> Result<()> {
    let host = world.subject_namespace().name();
    let words = ["ip", "netns", "exec", host, "sh", "-c", line];
    let status = Command::new(words[0]).args(&words[1..]).status()?;
    ensure!(status.success(), "{words:?}: {status}");
    Ok(())
}

#[test]
fn the_one_who_looks_runs_the_drivers_poller_if_it_is_known() {
    for busy_poll in [BusyPoll::Off, BusyPoll::On] {
        scenario::run_over(Link::Xdp, 1, |world| {
            let (came, poller) = count(world, busy_poll)?;
            let said = format!("{busy_poll}: {came} of {DATAGRAMS} came, by poller {poller:?}");
            ensure!(came > 0, "{said}: not even by an interrupt");
            ensure!(poller.is_some() == (busy_poll == BusyPoll::On), "{said}");
            let polls = poller.is_some_and(|id| id > 0);
            ensure!((came == DATAGRAMS) == polls, "{said}");
            Ok(())
        });
    }
}

/// What is told of the only queue.
fn at_queue(world: &World, name: &str) -> Result<u64> {
    let counters = engine::counters(world)?;
    let found = counters.pointer(&format!("/shards/0/queues/0/{name}"));
    found
        .and_then(|value| value.as_u64())
        .with_context(|| format!("no {name}: {counters}"))
}

#[test]
fn an_engine_that_cannot_poll_says_so() {
    scenario::run_over(Link::Xdp, 1, |world| {
        let addr = format!("{SUBJECT}/24");
        let mut run = world.millrace(&["run", "--link", "xdp:veth0,busy-poll=on", "--addr", &addr]);
        run.args(["--", "sleep", "60"]);
        let mut program = world.start_on_subject(run)?;
        let says = |program: &Process| program.stderr().contains("does not busy-poll queue 0");
        wait_until(
            "the engine polls, or says that it does not",
            seconds(30),
            || {
                program.ensure_not_failed()?;
                send(world)?;
                Ok(says(&program) || at_queue(world, "napi_id").is_ok_and(|id| id > 0))
            },
        )?;
        let poller = at_queue(world, "napi_id")?;
        ensure!(
            (poller > 0) != says(&program),
            "poller {poller}: {}",
            program.stderr()
        );
        program.stop(Signal::TERM, seconds(20))?;
        Ok(())
    });
}
