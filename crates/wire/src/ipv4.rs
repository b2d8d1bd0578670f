//! IPv4 datagrams (RFC 791).

use core::net::Ipv4Addr;

use crate::Error;
use crate::bytes::{get16, put16};
use crate::checksum::Sum;

/// Length of the header without options, in bytes.
pub const HEADER_LEN: usize = 20;

/// Protocol numbers that are spoken here, beside [`crate::tcp::PROTOCOL`].
pub const PROTOCOL_ICMP: u8 = 1;

const CHECKSUM_AT: usize = 10;
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;

/// The fixed part of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// What the payload is, by IANA's number.
    pub protocol: u8,
    /// Hops left. 0 is parsed, too: RFC 1122 3.2.1.7 leaves it to the host.
    pub ttl: u8,
    /// Differentiated services (6 bits) and ECN (low 2 bits; RFC 3168).
    pub tos: u8,
    /// Identification; says something only of fragments (RFC 6864).
    pub id: u16,
    /// Whether routers may not fragment the datagram.
    pub dont_fragment: bool,
    /// Whether fragments follow this one.
    pub more_fragments: bool,
    /// Where the payload belongs in the whole datagram, in bytes: a multiple of 8, up to 65,528.
    pub fragment_offset: u16,
    /// Length of the payload in bytes.
    pub payload_len: u16,
}

impl Header {
    /// A whole datagram with `payload_len` bytes of payload, 64 hops left, and don't-fragment set.
    #[must_use]
    pub const fn new(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, payload_len: u16) -> Header {
        Header {
            src,
            dst,
            protocol,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            payload_len,
        }
    }

    /// Splits a datagram into header, options and payload; bytes past its total length are padding
    /// of the frame. The header checksum is not looked at ([`verify`]).
    ///
    /// # Errors
    /// [`Error::Truncated`] below 20 bytes; [`Error::Version`] for other than IPv4;
    /// [`Error::Length`] when header length, total length, option lengths and the bytes at hand
    /// contradict each other, or a fragment ends past 65,535 bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8], &[u8]), Error> {
        let (header, header_len, total_len) = Header::parse_fixed(bytes)?;
        if total_len > bytes.len()
            || usize::from(header.fragment_offset) + total_len - header_len > 0xffff
        {
            return Err(Error::Length);
        }
        let options = &bytes[HEADER_LEN..header_len];
        if !options.is_empty() && fault_in(options).is_some() {
            return Err(Error::Length);
        }
        Ok((header, options, &bytes[header_len..total_len]))
    }

    /// The header of a datagram of which only the start is there.
    ///
    /// # Errors
    /// As [`Header::parse`], but for what concerns bytes behind the header.
    pub fn parse_start(bytes: &[u8]) -> Result<Header, Error> {
        Header::parse_fixed(bytes).map(|(header, ..)| header)
    }

    /// The header and the lengths that it claims, of which only that of the header is known to be
    /// within `bytes`.
    pub(crate) fn parse_fixed(bytes: &[u8]) -> Result<(Header, usize, usize), Error> {
        let (head, _) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        if head[0] >> 4 != 4 {
            return Err(Error::Version);
        }
        let header_len = usize::from(head[0] & 0xf) * 4;
        let total_len = usize::from(get16(head, 2));
        if header_len < HEADER_LEN || header_len > bytes.len() || total_len < header_len {
            return Err(Error::Length);
        }
        let fragment = get16(head, 6);
        let header = Header {
            src: Ipv4Addr::new(head[12], head[13], head[14], head[15]),
            dst: Ipv4Addr::new(head[16], head[17], head[18], head[19]),
            protocol: head[9],
            ttl: head[8],
            tos: head[1],
            id: get16(head, 4),
            dont_fragment: fragment & DONT_FRAGMENT != 0,
            more_fragments: fragment & MORE_FRAGMENTS != 0,
            fragment_offset: (fragment & 0x1fff) * 8,
            payload_len: (total_len - header_len) as u16,
        };
        Ok((header, header_len, total_len))
    }

    /// Whether the payload is only a part of a datagram.
    pub fn is_fragment(&self) -> bool {
        self.more_fragments || self.fragment_offset != 0
    }

    /// Writes the header, checksum included and without options, to the first [`HEADER_LEN`] bytes
    /// of `out`.
    ///
    /// # Panics
    /// When `out` is shorter, or the payload longer than 65,515 bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        assert!(
            self.payload_len <= 0xffff - HEADER_LEN as u16,
            "payload of {} bytes",
            self.payload_len
        );
        out[0] = 0x45;
        out[1] = self.tos;
        put16(out, 2, self.payload_len + HEADER_LEN as u16);
        put16(out, 4, self.id);
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 }
            | if self.more_fragments {
                MORE_FRAGMENTS
            } else {
                0
            };
        put16(out, 6, flags | (self.fragment_offset / 8));
        out[8] = self.ttl;
        out[9] = self.protocol;
        put16(out, CHECKSUM_AT, 0);
        out[12..16].copy_from_slice(&self.src.octets());
        out[16..20].copy_from_slice(&self.dst.octets());
        let checksum = Sum::of(out).finish();
        put16(out, CHECKSUM_AT, checksum);
    }
}

