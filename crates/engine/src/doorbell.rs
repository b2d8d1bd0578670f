//! Doorbells between the engine and programs: eventfds on which neither side can block the other.
//!
//! O_NONBLOCK belongs to the open file, which all holders of a descriptor share. A program could
//! clear it and fill the counter, and the next write of the engine would block for ever. Or it
//! could empty the counter. So nobody writes to an eventfd that another process can block:
//!
//! - A program rings a shard with an eventfd of its own, one for each shard. The shard has it in
//!   its epoll set, edge-triggered, and never reads it.
//! - The engine rings a poller with an eventfd that the program does not have. The program gets an
//!   epoll set that contains the eventfd: the set is readable after each ring, and the eventfd
//!   cannot be reached through it.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, epoll, eventfd};

/// A new doorbell.
pub fn doorbell() -> io::Result<Arc<OwnedFd>> {
    Ok(Arc::new(eventfd(
        0,
        EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
    )?))
}

/// Rings a doorbell. The caller must own it: a process that shares the file can make this block.
pub fn ring(doorbell: BorrowedFd<'_>) {
    // It fails only when the counter is full. Then the doorbell is rung already.
    let _ = rustix::io::write(doorbell, &1u64.to_ne_bytes());
}

/// A descriptor that is readable after each ring of `doorbell`, until `epoll_wait` is called on it.
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
