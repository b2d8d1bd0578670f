//! Migration of a connection: takes it out of one shard, and puts it into another.

use std::fmt;
use std::net::SocketAddr;

use millrace_tcp::Instant;

use crate::base::Base;
use crate::connection_table::{Place, Tuple};
use crate::link::neighbour::Handle;
use crate::memory::Memory;
use crate::socket::id::SocketId;
use crate::socket::marks::Marks;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Socket, Stream};
use crate::tcp::state::Tcp;

/// A connection on its way.
pub struct Moved {
    pub(crate) id: SocketId,
    pub(crate) socket: Box<Socket>,
    /// The bytes that came and were not read, holes included. Empty if the block of the receive
    /// ring moves with the connection ([`Memory::hand_over`]).
    pub(crate) received: Vec<u8>,
}

impl fmt::Debug for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.id)
    }
}

impl Moved {
    pub(crate) fn tuple(&self) -> Option<Tuple> {
        self.socket
            .stream()
            .map(|stream: &Stream| stream.endpoints.tuple())
    }
}

impl Tcp {
    /// Whether the connection at `index` is one that moves.
    pub(crate) fn may_move<M: Memory>(&self, base: &Base<M>, index: u32) -> bool {
        let Some(socket) = base.sockets.get(index) else {
            return false;
        };
        // A queue of a listener's is its shard's; so is a bound port; and both ends of a
        // conversation with oneself stay together.
        let stays = Marks::UNACCEPTED | Marks::BOUND | Marks::LOCAL | Marks::EARLY | Marks::DEAD;
        socket.stream().is_some() && !socket.marks.intersects(stays | Marks::ENDING)
    }

    /// Takes a connection out of everything that knows it here.
    pub(crate) fn take_out<M: Memory>(&mut self, base: &mut Base<M>, index: u32) -> Option<Moved> {
        let id = base.id_of(index);
        let mut socket = Box::new(base.sockets.remove(index)?);
        self.wheel.cancel(index);
        if socket.marks.contains(Marks::COUNTED) {
            self.orphans.give(socket.owner);
        }
        socket.marks -= Marks::READY | Marks::CHANGED | Marks::PARKED;
        let (owner, reuse) = (socket.owner, socket.options.reuse.address);
        let stream = socket.stream_mut()?;
        let tuple = stream.endpoints.tuple();
        self.table.remove(&tuple);
        self.ports.remove_connection(tuple.local(), reuse);
        stream.hop = Handle::NONE;
        stream.armed = Instant::NEVER;
        stream.send.leave(&mut base.send_memory, owner);
        let received = match stream.recv.block() {
            Some(block) if base.memory.hand_over(owner, block) => Vec::new(),
            _ => {
                if stream.recv.is_folded() {
                    let mut sink = Sink {
                        ring: &mut stream.recv,
                        memory: &mut base.memory,
                        owner,
                        open: true,
                        counters: &mut base.env.counters,
                    };
                    stream.connection.drop_out_of_order(&mut sink);
                }
                stream.recv.take_bytes(&mut base.memory, owner)
            }
        };
        Some(Moved {
            id,
            socket,
            received,
        })
    }

    /// Puts a connection in; given back, as it was, when there is no room.
    pub(crate) fn put_in<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        moved: Moved,
        now: Instant,
    ) -> Result<SocketId, Moved> {
        let Moved {
            id,
            mut socket,
            received,
        } = moved;
        let owner = socket.owner;
        let full = base.sockets.is_full();
        let Some(stream) = socket.stream_mut().filter(|_| !full) else {
            return Err(Moved {
                id,
                socket,
                received,
            });
        };
        let at = stream.consumed();
        if !received.is_empty() && !stream.recv.store(&mut base.memory, owner, at, &received) {
            return Err(Moved {
                id,
                socket,
                received,
            });
        }
        if let Some(block) = stream.recv.block().filter(|_| received.is_empty()) {
            base.memory.adopt(owner, block);
        }
        stream.send.join(&mut base.send_memory, owner);
        stream.tuning.since = now.as_micros() as u32;
        let tuple = stream.endpoints.tuple();
        // The shard that it comes from shares its own.
        let options = base.sharing.share(&socket.options);
        if let Some(stream) = socket.stream_mut() {
            stream
                .connection
                .configure(&base.env.config.tcp, &options.settings, now);
        }
        let reuse = options.reuse.address;
        socket.options = options;
        if socket.marks.contains(Marks::COUNTED) {
            self.orphans.take(owner);
        }
        let Ok(index) = base.sockets.insert(*socket) else {
            unreachable!("there was room");
        };
        self.table.insert(tuple, Place::Stream(index));
        self.ports.add_connection(tuple.local(), reuse);
        if let Some(stream) = base.sockets.get_mut(index).and_then(Socket::stream_mut) {
            stream.arm(&mut self.wheel, index);
        }
        base.mark_changed(index);
        self.mark_ready(base, index);
        Ok(base.id_of(index))
    }

    /// SYN cookies that another shard's part of a listener has given out may come back here.
    pub(crate) fn expect_cookies<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        local: SocketAddr,
        until: Instant,
    ) {
        let is_meant = |(_, socket): &(u32, &Socket)| matches!(&socket.kind, Kind::Listener(listener) if listener.local == local);
        let meant = base.sockets.iter().filter(is_meant);
        let meant: Vec<u32> = meant.map(|(index, _)| index).collect();
        for index in meant {
            let listener = base.sockets.get_mut(index).and_then(Socket::listener_mut);
            if let Some(listener) = listener {
                listener.cookies_until = listener.cookies_until.max(until);
            }
        }
    }
}
