//! The queues of a port: posted buffers, offered windows, and completions.

use std::collections::VecDeque;

use crate::buffers::Buffers;
use crate::types::{BufferId, Channel, Counters, Failure, Limits, PortName, Received, Sent};

/// The queues and buffers of a port, which all its sessions share.
#[derive(Debug)]
pub struct Queues {
    pub(crate) limits: Limits,
    pub(crate) buffers: Buffers,
    pub(crate) normal: Vec<VecDeque<BufferId>>,
    pub(crate) open: Vec<Option<BufferId>>,
    pub(crate) sent: VecDeque<Sent>,
    pub(crate) received: VecDeque<Received>,
    /// Requests without a completion.
    pub(crate) outstanding: usize,
    /// Writes into windows that are under way or were not read.
    pub(crate) window_writes: usize,
    /// Something may be granted that could not be before.
    pub(crate) may_grant: bool,
    pub(crate) counters: Counters,
}

impl Queues {
    /// Ends a request.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        to: PortName,
        tag: u64,
        buffer: Option<BufferId>,
        result: Result<(), Failure>,
    ) {
        if let Some(buffer) = buffer {
            self.buffers.end_send(buffer);
        }
        self.outstanding -= 1;
        match result {
            Ok(()) => self.counters.sent += 1,
            Err(_) => self.counters.failed += 1,
        }
        self.sent.push_back(Sent { tag, to, result });
    }

    /// A message is whole.
    #[inline]
    pub(crate) fn receive(&mut self, message: Received) {
        self.counters.received += 1;
        self.received.push_back(message);
    }

    /// Finds where a message of `len` bytes goes; none if it has to wait.
    pub(crate) fn claim(
        &mut self,
        channel: Channel,
        len: u32,
        offset: u64,
    ) -> Result<Option<BufferId>, Failure> {
        let size = |buffers: &Buffers, id| buffers.bytes(id).map_or(0, <[u8]>::len) as u64;
        match channel {
            Channel::System => Err(Failure::NoSuchChannel),
            Channel::Normal(_) if offset != 0 => Err(Failure::OutOfRange),
            Channel::Normal(number) => {
                let posted = &mut self.normal[usize::from(number)];
                let Some(&buffer) = posted.front() else {
                    return Ok(None);
                };
                if u64::from(len) > size(&self.buffers, buffer) {
                    return Err(Failure::TooLong);
                }
                posted.pop_front();
                Ok(Some(buffer))
            }
            Channel::Open(number) => {
                let Some(window) = self.open[usize::from(number)] else {
                    return Ok(None);
                };
                let end = offset.checked_add(u64::from(len));
                if end.is_none_or(|end| end > size(&self.buffers, window)) {
                    return Err(Failure::OutOfRange);
                }
                if self.window_writes >= self.limits.window_writes {
                    return Ok(None);
                }
                self.window_writes += 1;
                Ok(Some(window))
            }
        }
    }

    /// A message will not come for which a place was found.
    pub(crate) fn give_back(&mut self, channel: Channel, buffer: BufferId) {
        match channel {
            Channel::Normal(number) => self.normal[usize::from(number)].push_front(buffer),
            _ => self.window_writes -= 1,
        }
        self.may_grant = true;
    }
}
