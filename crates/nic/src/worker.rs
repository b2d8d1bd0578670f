//! The thread of a shard: rounds while there is work, sleep while there is none.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use millrace_port::Relay;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

use crate::clock::Clock;
use crate::report::Report;
use crate::shard::Shard;

/// Deadlines that are nearer than this, in nanoseconds, are looked for rather than slept until:
/// waking would take as long.
const NEAR: u64 = 60_000;

/// How long a worker may take to give its report.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Asks a worker for its report.
pub(crate) struct Handle {
    asks: Sender<Sender<Report>>,
    doorbell: Arc<OwnedFd>,
}

impl Handle {
    /// The report, when the worker is there to give it.
    pub(crate) fn report(&self) -> Option<Report> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.asks.send(sender).ok()?;
        rustix::io::write(&self.doorbell, &1u64.to_ne_bytes()).ok()?;
        receiver.recv_timeout(PATIENCE).ok()
    }
}

/// What runs in the thread.
pub(crate) struct Worker<W, H> {
    shard: Shard<W, H>,
    clock: Clock,
    asks: Receiver<Sender<Report>>,
    doorbell: Arc<OwnedFd>,
}

impl<W: Relay, H: Relay> Worker<W, H> {
    pub(crate) fn new(shard: Shard<W, H>, clock: Clock) -> io::Result<(Worker<W, H>, Handle)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let doorbell = Arc::new(rustix::event::eventfd(0, flags)?);
        let (asks, receiver) = std::sync::mpsc::channel();
        let handle = Handle {
            asks,
            doorbell: Arc::clone(&doorbell),
        };
        let worker = Worker {
            shard,
            clock,
            asks: receiver,
            doorbell,
        };
        Ok((worker, handle))
    }

    /// Relays frames until a device is gone.
    pub(crate) fn run(mut self) -> io::Error {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(error) => return error,
            }
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        // Also when there is work without end: whoever looks wants to know of that above all.
        self.answer();
        let now = self.clock.now();
        if !self.shard.round(now)?.is_idle() {
            return Ok(());
        }
        let wait = self.shard.deadline().map(|deadline| deadline.since(now));
        if wait.is_some_and(|wait| wait < NEAR) {
            // Whoever is to make the frames may want this very core.
            std::thread::yield_now();
            return Ok(());
        }
        if self.wait(wait)? {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.doorbell, &mut count);
        }
        Ok(())
    }

    /// Gives a report to whoever asked for one.
    fn answer(&mut self) {
        while let Ok(answer) = self.asks.try_recv() {
            let _ = answer.send(Report::of(&self.shard, self.clock.now()));
        }
    }

    /// Sleeps until a frame comes, or the bell is rung, which it says, or the time is over.
    fn wait(&self, nanos: Option<u64>) -> io::Result<bool> {
        let ports = [
            self.shard.wire().descriptor(),
            self.shard.host().descriptor(),
        ];
        let bell = self.doorbell.as_fd();
        let [wire, host] = ports.map(|port| port.unwrap_or(bell));
        let mut set = [bell, wire, host].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let time_out = nanos.map(|nanos| Timespec {
            tv_sec: (nanos / 1_000_000_000) as i64,
            tv_nsec: (nanos % 1_000_000_000) as _,
        });
        match rustix::event::poll(&mut set, time_out.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(!set[0].revents().is_empty())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use millrace_offload::Config;
    use millrace_port::pair::{self, Pair, pair};

    use super::*;

    #[test]
    fn a_busy_shard_reports() {
        let ((inner_wire, mut wire), (inner_host, _kernel)) = (
            pair(pair::Config::default()),
            pair(pair::Config {
                offload: true,
                ..pair::Config::default()
            }),
        );
        let shard: Shard<Pair, Pair> = Shard::new(inner_wire, inner_host, Config::default());
        let (mut worker, handle) = Worker::new(shard, Clock::new()).expect("descriptors");
        let over = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // Each turn finds a frame, so that it never comes to waiting.
                    wire.send_parts(&[0xff; 60], &[], &Default::default())
                        .expect("sound");
                    worker.turn().expect("sound");
                }
            });
            let report = handle.report();
            over.store(true, Ordering::Relaxed);
            report
        });
        assert!(report.is_some());
    }
}
