//! The connection table: from the 4-tuple to what lives there, by a keyed hash.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hashbrown::HashTable;

/// The two ends of a connection of one family, as this host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair<A> {
    /// Our address.
    pub local: A,
    /// The peer's address.
    pub remote: A,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

/// The two ends of a connection, as this host sees them. Both are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tuple {
    /// IPv4.
    V4(Pair<Ipv4Addr>),
    /// IPv6.
    V6(Pair<Ipv6Addr>),
}

impl<A: Copy> Pair<A> {
    fn reversed(&self) -> Pair<A> {
        Pair {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }
}

impl Tuple {
    /// A tuple from its two ends; `None` when they are of different families.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Tuple> {
        match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Some(Tuple::V4(Pair {
                local: *local.ip(),
                remote: *remote.ip(),
                local_port: local.port(),
                remote_port: remote.port(),
            })),
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => Some(Tuple::V6(Pair {
                local: *local.ip(),
                remote: *remote.ip(),
                local_port: local.port(),
                remote_port: remote.port(),
            })),
            _ => None,
        }
    }

    /// Our address.
    #[inline]
    pub fn local_ip(&self) -> IpAddr {
        match self {
            Tuple::V4(pair) => pair.local.into(),
            Tuple::V6(pair) => pair.local.into(),
        }
    }

    /// The peer's address.
    #[inline]
    pub fn remote_ip(&self) -> IpAddr {
        match self {
            Tuple::V4(pair) => pair.remote.into(),
            Tuple::V6(pair) => pair.remote.into(),
        }
    }

    /// Our port and the peer's.
    pub fn ports(&self) -> (u16, u16) {
        match self {
            Tuple::V4(pair) => (pair.local_port, pair.remote_port),
            Tuple::V6(pair) => (pair.local_port, pair.remote_port),
        }
    }

    /// Our end.
    #[inline]
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_ip(), self.ports().0)
    }

    /// The peer's end.
    #[inline]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_ip(), self.ports().1)
    }

    /// The same with another port of ours.
    #[must_use]
    pub fn with_local_port(self, local_port: u16) -> Tuple {
        match self {
            Tuple::V4(pair) => Tuple::V4(Pair { local_port, ..pair }),
            Tuple::V6(pair) => Tuple::V6(Pair { local_port, ..pair }),
        }
    }

    /// The same connection as the peer sees it.
    pub fn reversed(&self) -> Tuple {
        match self {
            Tuple::V4(pair) => Tuple::V4(pair.reversed()),
            Tuple::V6(pair) => Tuple::V6(pair.reversed()),
        }
    }

    /// Gives all of it to `hasher`, in network order.
    pub fn feed(&self, hasher: &mut impl Hasher) {
        match self {
            Tuple::V4(pair) => {
                let mut bytes = [0; 12];
                bytes[..4].copy_from_slice(&pair.local.octets());
                bytes[4..8].copy_from_slice(&pair.remote.octets());
                bytes[8..10].copy_from_slice(&pair.local_port.to_be_bytes());
                bytes[10..].copy_from_slice(&pair.remote_port.to_be_bytes());
                hasher.write(&bytes);
            }
            Tuple::V6(pair) => {
                let mut bytes = [0; 36];
                bytes[..16].copy_from_slice(&pair.local.octets());
                bytes[16..32].copy_from_slice(&pair.remote.octets());
                bytes[32..34].copy_from_slice(&pair.local_port.to_be_bytes());
                bytes[34..].copy_from_slice(&pair.remote_port.to_be_bytes());
                hasher.write(&bytes);
            }
        }
    }
}

/// What lives at a tuple; the number is an index into the table of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A connection: index of its socket.
    Stream(u32),
    /// A connection in SYN-RECEIVED.
    HalfOpen(u32),
    /// A connection in TIME-WAIT.
    TimeWait(u32),
}

