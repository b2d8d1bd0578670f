//! Pipes inside a stack, for a program that waits for itself beside its sockets (`mtcp_pipe`).

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use millrace::Poll;

use crate::epoll::Watcher;

/// Bytes that a pipe holds, as on Linux.
pub const CAPACITY: usize = 65_536;

/// One end of a pipe.
pub struct End {
    pub pipe: Rc<RefCell<Pipe>>,
    pub writes: bool,
    pub nonblocking: bool,
    pub watchers: Vec<Watcher>,
}

#[derive(Default)]
pub struct Pipe {
    pub bytes: VecDeque<u8>,
    /// The keys of the end that reads and the one that writes, while they are open.
    pub ends: [Option<u32>; 2],
}

impl End {
    /// What it is ready for, as on Linux.
    pub fn poll(&self) -> Poll {
        let pipe = self.pipe.borrow();
        let mut bits = Poll::empty();
        if self.writes {
            bits.set(
                Poll::OUT,
                pipe.bytes.len() < CAPACITY || pipe.ends[0].is_none(),
            );
            bits.set(Poll::ERR, pipe.ends[0].is_none());
        } else {
            bits.set(Poll::IN, !pipe.bytes.is_empty());
            bits.set(Poll::HUP, pipe.ends[1].is_none());
        }
        bits
    }
}
