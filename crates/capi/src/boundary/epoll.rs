//! Waiting for many.

use std::ffi::c_int;

use libc::{epoll_event, nfds_t, pollfd};

use super::pointer;
use crate::epoll::{Control, Event, Set};
use crate::here;
use crate::outcome::call;
use crate::poll::Asked;
use crate::things::Thing;

/// Descriptors that one call waits for: as many as there are.
const POLLED_MAX: usize = 1 << 22;

/// As epoll_create1, in this thread's stack: a set of sockets of that stack. EPOLL_CLOEXEC means
/// nothing; EINVAL for other flags, ENODEV when the thread has no stack.
#[unsafe(no_mangle)]
pub extern "C" fn mr_epoll_create(flags: c_int) -> c_int {
    call(|| {
        if flags & !libc::EPOLL_CLOEXEC != 0 {
            return Err(libc::EINVAL);
        }
        let host = here::current()?;
        let key = host.things.borrow_mut().insert(Thing::Set(Set::default()));
        here::name(&host, key)
    })
}

/// As epoll_ctl: level, EPOLLET and EPOLLONESHOT. EINVAL for other flags (EPOLLEXCLUSIVE: only one
/// thread waits), for a set in a set, and for a socket of another stack; descriptors of the
/// kernel's are EBADF: have it wait for mr_stack_descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    call(|| {
        let (host, set) = here::named(epfd)?;
        let (other, key) = here::named(fd)?;
        if !std::rc::Rc::ptr_eq(&host, &other) {
            return Err(libc::EINVAL);
        }
        let control = match op {
            libc::EPOLL_CTL_DEL => Control::Delete,
            libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD => {
                // SAFETY: as the header says of pointers.
                let event = unsafe { pointer::get(event)? };
                match op {
                    libc::EPOLL_CTL_ADD => Control::Add(event.events, event.u64),
                    _ => Control::Modify(event.events, event.u64),
                }
            }
            _ => return Err(libc::EINVAL),
        };
        host.control(set, key, control)?;
        Ok(0)
    })
}

/// As poll, of descriptors of one stack of this thread's. A negative one is passed over; POLLNVAL
/// tells of what is none of this thread's, and of a set. The stack works as in mr_epoll_wait, which
/// costs less for many. EINVAL for descriptors of two stacks, and for more than 4,194,304; ENODEV
/// for none at all when the thread has no stack; EINTR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_poll(fds: *mut pollfd, nfds: nfds_t, timeout_ms: c_int) -> c_int {
    call(|| {
        let count = usize::try_from(nfds).map_err(|_| libc::EINVAL)?;
        if count > POLLED_MAX {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the header says of pointers.
        let fds = unsafe { pointer::values_mut(fds, count)? };
        let mut one = None;
        let mut all = Vec::new();
        for polled in fds.iter().filter(|polled| polled.fd >= 0) {
            let named = here::named(polled.fd).ok();
            let named = named.filter(|(host, key)| host.can_be_polled(*key));
            if let Some((host, _)) = &named {
                let first = one.get_or_insert_with(|| host.clone());
                if !std::rc::Rc::ptr_eq(first, host) {
                    return Err(libc::EINVAL);
                }
            }
            all.push(Asked {
                key: named.map(|(_, key)| key),
                events: polled.events,
                found: 0,
            });
        }
        let host = match one {
            Some(host) => Some(host),
            None if all.is_empty() => Some(here::current()?),
            None => None,
        };
        let found = match host {
            Some(host) => host.poll(&mut all, timeout_ms)?,
            // Nothing but numbers that name nothing.
            None => {
                all.iter_mut().for_each(|one| one.found = libc::POLLNVAL);
                all.len()
            }
        };
        let mut all = all.into_iter();
        for polled in fds {
            polled.revents = match polled.fd {
                0.. => all.next().map_or(0, |one| one.found),
                _ => 0,
            };
        }
        Ok(found as c_int)
    })
}

/// As epoll_wait. This is where the stack works: what was written leaves, what has come is seen,
/// before it looks and while it waits. EINTR after a signal. With the caller's clock or packets it
/// never waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout_ms: c_int,
) -> c_int {
    call(|| {
        let (host, key) = here::named(epfd)?;
        if maxevents <= 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the header says of pointers; every one of them is written before it is
        // counted.
        let room = unsafe { pointer::places(events, maxevents as usize)? };
        let mut told = 0;
        let tell = |event: Event| {
            room[told].write(epoll_event {
                events: event.events,
                u64: event.data,
            });
            told += 1;
        };
        let count = host.wait_for(key, maxevents as usize, timeout_ms, tell)?;
        Ok(count as c_int)
    })
}
