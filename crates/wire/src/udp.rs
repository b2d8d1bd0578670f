//! UDP datagrams (RFC 768, RFC 8200 8.1).

use crate::Error;
use crate::bytes::{get16, put16};

/// UDP's number among IP protocols.
pub const PROTOCOL: u8 = 17;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 8;
/// Where the checksum is in the header.
pub const CHECKSUM_OFFSET: usize = 6;

/// A parsed datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Source port; 0 when the sender wants no answer.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// The checksum as it stands; 0 over IPv4 means that the sender made none, over IPv6 it is an
    /// error.
    pub checksum: u16,
    /// Header and payload as far as the length field reaches: what the checksum covers.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Parses the payload of an IP packet; what lies beyond the datagram's own length is no part of
    /// it. The checksum is not looked at.
    ///
    /// # Errors
    /// [`Error::Truncated`] below eight bytes, [`Error::Length`] when the length field is below
    /// eight or beyond the packet.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (head, _) = bytes
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let len = usize::from(get16(head, 4));
        if len < HEADER_LEN || len > bytes.len() {
            return Err(Error::Length);
        }
        Ok(Datagram {
            src_port: get16(head, 0),
            dst_port: get16(head, 2),
            checksum: get16(head, CHECKSUM_OFFSET),
            bytes: &bytes[..len],
        })
    }

    /// What the datagram carries.
    pub fn payload(&self) -> &'a [u8] {
        &self.bytes[HEADER_LEN..]
    }
}

/// A header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Length of the payload in bytes, at most 65,527.
    pub payload_len: u16,
}

impl Header {
    /// Writes the header, with a checksum of 0, to the first [`HEADER_LEN`] bytes of `out`.
    ///
    /// # Panics
    /// When `out` is shorter, or the payload longer than 65,527 bytes.
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        assert!(
            self.payload_len <= 0xffff - HEADER_LEN as u16,
            "payload of {} bytes",
            self.payload_len
        );
        put16(out, 0, self.src_port);
        put16(out, 2, self.dst_port);
        put16(out, 4, self.payload_len + HEADER_LEN as u16);
        put16(out, CHECKSUM_OFFSET, 0);
    }
}

/// The checksum as it is sent: one that comes out as 0 is sent as all ones, because 0 means none
/// (RFC 768).
pub fn checksum_to_send(finished: u16) -> u16 {
    if finished == 0 { 0xffff } else { finished }
}
