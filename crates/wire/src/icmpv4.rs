//! ICMP for IPv4 (RFC 792, RFC 1191).

use core::net::Ipv4Addr;

use crate::Error;
use crate::bytes::{get16, get32, put16};
use crate::checksum::Sum;
use crate::ipv4;
use crate::tcp::{PROTOCOL as TCP, Seq};
use crate::udp::{HEADER_LEN as UDP_HEADER_LEN, PROTOCOL as UDP};

/// Length of what comes before the data or the quoted datagram, in bytes.
pub const HEADER_LEN: usize = 8;

/// Codes of [`Message::Unreachable`] (RFC 792, RFC 1122 3.2.2.1, RFC 1812 5.2.7.1).
pub mod unreachable {
    /// Network unreachable.
    pub const NETWORK: u8 = 0;
    /// Host unreachable.
    pub const HOST: u8 = 1;
    /// The host does not speak the protocol.
    pub const PROTOCOL: u8 = 2;
    /// Nobody listens at the port.
    pub const PORT: u8 = 3;
    /// The datagram is larger than the next link takes and must not be fragmented; `next_hop_mtu`
    /// says how large it may be (RFC 1191).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Communication is prohibited by a filter.
    pub const PROHIBITED: u8 = 13;
}

const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// A message. In errors, `original` quotes the datagram that caused it: its header and at least
/// eight bytes more ([`Quoted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Are you there?
    EchoRequest {
        /// Identifies the asker.
        id: u16,
        /// Counts its questions.
        sequence: u16,
        /// To be sent back.
        data: &'a [u8],
    },
    /// The answer.
    EchoReply {
        /// As in the request.
        id: u16,
        /// As in the request.
        sequence: u16,
        /// As in the request.
        data: &'a [u8],
    },
    /// The datagram did not arrive.
    Unreachable {
        /// One of [`mod@unreachable`], or another.
        code: u8,
        /// With [`unreachable::FRAGMENTATION_NEEDED`]: in bytes, IP header included; 0 from routers
        /// that do not know RFC 1191.
        next_hop_mtu: u16,
        /// The quoted datagram.
        original: &'a [u8],
    },
    /// The datagram, or a fragment of it, took too long.
    TimeExceeded {
        /// 0: too many hops; 1: reassembly.
        code: u8,
        /// The quoted datagram.
        original: &'a [u8],
    },
    /// The datagram's header makes no sense.
    ParameterProblem {
        /// 0: at `pointer`; 1: an option is missing; 2: a length is wrong.
        code: u8,
        /// The byte of the header that is at fault.
        pointer: u8,
        /// The quoted datagram.
        original: &'a [u8],
    },
    /// Anything else: redirect, source quench (ignored: RFC 6633), timestamp, ...
    Other {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
        /// The four bytes after the checksum.
        rest: [u8; 4],
        /// What follows.
        data: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Parses the payload of an IP datagram. The checksum is not looked at ([`verify`]).
    ///
    /// # Errors
    /// [`Error::Truncated`] below eight bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (head, data) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let &[kind, code, _, _, ref rest @ ..] = head;
        Ok(match (kind, code) {
            (ECHO_REQUEST, 0) => Message::EchoRequest {
                id: get16(head, 4),
                sequence: get16(head, 6),
                data,
            },
            (ECHO_REPLY, 0) => Message::EchoReply {
                id: get16(head, 4),
                sequence: get16(head, 6),
                data,
            },
            (UNREACHABLE, _) => Message::Unreachable {
                code,
                next_hop_mtu: get16(head, 6),
                original: data,
            },
            (TIME_EXCEEDED, _) => Message::TimeExceeded {
                code,
                original: data,
            },
            (PARAMETER_PROBLEM, _) => Message::ParameterProblem {
                code,
                pointer: rest[0],
                original: data,
            },
            _ => Message::Other {
                kind,
                code,
                rest: *rest,
                data,
            },
        })
    }

    /// Length on the wire in bytes.
    pub fn encoded_len(&self) -> usize {
        HEADER_LEN + self.parts().3.len()
    }

    /// Writes the message, checksum included, and returns its length; panics when `out` is shorter
    /// than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let (kind, code, rest, data) = self.parts();
        let len = HEADER_LEN + data.len();
        let out = &mut out[..len];
        out[..4].copy_from_slice(&[kind, code, 0, 0]);
        out[4..8].copy_from_slice(&rest);
        out[8..].copy_from_slice(data);
        let checksum = Sum::of(out).finish();
        put16(out, 2, checksum);
        len
    }

    /// Type, code, the second word, and what follows.
    fn parts(&self) -> (u8, u8, [u8; 4], &'a [u8]) {
        let echo = |id: u16, sequence: u16| {
            let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
            [a, b, c, d]
        };
        match *self {
            Message::EchoRequest { id, sequence, data } => {
                (ECHO_REQUEST, 0, echo(id, sequence), data)
            }
            Message::EchoReply { id, sequence, data } => (ECHO_REPLY, 0, echo(id, sequence), data),
            Message::Unreachable {
                code,
                next_hop_mtu,
                original,
            } => (UNREACHABLE, code, echo(0, next_hop_mtu), original),
            Message::TimeExceeded { code, original } => (TIME_EXCEEDED, code, [0; 4], original),
            Message::ParameterProblem {
                code,
                pointer,
                original,
            } => (PARAMETER_PROBLEM, code, [pointer, 0, 0, 0], original),
            Message::Other {
                kind,
                code,
                rest,
                data,
            } => (kind, code, rest, data),
        }
    }
}

