//! ICMP and ICMPv6, shared parts: limits on messages out, and errors from the network.

use std::net::IpAddr;

use millrace_tcp::{IcmpError, Instant};
use millrace_wire::tcp::Seq;

use crate::config::Limits;
use crate::connection_table::{Pair, Tuple};
use crate::counters::Counters;
use crate::ip::family::Family;
use crate::rate_limit::RateLimit;

/// How many messages may be sent. Errors and echo replies have limits of their own, so that a flood
/// of one kind does not silence the other.
pub struct IcmpLimits {
    errors: RateLimit,
    echo_replies: RateLimit,
}

impl IcmpLimits {
    /// The limits of a configuration.
    pub fn new(limits: &Limits) -> IcmpLimits {
        IcmpLimits {
            errors: RateLimit::new(limits.icmp_errors_per_second),
            echo_replies: RateLimit::new(limits.echo_replies_per_second),
        }
    }

    /// Whether one more echo reply may be sent now.
    pub fn allows_echo_reply(&mut self, counters: &mut Counters, now: Instant) -> bool {
        let allowed = self.echo_replies.allow(now);
        counters.icmp_echo_limited += u64::from(!allowed);
        allowed
    }

    /// Whether one more error may be sent now.
    pub fn allows_error(&mut self, counters: &mut Counters, now: Instant) -> bool {
        let allowed = self.errors.allow(now);
        counters.icmp_errors_limited += u64::from(!allowed);
        allowed
    }
}

/// An error that the network reports about a packet of ours.
pub struct NetworkError<'a> {
    /// The error, for a connection.
    pub error: IcmpError,
    /// The fields of the message.
    pub details: IcmpDetails,
    /// Which packet it is about.
    pub about: Quoted<'a>,
}

/// The packet that an error quotes.
pub enum Quoted<'a> {
    /// A TCP segment with this sequence number.
    Segment(Tuple, Seq),
    /// A datagram.
    Datagram {
        /// Its endpoints, ours first.
        tuple: Tuple,
        /// The start of its payload.
        payload: &'a [u8],
        /// The errno for its socket.
        errno: i32,
        /// Whether a socket learns of it that did not ask for errors (RFC 1122 4.1.3.3).
        is_hard: bool,
    },
    /// Any other packet.
    Other,
}

/// The fields of an ICMP error.
#[derive(Clone, Copy)]
pub struct IcmpDetails {
    /// The type of the message.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU of the path, or the position of the faulty byte in the header; 0 if the message has
    /// neither.
    pub info: u32,
    /// The sender of the message.
    pub offender: IpAddr,
}

impl IcmpDetails {
    /// The fields of a message without an MTU or a position.
    pub fn new(kind: u8, code: u8, offender: IpAddr) -> IcmpDetails {
        IcmpDetails {
            kind,
            code,
            info: 0,
            offender,
        }
    }
}

impl<'a> Quoted<'a> {
    /// The packet from `local` to `remote`: a datagram with its ports and payload, or a segment
    /// with its ports and sequence number.
    pub fn new<A: Family>(
        (local, remote): (A, A),
        datagram: Option<((u16, u16), &'a [u8])>,
        segment: Option<((u16, u16), Seq)>,
        (errno, is_hard): (i32, bool),
    ) -> Quoted<'a> {
        let tuple = |(local_port, remote_port)| {
            A::tuple(Pair {
                local,
                remote,
                local_port,
                remote_port,
            })
        };
        match (datagram, segment) {
            (Some((ports, payload)), _) => Quoted::Datagram {
                tuple: tuple(ports),
                payload,
                errno,
                is_hard,
            },
            (None, Some((ports, seq))) => Quoted::Segment(tuple(ports), seq),
            (None, None) => Quoted::Other,
        }
    }
}
