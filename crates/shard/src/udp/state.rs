//! The UDP state of a shard, without its sockets.

use std::collections::VecDeque;

use super::packet::OutgoingDatagram;
use crate::connection_table::Table;
use crate::secrets::Secrets;
use crate::socket::local_ports::Ports;

/// Ports, connected ends, and datagrams on their way.
pub(crate) struct Udp {
    pub(super) ports: Ports,
    /// Connected sockets by their ends.
    pub(super) table: Table,
    /// The socket at every address and port that no other is at.
    pub(super) any: Option<u32>,
    /// Datagrams that are to leave, oldest first.
    pub(super) outbox: VecDeque<OutgoingDatagram>,
    /// Datagrams between sockets of this host that another shard is to deliver; none: all others.
    pub(super) crossing: VecDeque<(Option<u16>, Vec<u8>)>,
    /// Sockets that a datagram to several is for; empty between datagrams.
    pub(super) found: Vec<u32>,
}

impl Udp {
    pub fn new(ephemeral: Option<&[u16]>, secrets: &mut Secrets, shared: bool) -> Udp {
        Udp {
            ports: Ports::new(ephemeral, secrets, shared),
            table: Table::new(secrets.table),
            any: None,
            outbox: VecDeque::new(),
            crossing: VecDeque::new(),
            found: Vec::new(),
        }
    }

    /// Local ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Local ports, to change what is registered there.
    pub fn ports_mut(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// Connected sockets by their ends.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Whether datagrams wait to leave.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
    }
}