/// From the 4-tuple to its place. A lookup reads one cache line of the table, and one of the entry.
pub struct Table {
    v4: HashTable<Entry<Ipv4Addr>>,
    v6: HashTable<Entry<Ipv6Addr>>,
    keys: [u64; 3],
}

struct Entry<A> {
    pair: Pair<A>,
    place: Place,
}

impl Table {
    /// An empty table whose hash is keyed with `keys`.
    pub fn new(keys: [u64; 3]) -> Table {
        Table {
            v4: HashTable::new(),
            v6: HashTable::new(),
            keys,
        }
    }

    /// What lives at `tuple`.
    #[inline]
    pub fn get(&self, tuple: &Tuple) -> Option<Place> {
        match tuple {
            Tuple::V4(pair) => get(&self.v4, &self.keys, pair),
            Tuple::V6(pair) => get(&self.v6, &self.keys, pair),
        }
    }

    /// Puts `place` at `tuple`, instead of what was there.
    pub fn insert(&mut self, tuple: Tuple, place: Place) {
        match tuple {
            Tuple::V4(pair) => insert(&mut self.v4, &self.keys, pair, place),
            Tuple::V6(pair) => insert(&mut self.v6, &self.keys, pair, place),
        }
    }

    /// Removes what lives at `tuple`.
    pub fn remove(&mut self, tuple: &Tuple) {
        match tuple {
            Tuple::V4(pair) => remove(&mut self.v4, &self.keys, pair),
            Tuple::V6(pair) => remove(&mut self.v6, &self.keys, pair),
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// The keyed hash of a tuple.
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        match tuple {
            Tuple::V4(pair) => pair.hash(&self.keys),
            Tuple::V6(pair) => pair.hash(&self.keys),
        }
    }
}

#[inline]
fn get<A: Address>(
    entries: &HashTable<Entry<A>>,
    keys: &[u64; 3],
    pair: &Pair<A>,
) -> Option<Place> {
    entries
        .find(pair.hash(keys), |entry| entry.pair == *pair)
        .map(|entry| entry.place)
}

fn insert<A: Address>(
    entries: &mut HashTable<Entry<A>>,
    keys: &[u64; 3],
    pair: Pair<A>,
    place: Place,
) {
    let hash = pair.hash(keys);
    if let Some(entry) = entries.find_mut(hash, |entry| entry.pair == pair) {
        entry.place = place;
        return;
    }
    entries.insert_unique(hash, Entry { pair, place }, |entry| entry.pair.hash(keys));
}

fn remove<A: Address>(entries: &mut HashTable<Entry<A>>, keys: &[u64; 3], pair: &Pair<A>) {
    if let Ok(entry) = entries.find_entry(pair.hash(keys), |entry| entry.pair == *pair) {
        entry.remove();
    }
}

/// An address of one family, to be hashed.
pub trait Address: Copy + Eq {
    /// A keyed hash of two addresses and a word.
    fn mix(local: Self, remote: Self, word: u64, keys: &[u64; 3]) -> u64;
}

impl Address for Ipv4Addr {
    #[inline]
    fn mix(local: Self, remote: Self, word: u64, keys: &[u64; 3]) -> u64 {
        let addresses = u64::from(remote.to_bits()) << 32 | u64::from(local.to_bits());
        fold(addresses ^ keys[0], word ^ keys[1])
    }
}

impl Address for Ipv6Addr {
    #[inline]
    fn mix(local: Self, remote: Self, word: u64, keys: &[u64; 3]) -> u64 {
        let halves = |address: Ipv6Addr| {
            let bits = address.to_bits();
            ((bits >> 64) as u64, bits as u64)
        };
        let ((a, b), (c, d)) = (halves(remote), halves(local));
        // Each half is mixed with a secret before it meets another half.
        let addresses = fold(a ^ keys[0], b ^ keys[1]) ^ fold(c ^ keys[1], d ^ keys[2]);
        fold(addresses ^ keys[0], word ^ keys[1])
    }
}

impl<A: Address> Pair<A> {
    /// Rounds of multiply and fold with secret keys. Not a cipher, but the key is secret and no output is ever seen from outside, so
    /// colliding tuples cannot be made up (5-hostile E11), at a tenth of SipHash's cost.
    #[inline]
    fn hash(&self, keys: &[u64; 3]) -> u64 {
        let ports = u64::from(self.remote_port) << 16 | u64::from(self.local_port);
        let first = A::mix(self.local, self.remote, ports << 32 | ports, keys);
        fold(first ^ keys[1], keys[2])
    }
}

/// The halves of the product, folded.
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_and_nothing_else() {
        let mut table = Table::new([11, 22, 33]);
        let tuple = |i: u32| {
            Tuple::V4(Pair {
                local: Ipv4Addr::LOCALHOST,
                remote: Ipv4Addr::from_bits(i),
                local_port: 80,
                remote_port: i as u16,
            })
        };
        for i in 0..10_000 {
            table.insert(tuple(i), Place::Stream(i));
        }
        for i in (0..10_000).step_by(2) {
            table.remove(&tuple(i));
        }
        for i in 0..10_000 {
            assert_eq!(
                table.get(&tuple(i)),
                (i % 2 == 1).then_some(Place::Stream(i))
            );
        }
        assert_eq!(table.len(), 5_000);
    }

