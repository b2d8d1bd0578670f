//! Answers that belong to no socket's own output: SYN-ACKs, resets, ACKs from TIME-WAIT, ICMP. They wait in a bounded queue for the
//! next transmit.

use std::collections::VecDeque;

use millrace_tcp::Outgoing;

use crate::connection_table::Tuple;

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

    /// Queues an answer; false when the queue is full.
    pub fn push(&mut self, reply: Reply) -> bool {
        if self.queue.len() >= self.limit {
            self.recycle(reply);
            return false;
        }
        self.queue.push_back(reply);
        true
    }

    /// Whether there is none.
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

/// A token bucket that is filled at the start of each second, for answers whose number is limited.
pub struct RateLimit {
    per_second: u32,
    left: u32,
    second: u64,
}

impl RateLimit {
    /// At most `per_second` in each second.
    pub fn new(per_second: u32) -> RateLimit {
        RateLimit {
            per_second,
            left: per_second,
            second: 0,
        }
    }

    /// Whether one more is within the limit.
    pub fn allow(&mut self, now: millrace_tcp::Instant) -> bool {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.left = self.per_second;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        true
    }
}
