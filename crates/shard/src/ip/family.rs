//! The two families of IP, as the protocols above them see them.

use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_wire::checksum;
use millrace_wire::offload::ChecksumState;

use crate::connection_table::{Pair, Tuple};
use crate::counters::Counters;

/// The bits of congestion experienced (CE) in a type of service or traffic class (RFC 3168 5).
pub const CONGESTION_EXPERIENCED: u8 = 3;

/// Whether a type of service or traffic class says that the packet has met congestion (CE, RFC 3168
/// 5).
pub fn is_marked(class: u8) -> bool {
    class & CONGESTION_EXPERIENCED == CONGESTION_EXPERIENCED
}

/// The facts that the port knows about a packet that came in.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    pub checksum: ChecksumState,
    pub segment_size: u16,
}

/// The two families of addresses, as far as transport protocols tell them apart.
pub trait Family: Copy {
    /// Whether the checksum of a transport packet is right.
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool;
    /// A pair as a tuple.
    fn tuple(pair: Pair<Self>) -> Tuple;
}

impl Family for Ipv4Addr {
    #[inline]
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool {
        checksum::verify_v4(src, dst, protocol, packet)
    }

    #[inline]
    fn tuple(pair: Pair<Self>) -> Tuple {
        Tuple::V4(pair)
    }
}

impl Family for Ipv6Addr {
    #[inline]
    fn verify(src: Self, dst: Self, protocol: u8, packet: &[u8]) -> bool {
        checksum::verify_v6(src, dst, protocol, packet)
    }

    #[inline]
    fn tuple(pair: Pair<Self>) -> Tuple {
        Tuple::V6(pair)
    }
}

/// Why a packet is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The header does not parse; of IPv4, an option may be at fault.
    Options,
    /// The packet makes no sense.
    Malformed,
    /// The checksum of its header is wrong.
    Checksum,
    /// It is for another host.
    NotOurs,
    /// Its source cannot be the address of another host.
    Source,
}

impl Rejected {
    /// Counts the packet.
    pub fn count(self, counters: &mut Counters) {
        *match self {
            Rejected::Options | Rejected::Malformed => &mut counters.ip_malformed,
            Rejected::Checksum => &mut counters.ip_checksum,
            Rejected::NotOurs => &mut counters.ip_not_ours,
            Rejected::Source => &mut counters.ip_bad_source,
        } += 1;
    }
}
