//! Frames on the wire. All numbers are in network byte order.
//!
//! ```text
//! at  bytes  field
//!  0    14   Ethernet: destination, source, EtherType 0x88b5 (IEEE 802 local experimental 1)
//!  0     1   version, 1                       offsets from here on are behind the Ethernet header
//!  1     1   type: 1 hello, 2 welcome, 3 confirm, 4 data, 5 ack, 6 reset, 7 presence
//!  2     2   bytes of records behind this header; what is behind them is padding
//!  4     4   CRC32C of header and records, with 0 in this field
//!  8     4   source: node, port
//! 12     4   destination: node, port
//! 16     8   source epoch
//! 24     8   destination epoch
//! 32     4   sequence number of a data frame; reason of a reset; else 0
//! 36     4   acknowledgement: all data frames before this one have arrived
//! 40     8   bit i: data frame acknowledgement + 1 + i has arrived
//! 48     2   window: so many data frames from the acknowledgement on are taken
//! 50     2   flags: 1 asks for an answer; the others are 0
//! 52         records
//! ```
//! A record is a head of 24 bytes and a body:
//! ```text
//!  0     1   record: 1 system, 2 credit, 3 announce, 4 grant, 5 refuse, 6 withdraw, 7 data
//!  1     1   kind of the channel: 1 normal, 2 open; else 0
//!  2     2   number of the channel; else 0
//!  4     2   bytes of the body
//!  6     2   0
//!  8     4   ticket; else 0
//! 12     4   total, length, position or reason; else 0
//! 16     8   offset in a window; else 0
//! 24         body
//! ```

use millrace_wire::ethernet::{self, EtherType};

use crate::crc32c::crc32c;
use crate::record::{HEAD_LEN, Head, Words};
use crate::types::PortName;

/// What the frames are marked with: the first of the two numbers that IEEE 802 leaves to local use.
pub const ETHERTYPE: EtherType = EtherType(0x88b5);
/// Bytes before the records, behind the Ethernet header.
pub const HEADER_LEN: usize = 52;
/// The version that is spoken.
const VERSION: u8 = 1;
/// Where the CRC is.
const CRC_AT: usize = 4;
/// A frame with this flag asks for an answer.
pub const ASKS: u16 = 1;

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Asks for a session.
    Hello,
    /// Names the epoch that a session would have. Whoever sends it keeps nothing.
    Welcome,
    /// Begins the session, and shows that the welcome was received.
    Confirm,
    /// Carries records.
    Data,
    /// Acknowledges.
    Ack,
    /// Ends a session, or says that there is none.
    Reset,
    /// Tells all stations that the source is there.
    Presence,
}

const KINDS: [Kind; 7] = [
    Kind::Hello,
    Kind::Welcome,
    Kind::Confirm,
    Kind::Data,
    Kind::Ack,
    Kind::Reset,
    Kind::Presence,
];

/// The header of a frame, without length and CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is for.
    pub kind: Kind,
    /// Who sent it.
    pub src: PortName,
    /// Who it is for.
    pub dst: PortName,
    /// The sender's epoch of the session.
    pub src_epoch: u64,
    /// The receiver's.
    pub dst_epoch: u64,
    /// Sequence number or reason.
    pub seq: u32,
    /// Acknowledgement.
    pub ack: u32,
    /// What arrived behind it.
    pub sack: u64,
    /// How many frames are taken.
    pub window: u16,
    /// [`ASKS`] or 0.
    pub flags: u16,
}

/// Why a frame is not one of ours, or damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadFrame {
    /// It is shorter than it says, or than a header.
    Truncated,
    /// The CRC is another.
    Checksum,
    /// Another version, an unknown type, or a bit that must be 0.
    Unknown,
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from(get16(bytes, at)) << 16 | u32::from(get16(bytes, at + 2))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from(get32(bytes, at)) << 32 | u64::from(get32(bytes, at + 4))
}

fn put<const N: usize>(out: &mut [u8], at: usize, bytes: [u8; N]) {
    out[at..at + N].copy_from_slice(&bytes);
}

