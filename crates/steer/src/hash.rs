//! From a flow to its tag of 32 bits.

use std::hash::Hasher;
use std::net::Ipv6Addr;

use millrace_wire::tcp::PROTOCOL;

use crate::tuple::Tuple;

/// How a flow becomes a tag.
#[derive(Clone, Debug)]
pub enum Hash {
    /// Two rounds of multiply and fold with secret keys; the same for both directions of a flow.
    Keyed([u64; 3]),
    /// Toeplitz, as NICs compute it (Microsoft, "RSS Hashing Functions", TCP/IPv4 and TCP/IPv6), of
    /// the flow as its receiver sees it. The same for both directions if the key repeats every 16
    /// bits.
    Toeplitz([u8; 40]),
}

impl Hash {
    /// The tag of a flow whose near end is `tuple.local`.
    pub fn tag(&self, tuple: &Tuple) -> u32 {
        match self {
            Hash::Keyed(keys) => {
                let (near, far) = ends(tuple, keys);
                let (low, high) = (near.min(far), near.max(far));
                let first = fold(low ^ keys[0], (high | u64::from(PROTOCOL) << 48) ^ keys[1]);
                (fold(first ^ keys[1], keys[2]) >> 32) as u32
            }
            Hash::Toeplitz(key) => {
                let mut hasher = Toeplitz {
                    key,
                    at: 0,
                    hash: 0,
                };
                tuple.reversed().feed(&mut hasher);
                hasher.hash
            }
        }
    }
}

/// Both ends of a flow in 48 bits each.
#[inline]
fn ends(tuple: &Tuple, keys: &[u64; 3]) -> (u64, u64) {
    let end = |address: u64, port: u16| address << 16 | u64::from(port);
    match tuple {
        Tuple::V4(pair) => (
            end(pair.local.to_bits().into(), pair.local_port),
            end(pair.remote.to_bits().into(), pair.remote_port),
        ),
        Tuple::V6(pair) => {
            let short = |address: Ipv6Addr| {
                let bits = address.to_bits();
                fold((bits >> 64) as u64 ^ keys[1], bits as u64 ^ keys[2]) & 0xffff_ffff
            };
            (
                end(short(pair.local), pair.local_port),
                end(short(pair.remote), pair.remote_port),
            )
        }
    }
}

/// The Toeplitz hash: for each bit of the input that is set, the 32 bits of the key from there on.
/// The key is long enough for the flows of either family.
struct Toeplitz<'a> {
    key: &'a [u8; 40],
    at: usize,
    hash: u32,
}

impl Hasher for Toeplitz<'_> {
    fn write(&mut self, input: &[u8]) {
        for byte in input {
            let window = &self.key[self.at..self.at + 5];
            let window = window
                .iter()
                .fold(0u64, |window, byte| window << 8 | u64::from(*byte));
            for bit in 0..8 {
                if byte & (0x80 >> bit) != 0 {
                    self.hash ^= (window >> (8 - bit)) as u32;
                }
            }
            self.at += 1;
        }
    }

    fn finish(&self) -> u64 {
        self.hash.into()
    }
}

/// The halves of the product, folded: one round of a keyed hash.
#[inline]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::groups::Groups;

    /// The key of the published vectors.
    const MICROSOFT: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];
    const KEYED: Hash = Hash::Keyed([
        0x1234_5678_9abc_def1,
        0xfeed_beef_0bad_cafe,
        0x0123_4567_89ab_cdef,
    ]);

    fn tuple(local: &str, remote: &str) -> Tuple {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        Tuple::new(end(local), end(remote)).unwrap()
    }

    /// Microsoft, "Verifying the RSS hash calculation": destination, source, hash with TCP.
    #[test]
    fn rss_toeplitz_gives_the_published_hashes() {
        for (destination, source, hash) in [
            ("161.142.100.80:1766", "66.9.149.187:2794", 0x51cc_c178),
            ("65.69.140.83:4739", "199.92.111.2:14230", 0xc626_b0ea),
            ("12.22.207.184:38024", "24.19.198.95:12898", 0x5c2b_394a),
            ("209.142.163.6:2217", "38.27.205.30:48228", 0xafc7_327f),
            ("202.188.127.2:1303", "153.39.163.191:44251", 0x10e8_28a2),
            (
                "[3ffe:2501:200:3::1]:1766",
                "[3ffe:2501:200:1fff::7]:2794",
                0x4020_7d3d,
            ),
            (
                "[ff02::1]:4739",
                "[3ffe:501:8::260:97ff:fe40:efab]:14230",
                0xdde5_1bbf,
            ),
            (
                "[fe80::200:f8ff:fe21:67cf]:38024",
                "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
                0x02d1_feef,
            ),
        ] {
            let tag = Hash::Toeplitz(MICROSOFT).tag(&tuple(destination, source));
            assert_eq!(tag, hash, "{destination} from {source}");
        }
    }

    #[test]
    fn both_directions_of_a_flow_have_one_tag() {
        let repeating = std::array::from_fn(|at| [0x6d, 0x5a][at % 2]);
        for hash in [KEYED, Hash::Toeplitz(repeating)] {
            for flow in [
                tuple("10.0.0.1:80", "10.0.0.2:40000"),
                tuple("[2001:db8::1]:80", "[2001:db8::2]:40000"),
            ] {
                assert_eq!(hash.tag(&flow), hash.tag(&flow.reversed()), "{hash:?}");
            }
        }
    }

    #[test]
    fn tags_spread_over_groups() {
        for hash in [KEYED, Hash::Toeplitz(MICROSOFT)] {
            for groups in [Groups::even(2), Groups::even(3), Groups::even(8)] {
                for (local, remote) in [("10.0.0.1:80", "10.0.0.2"), ("[fd00::1]:80", "[fd00::2]")]
                {
                    let mut flows = vec![0u32; groups.count().into()];
                    for port in 1024..=u16::MAX {
                        let flow = tuple(local, &format!("{remote}:{port}"));
                        flows[usize::from(groups.of(hash.tag(&flow)))] += 1;
                    }
                    let mean = flows.iter().sum::<u32>() / flows.len() as u32;
                    assert!(
                        flows.iter().all(|count| count.abs_diff(mean) < mean / 16),
                        "{hash:?}: {flows:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn another_key_gives_other_tags() {
        let other = Hash::Keyed([1, 2, 3]);
        let same = (1024..2048u16)
            .map(|port| tuple("10.0.0.1:80", &format!("10.0.0.2:{port}")))
            .filter(|flow| other.tag(flow) % 8 == KEYED.tag(flow) % 8)
            .count();
        assert!((64..256).contains(&same), "{same} of 1024");
    }
}
