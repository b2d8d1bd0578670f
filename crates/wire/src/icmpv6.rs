//! ICMP for IPv6 (RFC 4443). Neighbour discovery, which travels in it, is in [`crate::ndp`].

use core::net::Ipv6Addr;

use crate::Error;
use crate::bytes::{get16, get32, put16};
use crate::checksum::{Sum, pseudo_v6, verify_v6};
use crate::icmpv4::QuotedTcp;
use crate::ipv6;
use crate::tcp::{PROTOCOL as TCP, Seq};
use crate::udp::{HEADER_LEN as UDP_HEADER_LEN, PROTOCOL as UDP};

/// ICMPv6's number among IP protocols.
pub const PROTOCOL: u8 = 58;
/// Length of what comes before the data or the quoted packet, in bytes.
pub const HEADER_LEN: usize = 8;

/// Codes of [`Message::Unreachable`] (RFC 4443 3.1).
pub mod unreachable {
    /// No route.
    pub const NO_ROUTE: u8 = 0;
    /// Communication is prohibited by a filter.
    pub const PROHIBITED: u8 = 1;
    /// The destination is beyond the scope of the source address.
    pub const SCOPE: u8 = 2;
    /// Address unreachable.
    pub const ADDRESS: u8 = 3;
    /// Nobody listens at the port.
    pub const PORT: u8 = 4;
    /// The source address fails the policy.
    pub const POLICY: u8 = 5;
    /// The route to the destination rejects.
    pub const REJECT: u8 = 6;
}

const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;
const ECHO_REQUEST: u8 = 128;
const ECHO_REPLY: u8 = 129;

/// A message. In errors, `original` quotes as much of the packet that caused it as fits
/// ([`Quoted`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The packet did not arrive.
    Unreachable {
        /// One of [`mod@unreachable`], or another.
        code: u8,
        /// The quoted packet.
        original: &'a [u8],
    },
    /// The packet is larger than the next link takes.
    PacketTooBig {
        /// What the next link takes, in bytes, IPv6 header included.
        mtu: u32,
        /// The quoted packet.
        original: &'a [u8],
    },
    /// The packet, or a fragment of it, took too long.
    TimeExceeded {
        /// 0: too many hops; 1: reassembly.
        code: u8,
        /// The quoted packet.
        original: &'a [u8],
    },
    /// The packet's headers make no sense.
    ParameterProblem {
        /// One of [`mod@ipv6::parameter`], or another.
        code: u8,
        /// The byte that is at fault.
        pointer: u32,
        /// The quoted packet.
        original: &'a [u8],
    },
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
    /// Anything else.
    Other {
        /// Type; below 128 it is an error.
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
    /// Parses the payload of an IPv6 packet. The checksum is not looked at ([`verify`]).
    ///
    /// # Errors
    /// [`Error::Truncated`] below eight bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (head, data) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let &[kind, code, _, _, ref rest @ ..] = head;
        let (id, sequence) = (get16(head, 4), get16(head, 6));
        Ok(match (kind, code) {
            (UNREACHABLE, _) => Message::Unreachable {
                code,
                original: data,
            },
            // The code is to be ignored (RFC 4443 3.2), and is 0.
            (PACKET_TOO_BIG, 0) => Message::PacketTooBig {
                mtu: get32(head, 4),
                original: data,
            },
            (TIME_EXCEEDED, _) => Message::TimeExceeded {
                code,
                original: data,
            },
            (PARAMETER_PROBLEM, _) => Message::ParameterProblem {
                code,
                pointer: get32(head, 4),
                original: data,
            },
            (ECHO_REQUEST, 0) => Message::EchoRequest { id, sequence, data },
            (ECHO_REPLY, 0) => Message::EchoReply { id, sequence, data },
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

    /// Writes the message from `src` to `dst`, checksum included, and returns its length; panics
    /// when `out` is shorter than that.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr, out: &mut [u8]) -> usize {
        let (kind, code, rest, data) = self.parts();
        let len = HEADER_LEN + data.len();
        let out = &mut out[..len];
        out[..4].copy_from_slice(&[kind, code, 0, 0]);
        out[4..8].copy_from_slice(&rest);
        out[8..].copy_from_slice(data);
        finish(src, dst, out);
        len
    }

    /// Type, code, the second word, and what follows.
    fn parts(&self) -> (u8, u8, [u8; 4], &'a [u8]) {
        let echo = |id: u16, sequence: u16| {
            let ([a, b], [c, d]) = (id.to_be_bytes(), sequence.to_be_bytes());
            [a, b, c, d]
        };
        match *self {
            Message::Unreachable { code, original } => (UNREACHABLE, code, [0; 4], original),
            Message::PacketTooBig { mtu, original } => {
                (PACKET_TOO_BIG, 0, mtu.to_be_bytes(), original)
            }
            Message::TimeExceeded { code, original } => (TIME_EXCEEDED, code, [0; 4], original),
            Message::ParameterProblem {
                code,
                pointer,
                original,
            } => (PARAMETER_PROBLEM, code, pointer.to_be_bytes(), original),
            Message::EchoRequest { id, sequence, data } => {
                (ECHO_REQUEST, 0, echo(id, sequence), data)
            }
            Message::EchoReply { id, sequence, data } => (ECHO_REPLY, 0, echo(id, sequence), data),
            Message::Other {
                kind,
                code,
                rest,
                data,
            } => (kind, code, rest, data),
        }
    }
}

/// Whether the checksum of a message is right.
pub fn verify(src: Ipv6Addr, dst: Ipv6Addr, bytes: &[u8]) -> bool {
    verify_v6(src, dst, PROTOCOL, bytes)
}

/// Puts the checksum into a message that has 0 in its place.
pub(crate) fn finish(src: Ipv6Addr, dst: Ipv6Addr, message: &mut [u8]) {
    let sum = pseudo_v6(src, dst, PROTOCOL, message.len() as u32) + Sum::of(message);
    put16(message, 2, sum.finish());
}

/// Whether a message of this type reports an error; about such a one no other is sent (RFC 4443 2.4
/// (e.1)).
pub fn is_error(kind: u8) -> bool {
    kind < 128
}

/// The packet that an error quotes. It came from the network like everything else: believe it only
/// as far as it names a connection and a sequence number in flight (RFC 5927 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quoted<'a> {
    /// Who sent it; the receiver of the error, if it is genuine.
    pub src: Ipv6Addr,
    /// Whom it was for.
    pub dst: Ipv6Addr,
    /// Its upper-layer protocol.
    pub protocol: u8,
    /// The start of what it carried, at least eight bytes; it may be cut anywhere after.
    pub payload: &'a [u8],
}

impl<'a> Quoted<'a> {
    /// Parses the `original` of an error.
    ///
    /// # Errors
    /// [`Error::Truncated`] when headers and eight bytes after them are not there, or extension
    /// headers lead nowhere; [`Error::Version`] for other than IPv6.
    pub fn parse(original: &'a [u8]) -> Result<Self, Error> {
        let (header, rest) = ipv6::Header::parse_start(original)?;
        let rest = &rest[..rest.len().min(usize::from(header.payload_len))];
        let content = ipv6::walk(&header, rest).map_err(|_| Error::Truncated)?;
        // Only the first fragment has ports.
        if content
            .fragment
            .is_some_and(|fragment| fragment.offset != 0)
            || content.payload.len() < 8
        {
            return Err(Error::Truncated);
        }
        Ok(Quoted {
            src: header.src,
            dst: header.dst,
            protocol: content.protocol,
            payload: content.payload,
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
