//! Hooks of epoll.

use std::ffi::{c_int, c_uint};

use libc::{epoll_event, sigset_t, timespec};
use rustix::io::Errno;

use super::timeout::{duration, ms};
use super::{fail, hooks, length, nothing};
use crate::engine::batch;
use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::process::{environment, thread};
use crate::readiness::epoll::{self, Wait};
use crate::readiness::epoll_sets::{Hold, KernelWait};
use crate::readiness::interest_list::Memory;
use crate::readiness::sleep::Call;
use crate::readiness::{epoll_sets, nested_epoll};
use crate::sys::Result;
use crate::sys::{original, thread_sanitizer, user_buffers};
use crate::{engine, sys};

/// How often a call is repeated while other threads change the meaning of its numbers.
const ATTEMPTS: u32 = 1000;
/// The most events of one wait (the kernel's limit).
const EVENTS_MAX: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;

hooks! {
    /// Makes an epoll set.
    fn epoll_create(size: c_int) -> c_int {
        registered(original::epoll_create(size))
    }

    /// Makes an epoll set.
    fn epoll_create1(flags: c_int) -> c_int {
        registered(original::epoll_create1(flags))
    }

    /// Changes the registrations of a set.
    fn epoll_ctl(epoll: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        thread_sanitizer::release();
        for _ in 0..ATTEMPTS {
            if let Some(result) = control(epoll, operation, fd, event) {
                return result;
            }
            // The number's meaning has just changed.
            sys::sched_yield();
        }
        fail(Errno::BADF)
    }

    /// Waits for events.
    fn epoll_wait(epoll: c_int, events: *mut epoll_event, count: c_int, timeout: c_int) -> c_int {
        let asked = Asked { epoll, events, count, timeout_us: ms(timeout), mask: std::ptr::null() };
        asked.wait(|| original::epoll_wait(epoll, events, count, timeout))
    }

    /// Waits for events with a signal mask.
    fn epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int {
        let asked = Asked { epoll, events, count, timeout_us: ms(timeout), mask };
        asked.wait(|| original::epoll_pwait(epoll, events, count, timeout, mask))
    }

    /// Waits for events with a signal mask and a time-out in nanoseconds.
    fn epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        count: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        match duration(timeout) {
            Ok(timeout_us) => {
                let asked = Asked { epoll, events, count, timeout_us, mask };
                asked.wait(|| original::epoll_pwait2(epoll, events, count, timeout, mask))
            }
            Err(errno) => fail(errno),
        }
    }
}

/// `epoll_ctl`; none: a number has got another meaning under way, so that all is to be looked at
/// again.
///
/// # Safety
/// As epoll_ctl.
unsafe fn control(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    let entry = table::get(fd);
    let Some(held) = epoll_sets::hold_descriptor(epoll) else {
        epoll_sets::settle();
        if matches!(table::get(epoll), Entry::Epoll(_)) {
            return None;
        }
        if matches!(entry, Entry::Socket(_)) {
            // The descriptor is no set, or one that the table does not know: the kernel would watch
            // the placeholder.
            let is_open = sys::fcntl(epoll, libc::F_GETFD, 0).is_ok();
            return Some(fail(if is_open { Errno::INVAL } else { Errno::BADF }));
        }
        // SAFETY: the caller's promise.
        return Some(unsafe { original::epoll_ctl(epoll, operation, fd, event) });
    };
    let index = held.index();
    let given = || -> Option<epoll_event> {
        user_buffers::check(event.cast(), size_of::<epoll_event>()).ok()?;
        // The structure is packed: no reference to it is taken.
        // SAFETY: checked; the caller's promise.
        (!event.is_null()).then(|| unsafe { event.read_unaligned() })
    };
    // SAFETY: the caller's promise.
    let kernel = || unsafe { control_kernels(epoll, index, operation, fd, event) };
    match entry {
        Entry::Kernel | Entry::Netlink(_) => kernel(),
        Entry::Socket(slot) => {
            let result = epoll::control(index, operation, fd, slot, given());
            let is_gone = result == Err(Errno::BADF) && table::get(fd) != entry;
            (!is_gone).then(|| nothing(result))
        }
        Entry::Undecided(_) => {
            let result = kernel()?;
            if result == 0 {
                epoll::note_undecided(index, operation, fd, given());
            }
            Some(result)
        }
        Entry::Epoll(_) if engine::get().is_ok() => {
            nested_epoll::control(index, operation, fd, given()).map(nothing)
        }
        Entry::Epoll(_) => kernel(),
        Entry::Internal => Some(fail(Errno::BADF)),
    }
}

