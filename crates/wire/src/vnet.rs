//! The virtio-net header that precedes each frame on TAP (`IFF_VNET_HDR`) and AF_PACKET
//! (`PACKET_VNET_HDR`) descriptors (Virtual I/O Device 1.2, section 5.1.6). Its fields are in the
//! machine's byte order.

use bitflags::bitflags;

use crate::Error;
use crate::offload::{ChecksumState, Offload};

/// Length of the header in bytes: the form without `num_buffers`.
pub const LEN: usize = 10;

bitflags! {
    /// What is known or wanted of the transport checksum.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// It is to be computed from `csum_start` on and put at `csum_start + csum_offset`.
        const NEEDS_CSUM = 1;
        /// It was verified.
        const DATA_VALID = 2;
    }
}

/// How a frame larger than the MTU is to be cut, or was joined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gso(pub u8);

impl Gso {
    /// Not at all.
    pub const NONE: Gso = Gso(0);
    /// TCP over IPv4.
    pub const TCP_V4: Gso = Gso(1);
    /// TCP over IPv6.
    pub const TCP_V6: Gso = Gso(4);
    /// Added to a TCP kind: CWR stands in the first segment only (RFC 3168 6.1.2).
    pub const ECN: Gso = Gso(0x80);

    /// Whether this is TCP, with or without ECN.
    pub fn is_tcp(self) -> bool {
        matches!(Gso(self.0 & !Gso::ECN.0), Gso::TCP_V4 | Gso::TCP_V6)
    }
}

/// The header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// What is known or wanted of the checksum.
    pub flags: Flags,
    /// How to cut the frame.
    pub gso: Gso,
    /// Length of all headers from Ethernet's on; a hint.
    pub header_len: u16,
    /// Payload bytes per segment.
    pub gso_size: u16,
    /// Where the checksum starts, from the start of the Ethernet header.
    pub csum_start: u16,
    /// Where it is put, from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Splits bytes into header and frame.
    ///
    /// # Errors
    /// [`Error::Truncated`] below [`LEN`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<(VnetHeader, &[u8]), Error> {
        let (head, frame) = bytes.split_first_chunk::<LEN>().ok_or(Error::Truncated)?;
        let word = |at: usize| u16::from_ne_bytes([head[at], head[at + 1]]);
        let header = VnetHeader {
            flags: Flags::from_bits_retain(head[0]),
            gso: Gso(head[1]),
            header_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        };
        Ok((header, frame))
    }

    /// The header as bytes.
    pub fn emit(&self) -> [u8; LEN] {
        let [a, b] = self.header_len.to_ne_bytes();
        let [c, d] = self.gso_size.to_ne_bytes();
        let [e, f] = self.csum_start.to_ne_bytes();
        let [g, h] = self.csum_offset.to_ne_bytes();
        [self.flags.bits(), self.gso.0, a, b, c, d, e, f, g, h]
    }

    /// The header that asks for `offload` of an IPv4 or IPv6 frame which begins with `head`: at
    /// least its headers.
    pub fn request(offload: Offload, head: &[u8]) -> VnetHeader {
        VnetHeader::request_at(crate::ethernet::HEADER_LEN, offload, head)
    }

    /// As [`VnetHeader::request`], for a frame whose Ethernet header has been taken off: `head`
    /// begins with IP's, and `offload` reckons with it.
    pub fn request_of_packet(offload: Offload, head: &[u8]) -> VnetHeader {
        const LEN: u16 = crate::ethernet::HEADER_LEN as u16;
        let offload = match offload {
            Offload::None => Offload::None,
            Offload::Checksum { start, offset } => Offload::Checksum {
                start: start.saturating_sub(LEN),
                offset,
            },
            Offload::Segment {
                start,
                offset,
                header_len,
                segment_size,
            } => Offload::Segment {
                start: start.saturating_sub(LEN),
                offset,
                header_len: header_len.saturating_sub(LEN),
                segment_size,
            },
        };
        VnetHeader::request_at(0, offload, head)
    }

    fn request_at(ip_at: usize, offload: Offload, head: &[u8]) -> VnetHeader {
        match offload {
            Offload::None => VnetHeader::default(),
            Offload::Checksum { start, offset } => VnetHeader {
                flags: Flags::NEEDS_CSUM,
                csum_start: start,
                csum_offset: offset,
                ..VnetHeader::default()
            },
            Offload::Segment {
                start,
                offset,
                header_len,
                segment_size,
            } => {
                const TCP_FLAGS_AT: usize = 13;
                let byte = |at: usize| head.get(at).copied().unwrap_or(0);
                let kind = if byte(ip_at) >> 4 == 6 {
                    Gso::TCP_V6
                } else {
                    Gso::TCP_V4
                };
                let cwr =
                    crate::tcp::Flags::from_bits_retain(byte(usize::from(start) + TCP_FLAGS_AT))
                        .contains(crate::tcp::Flags::CWR);
                VnetHeader {
                    flags: Flags::NEEDS_CSUM,
                    gso: if cwr { Gso(kind.0 | Gso::ECN.0) } else { kind },
                    header_len,
                    gso_size: segment_size,
                    csum_start: start,
                    csum_offset: offset,
                }
            }
        }
    }

    /// The same for the frame with `len` bytes more before its IP header.
    pub fn moved_by(self, len: u16) -> VnetHeader {
        let moved = |at: u16| if at == 0 { 0 } else { at + len };
        VnetHeader {
            header_len: moved(self.header_len),
            csum_start: moved(self.csum_start),
            ..self
        }
    }

    /// What the header of a received frame says of its checksum.
    pub fn checksum_state(&self) -> ChecksumState {
        if self.flags.contains(Flags::NEEDS_CSUM) {
            ChecksumState::Partial
        } else if self.flags.contains(Flags::DATA_VALID) {
            ChecksumState::Valid
        } else {
            ChecksumState::Unchecked
        }
    }

    /// The payload bytes per segment of a received frame that was joined from several; 0 when it
    /// was not.
    pub fn segment_size(&self) -> u16 {
        if self.gso.is_tcp() { self.gso_size } else { 0 }
    }
}
