//! Waiting for many.

use std::ffi::c_int;

use libc::epoll_event;

use super::pointer;
use crate::epoll::{Control, Event, Set};
use crate::here;
use crate::host::Thing;
use crate::outcome::call;

/// As epoll_create1, in this thread's stack: a set of sockets of that stack. EPOLL_CLOEXEC means nothing; EINVAL for other flags, ENODEV when the thread has no stack.
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

/// As epoll_ctl: level, EPOLLET and EPOLLONESHOT. EINVAL for other flags (EPOLLEXCLUSIVE: only one thread waits), for a set in a set, and for a socket of another
/// stack; descriptors of the kernel's are EBADF: have it wait for mr_stack_descriptor.
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

/// As epoll_wait. This is where the stack works: what was written leaves, what has come is seen, before it looks and while it waits. EINTR after a signal. With the
/// caller's clock or packets it never waits.
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
        // SAFETY: as the header says of pointers; every one of them is written before it is counted.
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
