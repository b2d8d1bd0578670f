//! The groups that a datagram socket has joined.

use std::net::IpAddr;

use millrace_tcp::Instant;

use crate::error::Error;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::socket::SocketId;

/// Groups that one socket may join (Linux's `igmp_max_memberships`).
const JOINED_MAX: usize = 20;

impl<M: Memory> Shard<M> {
    /// A socket joins a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an address that is no group, [`Error::AddressInUse`] when the socket has
    /// joined it already, [`Error::NoMemory`] when it has joined too many.
    pub fn join(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        if !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        if datagram.groups.contains(&group) {
            return Err(Error::AddressInUse);
        }
        if datagram.groups.len() >= JOINED_MAX {
            return Err(Error::NoMemory);
        }
        datagram.groups.push(group);
        self.network.join(&mut self.env, group, now);
        Ok(())
    }

    /// A socket leaves a group.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when the socket has not joined it.
    pub fn leave(&mut self, id: SocketId, group: IpAddr, _now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        let at = datagram.groups.iter().position(|joined| *joined == group);
        let at = at.ok_or(Error::AddressNotAvailable)?;
        datagram.groups.swap_remove(at);
        self.network.leave(&mut self.env, group);
        Ok(())
    }
}
