//! Ethernet II frames.

use core::fmt;
use core::net::{Ipv4Addr, Ipv6Addr};

use crate::Error;
use crate::bytes::{get16, put16};

/// A link-layer address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations.
    ///
    /// ```
    /// # use millrace_wire::ethernet as millrace;
    /// assert!(millrace::Mac::BROADCAST.is_multicast());
    /// ```
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// The stations that listen to an IPv6 multicast group (RFC 2464 7).
    ///
    /// ```
    /// # use millrace_wire::ethernet as millrace;
    /// let mac = millrace::Mac::of_group("ff02::fb".parse().expect("a group"));
    /// assert_eq!(mac.to_string(), "33:33:00:00:00:fb");
    /// ```
    pub fn of_group(group: Ipv6Addr) -> Mac {
        let [.., a, b, c, d] = group.octets();
        Mac([0x33, 0x33, a, b, c, d])
    }

    /// Where packets to an IPv4 group go (RFC 1112 6.4).
    ///
    /// ```
    /// # use millrace_wire::ethernet as millrace;
    /// let mac = millrace::Mac::of_group_v4([224, 0, 0, 251].into());
    /// assert_eq!(mac.to_string(), "01:00:5e:00:00:fb");
    /// ```
    pub fn of_group_v4(group: Ipv4Addr) -> Mac {
        let [_, b, c, d] = group.octets();
        Mac([0x01, 0x00, 0x5e, b & 0x7f, c, d])
    }

    /// Whether this addresses a group of stations; broadcast is one.
    ///
    /// ```
    /// # use millrace_wire::ethernet as millrace;
    /// assert!(millrace::Mac([0x33, 0x33, 0, 0, 0, 1]).is_multicast());
    /// ```
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether this may be the address of a single station: not a group, not all zero.
    ///
    /// ```
    /// # use millrace_wire::ethernet as millrace;
    /// assert!(millrace::Mac([2, 0, 0, 0, 0, 1]).is_unicast());
    /// assert!(!millrace::Mac([0; 6]).is_unicast());
    /// ```
    pub fn is_unicast(self) -> bool {
        !self.is_multicast() && self.0 != [0; 6]
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What an Ethernet frame carries. Any number can be one; those that are spoken here have names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// ARP.
    pub const ARP: EtherType = EtherType(0x0806);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86dd);
    /// A tag of a virtual LAN (IEEE 802.1Q), which another type follows.
    pub const VLAN: EtherType = EtherType(0x8100);
}

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 14;

/// The header of an untagged frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The station that the frame is for.
    pub dst: Mac,
    /// The station that sent it.
    pub src: Mac,
    /// What follows the header.
    pub ethertype: EtherType,
}

impl Header {
    /// Splits a frame into header and payload. The payload may end in padding.
    pub fn parse(frame: &[u8]) -> Result<(Header, &[u8]), Error> {
        let (head, payload) = frame
            .split_first_chunk::<HEADER_LEN>()
            .ok_or(Error::Truncated)?;
        let &[d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = head;
        let header = Header {
            dst: Mac([d0, d1, d2, d3, d4, d5]),
            src: Mac([s0, s1, s2, s3, s4, s5]),
            ethertype: EtherType(get16(head, 12)),
        };
        Ok((header, payload))
    }

    /// Writes the header to the first [`HEADER_LEN`] bytes of `out`; panics when there are fewer.
    pub fn emit(&self, out: &mut [u8]) {
        let out = &mut out[..HEADER_LEN];
        out[..6].copy_from_slice(&self.dst.0);
        out[6..12].copy_from_slice(&self.src.0);
        put16(out, 12, self.ethertype.0);
    }
}
