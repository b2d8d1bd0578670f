//! Hooks of poll and select.

use std::ffi::{c_int, c_void};

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use rustix::io::Errno;

use super::epoll::flush;
use super::timeout::{duration, ms};
use super::{check_buffer, fail, hooks, length};
use crate::fd::{placeholder, table};
use crate::readiness::poll as polling;
use crate::readiness::poll::Begun;
use crate::readiness::select::{self, Bits, Sets};
use crate::sys::{self, Result};
use crate::sys::{original, user_buffers};

hooks! {
    /// Polls.
    fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        let begun = Begun::now(std::ptr::null());
        loop {
            if let Some(fds) = ours(fds, count) {
                return length(polling::poll(fds, begun, ms(timeout), std::ptr::null())) as c_int;
            }
            let result = original::poll(fds, count, timeout);
            if result <= 0 || !has_met_socket(fds, count) {
                return result;
            }
        }
    }

    /// An alias of the function above.
    fn __poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
        poll(fds, count, timeout)
    }

    /// The fortified form of the function above, which checks the array's size.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: size_t) -> c_int {
        check_buffer(count as size_t, room / size_of::<pollfd>());
        poll(fds, count, timeout)
    }

    /// Polls with a signal mask.
    fn ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        let begun = Begun::now(mask);
        loop {
            if let Some(fds) = ours(fds, count) {
                let result = duration(timeout)
                    .and_then(|timeout| polling::poll(fds, begun, timeout, mask));
                return length(result) as c_int;
            }
            let result = original::ppoll(fds, count, timeout, mask);
            if result <= 0 || !has_met_socket(fds, count) {
                return result;
            }
        }
    }

    /// The fortified form of the function above, which checks the array's size.
    fn __ppoll_chk(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
        room: size_t,
    ) -> c_int {
        check_buffer(count as size_t, room / size_of::<pollfd>());
        ppoll(fds, count, timeout, mask)
    }

    /// Waits for the members of three sets. As on Linux, the time-out becomes the remaining time.
    fn select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        let sets = match sets(count, read, write, except) {
            Ok(Some(sets)) => sets,
            Ok(None) => return original::select(count, read, write, except, timeout),
            Err(errno) => return fail(errno),
        };
        if timeout.is_null() {
            return length(sets.wait(None, std::ptr::null())) as c_int;
        }
        if user_buffers::check(timeout.cast::<c_void>(), size_of::<timeval>()).is_err() {
            return fail(Errno::FAULT);
        }
        let given = *timeout;
        if given.tv_sec < 0 || given.tv_usec < 0 {
            return fail(Errno::INVAL);
        }
        let us = (given.tv_sec as u64)
            .saturating_mul(1_000_000)
            .saturating_add(given.tv_usec as u64);
        let start = sys::now_us();
        let result = sets.wait(Some(us), std::ptr::null());
        let left = us.saturating_sub(sys::now_us() - start);
        (*timeout).tv_sec = (left / 1_000_000) as libc::time_t;
        (*timeout).tv_usec = (left % 1_000_000) as libc::suseconds_t;
        length(result) as c_int
    }

    /// An alias of the function above.
    fn __select(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *mut timeval,
    ) -> c_int {
        select(count, read, write, except, timeout)
    }

    /// Waits for the members of three sets with a signal mask.
    fn pselect(
        count: c_int,
        read: *mut fd_set,
        write: *mut fd_set,
        except: *mut fd_set,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        match sets(count, read, write, except) {
            Ok(Some(sets)) => {
                let result = duration(timeout).and_then(|timeout| sets.wait(timeout, mask));
                length(result) as c_int
            }
            Ok(None) => original::pselect(count, read, write, except, timeout, mask),
            Err(errno) => fail(errno),
        }
    }
}

/// Whether the kernel has polled the placeholder because another thread has put a millrace socket
/// there meanwhile. Then the call polls again. A number that is about to be closed is reported as
/// not open.
///
/// # Safety
/// The kernel has polled `count` entries.
unsafe fn has_met_socket(fds: *mut pollfd, count: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    let fds = unsafe { std::slice::from_raw_parts_mut(fds, count as usize) };
    let mut met = false;
    for polled in fds
        .iter_mut()
        .filter(|polled| polling::is_placeholder(polled))
    {
        polled.revents = libc::POLLNVAL;
        met |= !table::is_kernel(polled.fd);
    }
    met
}

/// The polled entries, if one of them concerns the shim. If none does, this rings the doorbells
/// that the thread owes before it waits in the kernel.
///
/// # Safety
/// There are `count` entries, or the pointer is invalid.
unsafe fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    let count = count as usize;
    let good = count > 0
        && count <= crate::fd::table::DESCRIPTORS_MAX
        && user_buffers::check(fds.cast(), count * size_of::<pollfd>()).is_ok();
    if good {
        // SAFETY: the caller's promise; the program does not look at them meanwhile.
        let fds = unsafe { std::slice::from_raw_parts_mut(fds, count) };
        if polling::concerns_us(fds) {
            return Some(fds);
        }
    }
    flush();
    None
}

/// # Safety
/// The sets are good as select wants them.
unsafe fn sets(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
) -> Result<Option<Sets>> {
    let count = select::count(count)?;
    // SAFETY: the caller's promise.
    let sets = unsafe {
        Sets {
            count,
            read: Bits::new(read, count)?,
            write: Bits::new(write, count)?,
            except: Bits::new(except, count)?,
        }
    };
    // The result of select does not say which of the kernel's descriptors are open.
    if sets.concerns_us() || placeholder::exists() {
        return Ok(Some(sets));
    }
    flush();
    Ok(None)
}
