//! The connections that are to be served, in turn.

use std::collections::VecDeque;

use crate::socket::Socket;
use crate::socket::marks::Marks;

/// Connections that may have something to send, each once, in the order in which they came.
#[derive(Default)]
pub(crate) struct Ready {
    /// Those with nothing in their send ring: an ACK or some control segment.
    control: VecDeque<u32>,
    /// Those with data.
    data: VecDeque<u32>,
}

impl Ready {
    /// Puts the socket at `index` in line, if it is not there.
    #[inline(always)]
    pub fn add(&mut self, index: u32, socket: &mut Socket) {
        if socket.marks.contains(Marks::READY) {
            return;
        }
        socket.marks.insert(Marks::READY);
        match socket.stream() {
            Some(stream) if stream.send.len() > 0 => self.data.push_back(index),
            _ => self.control.push_back(index),
        }
    }

    /// The next: control before data.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        self.control.pop_front().or_else(|| self.data.pop_front())
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }
}
