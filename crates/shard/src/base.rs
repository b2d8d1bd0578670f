//! The state that every transport protocol of a shard uses: the network layer, sockets and memory.

use crate::connection_table::Tuple;
use crate::env::Env;
use crate::error::Error;
use crate::memory::Memory;
use crate::memory::send_memory::SendMemory;
use crate::network::Network;
use crate::slab::Slab;
use crate::socket::id::SocketId;
use crate::socket::{Kind, OptionSharing, Socket, note_changed};
use crate::steering::misrouted::Steering;
use crate::udp::socket::Datagram;

/// Passed to TCP and UDP, so that neither needs the shard, and neither sees the other.
pub(crate) struct Base<M: Memory> {
    pub env: Env,
    /// Where receive rings live.
    pub memory: M,
    pub send_memory: SendMemory,
    pub network: Network,
    pub sockets: Slab<Socket>,
    pub sharing: OptionSharing,
    /// Sockets whose view has changed.
    pub changed: Vec<SocketId>,
    /// Which frames belong to other shards.
    pub steering: Steering,
}

impl<M: Memory> Base<M> {
    /// The index of a socket that a program holds.
    #[inline]
    pub fn check(&self, id: SocketId) -> Result<u32, Error> {
        match self.sockets.get_of_generation(id.index(), id.generation) {
            Some(socket) if socket.has_program() => Ok(id.index()),
            _ => Err(Error::NoSocket),
        }
    }

    /// The id of the socket at `index`.
    pub fn id_of(&self, index: u32) -> SocketId {
        SocketId::new(index, self.sockets.generation(index))
    }

    /// Adds a socket.
    #[inline(always)]
    pub fn insert_socket(&mut self, make: impl FnOnce() -> Socket) -> Result<u32, Error> {
        self.sockets.insert_with(make).ok_or_else(|| {
            self.env.counters.sockets_refused += 1;
            Error::TooManySockets
        })
    }

    /// The view of the socket at `index` has changed.
    pub fn mark_changed(&mut self, index: u32) {
        if let Some((socket, generation)) = self.sockets.get_mut_with_generation(index) {
            note_changed(&mut self.changed, SocketId::new(index, generation), socket);
        }
    }

    /// Whether a segment of a connection that is not in the table belongs to another shard.
    #[cold]
    pub fn is_misrouted(&mut self, tuple: &Tuple) -> bool {
        let steer = self.env.config.steer.as_ref();
        self.steering
            .is_segment_misrouted(steer, &mut self.env.counters, tuple)
    }

    /// Whether a datagram belongs to another shard; `home` owns its socket.
    pub fn is_datagram_misrouted(&mut self, home: Option<u16>, tuple: &Tuple) -> bool {
        let steer = self.env.config.steer.as_ref();
        self.steering
            .is_datagram_misrouted(steer, &mut self.env.counters, home, tuple)
    }

    /// The socket for datagrams at `index`.
    pub fn datagram_of(&self, index: u32) -> Result<(&Socket, &Datagram), Error> {
        let socket = self.sockets.get(index).ok_or(Error::NoSocket)?;
        match &socket.kind {
            Kind::Datagram(datagram) => Ok((socket, datagram)),
            _ => Err(Error::NotSupported),
        }
    }

    /// The state of the socket for datagrams at `index`, to change.
    pub fn datagram_mut(&mut self, index: u32) -> Option<&mut Datagram> {
        match &mut self.sockets.get_mut(index)?.kind {
            Kind::Datagram(datagram) => Some(datagram),
            _ => None,
        }
    }
}
