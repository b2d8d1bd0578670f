//! The connection table: from the 4-tuple to what lives there, by a keyed hash.

use std::net::{Ipv4Addr, SocketAddrV4};

use hashbrown::HashTable;

/// The two ends of a connection, as this host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Our address.
    pub local: Ipv4Addr,
    /// The peer's address.
    pub remote: Ipv4Addr,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

impl Tuple {
    /// A tuple from its two ends.
    pub fn new(local: SocketAddrV4, remote: SocketAddrV4) -> Tuple {
        Tuple {
            local: *local.ip(),
            remote: *remote.ip(),
            local_port: local.port(),
            remote_port: remote.port(),
        }
    }

    /// Our end.
    pub fn local(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.local, self.local_port)
    }

    /// The peer's end.
    pub fn remote(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.remote, self.remote_port)
    }

    /// The same connection as the peer sees it.
    pub fn reversed(&self) -> Tuple {
        Tuple {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }

    /// All of it in network order, for hashing.
    pub fn to_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.local.octets());
        bytes[4..8].copy_from_slice(&self.remote.octets());
        bytes[8..10].copy_from_slice(&self.local_port.to_be_bytes());
        bytes[10..].copy_from_slice(&self.remote_port.to_be_bytes());
        bytes
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
    entries: HashTable<Entry>,
    keys: [u64; 3],
}

struct Entry {
    tuple: Tuple,
    place: Place,
}

impl Table {
    /// An empty table whose hash is keyed with `keys`.
    pub fn new(keys: [u64; 3]) -> Table {
        Table {
            entries: HashTable::new(),
            keys,
        }
    }

    /// What lives at `tuple`.
    pub fn get(&self, tuple: &Tuple) -> Option<Place> {
        self.entries
            .find(self.hash(tuple), |entry| entry.tuple == *tuple)
            .map(|entry| entry.place)
    }

    /// Puts `place` at `tuple`, instead of what was there.
    pub fn insert(&mut self, tuple: Tuple, place: Place) {
        let hash = self.hash(&tuple);
        if let Some(entry) = self.entries.find_mut(hash, |entry| entry.tuple == tuple) {
            entry.place = place;
            return;
        }
        let keys = self.keys;
        self.entries
            .insert_unique(hash, Entry { tuple, place }, |entry| {
                hash_tuple(&keys, &entry.tuple)
            });
    }

    /// Removes what lives at `tuple`.
    pub fn remove(&mut self, tuple: &Tuple) {
        if let Ok(entry) = self
            .entries
            .find_entry(self.hash(tuple), |entry| entry.tuple == *tuple)
        {
            entry.remove();
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The keyed hash of a tuple.
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        hash_tuple(&self.keys, tuple)
    }
}

/// Two rounds of multiply and fold with secret keys. Not a cipher, but the key is secret and no output is ever seen from outside, so
/// colliding tuples cannot be made up (5-hostile E11), at a tenth of SipHash's cost.
fn hash_tuple(keys: &[u64; 3], tuple: &Tuple) -> u64 {
    let addresses = u64::from(tuple.remote.to_bits()) << 32 | u64::from(tuple.local.to_bits());
    let ports = u64::from(tuple.remote_port) << 16 | u64::from(tuple.local_port);
    let first = fold(addresses ^ keys[0], (ports << 32 | ports) ^ keys[1]);
    fold(first ^ keys[1], keys[2])
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_and_nothing_else() {
        let mut table = Table::new([11, 22, 33]);
        let tuple = |i: u32| Tuple {
            local: Ipv4Addr::LOCALHOST,
            remote: Ipv4Addr::from_bits(i),
            local_port: 80,
            remote_port: i as u16,
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

    #[test]
    fn e11_the_hash_spreads_tuples_that_differ_in_one_field() {
        let keys = [
            0x1234_5678_9abc_def1,
            0xfeed_beef_0bad_cafe,
            0x0123_4567_89ab_cdef,
        ];
        let mut buckets = vec![0u32; 1024];
        for port in 0..60_000u32 {
            let tuple = Tuple {
                local: Ipv4Addr::new(10, 0, 0, 1),
                remote: Ipv4Addr::new(10, 0, 0, 2),
                local_port: 80,
                remote_port: port as u16,
            };
            buckets[hash_tuple(&keys, &tuple) as usize % 1024] += 1;
        }
        let largest = buckets.iter().max().unwrap();
        assert!(*largest < 120, "largest bucket {largest}, mean 58");
    }
}
