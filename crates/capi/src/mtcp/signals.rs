//! Signals (`mtcp_register_signal`): the program's handler is called, and every context that waits is told, whichever thread the signal came to.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::host::Host;
use crate::outcome::Outcome;

/// Signals there are, and one more.
pub const SIGNALS: usize = 65;
/// Contexts at once, each with a bell.
const BELLS: usize = 64;
/// The token of a bell among a stack's descriptors; no task waits for it.
const TOKEN: u64 = u64::MAX;

/// How many signals have come.
static COME: AtomicU32 = AtomicU32::new(0);
/// The program's handlers, as numbers; 0 is none.
static HANDLERS: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(0) }; SIGNALS];
/// The bells of the contexts; -1 is none.
static BELL: [AtomicI32; BELLS] = [const { AtomicI32::new(-1) }; BELLS];

/// A context's bell.
#[derive(Debug)]
pub struct Bell {
    place: usize,
    _descriptor: OwnedFd,
}

impl Bell {
    /// A bell that ends the waits of this stack.
    ///
    /// # Errors
    /// `EMFILE` when there are 64, and those of the kernel.
    pub fn hang(host: &Host) -> Outcome<Bell> {
        let number = |error: rustix::io::Errno| error.raw_os_error();
        let descriptor =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(number)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let token = epoll::EventData::new_u64(TOKEN);
        epoll::add(host.stack.descriptor(), &descriptor, token, flags).map_err(number)?;
        let raw = descriptor.as_raw_fd();
        let free = |bell: &AtomicI32| {
            bell.compare_exchange(-1, raw, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        let place = BELL.iter().position(free).ok_or(libc::EMFILE)?;
        Ok(Bell {
            place,
            _descriptor: descriptor,
        })
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        BELL[self.place].store(-1, Ordering::Release);
    }
}

/// How many signals have come until now.
pub fn come() -> u32 {
    COME.load(Ordering::Acquire)
}

/// Keeps a handler; which one there was.
pub fn keep(signal: usize, handler: usize) -> usize {
    HANDLERS[signal].swap(handler, Ordering::AcqRel)
}

/// The program's handler of a signal.
pub fn handler(signal: c_int) -> usize {
    let handler = usize::try_from(signal).ok().and_then(|at| HANDLERS.get(at));
    handler.map_or(0, |handler| handler.load(Ordering::Acquire))
}

/// Tells all who wait, once the handler has done what they will look for.
pub fn tell() {
    COME.fetch_add(1, Ordering::AcqRel);
    for bell in &BELL {
        let bell = bell.load(Ordering::Acquire);
        if bell >= 0 {
            super::boundary::ring(bell);
        }
    }
}
