//! What the tests of UDP are made of.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{Error, Options, Reuse, SendTo, SocketId};
use millrace_wire::ethernet::{EtherType, Mac};
use millrace_wire::record::Record;
use millrace_wire::{checksum, ethernet, ipv4, udp};

use crate::net::{A, ADDRESSES, B, MACS, Net, OWNER};

pub const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
pub const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

impl Net {
    pub fn udp(&mut self, side: usize) -> SocketId {
        self.shards[side]
            .datagram(OWNER, &Options::default(), 0)
            .expect("socket")
    }

    pub fn udp_at(&mut self, side: usize, address: IpAddr, port: u16) -> SocketId {
        self.try_udp_at(side, address, port, Reuse::default())
            .expect("bind")
    }

    pub fn try_udp_at(
        &mut self,
        side: usize,
        address: IpAddr,
        port: u16,
        reuse: Reuse,
    ) -> Result<SocketId, Error> {
        let id = self.udp(side);
        let options = Options {
            reuse,
            ..Options::default()
        };
        let local = SocketAddr::new(address, port);
        let bound = self.shards[side].bind_datagram(id, local, &options);
        bound.map(|()| id).inspect_err(|_| self.close(side, id))
    }

    pub fn udp_to(&mut self, side: usize, remote: SocketAddr) -> SocketId {
        let id = self.udp(side);
        self.shards[side]
            .connect_datagram(id, remote)
            .expect("connect");
        id
    }

    pub fn say(
        &mut self,
        side: usize,
        id: SocketId,
        what: SendTo,
        bytes: &[u8],
    ) -> Result<(), Error> {
        let now = self.now();
        self.shards[side].send_to(id, &what, bytes.len(), |to| to.copy_from_slice(bytes), now)
    }

    pub fn hear(&mut self, side: usize, id: SocketId) -> Result<(Record, Vec<u8>), Error> {
        let mut out = vec![0; 70_000];
        let record = self.shards[side].recv_from(id, &mut out, false)?;
        out.truncate(record.payload_len as usize);
        Ok((record, out))
    }

    pub fn hears(&mut self, side: usize, id: SocketId) -> Option<Vec<u8>> {
        self.hear(side, id).ok().map(|(_, bytes)| bytes)
    }

    pub fn end(&self, side: usize, port: u16) -> SocketAddr {
        SocketAddr::new(ADDRESSES[side].into(), port)
    }

    /// Everybody knows everybody's station.
    pub fn introduce(&mut self) {
        let a = self.udp_at(A, ANY, 9999);
        let to = to(self.end(B, 9));
        self.say(A, a, to, b"").unwrap();
        self.run(10_000);
        self.close(A, a);
    }
}

pub fn to(end: SocketAddr) -> SendTo {
    SendTo {
        to: Some(end),
        ..SendTo::default()
    }
}

pub fn peer() -> SendTo {
    SendTo::default()
}

/// A frame from A to B.
pub fn frame(
    src_port: u16,
    dst_port: u16,
    payload: &[u8],
    change: impl FnOnce(&mut Vec<u8>),
) -> Vec<u8> {
    let mut datagram = vec![0; udp::HEADER_LEN];
    udp::Header {
        src_port,
        dst_port,
        payload_len: payload.len() as u16,
    }
    .emit(&mut datagram);
    datagram.extend_from_slice(payload);
    let (src, dst) = (ADDRESSES[A], ADDRESSES[B]);
    let len = datagram.len() as u16;
    let sum = checksum::pseudo_v4(src, dst, udp::PROTOCOL, len) + checksum::Sum::of(&datagram);
    datagram[6..8].copy_from_slice(&udp::checksum_to_send(sum.finish()).to_be_bytes());
    change(&mut datagram);
    packet(src, dst, &datagram, MACS[B])
}

pub fn packet(src: Ipv4Addr, dst: Ipv4Addr, datagram: &[u8], to: Mac) -> Vec<u8> {
    let mut bytes = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
    ethernet::Header {
        dst: to,
        src: MACS[A],
        ethertype: EtherType::IPV4,
    }
    .emit(&mut bytes);
    ipv4::Header {
        ttl: 61,
        tos: 0x10,
        id: 1,
        dont_fragment: false,
        ..ipv4::Header::new(src, dst, udp::PROTOCOL, datagram.len() as u16)
    }
    .emit(&mut bytes[ethernet::HEADER_LEN..]);
    bytes.extend_from_slice(datagram);
    bytes
}
