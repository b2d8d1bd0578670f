//! The ICMPv6 errors that this host sends.

use millrace_wire::icmpv6::HEADER_LEN;
use millrace_wire::ipv6::{self, MTU_MIN};

/// Bytes of a packet that an error quotes: the error fits into the least MTU (RFC 4443 2.4 (c)).
pub const QUOTE_MAX: usize = MTU_MIN as usize - ipv6::HEADER_LEN - HEADER_LEN;

/// An error about a packet that came in.
#[derive(Clone, Copy, Debug)]
pub enum Icmpv6Error {
    /// Nothing here receives the packet; one of [`mod@millrace_wire::icmpv6::unreachable`].
    Unreachable(u8),
    /// Its headers make no sense.
    Parameter {
        /// One of [`mod@ipv6::parameter`].
        code: u8,
        /// Where.
        pointer: u32,
    },
    /// Fragments of the packet did not come in time.
    Reassembly,
}
