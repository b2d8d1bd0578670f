//! The connection table: from the 4-tuple to what lives there, by a keyed hash.

use std::net::{Ipv4Addr, Ipv6Addr};

use hashbrown::HashTable;
use millrace_steer::fold;
pub use millrace_steer::{Pair, Tuple};

/// The entry at a tuple; the number is an index into the table of its kind.
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
    /// The last entry that was found: segments of a flow follow one another.
    found: Option<Entry<Ipv4Addr>>,
}

#[derive(Clone, Copy)]
struct Entry<A> {
    pair: Pair<A>,
    place: Packed,
}

/// A place in four bytes: its kind in the upper two bits.
#[derive(Clone, Copy)]
struct Packed(u32);

/// Bits of a place's number.
const NUMBER_BITS: u32 = 30;
/// So many places of a kind there are at most.
pub const MOST: u32 = 1 << NUMBER_BITS;

impl From<Place> for Packed {
    #[inline(always)]
    fn from(place: Place) -> Packed {
        let (kind, number) = match place {
            Place::Stream(number) => (0, number),
            Place::HalfOpen(number) => (1, number),
            Place::TimeWait(number) => (2, number),
        };
        debug_assert!(number >> NUMBER_BITS == 0);
        Packed(kind << NUMBER_BITS | number)
    }
}

impl From<Packed> for Place {
    #[inline(always)]
    fn from(packed: Packed) -> Place {
        let number = packed.0 & ((1 << NUMBER_BITS) - 1);
        match packed.0 >> NUMBER_BITS {
            0 => Place::Stream(packed.0),
            1 => Place::HalfOpen(number),
            _ => Place::TimeWait(number),
        }
    }
}

impl Table {
    /// An empty table whose hash is keyed with `keys`.
    pub fn new(keys: [u64; 3]) -> Table {
        Table {
            v4: HashTable::new(),
            v6: HashTable::new(),
            keys,
            found: None,
        }
    }

    /// The entry at `tuple`.
    #[inline(always)]
    pub fn get(&self, tuple: &Tuple) -> Option<Place> {
        match tuple {
            Tuple::V4(pair) => find(&self.v4, &self.keys, pair).map(|entry| entry.place.into()),
            Tuple::V6(pair) => find(&self.v6, &self.keys, pair).map(|entry| entry.place.into()),
        }
    }

    /// The entry at an IPv4 tuple; fast when a burst asks for the same one.
    #[inline(always)]
    pub fn get_v4(&mut self, pair: &Pair<Ipv4Addr>) -> Option<Place> {
        self.find_v4(pair).map(Place::from)
    }

    /// The connection at an IPv4 tuple, as [`Table::get_v4`]; `None` if something else is there.
    #[inline(always)]
    pub fn stream_v4(&mut self, pair: &Pair<Ipv4Addr>) -> Option<u32> {
        let packed = self.find_v4(pair)?;
        (packed.0 >> NUMBER_BITS == 0).then_some(packed.0)
    }

    #[inline(always)]
    fn find_v4(&mut self, pair: &Pair<Ipv4Addr>) -> Option<Packed> {
        if let Some(found) = self.found
            && found.pair == *pair
        {
            return Some(found.place);
        }
        let found = find(&self.v4, &self.keys, pair)?;
        self.found = Some(*found);
        Some(found.place)
    }

    /// Puts `place` at `tuple`, instead of what was there.
    pub fn insert(&mut self, tuple: Tuple, place: Place) {
        self.found = None;
        match tuple {
            Tuple::V4(pair) => insert(&mut self.v4, &self.keys, pair, place),
            Tuple::V6(pair) => insert(&mut self.v6, &self.keys, pair, place),
        }
    }

    /// Puts `place` at `tuple`, where nothing is.
    pub fn add(&mut self, tuple: Tuple, place: Place) {
        debug_assert_eq!(self.get(&tuple), None);
        self.found = None;
        match tuple {
            Tuple::V4(pair) => add(&mut self.v4, &self.keys, pair, place),
            Tuple::V6(pair) => add(&mut self.v6, &self.keys, pair, place),
        }
    }

    /// Removes what lives at `tuple`.
    pub fn remove(&mut self, tuple: &Tuple) {
        self.found = None;
        match tuple {
            Tuple::V4(pair) => remove(&mut self.v4, &self.keys, pair),
            Tuple::V6(pair) => remove(&mut self.v6, &self.keys, pair),
        }
    }

    /// Every entry.
    pub fn iter(&self) -> impl Iterator<Item = (Tuple, Place)> {
        let v4 = self
            .v4
            .iter()
            .map(|at| (Tuple::V4(at.pair), at.place.into()));
        let v6 = self
            .v6
            .iter()
            .map(|at| (Tuple::V6(at.pair), at.place.into()));
        v4.chain(v6)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// The keyed hash of a tuple.
    pub fn hash(&self, tuple: &Tuple) -> u64 {
        match tuple {
            Tuple::V4(pair) => hash(pair, &self.keys),
            Tuple::V6(pair) => hash(pair, &self.keys),
        }
    }
}

#[inline(always)]
fn find<'e, A: Address>(
    entries: &'e HashTable<Entry<A>>,
    keys: &[u64; 3],
    pair: &Pair<A>,
) -> Option<&'e Entry<A>> {
    entries.find(hash(pair, keys), |entry| entry.pair == *pair)
}

fn insert<A: Address>(
    entries: &mut HashTable<Entry<A>>,
    keys: &[u64; 3],
    pair: Pair<A>,
    place: Place,
) {
    let hashed = hash(&pair, keys);
    if let Some(entry) = entries.find_mut(hashed, |entry| entry.pair == pair) {
        entry.place = place.into();
        return;
    }
    add(entries, keys, pair, place);
}

#[inline]
fn add<A: Address>(
    entries: &mut HashTable<Entry<A>>,
    keys: &[u64; 3],
    pair: Pair<A>,
    place: Place,
) {
    let entry = Entry {
        pair,
        place: place.into(),
    };
    entries.insert_unique(hash(&pair, keys), entry, |entry| hash(&entry.pair, keys));
}

fn remove<A: Address>(entries: &mut HashTable<Entry<A>>, keys: &[u64; 3], pair: &Pair<A>) {
    if let Ok(entry) = entries.find_entry(hash(pair, keys), |entry| entry.pair == *pair) {
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

/// Rounds of multiply and fold with secret keys. Not a cipher, but the key is secret and no output
/// is ever seen from outside, so colliding tuples cannot be made up (5-hostile E11), at a tenth of
/// SipHash's cost.
#[inline]
fn hash<A: Address>(pair: &Pair<A>, keys: &[u64; 3]) -> u64 {
    let ports = u64::from(pair.remote_port) << 16 | u64::from(pair.local_port);
    let first = A::mix(pair.local, pair.remote, ports << 32 | ports, keys);
    fold(first ^ keys[1], keys[2])
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
            let Tuple::V4(pair) = tuple(i) else { continue };
            let there = (i % 2 == 1).then_some(Place::Stream(i));
            assert_eq!([(); 2].map(|()| table.get_v4(&pair)), [there; 2]);
        }
        let Tuple::V4(pair) = tuple(9_999) else {
            unreachable!("made so")
        };
        table.insert(tuple(9_999), Place::TimeWait(1));
        assert_eq!(table.get_v4(&pair), Some(Place::TimeWait(1)));
        table.remove(&tuple(9_999));
        assert_eq!(table.get_v4(&pair), None);
        table.insert(tuple(9_999), Place::Stream(9_999));
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
