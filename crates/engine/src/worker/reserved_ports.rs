//! Ports of addresses that the engine shares with the kernel.
//!
//! A port that a program asks for is taken from the kernel before it is bound. The kernel gets it
//! back when no socket and no connection has it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use millrace_port::xdp::{Held, Transport};
use millrace_shard::{Error, Options, Owner, Shard, SocketId};

use crate::shared::arenas::Arenas;

/// The ports that one shard has reserved.
pub(crate) struct ReservedPorts {
    /// None: the engine shares no address with the kernel.
    reserved_ports: Option<Arc<Held>>,
    own: u32,
}

impl ReservedPorts {
    /// The ports of shard `own`.
    pub(crate) fn new(reserved_ports: Option<Arc<Held>>, own: u32) -> ReservedPorts {
        ReservedPorts {
            reserved_ports,
            own,
        }
    }

    /// Binds a stream socket, as `Shard::bind_with` does.
    pub(crate) fn bind_stream(
        &self,
        shard: &mut Shard<Arenas>,
        owner: Owner,
        local: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        self.reserve(Transport::Tcp, local)?;
        let bound = shard.bind_with(owner, local, options);
        self.release_unless_used(shard, Transport::Tcp, local);
        bound
    }

    /// Binds a datagram socket, as `Shard::bind_datagram` does.
    pub(crate) fn bind_datagram(
        &self,
        shard: &mut Shard<Arenas>,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        self.reserve(Transport::Udp, local)?;
        let bound = shard.bind_datagram(id, local, options);
        self.release_unless_used(shard, Transport::Udp, local);
        bound
    }

    fn reserve(&self, transport: Transport, local: SocketAddr) -> Result<(), Error> {
        let is_shared = local.port() != 0 && !local.ip().to_canonical().is_loopback();
        let (Some(held), true) = (&self.reserved_ports, is_shared) else {
            return Ok(());
        };
        // The engine shares IPv4 addresses only. The shard refuses any other IPv6 address.
        if let IpAddr::V6(ip) = local.ip().to_canonical()
            && !ip.is_unspecified()
        {
            return Ok(());
        }
        let taken = held.hold(transport, local.port(), self.own);
        taken.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => Error::AddressInUse,
            _ => Error::NoMemory,
        })
    }

    /// Releases a port that was reserved for a bind that failed, unless another socket has it.
    fn release_unless_used(&self, shard: &Shard<Arenas>, transport: Transport, local: SocketAddr) {
        let datagrams = transport == Transport::Udp;
        if let Some(held) = &self.reserved_ports
            && !shard.is_port_used(local.port(), datagrams)
        {
            held.release(transport, local.port(), self.own);
        }
    }

    /// Releases the ports that the shard does not use any more.
    pub(crate) fn release_unused(&self, shard: &mut Shard<Arenas>) {
        let Some(held) = &self.reserved_ports else {
            return;
        };
        for transport in [Transport::Tcp, Transport::Udp] {
            while let Some(port) = shard.take_freed_port(transport == Transport::Udp) {
                held.release(transport, port, self.own);
            }
        }
    }
}
