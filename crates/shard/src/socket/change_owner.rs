//! Sockets that come to belong to another program.

use millrace_tcp::Instant;

use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::shard::Shard;
use crate::socket::{Kind, Marks, Socket, SocketId};

impl<M: Memory> Shard<M> {
    /// A socket belongs to `owner` from now on, which calls it `label`: with what has not been
    /// read, and if it listens with the connections that wait here.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when `owner` has no room for what has not been read: then nothing has
    /// changed. Of connections that wait, those are reset that it has no room for.
    pub fn change_owner(
        &mut self,
        id: SocketId,
        owner: Owner,
        label: u32,
        now: Instant,
    ) -> Result<(), Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let before = socket.owner;
        let mut waiting = Vec::new();
        match &mut socket.kind {
            Kind::Stream(stream) => {
                if !stream
                    .recv
                    .change_owner(&mut self.base.memory, before, owner)
                {
                    return Err(Error::NoMemory);
                }
                stream.send.leave(&mut self.base.send_memory, before);
                stream.send.join(&mut self.base.send_memory, owner);
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
            Kind::Datagram(datagram) => {
                let ring = &mut datagram.recv;
                if !ring.change_owner(&mut self.base.memory, before, owner) {
                    return Err(Error::NoMemory);
                }
                datagram.label = label;
                if let Some(bound) = self.udp.ports_mut().bound_mut(datagram.local.port(), index) {
                    bound.owner = owner;
                }
            }
        }
        socket.owner = owner;
        for waiting in waiting {
            if !self.change_waiting(waiting, before, owner) {
                self.reset_waiting(index, waiting, now);
            }
        }
        Ok(())
    }

    /// A connection that waits in a listener's queue goes with it; false when there is no room for
    /// what it holds.
    fn change_waiting(&mut self, index: u32, before: Owner, owner: Owner) -> bool {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return true;
        };
        let Some(stream) = socket.stream_mut() else {
            return true;
        };
        if !stream
            .recv
            .change_owner(&mut self.base.memory, before, owner)
        {
            return false;
        }
        stream.send.leave(&mut self.base.send_memory, before);
        stream.send.join(&mut self.base.send_memory, owner);
        socket.owner = owner;
        true
    }

    /// A connection that waits in a listener's queue is reset.
    fn reset_waiting(&mut self, listener: u32, waiting: u32, now: Instant) {
        let listener = self.base.sockets.get_mut(listener);
        if let Some(listener) = listener.and_then(Socket::listener_mut) {
            listener.queue.retain(|index| *index != waiting);
            listener.backlog.retract();
        }
        if let Some(socket) = self.base.sockets.get_mut(waiting) {
            socket.marks.remove(Marks::UNACCEPTED);
            self.discard(waiting, true, now);
        }
    }
}
