//! `poll`: sockets and pipes of one stack, named anew in every call.

use std::ffi::c_int;

use libc::{POLLERR, POLLHUP, POLLNVAL};

use crate::host::Host;
use crate::outcome::Outcome;
use crate::things::Thing;

/// One who is waited for in one call.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Its key; none for a number that names nothing that can be waited for.
    pub key: Option<u32>,
    /// What is asked for.
    pub events: i16,
    /// What there is of it.
    pub found: i16,
}

/// What is told without being asked for.
const ALWAYS: i16 = POLLERR | POLLHUP;

impl Host {
    /// Does the stack's work, and waits until one of these is ready, for so many milliseconds;
    /// below 0 for ever. How many are.
    ///
    /// # Errors
    /// `EINTR`.
    pub fn poll(&self, all: &mut [Asked], timeout_ms: c_int) -> Outcome<usize> {
        self.work();
        let mut until = None;
        loop {
            let found = self.look_at(all);
            if found > 0 || timeout_ms == 0 {
                return Ok(found);
            }
            if timeout_ms > 0 && until.is_none() {
                until = self.until(timeout_ms as u64 * 1000);
            }
            match self.wait(until) {
                Err(libc::EAGAIN) => return Ok(self.look_at(all)),
                outcome => outcome?,
            }
        }
    }

    /// Whether something can be waited for in this way: all but a set.
    pub fn can_be_polled(&self, key: u32) -> bool {
        !matches!(self.things.borrow().get(key), Some(Thing::Set(_)) | None)
    }

    fn look_at(&self, all: &mut [Asked]) -> usize {
        let mut things = self.things.borrow_mut();
        for one in all.iter_mut() {
            one.found = match one.key {
                // The bits of the lower half are the same as epoll's.
                Some(key) => self.ready(&mut things, key).bits() as i16 & (one.events | ALWAYS),
                None => POLLNVAL,
            };
        }
        all.iter().filter(|one| one.found != 0).count()
    }
}
