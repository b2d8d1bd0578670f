//! IPv6 packets (RFC 8200) and the addresses that a host derives from others (RFC 4291).

mod extension;

use core::net::Ipv6Addr;

use crate::Error;
use crate::bytes::{get16, get32, put16, put32};
use crate::ethernet::Mac;

pub use extension::{Content, Fragment, HOP_BY_HOP, Problem, parameter, walk};

/// Length of the fixed header in bytes.
pub const HEADER_LEN: usize = 40;
/// The least MTU that a link may have (RFC 8200 5).
pub const MTU_MIN: u16 = 1280;

/// All nodes on the link.
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link.
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

/// The fixed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// What follows: an extension header or an upper-layer protocol, by IANA's number.
    pub next_header: u8,
    /// Hops left.
    pub hop_limit: u8,
    /// Differentiated services (6 bits) and ECN (low 2 bits; RFC 3168).
    pub traffic_class: u8,
    /// The flow's label, 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Length of what follows, in bytes.
    pub payload_len: u16,
}

impl Header {
    /// Splits a packet into header and payload; bytes past its length are padding of the frame.
    /// Jumbograms (RFC 2675) are not served: their length of 0 is taken as it stands.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 40 bytes; [`Error::Version`] for other than IPv6;
    /// [`Error::Length`] when the payload is longer than the bytes at hand.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), Error> {
        let (header, payload) = Header::parse_start(bytes)?;
        let payload = payload
            .get(..usize::from(header.payload_len))
            .ok_or(Error::Length)?;
        Ok((header, payload))
    }

    /// The header of a packet of which only the start is there, and whatever follows it, cut or
    /// padded.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 40 bytes; [`Error::Version`] for other than IPv6.
    pub fn parse_start(bytes: &[u8]) -> Result<(Header, &[u8]), Error> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let first = get32(head, 0);
        if first >> 28 != 6 {
            return Err(Error::Version);
        }
        let address = |at: usize| {
            let mut octets = [0; 16];
            octets.copy_from_slice(&head[at..at + 16]);
            Ipv6Addr::from(octets)
        };
        let header = Header {
            src: address(8),
            dst: address(24),
            next_header: head[6],
            hop_limit: head[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: get16(head, 4),
        };
        Ok((header, rest))
    }

    /// Writes the header to the first [`HEADER_LEN`] bytes of `out`; panics when there are fewer.
    /// Of the flow label the low 20 bits are sent.
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | (self.flow_label & 0xf_ffff);
        put32(out, 0, first);
        put16(out, 4, self.payload_len);
        out[6] = self.next_header;
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// The group in which the node with `address` is asked for (RFC 4291 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        0xff00 | u16::from(a),
        u16::from(b) << 8 | u16::from(c),
    )
}

/// The link-local address that an interface makes of its hardware address (RFC 4291 2.5.6, appendix
/// A).
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let pair = |high: u8, low: u8| u16::from(high) << 8 | u16::from(low);
    Ipv6Addr::new(
        0xfe80,
        0,
        0,
        0,
        pair(a ^ 2, b),
        pair(c, 0xff),
        pair(0xfe, d),
        pair(e, f),
    )
}
