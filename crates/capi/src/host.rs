//! A stack with what a program holds of it, and what is done with both.

mod epoll;
mod opening;
mod packets;
mod periodic;
mod pipe;

use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::time::Duration;

use millrace::{Instant, Stack};

use crate::mtcp::periodic::Periodic;
use crate::outcome::Outcome;
use crate::packets::Packets;
use crate::things::Things;

/// A stack and what a program holds of it.
pub struct Host {
    pub stack: Stack,
    pub things: RefCell<Things>,
    /// Packets that wait for the caller, of a stack whose link is the caller's.
    pub packets: Option<RefCell<Packets>>,
    /// The time is the caller's: nothing waits.
    pub manual: bool,
    /// How many things there may be at once.
    pub most: u32,
    /// What a context of mTCP's does beside its calls.
    pub periodic: Option<Periodic>,
    /// Something was lent to the program by the call before: see [`crate::lend`].
    pub lent: Cell<Option<Lent>>,
}

/// Room to send that the program writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lent {
    pub key: u32,
    pub room: usize,
}

impl Host {
    pub fn new(stack: Stack, manual: bool, packets: Option<Packets>) -> Host {
        stack.keep_changed(true);
        Host {
            stack,
            things: RefCell::default(),
            packets: packets.map(RefCell::new),
            manual,
            most: u32::MAX,
            periodic: None,
            lent: Cell::new(None),
        }
    }

    /// Whether so many things more may be made.
    ///
    /// # Errors
    /// `ENFILE`.
    pub fn ensure_room(&self, count: usize) -> Outcome<()> {
        let things = self.things.borrow();
        let held = things.count();
        (held + count <= self.most as usize)
            .then_some(())
            .ok_or(libc::ENFILE)
    }

    /// Does what there is to do now, and notes who has become ready. Returns how much that was.
    pub fn work(&self) -> usize {
        let done = match &self.packets {
            Some(packets) => {
                self.stack.read_clock();
                let mut packets = packets.borrow_mut();
                let before = packets.waiting();
                self.stack.transmit(&mut *packets);
                packets.waiting() - before
            }
            None => self.stack.poll(),
        };
        if let Some(periodic) = &self.periodic {
            self.beat(periodic);
        }
        done + self.open_agreed() + self.note_changed()
    }

    /// Notes who has become ready; returns how many sockets have changed.
    pub fn note_changed(&self) -> usize {
        let mut count = 0;
        self.stack.take_changed(|id| {
            count += 1;
            self.note(id);
        });
        count
    }

    /// What was asked for leaves now.
    pub fn flush(&self) {
        match self.packets {
            Some(_) => {
                self.work();
            }
            None => self.stack.flush(),
        }
    }

    /// Does what there is to do, or waits until there is something.
    ///
    /// # Errors
    /// `EAGAIN` when `until` has come, or when time or packets are the caller's to bring and
    /// nothing is left to do; `EINTR`. Work was done before either: what is waited for may have
    /// happened all the same.
    pub fn wait(&self, until: Option<Instant>) -> Outcome<()> {
        let busy = self.work() > 0;
        // Work that never ends does not keep a wait from ending.
        if until.is_some_and(|until| until <= self.stack.now()) {
            return Err(libc::EAGAIN);
        }
        let interrupted = || self.periodic.as_ref().is_some_and(Periodic::is_interrupted);
        if interrupted() {
            return Err(libc::EINTR);
        }
        if busy {
            return Ok(());
        }
        if self.manual || self.packets.is_some() {
            return Err(libc::EAGAIN);
        }
        let now = self.stack.read_clock();
        if until.is_some_and(|until| until <= now) {
            return Err(libc::EAGAIN);
        }
        let beat = self.periodic.as_ref().and_then(Periodic::deadline);
        let all = [until, self.stack.deadline(), beat];
        let first = all.into_iter().flatten().min();
        let span = first.map(|first| match first > now {
            true => Duration::from_micros((first - now).as_micros()),
            false => Duration::ZERO,
        });
        match self.stack.wait_for_news(span) {
            Ok(()) if interrupted() => Err(libc::EINTR),
            Ok(()) => Ok(()),
            Err(error) => Err(error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Closes all there is, and works until every connection has said what it had to say, or for so
    /// many milliseconds.
    pub fn end(&self, timeout_ms: c_int) {
        let keys = self.things.borrow().keys();
        for key in keys {
            // It is there; what it says of its end interests nobody any more.
            let _ = self.remove(key, false);
        }
        let until = self.until(u64::try_from(timeout_ms).unwrap_or(0) * 1000);
        self.work();
        while timeout_ms > 0 && self.stack.usage().orphans > 0 {
            if self.wait(until).is_err() {
                break;
            }
        }
    }

    /// When a call gives up that waits for so many microseconds; 0 is never.
    pub fn until(&self, patience: u64) -> Option<Instant> {
        let span = millrace::Duration::from_micros(patience);
        (patience != 0).then(|| self.stack.read_clock() + span)
    }
}
