//! Answers that belong to no socket's own output: SYN-ACKs, resets, ACKs from TIME-WAIT, ICMP. They
//! wait in a bounded queue for the next transmit.

use std::collections::VecDeque;

use millrace_tcp::Outgoing;

use crate::connection_table::Tuple;
use crate::counters::Counters;

/// An answer.
#[derive(Debug)]
pub enum Reply {
    /// A TCP segment without payload.
    Segment(Tuple, Outgoing),
    /// A whole IP packet, in a buffer of [`ReplyQueue`].
    Packet(Vec<u8>),
}

/// The queue, with buffers that are used again.
pub struct ReplyQueue {
    queue: VecDeque<Reply>,
    limit: usize,
    buffers: Vec<Vec<u8>>,
}

/// Buffers kept for reuse, and the size beyond which one is not kept.
const BUFFERS_MAX: usize = 256;
const BUFFER_KEEP: usize = 4096;

impl ReplyQueue {
    /// An empty queue of at most `limit` answers.
    pub fn new(limit: u32) -> ReplyQueue {
        ReplyQueue {
            queue: VecDeque::new(),
            limit: limit as usize,
            buffers: Vec::new(),
        }
    }

    /// Queues a reply for the next transmit. When the queue is full the reply is dropped.
    pub fn push(&mut self, counters: &mut Counters, reply: Reply) {
        if self.queue.len() >= self.limit {
            counters.replies_dropped += 1;
            self.recycle(reply);
            return;
        }
        self.queue.push_back(reply);
    }

    /// Queues the IP packet that `write` appends to an empty buffer.
    pub fn push_packet(&mut self, counters: &mut Counters, write: impl FnOnce(&mut Vec<u8>)) {
        let mut buffer = self.buffer();
        write(&mut buffer);
        self.push(counters, Reply::Packet(buffer));
    }

    /// Whether it is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The next answer.
    #[inline]
    pub fn pop(&mut self) -> Option<Reply> {
        self.queue.pop_front()
    }

    /// Puts an answer back that could not be sent.
    pub fn unpop(&mut self, reply: Reply) {
        self.queue.push_front(reply);
    }

    /// Number of answers.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// An empty buffer for a packet.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Takes an answer's buffer back.
    pub fn recycle(&mut self, reply: Reply) {
        if let Reply::Packet(mut buffer) = reply
            && buffer.capacity() <= BUFFER_KEEP
            && self.buffers.len() < BUFFERS_MAX
        {
            buffer.clear();
            self.buffers.push(buffer);
        }
    }
}
