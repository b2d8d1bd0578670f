//! Datagrams into a socket's receive ring, and out of it.

use std::net::SocketAddr;

use millrace_wire::record::{self, Record};

use super::socket::Datagram;
use super::state::Udp;
use crate::base::Base;
use crate::counters::Counters;
use crate::error::Error;
use crate::memory::{Memory, Owner};
use crate::socket::{Kind, Marks, Socket, SocketId};

/// A datagram that has come, without what it carries.
#[derive(Clone, Copy)]
pub(crate) struct DatagramInfo {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub hops: u8,
    pub class: u8,
    /// Bytes in each of several datagrams in a row, the last may have less; 0: it is one.
    pub segment_size: u16,
}

impl Udp {
    /// Puts a datagram into the ring of the socket at `index`.
    pub(crate) fn store_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        arrived: &DatagramInfo,
        payload: &[u8],
    ) {
        let Some(Socket {
            owner,
            marks,
            kind: Kind::Datagram(datagram),
            ..
        }) = base.sockets.get_mut(index)
        else {
            return;
        };
        if marks.contains(Marks::READ_SHUT) {
            return;
        }
        let size = usize::from(arrived.segment_size);
        let stored = if size == 0 || payload.len() <= size || datagram.settings.join {
            datagram.store(
                *owner,
                arrived,
                payload,
                &mut base.memory,
                &mut base.env.counters,
            )
        } else {
            let whole = DatagramInfo {
                segment_size: 0,
                ..*arrived
            };
            let mut any = false;
            for piece in payload.chunks(size) {
                any |= datagram.store(
                    *owner,
                    &whole,
                    piece,
                    &mut base.memory,
                    &mut base.env.counters,
                );
            }
            any
        };
        if stored {
            base.mark_changed(index);
        }
    }

    /// Takes the oldest datagram, or looks at it.
    pub(crate) fn recv_from<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        out: &mut [u8],
        peek: bool,
    ) -> Result<Record, Error> {
        let index = base.check(id)?;
        let Some(Socket {
            owner,
            kind: Kind::Datagram(datagram),
            ..
        }) = base.sockets.get_mut(index)
        else {
            return Err(Error::NotSupported);
        };
        if datagram.error != 0 {
            return Err(Error::Connection(std::mem::take(&mut datagram.error)));
        }
        let at = datagram.consumed();
        if at == datagram.received {
            return Err(Error::WouldBlock);
        }
        let mut head = [0; record::LEN];
        let recv = &datagram.recv;
        recv.copy_out(&base.memory, *owner, at, &mut head);
        let record = Record::parse(&head);
        let len = record.payload_len as usize;
        let copied = len.min(out.len());
        let payload = at + record::LEN as u64;
        recv.copy_out(&base.memory, *owner, payload, &mut out[..copied]);
        if !peek {
            let upto = datagram.consumed() + record::stored_len(len);
            datagram.recv.consume(&mut base.memory, *owner, upto as u32);
            base.mark_changed(index);
        }
        Ok(record)
    }
}

impl Datagram {
    /// Whether a datagram that came from `from` to this address is for this socket.
    pub fn hears(&self, from: SocketAddr) -> bool {
        self.remote.is_none_or(|remote| remote == from)
    }

    /// Stores one record; false when it was dropped.
    fn store<M: Memory>(
        &mut self,
        owner: Owner,
        arrived: &DatagramInfo,
        payload: &[u8],
        memory: &mut M,
        counters: &mut Counters,
    ) -> bool {
        if self.received - self.consumed() >= u64::from(self.receive_limit) {
            // The program may have read without saying so.
            self.catch_up(owner, memory);
        }
        if self.received - self.consumed() >= u64::from(self.receive_limit) {
            counters.udp_receive_full += 1;
            self.dropped += 1;
            return false;
        }
        let record = Record {
            payload_len: payload.len() as u32,
            from: arrived.from,
            to: arrived.to.ip(),
            to_port: arrived.to.port(),
            hops: arrived.hops,
            class: arrived.class,
            segment_size: arrived.segment_size,
            dropped: self.dropped as u32,
        };
        let at = self.received;
        // The end first: the ring then has room for all of it, or nothing has happened.
        let stored = self
            .recv
            .store(memory, owner, at + record::LEN as u64, payload)
            && self.recv.store(memory, owner, at, &record.emit());
        if !stored {
            counters.receive_memory_exhausted += 1;
            self.dropped += 1;
            return false;
        }
        self.received = at + record::stored_len(payload.len());
        counters.udp_in += 1;
        true
    }

    /// Believes what the program says of how far it has read, as far as that can be.
    fn catch_up<M: Memory>(&mut self, owner: Owner, memory: &mut M) {
        let upto = memory.read_upto(owner, self.label);
        if upto > self.consumed() && upto <= self.received {
            self.recv.consume(memory, owner, upto as u32);
        }
    }
}
