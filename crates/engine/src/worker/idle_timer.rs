//! The timer that ends a short wait.
//!
//! Such a wait usually ends within microseconds. A time-out of its own would be set and cleared for
//! each wait, and on a virtual machine each setting costs an exit (2 us of the 6.5 us that a wait
//! takes). So the timer is set at most once in its period of 1 ms. A wait that begins while it runs
//! ends with it at the latest.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_tcp::{Duration, Instant};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// The longest wait.
const LONGEST: Duration = Duration::from_micros(1000);

/// A timer descriptor for an epoll set.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    timer: OwnedFd,
    /// Until when it runs by the shard's clock. It may have expired already.
    until: Option<Instant>,
}

impl IdleTimer {
    /// A timer that does not run.
    pub(crate) fn new() -> io::Result<IdleTimer> {
        let timer = timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        Ok(IdleTimer { timer, until: None })
    }

    /// A wait begins. There will be an edge-triggered event within [`LONGEST`].
    pub(crate) fn set(&mut self, now: Instant) -> io::Result<()> {
        if self.until.is_some_and(|until| now < until) {
            return Ok(());
        }
        let zero = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let once = Itimerspec {
            it_interval: zero,
            it_value: Timespec {
                tv_sec: 0,
                tv_nsec: LONGEST.as_micros() as i64 * 1000,
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)?;
        self.until = Some(now + LONGEST);
        Ok(())
    }
}

impl AsFd for IdleTimer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn left(idle_timer: &IdleTimer) -> i64 {
        let left = rustix::time::timerfd_gettime(idle_timer).unwrap().it_value;
        left.tv_sec * 1_000_000_000 + left.tv_nsec
    }

    #[test]
    fn it_is_set_once_in_the_time_that_it_runs() {
        let mut idle_timer = IdleTimer::new().unwrap();
        assert_eq!(left(&idle_timer), 0);
        let now = Instant::from_micros(5);
        idle_timer.set(now).unwrap();
        let mut ready = [PollFd::new(&idle_timer, PollFlags::IN)];
        assert_eq!(poll(&mut ready, None).unwrap(), 1, "it goes off");
        // By the shard's clock it still runs: the wait that it ended was the last of that period.
        idle_timer.set(now + Duration::from_micros(999)).unwrap();
        assert_eq!(left(&idle_timer), 0);
        idle_timer.set(now + LONGEST).unwrap();
        let mut ready = [PollFd::new(&idle_timer, PollFlags::IN)];
        assert_eq!(poll(&mut ready, None).unwrap(), 1, "it goes off again");
    }
}
