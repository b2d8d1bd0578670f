//! The state of a socket for datagrams.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::options::Settings;
use super::packet::OutgoingDatagram;
use crate::link::neighbour::Handle;
use crate::socket::marks::Marks;
use crate::socket::options::Options;
use crate::socket::receive_ring::RecvRing;
use crate::socket::view::{View, ViewFlags};

/// Buffers of a socket that sets none, in bytes (Linux's `net.core.rmem_default` and
/// `wmem_default`).
const BUFFER_DEFAULT: u32 = 212_992;

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

/// An error with its particulars, as Linux's error queue has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The errno.
    pub errno: i32,
    /// Type of the ICMP message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The largest packet that the path takes, or which byte of the packet's header is at fault; 0
    /// if the message says neither.
    pub info: u32,
    /// The sender of the message.
    pub offender: IpAddr,
    /// The destination of the datagram.
    pub to: SocketAddr,
    /// The start of what it carried, as far as the message quotes it.
    pub payload: Box<[u8]>,
}

impl Datagram {
    pub fn new(local: SocketAddr, label: u32) -> Datagram {
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

    /// Stream offset up to which the program has read.
    pub fn consumed(&self) -> u64 {
        self.recv.consumed(self.received)
    }

    /// Bytes given to send that have not left.
    pub fn unsent(&self) -> u64 {
        self.queued - self.left
    }

    /// Takes over the buffers that options name. As on Linux they are twice what was asked for.
    pub fn resize(&mut self, options: &Options) {
        if let Some(bytes) = options.receive_buffer {
            self.receive_limit = bytes.get() * 2;
        }
        if let Some(bytes) = options.send_buffer {
            self.send_limit = bytes.get() * 2;
        }
    }
}
