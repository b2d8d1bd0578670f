//! A socket with a connection: its view, and reading and writing its buffers.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_tcp::{Connection, Instant};

use super::id::SocketId;
use super::marks::Marks;
use super::options::Options;
use super::receive_ring::RecvRing;
use super::send_ring::SendRing;
use super::view::{SocketInfo, SocketState, View, ViewFlags};
use super::{Kind, Listener, Socket, Stream, Tuning};
use crate::config::Buffers;
use crate::error::Error;
use crate::link::neighbour::Handle;
use crate::memory::send_memory::SendMemory;
use crate::memory::{Memory, Owner};
use crate::tcp::endpoints::Endpoints;
use crate::tcp::segment::IpFields;
use crate::timer_wheel::TimerWheel;

/// Which direction to shut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// No more will be read.
    Read,
    /// No more will be written: FIN after what was.
    Write,
    /// Both.
    Both,
}

impl Stream {
    /// Its buffers come to belong to another owner; false, with nothing changed, when that one has
    /// no room for what was not read.
    pub fn change_owner<M: Memory>(
        &mut self,
        memory: &mut M,
        send_memory: &mut SendMemory,
        before: Owner,
        owner: Owner,
    ) -> bool {
        if !self.recv.change_owner(memory, before, owner) {
            return false;
        }
        self.send.leave(send_memory, before);
        self.send.join(send_memory, owner);
        true
    }

    /// Makes sure that the wheel comes back when a timer of the connection is due. A deadline that
    /// has only moved later needs nothing.
    #[inline]
    pub fn arm(&mut self, wheel: &mut TimerWheel, index: u32) {
        if let Some(deadline) = self.connection.deadline()
            && deadline < self.armed
        {
            self.armed = deadline;
            wheel.arm(index, deadline);
        }
    }

    pub fn new(
        connection: Connection,
        endpoints: Endpoints,
        fields: IpFields,
        (send_limit, receive_limit): (u32, u32),
        now: Instant,
    ) -> Stream {
        Stream {
            connection,
            endpoints,
            fields,
            hop: Handle::NONE,
            send: SendRing::default(),
            recv: RecvRing::default(),
            send_limit,
            counted: 0,
            receive_limit,
            error: 0,
            listener: u32::MAX,
            armed: Instant::NEVER,
            tuning: Tuning {
                since: now.as_micros() as u32,
                from: 0,
                span_us: 0,
                best: 0,
            },
        }
    }
}

impl Stream {
    /// Whether no more bytes will come.
    pub fn is_at_end(&self, marks: Marks) -> bool {
        marks.intersects(Marks::PEER_CLOSED | Marks::READ_SHUT | Marks::DEAD | Marks::ENDING)
    }

    #[inline(always)]
    pub fn view(&self, marks: Marks, options: &Options, active_senders: u32, most: u32) -> View {
        let notsent_low = options.notsent_low;
        let send_limit = match options.send_buffer {
            Some(_) => self.send_limit,
            None => self.send_share(active_senders),
        };
        let send_limit = send_limit.min(most);
        let mut flags = ViewFlags::empty();
        let state = self.connection.state();
        let over = marks.intersects(Marks::DEAD | Marks::ENDING);
        let write_shut = marks.contains(Marks::WRITE_SHUT) || over;
        let at_end = self.is_at_end(marks);
        flags.set(
            ViewFlags::CONNECTING,
            !marks.contains(Marks::ESTABLISHED) && !over,
        );
        flags.set(ViewFlags::CONNECTED, marks.contains(Marks::ESTABLISHED));
        flags.set(ViewFlags::END_OF_STREAM, at_end);
        flags.set(ViewFlags::WRITE_SHUT, write_shut);
        flags.set(ViewFlags::HUNG_UP, at_end && write_shut);
        flags.set(ViewFlags::ERROR, self.error != 0);
        let queued = self.send.len();
        let writable = marks.contains(Marks::ESTABLISHED)
            && queued * 3 <= u64::from(send_limit) * 2
            && (notsent_low == 0 || self.connection.unsent() * 2 < u64::from(notsent_low));
        flags.set(ViewFlags::WRITABLE, writable);
        let (local, remote) = self.endpoints.addresses();
        let received = self.connection.received();
        let end = self.connection.queued();
        View {
            state: Some(state),
            flags,
            received,
            consumed: self.recv.consumed(received),
            ring: self.recv.block(),
            queued: end,
            acked: end - queued,
            sent: end - self.connection.unsent(),
            send_limit,
            notsent_low,
            error: self.error.into(),
            local,
            remote,
            pending_accepts: 0,
            mtu: 0,
            urgent: self.connection.urgent(),
        }
    }
}

