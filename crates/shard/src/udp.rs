//! UDP (RFC 768, RFC 1122 4.1, RFC 8200 8.1): sockets that hold datagrams.
//!
//! A datagram that has come lies in the socket's receive ring as a record
//! ([`millrace_wire::record`]), so the ring is read as that of a stream is. One that is to leave
//! waits in one queue of the shard, in a block of the send pool; it counts against its socket's
//! send buffer until the port, or its neighbour's queue, has taken it.

mod bind;
mod cross_shard;
mod errors;
mod input;
mod options;
mod output;
mod receive;
mod send;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub(crate) use errors::Failure;
pub use errors::Report;
pub(crate) use input::Packet;
pub use send::SendTo;

use crate::connection_table::Table;
use crate::link::neighbour::Handle;
use crate::secrets::Secrets;
use crate::socket::local_ports::Ports;
use crate::socket::receive_ring::RecvRing;
use crate::socket::{Marks, View, ViewFlags};
use options::Settings;
use output::OutgoingDatagram;

/// Buffers of a socket that sets none, in bytes (Linux's `net.core.rmem_default` and
/// `wmem_default`).
const BUFFER_DEFAULT: u32 = 212_992;
/// Errors that wait to be read from one socket; further ones are dropped.
const REPORTS_MAX: usize = 16;

/// A socket for datagrams.
pub(crate) struct Datagram {
    /// Our end; port 0 while it is not bound.
    pub local: SocketAddr,
    /// The address that it was bound to, unspecified for all: a disconnect goes back to it.
    pub bound: IpAddr,
    /// Whether the program chose the port.
    pub bound_by_program: bool,
    /// The peer, once it is connected.
    pub remote: Option<SocketAddr>,
    /// The neighbour that leads to the peer.
    pub hop: Handle,
    /// The shard whose socket this stands in for; none if it is one itself.
    pub home: Option<u16>,
    /// The name that its owner gives it.
    pub label: u32,
    pub recv: RecvRing,
    /// Where the last record in the ring ends.
    pub received: u64,
    pub receive_limit: u32,
    /// Datagrams dropped because the ring was full, or there was no memory.
    pub dropped: u64,
    /// Bytes given to send so far, and those of them that have left.
    pub queued: u64,
    pub left: u64,
    pub send_limit: u32,
    /// The datagram that `MSG_MORE` or `UDP_CORK` holds back.
    pub corked: Option<Box<OutgoingDatagram>>,
    /// The pending error as errno; 0 when none.
    pub error: i32,
    /// Errors with their particulars (`IP_RECVERR`), oldest first.
    pub reports: VecDeque<Report>,
    pub settings: Settings,
    /// Groups that it has joined.
    pub groups: Vec<IpAddr>,
}

/// The UDP state of a shard, without its sockets.
pub(crate) struct Udp {
    pub ports: Ports,
    /// Connected sockets by their ends.
    pub table: Table,
    /// The socket at every address and port that no other is at.
    pub any: Option<u32>,
    /// Datagrams that are to leave, oldest first.
    pub outbox: VecDeque<OutgoingDatagram>,
    /// Datagrams between sockets of this host that another shard is to deliver; none: all others.
    pub crossing: VecDeque<(Option<u16>, Vec<u8>)>,
    /// Sockets that a datagram to several is for; empty between datagrams.
    found: Vec<u32>,
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
}

impl Datagram {
    fn new(local: SocketAddr, label: u32) -> Datagram {
        Datagram {
            local,
            bound: local.ip(),
            bound_by_program: false,
            remote: None,
            hop: Handle::NONE,
            home: None,
            label,
            recv: RecvRing::default(),
            received: 0,
            receive_limit: BUFFER_DEFAULT,
            dropped: 0,
            queued: 0,
            left: 0,
            send_limit: BUFFER_DEFAULT,
            corked: None,
            error: 0,
            reports: VecDeque::new(),
            settings: Settings::default(),
            groups: Vec::new(),
        }
    }
}

impl Datagram {
    /// Whether no other shard has anything that stands in for it: its port was chosen for it.
    pub fn is_only_here(&self) -> bool {
        self.home.is_none() && !self.bound_by_program
    }

    /// `most`: how much the program may have queued here, in bytes, whatever its send buffer is.
    pub fn view(&self, marks: Marks, most: u32) -> View {
        let send_limit = self.send_limit.min(most);
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let (read_shut, write_shut) = (
            marks.contains(Marks::READ_SHUT),
            marks.contains(Marks::WRITE_SHUT),
        );
        let mut flags = ViewFlags::DATAGRAM;
        flags.set(ViewFlags::CONNECTED, self.remote.is_some());
        flags.set(ViewFlags::END_OF_STREAM, read_shut);
        flags.set(ViewFlags::WRITE_SHUT, write_shut);
        flags.set(ViewFlags::HUNG_UP, read_shut && write_shut);
        flags.set(ViewFlags::ERROR, self.error != 0);
        flags.set(ViewFlags::REPORTS, !self.reports.is_empty());
        // Linux's `sock_writeable`.
        let writable = self.unsent() * 2 < u64::from(send_limit);
        flags.set(ViewFlags::WRITABLE, writable);
        View {
            received: self.received,
            consumed: self.consumed(),
            ring: self.recv.block(),
            queued: self.queued,
            acked: self.left,
            send_limit,
            error: self.error,
            local: self.local,
            remote: self.remote.unwrap_or(nowhere),
            ..View::empty(flags)
        }
    }
}