/// Whether the header checksum of a datagram is right. `false` for bytes that [`Header::parse`]
/// refuses for its header length.
pub fn verify(bytes: &[u8]) -> bool {
    let header_len = usize::from(bytes.first().copied().unwrap_or(0) & 0xf) * 4;
    header_len >= HEADER_LEN
        && bytes
            .get(..header_len)
            .is_some_and(|header| Sum::of(header).is_valid())
}

/// The header of a datagram that [`Header::parse`] refuses for nothing but its options, and which
/// byte of it, options included, is at fault (RFC 792, RFC 1122 3.2.2.5).
pub fn faulty_option(bytes: &[u8]) -> Option<(Header, u8)> {
    let (header, header_len, total_len) = Header::parse_fixed(bytes).ok()?;
    let at = fault_in(&bytes[HEADER_LEN..header_len])?;
    (total_len <= bytes.len()).then_some((header, (HEADER_LEN + at) as u8))
}

/// Whether options, as [`Header::parse`] returns them, ask for a route of the sender's choice (LSRR
/// or SSRR; RFC 7126 4.3 and 4.4: to be dropped unless wanted).
pub fn is_source_routed(options: &[u8]) -> bool {
    Walk::over(options)
        .flatten()
        .any(|(_, kind, _)| is_source_route(kind))
}

fn is_source_route(kind: u8) -> bool {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    matches!(kind, LOOSE | STRICT)
}

/// Where in options the first one is at fault; `None` when all are sound.
fn fault_in(options: &[u8]) -> Option<usize> {
    Walk::over(options).find_map(|option| match option {
        Ok((at, kind, value)) if is_source_route(kind) => match value {
            // A route is a pointer that is at least 4, counted from the option's first byte, and
            // then addresses (RFC 791).
            [] => Some(at + 1),
            [0..=3, ..] => Some(at + 2),
            [_, addresses @ ..] => (!addresses.len().is_multiple_of(4)).then_some(at + 1),
        },
        Ok(_) => None,
        Err(at) => Some(at),
    })
}

/// Place, kind and value of each option; ends after the first whose length is wrong, with its
/// place.
struct Walk<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    fn over(options: &'a [u8]) -> Walk<'a> {
        Walk {
            rest: options,
            at: 0,
        }
    }
}

impl<'a> Iterator for Walk<'a> {
    type Item = Result<(usize, u8, &'a [u8]), usize>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let at = self.at;
            match *self.rest {
                [] | [0, ..] => return None,
                [1, ref rest @ ..] => {
                    self.rest = rest;
                    self.at += 1;
                }
                [kind, ref rest @ ..] => {
                    let len = rest.first().map_or(0, |&len| usize::from(len));
                    if len < 2 || len > self.rest.len() {
                        self.rest = &[];
                        return Some(Err(at));
                    }
                    let (option, rest) = self.rest.split_at(len);
                    self.rest = rest;
                    self.at += len;
                    return Some(Ok((at, kind, &option[2..])));
                }
            }
        }
    }
}
