//! What a worker waits for: its port, doorbells, and a timer.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_tcp::{Duration, Instant};
use rustix::event::{Timespec, epoll};

use crate::worker::idle_timer::IdleTimer;

const TOKEN_PORT: u64 = 1;
const TOKEN_DOORBELL: u64 = 2;
const TOKEN_IDLE_TIMER: u64 = 3;

/// The epoll set of a worker, with the timer that ends short waits.
#[derive(Debug)]
pub(crate) struct WaitSet {
    epoll: OwnedFd,
    timer: IdleTimer,
}

/// Why a wait has ended.
pub(crate) struct Wakeup {
    /// Something else than the timer ended it.
    pub(crate) is_event: bool,
    /// The port may have frames.
    pub(crate) is_readable: bool,
}

impl WaitSet {
    /// Waits for the worker's own doorbell, and for its port if that has a descriptor.
    pub(crate) fn new(doorbell: &OwnedFd, port: Option<BorrowedFd<'_>>) -> io::Result<WaitSet> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let timer = IdleTimer::new()?;
        let token = epoll::EventData::new_u64;
        epoll::add(&epoll, doorbell, token(TOKEN_DOORBELL), edge)?;
        epoll::add(&epoll, &timer, token(TOKEN_IDLE_TIMER), edge)?;
        if let Some(port) = port {
            epoll::add(&epoll, port, token(TOKEN_PORT), epoll::EventFlags::IN)?;
        }
        Ok(WaitSet { epoll, timer })
    }

    /// Waits for the doorbell of a program from now on.
    pub(crate) fn add_doorbell(&self, doorbell: &OwnedFd) -> io::Result<()> {
        let token = epoll::EventData::new_u64(TOKEN_DOORBELL);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(&self.epoll, doorbell, token, edge)?)
    }

    /// Waits for a descriptor no more.
    pub(crate) fn remove(&self, descriptor: BorrowedFd<'_>) {
        // It is not in the set if it could not be added, or if the kernel has removed it.
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    /// Starts the timer, unless it runs. Returns whether it will end the wait.
    pub(crate) fn start_timer(&mut self, now: Instant) -> bool {
        self.timer.set(now).is_ok()
    }

    /// Waits for at most `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Wakeup {
        let timeout = timeout.map(|timeout| {
            let micros = timeout.as_micros();
            Timespec {
                tv_sec: (micros / 1_000_000) as i64,
                tv_nsec: (micros % 1_000_000 * 1000) as i64,
            }
        });
        let mut wakeup = Wakeup {
            is_event: true,
            is_readable: false,
        };
        let mut events = [const { MaybeUninit::uninit() }; 4];
        if let Ok((events, _)) = epoll::wait(self.epoll.as_fd(), &mut events, timeout.as_ref()) {
            let is = |token| events.iter().any(|event| event.data.u64() == token);
            wakeup.is_event = events.iter().any(|it| it.data.u64() != TOKEN_IDLE_TIMER);
            wakeup.is_readable = is(TOKEN_PORT);
        }
        wakeup
    }
}
