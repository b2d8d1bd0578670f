//! How a received datagram lies in a program's receive ring: what is known of it, then its payload,
//! then padding.
//!
//! No packet of a network, but written by one side and read by another all the same.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Length of what stands in front of the payload in bytes.
pub const LEN: usize = 48;
/// What a datagram that is to be sent counts against its socket's send buffer beside its payload,
/// in bytes: one without payload takes room too.
pub const SEND_OVERHEAD: u64 = 256;
/// Records begin at multiples of this.
const ALIGN: u64 = 16;

/// What is known of a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Bytes of payload that follow.
    pub payload_len: u32,
    /// Who sent it.
    pub from: SocketAddr,
    /// The address that it was sent to.
    pub to: IpAddr,
    /// And the port.
    pub to_port: u16,
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Type of service, or traffic class.
    pub class: u8,
    /// Several datagrams of one flow, each but the last with so many bytes; 0: it is one.
    pub segment_size: u16,
    /// Datagrams that this socket had to drop before this one came, modulo 2^32.
    pub dropped: u32,
}

/// Bytes that a record with so much payload takes.
pub fn stored_len(payload_len: usize) -> u64 {
    (LEN as u64 + payload_len as u64).next_multiple_of(ALIGN)
}

impl Record {
    /// As bytes.
    ///
    /// ```
    /// # use millrace_wire::record as millrace;
    /// # let record = millrace::Record {
    /// #     payload_len: 6,
    /// #     from: ([10, 0, 0, 9], 1234).into(),
    /// #     to: [10, 0, 0, 2].into(),
    /// #     to_port: 53,
    /// #     hops: 64,
    /// #     class: 0,
    /// #     segment_size: 0,
    /// #     dropped: 0,
    /// # };
    /// assert_eq!(record.emit().len(), 48);
    /// ```
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        out[..4].copy_from_slice(&self.payload_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.from.port().to_ne_bytes());
        out[6..8].copy_from_slice(&[self.hops, self.class]);
        out[8..10].copy_from_slice(&self.segment_size.to_ne_bytes());
        out[10..12].copy_from_slice(&self.to_port.to_ne_bytes());
        out[12..16].copy_from_slice(&self.dropped.to_ne_bytes());
        out[16..32].copy_from_slice(&mapped(self.from.ip()));
        out[32..].copy_from_slice(&mapped(self.to));
        out
    }

    /// Back from bytes, which may be anything.
    ///
    /// ```
    /// # use millrace_wire::record as millrace;
    /// # let record = millrace::Record {
    /// #     payload_len: 6,
    /// #     from: ([10, 0, 0, 9], 1234).into(),
    /// #     to: [10, 0, 0, 2].into(),
    /// #     to_port: 53,
    /// #     hops: 64,
    /// #     class: 0,
    /// #     segment_size: 0,
    /// #     dropped: 0,
    /// # };
    /// assert_eq!(millrace::Record::parse(&record.emit()), record);
    /// ```
    pub fn parse(bytes: &[u8; LEN]) -> Record {
        let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let address = |at: usize| {
            let octets: [u8; 16] = core::array::from_fn(|index| bytes[at + index]);
            Ipv6Addr::from(octets).to_canonical()
        };
        Record {
            payload_len: word(0),
            from: SocketAddr::new(address(16), half(4)),
            to: address(32),
            to_port: half(10),
            hops: bytes[6],
            class: bytes[7],
            segment_size: half(8),
            dropped: word(12),
        }
    }
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_its_bytes() {
        for (from, to) in [
            ("10.0.0.2:53", "224.0.0.251"),
            ("[fd00::1]:65535", "ff02::fb"),
        ] {
            let record = Record {
                payload_len: 65_507,
                from: from.parse().unwrap(),
                to: to.parse().unwrap(),
                to_port: 5353,
                hops: 255,
                class: 3,
                segment_size: 1400,
                dropped: u32::MAX,
            };
            assert_eq!(Record::parse(&record.emit()), record);
        }
    }

    #[test]
    fn records_follow_each_other_at_aligned_places() {
        assert_eq!(stored_len(0), 48);
        assert_eq!(stored_len(1), 64);
        assert_eq!(stored_len(16), 64);
    }
}
