//! What tells flows apart.

use core::net::{IpAddr, SocketAddr};

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

    /// From a sender to a host, without a virtual LAN.
    #[cfg(test)]
    pub(crate) fn between(sender: SocketAddr, host: SocketAddr) -> Key {
        let mut key = Key {
            vlan: 0,
            is_v6: sender.is_ipv6(),
            addresses: [0; 32],
            ports: [0; 4],
        };
        for (at, end) in [sender, host].into_iter().enumerate() {
            let octets = match end.ip() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            key.addresses[16 * at..][..octets.len()].copy_from_slice(&octets);
            key.ports[2 * at..][..2].copy_from_slice(&end.port().to_be_bytes());
        }
        key
    }

    /// The other direction of the same connection.
    pub(crate) fn reversed(&self) -> Key {
        let mut reversed = *self;
        reversed.addresses.rotate_left(16);
        reversed.ports.rotate_left(2);
        reversed
    }

    /// A hash that only who knows the key can foresee: rounds of multiply and fold. Not a cipher,
    /// but no output is ever seen from outside.
    pub(crate) fn hash(&self, [first, second]: [u64; 2]) -> u64 {
        // Keys of zero, as tests have them, are to spread flows, too.
        let (first, second) = (
            first ^ 0x9e37_79b9_7f4a_7c15,
            second ^ 0xd1b5_4a32_d192_ed03,
        );
        let word = |at: usize| {
            let bytes: [u8; 8] = std::array::from_fn(|index| self.addresses[at + index]);
            u64::from_ne_bytes(bytes)
        };
        let addresses = match self.is_v6 {
            true => {
                let source = fold(word(0) ^ first, word(8) ^ second);
                source ^ fold(word(16) ^ second, word(24) ^ first.rotate_left(32))
            }
            false => word(0) | word(16).rotate_left(32),
        };
        let rest = u64::from(self.vlan) << 32 | u64::from(u32::from_ne_bytes(self.ports));
        fold(fold(addresses ^ first, rest ^ second) ^ first, second)
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_that_differ_in_one_field_are_spread_over_the_buckets() {
        let key = |is_v6: bool, field: usize, value: u16| {
            let mut key = Key {
                vlan: 0,
                is_v6,
                addresses: [0; 32],
                ports: [0, 80, 4, 0],
            };
            let [a, b] = value.to_be_bytes();
            match field {
                0 => key.ports[..2].copy_from_slice(&[a, b]),
                1 => key.ports[2..].copy_from_slice(&[a, b]),
                2 => key.addresses[2..4].copy_from_slice(&[a, b]),
                3 => key.addresses[18..20].copy_from_slice(&[a, b]),
                _ => key.vlan = value.into(),
            }
            key
        };
        for is_v6 in [false, true] {
            for field in 0..5 {
                let mut buckets = [0; 256];
                for value in 0..8192 {
                    let hash = key(is_v6, field, value).hash([7, 9]);
                    buckets[hash as usize % 256] += 1;
                }
                let most = buckets.iter().max();
                assert!(most < Some(&80), "{most:?} of 32 on average, field {field}");
            }
        }
        let some = key(true, 0, 1);
        assert_ne!(some.hash([1, 2]), some.hash([2, 1]));
    }
}