/// `epoll_ctl` for what is the kernel's, on the set at place `index`; none as for [`control`].
///
/// # Safety
/// As epoll_ctl.
unsafe fn control_kernels(
    epoll: c_int,
    index: u32,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> Option<c_int> {
    // Another thread is closing the set.
    epoll_sets::settle();
    let entry = table::get(fd);
    if matches!(entry, Entry::Socket(_)) {
        return None;
    }
    let adds = operation == libc::EPOLL_CTL_ADD;
    // Another thread is about to close it: the kernel would watch the placeholder for ever.
    if adds && entry == Entry::Kernel && placeholder::is_known(fd) {
        return Some(fail(Errno::BADF));
    }
    epoll_sets::note_mixed(index);
    let epoll = epoll_sets::kernel_fd(index).unwrap_or(epoll);
    // SAFETY: the caller's promise.
    let result = unsafe { original::epoll_ctl(epoll, operation, fd, event) };
    // Another thread may have put a millrace socket there since, so that the kernel watches the
    // placeholder, or a set.
    let is_replaced = || match table::get(fd) {
        Entry::Epoll(_) => entry == Entry::Kernel,
        Entry::Socket(_) => true,
        _ => placeholder::is_known(fd),
    };
    if result == 0 && adds && is_replaced() {
        let mut none = epoll_event { events: 0, u64: 0 };
        // SAFETY: an event, which is not looked at.
        let undone = unsafe { original::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, &mut none) } == 0;
        return (!undone).then_some(result);
    }
    Some(result)
}

fn registered(fd: c_int) -> c_int {
    if fd >= 0 && environment::get().is_some() {
        epoll_sets::register(fd);
    }
    fd
}

/// The thread is about to wait for descriptors of the kernel.
pub fn flush() {
    if thread::with(|thread| thread.batch.get())
        && let Some(engine) = engine::attached()
    {
        batch::end(engine);
    }
}

/// The program's arguments of a wait.
struct Asked {
    epoll: c_int,
    events: *mut epoll_event,
    count: c_int,
    timeout_us: Option<u64>,
    mask: *const sigset_t,
}

impl Asked {
    /// Waits: by `real` in the kernel if the set has no millrace sockets.
    ///
    /// # Safety
    /// `events` has room for `count`.
    unsafe fn wait(self, real: impl FnOnce() -> c_int) -> c_int {
        let held = epoll_sets::hold_descriptor(self.epoll).or_else(|| {
            // Another thread is closing the set, or is putting one here.
            epoll_sets::settle();
            epoll_sets::hold_descriptor(self.epoll)
        });
        let Some(held) = held else {
            flush();
            return real();
        };
        let index = held.index();
        if let Some(memory) = epoll_sets::memory(index) {
            // SAFETY: the caller's promise.
            return unsafe {
                self.wait_here(
                    &held,
                    memory,
                    self.timeout_us,
                    Call::begin_with_mask(self.mask),
                )
            };
        }
        flush();
        let began = sys::now_us();
        let call = Call::begin_with_mask(self.mask);
        let kept = match KernelWait::begin(index) {
            None => 0,
            Some(_counted) => {
                let got = real();
                if got <= 0 {
                    return got;
                }
                // SAFETY: the kernel has just written this many.
                let events = unsafe { std::slice::from_raw_parts_mut(self.events, got as usize) };
                let (kept, _) = epoll::without_marks(index, events);
                if kept == events.len() {
                    return got;
                }
                kept
            }
        };
        // Another thread has registered the first millrace socket while this one slept in the
        // kernel's set.
        if let Some(own) = epoll_sets::poller(index) {
            own.ring();
        }
        let (0, Some(memory)) = (kept, epoll_sets::memory(index)) else {
            return kept as c_int;
        };
        let spent = sys::now_us() - began;
        let left = self.timeout_us.map(|us| us.saturating_sub(spent));
        // SAFETY: the caller's promise.
        unsafe { self.wait_here(&held, memory, left, call) }
    }

    /// # Safety
    /// `events` has room for `count`.
    unsafe fn wait_here(
        &self,
        held: &Hold,
        memory: Memory,
        timeout_us: Option<u64>,
        call: Call,
    ) -> c_int {
        let room = || -> Result<usize> {
            if self.count <= 0 || self.count > EVENTS_MAX {
                return Err(Errno::INVAL);
            }
            let count = self.count as c_uint as usize;
            crate::sys::user_buffers::check(self.events.cast(), count * size_of::<epoll_event>())?;
            Ok(count)
        };
        let count = match room() {
            Ok(count) => count,
            Err(errno) => return fail(errno),
        };
        // SAFETY: the caller's promise; the program does not look at them meanwhile.
        let events = unsafe { std::slice::from_raw_parts_mut(self.events, count) };
        let wait = Wait {
            index: held.index(),
            events,
            timeout_us,
            mask: self.mask,
            call,
        };
        let count = length(epoll::wait(wait, memory)) as c_int;
        if count > 0 {
            thread_sanitizer::acquire();
        }
        count
    }
}
