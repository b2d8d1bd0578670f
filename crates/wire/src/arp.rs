//! ARP over Ethernet for IPv4 (RFC 826).

use core::net::Ipv4Addr;

use crate::Error;
use crate::bytes::{get16, put16};
use crate::ethernet::{EtherType, Mac};

/// Length of a packet in bytes, without the padding of a short frame.
pub const LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;

/// What a packet is for. Any number can be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

impl Operation {
    /// Asks for the link-layer address of `target_ip`.
    pub const REQUEST: Operation = Operation(1);
    /// Tells the link-layer address of `sender_ip`.
    pub const REPLY: Operation = Operation(2);
}

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Request or reply.
    pub operation: Operation,
    /// Link-layer address of the sender.
    pub sender_mac: Mac,
    /// IP address of the sender; unspecified in a probe (RFC 5227).
    pub sender_ip: Ipv4Addr,
    /// Link-layer address of the target; means nothing in a request.
    pub target_mac: Mac,
    /// IP address of the target.
    pub target_ip: Ipv4Addr,
}

impl Packet {
    /// Parses a packet; what follows it is padding.
    ///
    /// # Errors
    /// [`Error::Truncated`] below [`LEN`] bytes, [`Error::Version`] for other than Ethernet and
    /// IPv4 addresses.
    pub fn parse(bytes: &[u8]) -> Result<Packet, Error> {
        let (bytes, _) = bytes.split_first_chunk::<LEN>().ok_or(Error::Truncated)?;
        let kind = (get16(bytes, 0), get16(bytes, 2), bytes[4], bytes[5]);
        if kind != (HARDWARE_ETHERNET, EtherType::IPV4.0, 6, 4) {
            return Err(Error::Version);
        }
        Ok(Packet {
            operation: Operation(get16(bytes, 6)),
            sender_mac: mac(bytes, 8),
            sender_ip: ip(bytes, 14),
            target_mac: mac(bytes, 18),
            target_ip: ip(bytes, 24),
        })
    }

    /// Writes the packet to the first [`LEN`] bytes of `out`; panics when there are fewer.
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..LEN];
        put16(out, 0, HARDWARE_ETHERNET);
        put16(out, 2, EtherType::IPV4.0);
        out[4] = 6;
        out[5] = 4;
        put16(out, 6, self.operation.0);
        out[8..14].copy_from_slice(&self.sender_mac.0);
        out[14..18].copy_from_slice(&self.sender_ip.octets());
        out[18..24].copy_from_slice(&self.target_mac.0);
        out[24..28].copy_from_slice(&self.target_ip.octets());
    }
}

fn mac(bytes: &[u8; LEN], at: usize) -> Mac {
    let mut mac = Mac::default();
    mac.0.copy_from_slice(&bytes[at..at + 6]);
    mac
}

fn ip(bytes: &[u8; LEN], at: usize) -> Ipv4Addr {
    Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3])
}
