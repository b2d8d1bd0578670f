//! Doorbells between the engine and programs: eventfds that neither side can make the other one wait at.
//!
//! O_NONBLOCK belongs to an open file, which everybody has in common who holds a descriptor of it: a program could clear it and fill the counter, and
//! the engine's next write would wait for ever; or it could empty the counter of another one. So nobody writes what another one can hold up:
//!
//! - A program rings a shard by an eventfd of its own, one for each shard, which the shard has in its epoll set, edge-triggered, and never reads.
//! - The engine rings a poller by an eventfd that the program does not have. The program gets an epoll set with that eventfd in it, which is
//!   readable after each ring and gives no way to the eventfd itself.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};

/// A new one.
pub fn doorbell() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?))
}

/// Rings one. Of one that others have, this may wait for them: that is for those who made it.
pub fn ring(doorbell: BorrowedFd<'_>) {
    // It can only fail when the counter is full, and then it is rung already.
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// A descriptor that is readable after each ring of `doorbell`, until it is waited for (`epoll_wait`).
pub(crate) fn listener(doorbell: &OwnedFd) -> io::Result<OwnedFd> {
    let listener = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let nothing = epoll::EventData::new_u64(0);
    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(&listener, doorbell, nothing, edge)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use rustix::event::Timespec;
    use std::mem::MaybeUninit;

    const AT_ONCE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };

    fn is_readable(set: &OwnedFd) -> bool {
        let mut events = [const { MaybeUninit::uninit() }; 4];
        let (events, _) = epoll::wait(set, &mut events, Some(&AT_ONCE)).unwrap();
        !events.is_empty()
    }

    fn set_with(descriptor: &OwnedFd, flags: epoll::EventFlags) -> OwnedFd {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&set, descriptor, epoll::EventData::new_u64(1), flags).unwrap();
        set
    }

    #[test]
    fn each_ring_is_an_edge_to_who_has_the_listener_in_a_set() {
        let bell = doorbell().unwrap();
        let listener = listener(&bell).unwrap();
        let set = set_with(&listener, epoll::EventFlags::IN | epoll::EventFlags::ET);
        assert!(!is_readable(&set));
        for _ in 0..3 {
            ring(bell.as_fd());
            ring(bell.as_fd());
            assert!(is_readable(&set), "nobody has read the counter");
            assert!(!is_readable(&set), "once for what was rung together");
        }
    }

    #[test]
    fn a_listener_is_readable_until_it_is_waited_for() {
        let bell = doorbell().unwrap();
        let listener = listener(&bell).unwrap();
        let set = set_with(&listener, epoll::EventFlags::IN);
        for _ in 0..3 {
            assert!(!is_readable(&set));
            ring(bell.as_fd());
            assert!(is_readable(&set) && is_readable(&set));
            assert!(is_readable(&listener));
        }
        assert!(!is_readable(&set));
    }
}
