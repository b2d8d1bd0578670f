//! What a port can do for a stack, and what the two tell each other about each frame.

use crate::ethernet::Mac;

/// What a port offers. Declared once, when it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// The address that frames to this stack carry.
    pub mac: Mac,
    /// The largest IP datagram on the link, in bytes.
    pub mtu: u16,
    /// Whether [`Offload::Checksum`] may be asked for.
    pub tx_checksum: bool,
    /// The largest frame, Ethernet header included, for which [`Offload::Segment`] may be asked; 0
    /// when it may not.
    pub tx_segmentation_max: u32,
    /// Whether received frames can be larger than the MTU (many segments joined into one).
    pub rx_aggregated: bool,
    /// Whether the link cannot damage a frame, so that checksums need not be verified at all.
    pub trusted_checksum: bool,
    /// How many queues the device behind the port has; each is a port of its own.
    pub queues: u16,
}

impl Capabilities {
    /// A device that does nothing for the stack above it, with one queue.
    ///
    /// ```
    /// use millrace_wire::{ethernet::Mac, offload::Capabilities};
    ///
    /// let device = Capabilities::plain(Mac([2, 0, 0, 0, 0, 1]), 1500);
    /// assert!(!device.tx_checksum && device.queues == 1);
    /// ```
    #[must_use]
    pub const fn plain(mac: Mac, mtu: u16) -> Capabilities {
        Capabilities {
            mac,
            mtu,
            tx_checksum: false,
            tx_segmentation_max: 0,
            rx_aggregated: false,
            trusted_checksum: false,
            queues: 1,
        }
    }
}

/// What is known of the transport checksum of a received frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChecksumState {
    /// Nothing: the stack verifies it.
    #[default]
    Unchecked,
    /// The port verified it.
    Valid,
    /// The sender left it unfinished because the frame never met a wire: the field is not a
    /// checksum, the content is right.
    Partial,
}

/// A received frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The bytes from the Ethernet header on, without frame check sequence.
    pub bytes: &'a [u8],
    /// What the port knows of the transport checksum.
    pub checksum: ChecksumState,
    /// The payload bytes per segment of which the frame was joined; 0 when it is one segment.
    pub segment_size: u16,
}

/// What the port is asked to finish in a frame to be sent. Offsets count from the start of the
/// Ethernet header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: the frame is complete.
    #[default]
    None,
    /// The transport checksum. The field holds the sum of the pseudo-header
    /// ([`crate::checksum::Sum::fold`]).
    Checksum {
        /// Where the transport header starts.
        start: u16,
        /// Where the checksum field is, from `start`.
        offset: u16,
    },
    /// The checksum, and cutting TCP payload into segments with a copy of the header each.
    Segment {
        /// Where the TCP header starts.
        start: u16,
        /// Where the checksum field is, from `start`.
        offset: u16,
        /// Length of all headers, Ethernet's included.
        header_len: u16,
        /// Payload bytes per segment.
        segment_size: u16,
    },
}
