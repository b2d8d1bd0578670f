//! What tells flows apart.

use core::hash::Hasher as _;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher13;

/// One direction of a TCP connection on one virtual LAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The tag of the virtual LAN, protocol and control information; 0 without.
    pub vlan: u32,
    pub(crate) is_v6: bool,
    /// Source, then destination; IPv4 takes the first four bytes of each.
    pub(crate) addresses: [u8; 32],
    /// Source, then destination, as on the wire.
    pub(crate) ports: [u8; 4],
}

impl Key {
    /// The sender's end.
    pub fn source(&self) -> SocketAddr {
        self.end(0, [self.ports[0], self.ports[1]])
    }

    /// The receiver's end.
    pub fn destination(&self) -> SocketAddr {
        self.end(16, [self.ports[2], self.ports[3]])
    }

    fn end(&self, at: usize, port: [u8; 2]) -> SocketAddr {
        let mut octets = [0; 16];
        octets.copy_from_slice(&self.addresses[at..at + 16]);
        let [a, b, c, d, ..] = octets;
        let ip = if self.is_v6 {
            IpAddr::from(octets)
        } else {
            IpAddr::from([a, b, c, d])
        };
        SocketAddr::new(ip, u16::from_be_bytes(port))
    }

    /// The other direction of the same connection.
    pub(crate) fn reversed(&self) -> Key {
        let mut reversed = *self;
        reversed.addresses.rotate_left(16);
        reversed.ports.rotate_left(2);
        reversed
    }

    /// A hash that only who knows the key can foresee.
    pub(crate) fn hash(&self, [first, second]: [u64; 2]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(first, second);
        let [a, b, c, d] = self.vlan.to_ne_bytes();
        let [e, f, g, h] = self.ports;
        if self.is_v6 {
            hasher.write(&self.addresses);
        } else {
            let mut both = [0; 8];
            both[..4].copy_from_slice(&self.addresses[..4]);
            both[4..].copy_from_slice(&self.addresses[16..20]);
            hasher.write(&both);
        }
        hasher.write(&[a, b, c, d, e, f, g, h]);
        hasher.finish()
    }
}