impl Header {
    /// Takes apart what is behind an Ethernet header: header and records.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), BadFrame> {
        let (head, rest) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(BadFrame::Truncated)?;
        if head[0] != VERSION {
            return Err(BadFrame::Unknown);
        }
        let records = rest
            .get(..usize::from(get16(head, 2)))
            .ok_or(BadFrame::Truncated)?;
        let crc = crc32c([&head[..CRC_AT], &[0; 4], &head[CRC_AT + 4..], records]);
        if crc != get32(head, CRC_AT) {
            return Err(BadFrame::Checksum);
        }
        let kind = usize::from(head[1]).checked_sub(1);
        let kind = *kind
            .and_then(|kind| KINDS.get(kind))
            .ok_or(BadFrame::Unknown)?;
        let header = Header {
            kind,
            src: PortName::new(get16(head, 8), get16(head, 10)),
            dst: PortName::new(get16(head, 12), get16(head, 14)),
            src_epoch: get64(head, 16),
            dst_epoch: get64(head, 24),
            seq: get32(head, 32),
            ack: get32(head, 36),
            sack: get64(head, 40),
            window: get16(head, 48),
            flags: get16(head, 50),
        };
        if header.flags & !ASKS != 0 || (kind == Kind::Data) == records.is_empty() {
            return Err(BadFrame::Unknown);
        }
        Ok((header, records))
    }

    /// Appends the frame, from its Ethernet header to its last record.
    pub fn emit(&self, link: ethernet::Header, records: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let whole = ethernet::HEADER_LEN + HEADER_LEN;
        out.resize(start + whole, 0);
        link.emit(&mut out[start..]);
        let head = &mut out[start + ethernet::HEADER_LEN..];
        head[0] = VERSION;
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        head[1] = kind.unwrap_or_default() as u8 + 1;
        put(head, 2, (records.len() as u16).to_be_bytes());
        put(head, 8, self.src.node.to_be_bytes());
        put(head, 10, self.src.port.to_be_bytes());
        put(head, 12, self.dst.node.to_be_bytes());
        put(head, 14, self.dst.port.to_be_bytes());
        put(head, 16, self.src_epoch.to_be_bytes());
        put(head, 24, self.dst_epoch.to_be_bytes());
        put(head, 32, self.seq.to_be_bytes());
        put(head, 36, self.ack.to_be_bytes());
        put(head, 40, self.sack.to_be_bytes());
        put(head, 48, self.window.to_be_bytes());
        put(head, 50, self.flags.to_be_bytes());
        let crc = crc32c([head, records]);
        put(head, CRC_AT, crc.to_be_bytes());
        out.extend_from_slice(records);
    }
}

/// Appends a record. Its body has less than 2^16 bytes.
pub fn write_record(head: Head, body: &[u8], out: &mut Vec<u8>) {
    let words = head.to_words();
    let mut bytes = [0; HEAD_LEN];
    (bytes[0], bytes[1]) = (words.kind, words.channel_kind);
    put(&mut bytes, 2, words.channel.to_be_bytes());
    put(&mut bytes, 4, (body.len() as u16).to_be_bytes());
    put(&mut bytes, 8, words.ticket.to_be_bytes());
    put(&mut bytes, 12, words.value.to_be_bytes());
    put(&mut bytes, 16, words.offset.to_be_bytes());
    out.extend_from_slice(&bytes);
    out.extend_from_slice(body);
}

/// Takes the first record off; none if there is no whole and known one.
pub fn read_record<'a>(records: &mut &'a [u8]) -> Option<(Head, &'a [u8])> {
    let (bytes, rest) = records.split_first_chunk::<HEAD_LEN>()?;
    let (body, rest) = rest.split_at_checked(usize::from(get16(bytes, 4)))?;
    let head = Head::from_words(Words {
        kind: bytes[0],
        channel_kind: bytes[1],
        channel: get16(bytes, 2),
        ticket: get32(bytes, 8),
        value: get32(bytes, 12),
        offset: get64(bytes, 16),
    })?;
    if get16(bytes, 6) != 0 || (!head.has_body() && !body.is_empty()) {
        return None;
    }
    *records = rest;
    Some((head, body))
}
