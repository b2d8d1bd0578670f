//! Sockets that come to belong to another program.

use millrace_tcp::Instant;

use crate::base::Base;
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::socket::{Kind, Marks, Socket};
use crate::tcp::state::Tcp;

impl Tcp {
    /// The socket at `index` for streams belongs to `owner` from now on, which calls it `label`.
    pub fn change_owner<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        owner: Owner,
        label: u32,
        now: Instant,
    ) -> Result<(), Error> {
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let before = socket.owner;
        let mut waiting = Vec::new();
        match &mut socket.kind {
            Kind::Stream(stream) => {
                if !stream.change_owner(&mut base.memory, &mut base.send_memory, before, owner) {
                    return Err(Error::NoMemory);
                }
            }
            Kind::Bound { local } => {
                if socket.marks.contains(Marks::BOUND)
                    && let Some(bound) = self.ports.bound_mut(local.port(), index)
                {
                    bound.owner = owner;
                }
            }
            Kind::Listener(listener) => {
                listener.backlog.rename(label);
                if let Some(bound) = self.ports.bound_mut(listener.local.port(), index) {
                    bound.owner = owner;
                }
                waiting.extend(&listener.queue);
            }
            Kind::Datagram(_) => return Err(Error::NotSupported),
        }
        socket.owner = owner;
        for waiting in waiting {
            if !self.change_waiting(base, waiting, before, owner) {
                self.reset_waiting(base, index, waiting, now);
            }
        }
        Ok(())
    }

    /// A connection that waits in a listener's queue goes with it; false when there is no room for
    /// what it holds.
    fn change_waiting<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        before: Owner,
        owner: Owner,
    ) -> bool {
        let Some(socket) = base.sockets.get_mut(index) else {
            return true;
        };
        let Some(stream) = socket.stream_mut() else {
            return true;
        };
        if !stream.change_owner(&mut base.memory, &mut base.send_memory, before, owner) {
            return false;
        }
        socket.owner = owner;
        true
    }

    /// A connection that waits in a listener's queue is reset.
    fn reset_waiting<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        listener: u32,
        waiting: u32,
        now: Instant,
    ) {
        let listener = base.sockets.get_mut(listener);
        if let Some(listener) = listener.and_then(Socket::listener_mut) {
            listener.queue.retain(|index| *index != waiting);
            listener.backlog.retract();
        }
        if let Some(socket) = base.sockets.get_mut(waiting) {
            socket.marks.remove(Marks::UNACCEPTED);
            self.discard_stream(base, waiting, true, now);
        }
    }
}
