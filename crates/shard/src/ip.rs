//! IP, both families: what they share, and the path from a packet to its transport protocol.

pub mod fragments;
pub mod path_mtu;
pub mod reassembly;
mod renumber;
pub mod route;
pub mod v4;
pub mod v6;

use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_wire::checksum;
use millrace_wire::offload::ChecksumState;

use crate::connection_table::{Pair, Tuple};

/// Whether a type of service or traffic class says that the packet has met congestion (CE, RFC 3168 5).
pub(crate) fn is_marked(class: u8) -> bool {
    class & 3 == 3
}

/// What the device says of the packet that is being taken in.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub checksum: ChecksumState,
    pub segment_size: u16,
}

/// The two families of addresses, as far as transport protocols tell them apart.
pub(crate) trait Family: Copy {
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
