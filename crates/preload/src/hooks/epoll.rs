//! epoll.

use std::ffi::{c_int, c_uint};

use libc::{epoll_event, sigset_t, timespec};
use rustix::io::Errno;

use super::{fail, hooks, length, nothing};
use crate::epoll::{self, Wait};
use crate::epoll_set::Memory;
use crate::sets::Hold;
use crate::sys::Result;
use crate::table::{self, Entry};
use crate::{engine, environment, lane, memory, real, sets, thread};

/// Events of one wait, at most (the kernel's limit).
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

hooks! {
    /// A set.
    fn epoll_create(size: c_int) -> c_int {
        registered(real::epoll_create(size))
    }

    /// A set.
    fn epoll_create1(flags: c_int) -> c_int {
        registered(real::epoll_create1(flags))
    }

    /// Changes a set.
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        let Some(held) = sets::hold_descriptor(epoll) else {
            if matches!(table::get(fd), Entry::Socket(_)) {
                // Not a set, or one that we do not know: the kernel would watch the anchor.
                return fail(Errno::INVAL);
            }
            return real::epoll_ctl(epoll, operation, fd, event);
        };
        let index = held.index();
        let given = || -> Option<epoll_event> {
            memory::check(event.cast(), size_of::<epoll_event>()).ok()?;
            // The structure is packed: no reference to it is taken.
            (!event.is_null()).then(|| event.read_unaligned())
        };
        match table::get(fd) {
            Entry::Kernel => {
                sets::note_mixed(index);
                real::epoll_ctl(epoll, operation, fd, event)
            }
            Entry::Socket(slot) => {
                nothing(epoll::control(epoll, index, operation, fd, slot, given()))
            }
            Entry::Undecided(_) => {
                sets::note_mixed(index);
                let result = real::epoll_ctl(epoll, operation, fd, event);
                if result == 0 {
                    epoll::note_undecided(index, operation, fd, given());
                }
                result
            }
            Entry::Epoll(_) => {
                sets::note_mixed(index);
                let result = real::epoll_ctl(epoll, operation, fd, event);
                if result == 0 && operation == libc::EPOLL_CTL_ADD
                    && let (Ok(engine), Some(inner)) = (engine::get(), sets::hold_descriptor(fd)) {
                        sets::wait_for_set(inner.index(), engine);
                    }
                result
            }
            Entry::Internal => fail(Errno::BADF),
        }
    }

    /// Waits.
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
        match ours(epoll) {
            Some((held, memory)) => wait(epoll, &held, memory, events, count, ms(timeout), std::ptr::null()),
            None => real::epoll_wait(epoll, events, count, timeout),
        }
    }

    /// Waits with a signal mask.
    fn epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        match ours(epoll) {
            Some((held, memory)) => wait(epoll, &held, memory, events, count, ms(timeout), mask),
            None => real::epoll_pwait(epoll, events, count, timeout, mask),
        }
    }

    /// Waits with a signal mask and a finer time-out.
    fn epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let Some((held, memory)) = ours(epoll) else {
            return real::epoll_pwait2(epoll, events, count, timeout, mask);
        };
        match super::poll::duration(timeout) {
            Ok(timeout) => wait(epoll, &held, memory, events, count, timeout, mask),
            Err(errno) => fail(errno),
        }
    }
}

fn registered(fd: c_int) -> c_int {
    if fd >= 0 && environment::get().is_some() {
        sets::register(fd);
    }
    fd
}

/// A set with memory. For the others what was left unrung is rung for before they wait in the kernel.
fn ours(epoll: c_int) -> Option<(Hold, Memory)> {
    epoll::show_inner();
    if let Some(held) = sets::hold_descriptor(epoll)
        && let Some(memory) = sets::memory(held.index())
    {
        return Some((held, memory));
    }
    flush();
    None
}

/// The thread is about to wait for something that is not ours.
pub fn flush() {
    if thread::with(|thread| thread.batch.get())
        && let Some(engine) = engine::attached()
    {
        lane::end_batch(engine);
    }
}

/// Milliseconds as a time-out has them: negative is for ever.
pub fn ms(timeout: c_int) -> Option<u64> {
    u64::try_from(timeout).ok().map(|ms| ms * 1000)
}

/// # Safety
/// `events` has room for `count`.
unsafe fn wait(
    epoll: c_int,
    held: &Hold,
    memory: Memory,
    events: *mut epoll_event,
    count: c_int,
    timeout_us: Option<u64>,
    mask: *const sigset_t,
) -> c_int {
    let room = || -> Result<usize> {
        if count <= 0 || count > EVENTS_MAX {
            return Err(Errno::INVAL);
        }
        let count = count as c_uint as usize;
        crate::memory::check(events.cast(), count * size_of::<epoll_event>())?;
        Ok(count)
    };
    let count = match room() {
        Ok(count) => count,
        Err(errno) => return fail(errno),
    };
    // SAFETY: the caller's promise; the program does not look at them meanwhile.
    let events = unsafe { std::slice::from_raw_parts_mut(events, count) };
    let wait = Wait {
        epoll,
        index: held.index(),
        events,
        timeout_us,
        mask,
    };
    length(epoll::wait(wait, memory)) as c_int
}
