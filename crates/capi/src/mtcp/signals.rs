//! Signals (`mtcp_register_signal`): the program's handler is called, and every context that waits
//! is told, whichever thread the signal came to.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, epoll, eventfd};

use millrace::Stack;

use crate::boundary::bell;
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
/// The bells of the contexts.
static PLACES: [Place; BELLS] = [const {
    Place {
        taken: AtomicBool::new(false),
        descriptor: OnceLock::new(),
    }
}; BELLS];

/// Where a bell hangs. Its descriptor is never closed, since a handler on another thread may be
/// about to write to it, and would write to whatever had its number next.
struct Place {
    taken: AtomicBool,
    descriptor: OnceLock<OwnedFd>,
}

/// A context's bell.
#[derive(Debug)]
pub struct Bell {
    place: usize,
}

impl Bell {
    /// A bell, for a stack to come.
    ///
    /// # Errors
    /// `EMFILE` when there are 64, and those of the kernel.
    pub fn new() -> Outcome<Bell> {
        let number = |error: rustix::io::Errno| error.raw_os_error();
        let free = |place: &Place| !place.taken.swap(true, Ordering::AcqRel);
        let at = PLACES.iter().position(free).ok_or(libc::EMFILE)?;
        // From here on whatever fails lets go of the place.
        let bell = Bell { place: at };
        if PLACES[at].descriptor.get().is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            let made = eventfd(0, flags).map_err(number)?;
            // Nobody else has the place.
            let _ = PLACES[at].descriptor.set(made);
        }
        Ok(bell)
    }

    /// Has it end the waits of this stack.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn hang(&self, stack: &Stack) -> Outcome<()> {
        let descriptor = PLACES[self.place].descriptor.get().ok_or(libc::EBADF)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let token = epoll::EventData::new_u64(TOKEN);
        let set = stack.descriptor();
        let set = set.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        epoll::add(set, descriptor, token, flags).map_err(|error| error.raw_os_error())
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        PLACES[self.place].taken.store(false, Ordering::Release);
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
    for place in &PLACES {
        // One that nobody has any more is rung in vain.
        if let Some(bell) = place.descriptor.get() {
            bell::ring(bell.as_raw_fd());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;

    /// A handler that has looked up a bell before its context ended writes to a bell all the same.
    #[test]
    fn the_descriptor_of_a_bell_is_never_anything_else() {
        let host = || {
            Host::new(
                millrace::Builder::new().build().expect("a stack"),
                false,
                None,
            )
        };
        let (one, other) = (host(), host());
        let bell = Bell::new().expect("a place");
        bell.hang(&one.stack).expect("room");
        let descriptor = |bell: &Bell| {
            let descriptor = PLACES[bell.place].descriptor.get();
            descriptor.expect("a descriptor").as_raw_fd()
        };
        let (first, place) = (descriptor(&bell), bell.place);
        drop((bell, one));
        let files = std::fs::read_link(format!("/proc/self/fd/{first}")).expect("it is open");
        assert!(files.to_string_lossy().contains("eventfd"), "{files:?}");
        let again = Bell::new().expect("a place");
        again.hang(&other.stack).expect("room");
        assert_eq!((descriptor(&again), again.place), (first, place));
        tell();
    }
}
