//! The ICMP errors that this host sends.

use millrace_wire::{icmpv4, ipv4};

/// Bytes of a packet that an error quotes: the error fits into 576 bytes (RFC 1812 4.3.2.3).
pub const QUOTE_MAX: usize = 576 - ipv4::HEADER_LEN - icmpv4::HEADER_LEN;

/// An error about a packet that came in. The caller has checked that the packet was sent by one
/// host, and to this host alone (RFC 1122 3.2.2).
#[derive(Clone, Copy, Debug)]
pub enum Icmpv4Error {
    /// Nothing here receives the packet; one of [`mod@millrace_wire::icmpv4::unreachable`].
    Unreachable(u8),
    /// The byte at this position of the header makes no sense.
    Parameter(u8),
    /// Fragments of the packet did not come in time.
    Reassembly,
}