    /// A search looks at the entries of one place, so it looks at few.
    #[test]
    fn t13_few_tuples_share_a_place_among_a_hundred_thousand() {
        let mut table = Table::new([5, 6, 7]);
        let tuple = |i: u32| {
            Tuple::V4(Pair {
                local: Ipv4Addr::LOCALHOST,
                remote: Ipv4Addr::from_bits(0x0a00_0000 + i / 50_000),
                local_port: 80,
                remote_port: (i % 50_000) as u16,
            })
        };
        let mut places = vec![0u8; 1 << 17];
        for i in 0..100_000 {
            table.insert(tuple(i), Place::Stream(i));
            places[table.hash(&tuple(i)) as usize & 0x1_ffff] += 1;
        }
        assert!(places.iter().all(|&sharing| sharing < 12));
        for i in (0..100_000).step_by(997) {
            assert_eq!(table.get(&tuple(i)), Some(Place::Stream(i)));
        }
    }

    #[test]
    fn e11_the_hash_spreads_tuples_that_differ_in_one_field() {
        let keys = [
            0x1234_5678_9abc_def1,
            0xfeed_beef_0bad_cafe,
            0x0123_4567_89ab_cdef,
        ];
        let table = Table::new(keys);
        let largest_of = |tuple: &dyn Fn(u32) -> Tuple| {
            let mut buckets = vec![0u32; 1024];
            for i in 0..60_000 {
                buckets[table.hash(&tuple(i)) as usize % 1024] += 1;
            }
            *buckets.iter().max().unwrap()
        };
        let v4 = |i: u32| {
            Tuple::V4(Pair {
                local: Ipv4Addr::new(10, 0, 0, 1),
                remote: Ipv4Addr::new(10, 0, 0, 2),
                local_port: 80,
                remote_port: i as u16,
            })
        };
        // A host of IPv6 has a whole prefix to choose from.
        let v6 = |shift: u32| {
            move |i: u32| {
                Tuple::V6(Pair {
                    local: Ipv6Addr::LOCALHOST,
                    remote: Ipv6Addr::from_bits(u128::from(i) << shift),
                    local_port: 80,
                    remote_port: 40_000,
                })
            }
        };
        let largest = [
            largest_of(&v4),
            largest_of(&v6(0)),
            largest_of(&v6(48)),
            largest_of(&v6(100)),
        ];
        assert!(
            largest.iter().all(|&largest| largest < 120),
            "largest buckets {largest:?}, mean 58"
        );
    }
}
