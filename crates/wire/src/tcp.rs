//! TCP segments (RFC 9293 section 3.1).

mod options;
mod seq;

use bitflags::bitflags;

pub use options::{Cookie, Options, SackBlocks, Timestamps};
pub use seq::Seq;

use crate::Error;
use crate::bytes::{get16, get32, put16, put32};

/// Length of the header without options, in bytes.
pub const HEADER_LEN: usize = 20;
/// Length of the longest header, in bytes.
pub const MAX_HEADER_LEN: usize = 60;
/// Where the checksum field is in the header.
pub const CHECKSUM_OFFSET: usize = 16;
/// TCP's number among IP protocols.
pub const PROTOCOL: u8 = 6;

bitflags! {
    /// Control bits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u8 {
        /// No more data from the sender.
        const FIN = 1;
        /// Synchronise sequence numbers.
        const SYN = 1 << 1;
        /// Reset the connection.
        const RST = 1 << 2;
        /// Push.
        const PSH = 1 << 3;
        /// The acknowledgement field is significant.
        const ACK = 1 << 4;
        /// The urgent pointer is significant.
        const URG = 1 << 5;
        /// Echo of congestion experienced (RFC 3168).
        const ECE = 1 << 6;
        /// Congestion window reduced (RFC 3168).
        const CWR = 1 << 7;
    }
}

/// A received segment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first payload byte, or of SYN.
    pub seq: Seq,
    /// The next sequence number that the sender expects; significant with [`Flags::ACK`].
    pub ack: Seq,
    /// Control bits. The reserved bits and the former NS bit are not looked at.
    pub flags: Flags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer; significant with [`Flags::URG`].
    pub urgent: u16,
    /// The network has marked it as having met congestion (CE, RFC 3168 5): the IP header says so,
    /// not the segment.
    pub marked: bool,
    /// Options.
    pub options: Options,
    /// Payload.
    pub payload: &'a [u8],
}

impl<'a> Segment<'a> {
    /// Parses a segment: the whole payload of an IP datagram. Neither the checksum nor the meaning
    /// of fields is looked at.
    ///
    /// # Errors
    /// [`Error::Truncated`] below 20 bytes, [`Error::Length`] when the data offset is below 5 or
    /// past the end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let Some((head, _)) = bytes.split_first_chunk::<HEADER_LEN>() else {
            return Err(Error::Truncated);
        };
        let header_len = usize::from(head[12] >> 4) * 4;
        if header_len < HEADER_LEN || header_len > bytes.len() {
            return Err(Error::Length);
        }
        let flags = Flags::from_bits_retain(head[13]);
        let (header, payload) = bytes.split_at(header_len);
        Ok(Segment {
            src_port: get16(head, 0),
            dst_port: get16(head, 2),
            seq: Seq(get32(head, 4)),
            ack: Seq(get32(head, 8)),
            flags,
            window: get16(head, 14),
            urgent: get16(head, 18),
            marked: false,
            options: Options::parse(&header[HEADER_LEN..], flags.contains(Flags::SYN)),
            payload,
        })
    }

    /// How many sequence numbers the segment takes: its payload, one for SYN and one for FIN.
    pub fn sequence_len(&self) -> u32 {
        self.payload.len() as u32
            + u32::from(self.flags.contains(Flags::SYN))
            + u32::from(self.flags.contains(Flags::FIN))
    }
}

/// A received segment with ACK, perhaps PSH and FIN, and no other control bit, and with no option
/// but timestamps where they usually are (RFC 7323, appendix A): as nearly all are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainSegment<'a> {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first payload byte.
    pub seq: Seq,
    /// The next sequence number that the sender expects.
    pub ack: Seq,
    /// Whether it has FIN.
    pub fin: bool,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// As [`Segment::marked`].
    pub marked: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Payload.
    pub payload: &'a [u8],
}

/// Control bits that such a segment may have or not.
const EITHER: Flags = Flags::PSH.union(Flags::FIN);
/// Data offset, and the other control bits; the reserved bits are not looked at.
const SHAPE: u16 = 0xf000 | (Flags::all().bits() & !EITHER.bits()) as u16;
const PLAIN: u16 = 5 << 12 | Flags::ACK.bits() as u16;
const PLAIN_WITH_TIMESTAMPS: u16 = 8 << 12 | Flags::ACK.bits() as u16;

impl<'a> PlainSegment<'a> {
    /// Parses a segment as [`Segment::parse`] does, if it is such a one.
    #[inline(always)]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let (timestamps, payload) = match get16(head, 12) & SHAPE {
            PLAIN_WITH_TIMESTAMPS => {
                let (options, payload) = rest.split_first_chunk::<12>()?;
                (Some(options::aligned_timestamps(options)?), payload)
            }
            PLAIN => (None, rest),
            _ => return None,
        };
        Some(PlainSegment {
            src_port: get16(head, 0),
            dst_port: get16(head, 2),
            seq: Seq(get32(head, 4)),
            ack: Seq(get32(head, 8)),
            fin: head[13] & Flags::FIN.bits() != 0,
            window: get16(head, 14),
            marked: false,
            timestamps,
            payload,
        })
    }

    /// A segment as such a one, if it is.
    #[inline(always)]
    pub fn of(segment: &Segment<'a>) -> Option<Self> {
        let options = &segment.options;
        let plain = segment.flags - EITHER == Flags::ACK && options.sack.is_empty();
        plain.then_some(PlainSegment {
            src_port: segment.src_port,
            dst_port: segment.dst_port,
            seq: segment.seq,
            ack: segment.ack,
            fin: segment.flags.contains(Flags::FIN),
            window: segment.window,
            marked: segment.marked,
            timestamps: options.timestamps,
            payload: segment.payload,
        })
    }
}

/// The header of a segment to be sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first payload byte, or of SYN.
    pub seq: Seq,
    /// The next sequence number that we expect.
    pub ack: Seq,
    /// Control bits.
    pub flags: Flags,
    /// Window as on the wire, already scaled down.
    pub window: u16,
    /// Urgent pointer.
    pub urgent: u16,
    /// Options.
    pub options: Options,
}

impl Header {
    /// Length on the wire in bytes: a multiple of 4, from 20 to 60.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.encoded_len()
    }

    /// Writes the header with a checksum of 0 and returns its length; panics when `out` is shorter
    /// than that.
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.header_len();
        let (head, options) = out[..len].split_at_mut(HEADER_LEN);
        put16(head, 0, self.src_port);
        put16(head, 2, self.dst_port);
        put32(head, 4, self.seq.0);
        put32(head, 8, self.ack.0);
        head[12] = ((len / 4) as u8) << 4;
        head[13] = self.flags.bits();
        put16(head, 14, self.window);
        put16(head, CHECKSUM_OFFSET, 0);
        put16(head, 18, self.urgent);
        self.options.emit(options);
        len
    }
}

#[cfg(test)]
mod tests;
