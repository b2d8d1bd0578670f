//! The shim's files, and what they ask of the rest of it.

#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/bits.rs"]
pub mod bits;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/epoll.rs"]
pub mod epoll;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/epoll_sets.rs"]
pub mod epoll_sets;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/interest_list.rs"]
pub mod interest_list;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/poller.rs"]
pub mod poller;
#[allow(dead_code, reason = "the checks need some of it")]
#[path = "../../../../crates/preload/src/readiness/ready_list.rs"]
pub mod ready_list;

/// Sets in sets: there are none in a check.
pub mod nested_epoll {
    use libc::epoll_event;

    pub fn report(_: u32, _: (u32, u32), event: epoll_event) -> Option<epoll_event> {
        Some(event)
    }
}

/// What a socket is ready for: to be read, once something has come.
pub mod poll_mask {
    use millrace_context::sync::Ordering;

    use crate::readiness::bits;
    use crate::readiness::interest_list::Edge;
    use crate::socket::Socket;

    pub fn of(socket: &Socket, _interest: u32) -> (u32, Edge) {
        let received = socket.slot.engine.received.load(Ordering::Acquire);
        let ready = if received > 0 { bits::IN } else { 0 };
        let edge = Edge {
            received,
            ..Edge::default()
        };
        (ready, edge)
    }
}

/// Sleeps in the kernel's set.
pub mod sleep {
    use std::ffi::c_int;

    use libc::epoll_event;

    use crate::kernel;
    use crate::sys::Result;

    #[derive(Clone, Copy)]
    pub struct Call;

    impl Call {
        pub fn epoll(
            self,
            _set: c_int,
            events: &mut [epoll_event],
            timeout_us: Option<u64>,
            _mask: *const libc::sigset_t,
        ) -> Result<usize> {
            assert!(timeout_us.is_none(), "no time passes in a check");
            Ok(kernel::wait(events))
        }
    }
}