/// Whether a type is that of an error, about which none is sent (RFC 1122 3.2.2).
pub fn is_error(kind: u8) -> bool {
    const SOURCE_QUENCH: u8 = 4;
    const REDIRECT: u8 = 5;
    matches!(
        kind,
        UNREACHABLE | SOURCE_QUENCH | REDIRECT | TIME_EXCEEDED | PARAMETER_PROBLEM
    )
}

/// Whether the checksum of a message is right.
pub fn verify(bytes: &[u8]) -> bool {
    Sum::of(bytes).is_valid()
}

/// The datagram that an error quotes. It came from the network like everything else: believe it
/// only as far as it names a connection and a sequence number in flight (RFC 5927 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    /// Who sent it; the receiver of the error, if it is genuine.
    pub src: Ipv4Addr,
    /// Whom it was for.
    pub dst: Ipv4Addr,
    /// Its protocol.
    pub protocol: u8,
    /// The start of its payload, at least eight bytes; it may be cut anywhere after.
    pub payload: &'a [u8],
}

/// What an error quotes of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedTcp {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: Seq,
}

impl<'a> Quoted<'a> {
    /// Parses the `original` of an error.
    ///
    /// # Errors
    /// [`Error::Truncated`] and [`Error::Length`] when the IP header and eight bytes after it are
    /// not there, [`Error::Version`] for other than IPv4.
    pub fn parse(original: &'a [u8]) -> Result<Self, Error> {
        let (header, header_len, total_len) = ipv4::Header::parse_fixed(original)?;
        // Only the first fragment has ports.
        if header.fragment_offset != 0 {
            return Err(Error::Truncated);
        }
        let payload = &original[header_len..total_len.min(original.len())];
        if payload.len() < 8 {
            return Err(Error::Truncated);
        }
        Ok(Quoted {
            src: header.src,
            dst: header.dst,
            protocol: header.protocol,
            payload,
        })
    }

    /// Source and destination port, when it is UDP.
    pub fn udp(&self) -> Option<(u16, u16)> {
        (self.protocol == UDP).then(|| (get16(self.payload, 0), get16(self.payload, 2)))
    }

    /// What the UDP datagram carried, as far as it is quoted; none for another protocol.
    pub fn udp_payload(&self) -> Option<&'a [u8]> {
        (self.protocol == UDP).then(|| &self.payload[UDP_HEADER_LEN..])
    }

    /// Ports and sequence number, when it is TCP.
    pub fn tcp(&self) -> Option<QuotedTcp> {
        (self.protocol == TCP).then(|| QuotedTcp {
            src_port: get16(self.payload, 0),
            dst_port: get16(self.payload, 2),
            seq: Seq(get32(self.payload, 4)),
        })
    }
}
