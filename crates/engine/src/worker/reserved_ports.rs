//! Ports of addresses that the engine shares with the kernel: one that a program asks for is taken from the kernel before it is bound, and given back once no socket and no
//! connection has it.

use std::net::{IpAddr, SocketAddr};

use millrace_port::xdp::Transport;
use millrace_shard::{Error, Options, Owner, SocketId};

use crate::worker::Worker;

impl Worker {
    /// Binds in this shard, as `Shard::bind_with`.
    pub(crate) fn bind_here(
        &mut self,
        owner: Owner,
        local: SocketAddr,
        options: &Options,
    ) -> Result<SocketId, Error> {
        self.hold(Transport::Tcp, local)?;
        let bound = self.shard.bind_with(owner, local, options);
        self.release_unless_used(Transport::Tcp, local);
        bound
    }

    /// Binds a datagram socket in this shard, as `Shard::bind_datagram`.
    pub(crate) fn bind_datagram_here(
        &mut self,
        id: SocketId,
        local: SocketAddr,
        options: &Options,
    ) -> Result<(), Error> {
        self.hold(Transport::Udp, local)?;
        let bound = self.shard.bind_datagram(id, local, options);
        self.release_unless_used(Transport::Udp, local);
        bound
    }

    fn hold(&mut self, transport: Transport, local: SocketAddr) -> Result<(), Error> {
        let is_shared = local.port() != 0 && !local.ip().to_canonical().is_loopback();
        let (Some(held), true) = (&self.reserved_ports, is_shared) else {
            return Ok(());
        };
        // Nobody sees an address that is not there; the shard says so.
        if let IpAddr::V6(ip) = local.ip().to_canonical()
            && !ip.is_unspecified()
        {
            return Ok(());
        }
        let taken = held.hold(transport, local.port(), self.own);
        taken.map_err(|error| match error.kind() {
            std::io::ErrorKind::AddrInUse => Error::AddressInUse,
            _ => Error::NoMemory,
        })
    }

    /// What was held for a bind that was refused, and for nothing else, is given back.
    fn release_unless_used(&mut self, transport: Transport, local: SocketAddr) {
        let datagrams = transport == Transport::Udp;
        if let Some(held) = &self.reserved_ports
            && !self.shard.is_port_used(local.port(), datagrams)
        {
            held.release(transport, local.port(), self.own);
        }
    }

    /// Gives back what nobody here has any more.
    pub(crate) fn give_ports_back(&mut self) {
        let Some(held) = &self.reserved_ports else {
            return;
        };
        for transport in [Transport::Tcp, Transport::Udp] {
            while let Some(port) = self.shard.take_freed_port(transport == Transport::Udp) {
                held.release(transport, port, self.own);
            }
        }
    }
}