impl Socket {
    /// The connection, if it can be written to, and for how many bytes its send buffer has room, or
    /// its share of what those who send have.
    #[inline(always)]
    pub fn sending(&mut self, active_senders: Option<u32>) -> Result<(&mut Stream, usize), Error> {
        let marks = self.marks;
        let Kind::Stream(stream) = &mut self.kind else {
            return Err(Error::BrokenPipe);
        };
        if stream.error != 0 {
            return Err(Error::Connection(std::mem::take(&mut stream.error).into()));
        }
        if marks.intersects(Marks::WRITE_SHUT | Marks::DEAD | Marks::ENDING) {
            return Err(Error::BrokenPipe);
        }
        if !marks.contains(Marks::ESTABLISHED) && !stream.connection.takes_early() {
            return Err(Error::WouldBlock);
        }
        let limit = match active_senders {
            Some(active_senders) if self.options.send_buffer.is_none() => {
                stream.send_share(active_senders)
            }
            _ => stream.send_limit,
        };
        let space = u64::from(limit).saturating_sub(stream.send.len());
        Ok((stream, space as usize))
    }

    /// Copies unread bytes into `out`; 0 is the end of the stream.
    #[inline]
    pub fn peek<M: Memory>(&mut self, memory: &M, out: &mut [u8]) -> Result<usize, Error> {
        let Kind::Stream(stream) = &mut self.kind else {
            return Err(Error::NotConnected);
        };
        if out.is_empty() {
            return Ok(0);
        }
        let len = stream
            .recv
            .peek(memory, self.owner, stream.connection.received(), out);
        if len > 0 {
            return Ok(len);
        }
        // As in Linux: who has read to the peer's end is told that, whatever became of the
        // connection then.
        if stream.error != 0 && !self.marks.contains(Marks::PEER_CLOSED) {
            return Err(Error::Connection(std::mem::take(&mut stream.error).into()));
        }
        if stream.is_at_end(self.marks) {
            Ok(0)
        } else {
            Err(Error::WouldBlock)
        }
    }

    /// So many of the unread bytes have been read. Returns whether the connection may have
    /// something to send now.
    #[inline]
    pub fn consume<M: Memory>(
        &mut self,
        memory: &mut M,
        bytes: u32,
        buffers: &Buffers,
        now: Instant,
    ) -> bool {
        let Kind::Stream(stream) = &mut self.kind else {
            return false;
        };
        let upto = stream.recv.mark().wrapping_add(bytes);
        stream.recv.consume(memory, self.owner, upto);
        if self.marks.contains(Marks::DEAD) {
            return false;
        }
        stream.connection.consumed_more(bytes);
        if self.options.receive_buffer.is_none() {
            stream.tune_receive(buffers, now);
        }
        true
    }

    pub fn info<M: Memory>(&self, id: Option<SocketId>, memory: &M, now: Instant) -> SocketInfo {
        let view = match &self.kind {
            Kind::Stream(stream) => stream.view(self.marks, &self.options, 1, u32::MAX),
            Kind::Datagram(datagram) => datagram.view(self.marks, u32::MAX),
            Kind::Bound { local } | Kind::Listener(Listener { local, .. }) => View {
                local: *local,
                remote: nowhere(local),
                ..View::empty(ViewFlags::empty())
            },
        };
        let (state, receive_queue, send_queue, tcp) = match &self.kind {
            Kind::Bound { .. } => (SocketState::Unconnected, 0, 0, None),
            Kind::Datagram(datagram) => (
                SocketState::Udp {
                    connected: datagram.remote.is_some(),
                },
                view.received - view.consumed,
                datagram.unsent(),
                None,
            ),
            Kind::Listener(listener) => (
                SocketState::Listen,
                listener.backlog.waiting(memory, self.owner),
                u64::from(listener.backlog.limit),
                None,
            ),
            Kind::Stream(stream) => {
                let info = stream.connection.info(now);
                (
                    SocketState::Tcp(info.state),
                    view.received - view.consumed,
                    view.queued - view.acked,
                    Some(info),
                )
            }
        };
        SocketInfo {
            id,
            owner: self.owner,
            state,
            local: view.local,
            remote: view.remote,
            receive_queue,
            send_queue,
            dropped: match &self.kind {
                Kind::Datagram(datagram) => datagram.dropped,
                _ => 0,
            },
            tcp,
        }
    }
}

/// No address, in the family of another.
fn nowhere(of: &SocketAddr) -> SocketAddr {
    match of {
        SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
        SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
    }
}
