//! Virtual queues: `Q(k,i)` holds the frames of port `k` for group `i`, and another one those of
//! group `i` that leave by port `k`.

use crate::ring::{Reader, Writer, ring};
use crate::schedule::{Policy, QUEUES_MAX, Scheduler};

/// The queues that one thread reads.
#[derive(Debug)]
pub struct Inbound {
    readers: Vec<Reader>,
    scheduler: Scheduler,
    /// Those that had something when last looked at; a bit each.
    ready: u64,
    /// The one whose record was returned last.
    last: usize,
}

/// The queues that one thread writes.
#[derive(Debug)]
pub struct Outbound {
    writers: Vec<Writer>,
    /// Those with records to be committed.
    written: u64,
}

/// What one thread has of the queues: a thread that owns a port as many as there are groups, a
/// shard as many as there are ports. All are made by one thread, so each is on cache lines of its
/// own.
#[repr(align(64))]
#[derive(Debug)]
pub struct Side {
    /// What the others have written for it.
    pub inbound: Inbound,
    /// What it writes for the others.
    pub outbound: Outbound,
}

/// The queues between so many ports and groups (64 of each at most), in rings of so many bytes: the
/// ports' sides, and the groups' sides.
///
/// # Panics
/// With more than 64 of either.
pub fn virtual_queues(
    ports: usize,
    groups: usize,
    bytes: usize,
    at_ports: &Policy,
    at_groups: &Policy,
) -> (Vec<Side>, Vec<Side>) {
    assert!(
        ports <= QUEUES_MAX && groups <= QUEUES_MAX,
        "a bit for each"
    );
    let side = |policy: &Policy, others| Side {
        inbound: Inbound {
            readers: Vec::with_capacity(others),
            scheduler: Scheduler::new(policy.clone()),
            ready: 0,
            last: 0,
        },
        outbound: Outbound {
            writers: Vec::with_capacity(others),
            written: 0,
        },
    };
    let mut port_sides: Vec<Side> = (0..ports).map(|_| side(at_ports, groups)).collect();
    let mut group_sides: Vec<Side> = (0..groups).map(|_| side(at_groups, ports)).collect();
    for port in &mut port_sides {
        for group in &mut group_sides {
            let (writer, reader) = ring(bytes);
            port.outbound.writers.push(writer);
            group.inbound.readers.push(reader);
            let (writer, reader) = ring(bytes);
            group.outbound.writers.push(writer);
            port.inbound.readers.push(reader);
        }
    }
    (port_sides, group_sides)
}

impl Inbound {
    /// Looks which queues have something. To be called once for a burst: what comes meanwhile is
    /// for the next.
    #[inline]
    pub fn look(&mut self) -> bool {
        let mut ready = 0;
        for (at, reader) in self.readers.iter_mut().enumerate() {
            if reader.is_empty() {
                // The last record of a burst, which nothing has followed.
                reader.give_back();
            } else {
                ready |= 1 << at;
            }
        }
        self.ready = ready;
        ready != 0
    }

    /// The next record of a queue that had something: which queue, the word and the body. It is
    /// given back with a later call.
    #[inline]
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator's items outlive its next step"
    )]
    pub fn next(&mut self) -> Option<(usize, u64, &[u8])> {
        let queue = loop {
            let queue = self.scheduler.pick(self.ready)?;
            if !self.readers[queue].is_empty() {
                break queue;
            }
            // Not `next`: what has come since would be returned, and lost.
            self.readers[queue].give_back();
            self.ready &= !(1 << queue);
        };
        self.last = queue;
        let (word, body) = self.readers[queue].next()?;
        self.scheduler.took(queue, body.len());
        Some((queue, word, body))
    }

    /// Whether all has been returned that was in the queues when their writers were at these
    /// positions.
    pub fn has_passed(&self, positions: &[usize]) -> bool {
        let mut each = self.readers.iter().zip(positions);
        each.all(|(reader, position)| reader.has_passed(*position))
    }

    /// Has the record that was returned last returned once more, before any other of its queue.
    pub fn again(&mut self) {
        if let Some(reader) = self.readers.get_mut(self.last) {
            reader.again();
        }
    }
}

impl Outbound {
    /// How many queues there are.
    pub fn len(&self) -> usize {
        self.writers.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.writers.is_empty()
    }

    /// Whether all that was written has been read, and given back.
    pub fn is_read(&self) -> bool {
        let mut writers = self.writers.iter();
        writers.all(|writer| writer.is_read_up_to(writer.position()))
    }

    /// Writes a record into a queue, to be committed; false if there is no room for it, or no such
    /// queue.
    #[inline]
    pub fn write<const N: usize>(&mut self, queue: usize, word: u64, body: [&[u8]; N]) -> bool {
        let Some(writer) = self.writers.get_mut(queue) else {
            return false;
        };
        let done = writer.write(word, body);
        self.written |= u64::from(done) << queue;
        done
    }

    /// Where each queue has been written up to.
    pub fn positions(&self) -> Vec<usize> {
        self.writers.iter().map(Writer::position).collect()
    }

    /// Gives the readers what was written; returns which queues that were, a bit each.
    #[inline]
    pub fn commit(&mut self) -> u64 {
        let written = std::mem::take(&mut self.written);
        let mut rest = written;
        while rest != 0 {
            self.writers[rest.trailing_zeros() as usize].commit();
            rest &= rest - 1;
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RING: usize = crate::ring::SIZE_MIN;

    #[test]
    fn each_pair_of_port_and_group_has_its_own_queue_each_way() {
        let policy = Policy::RoundRobin;
        let (mut ports, mut groups) = virtual_queues(3, 5, RING, &policy, &policy);
        for (port, side) in ports.iter_mut().enumerate() {
            assert_eq!(side.outbound.len(), 5);
            for group in 0..5 {
                assert!(
                    side.outbound
                        .write(group, (port * 10 + group) as u64, [b"in"])
                );
            }
            assert!(!side.outbound.write(5, 0, [b"nowhere"]));
            assert_eq!(side.outbound.commit(), 0b11111);
        }
        for (group, side) in groups.iter_mut().enumerate() {
            assert!(side.inbound.look());
            for port in 0..3 {
                let word = (port * 10 + group) as u64;
                assert_eq!(side.inbound.next(), Some((port, word, &b"in"[..])));
                assert!(side.outbound.write(port, word, [b"o", b"ut"]));
            }
            assert_eq!(side.inbound.next(), None);
            assert!(!side.inbound.look());
            assert_eq!(side.outbound.commit(), 0b111);
        }
        for (port, side) in ports.iter_mut().enumerate() {
            assert!(side.inbound.look());
            for group in 0..5 {
                let word = (port * 10 + group) as u64;
                assert_eq!(side.inbound.next(), Some((group, word, &b"out"[..])));
            }
        }
    }

    #[test]
    fn a_record_that_was_not_wanted_comes_again_first() {
        let policy = Policy::RoundRobin;
        let (mut ports, mut groups) = virtual_queues(1, 2, RING, &policy, &policy);
        for group in &mut groups {
            for word in 0..2 {
                assert!(group.outbound.write(0, word, [b"x"]));
            }
            group.outbound.commit();
        }
        let inbound = &mut ports[0].inbound;
        assert!(inbound.look());
        assert_eq!(inbound.next(), Some((0, 0, &b"x"[..])));
        inbound.again();
        assert!(inbound.look());
        let got: Vec<_> =
            std::iter::from_fn(|| inbound.next().map(|(queue, word, _)| (queue, word))).collect();
        assert_eq!(got, [(0, 0), (0, 1), (1, 0), (1, 1)]);
    }

    #[test]
    fn what_was_taken_last_is_given_back_at_the_latest_by_the_next_look() {
        let policy = Policy::RoundRobin;
        let (mut ports, mut groups) = virtual_queues(1, 1, RING, &policy, &policy);
        assert!(ports[0].outbound.write(0, 0, [b"x"]));
        ports[0].outbound.commit();
        let inbound = &mut groups[0].inbound;
        assert!(inbound.look() && inbound.next().is_some());
        assert!(!ports[0].outbound.is_read(), "it is still in use");
        assert!(!inbound.look());
        assert!(ports[0].outbound.is_read());
    }

    proptest! {
        /// Whatever the order of writes, commits and reads: what a queue was given it gives, once,
        /// in order and whole.
        #[test]
        fn queues_lose_and_reorder_nothing(
            steps in proptest::collection::vec((0..8usize, 0..3usize, 0..3000usize), 1..400),
            policy in prop_oneof![
                Just(Policy::RoundRobin),
                Just(Policy::Strict),
                Just(Policy::LeastLoaded),
                Just(Policy::Weighted(vec![2, 1, 7])),
            ],
        ) {
            let (mut ports, mut groups) = virtual_queues(3, 2, RING, &policy, &policy);
            let mut sent = [0u64; 3];
            let mut got = [0u64; 3];
            let shard = &mut groups[1];
            let mut read = |shard: &mut Side, many: usize| {
                shard.inbound.look();
                for _ in 0..many {
                    let Some((port, word, body)) = shard.inbound.next() else { break };
                    assert_eq!(word, got[port]);
                    assert!(body.iter().all(|byte| *byte == word as u8));
                    got[port] += 1;
                }
                got
            };
            for (what, port, len) in steps {
                match what {
                    0..5 => {
                        let word = sent[port];
                        let body = vec![word as u8; len];
                        sent[port] += u64::from(ports[port].outbound.write(1, word, [&body]));
                    }
                    5 => { ports[port].outbound.commit(); }
                    _ => { read(shard, len % 10); }
                }
            }
            for port in &mut ports {
                port.outbound.commit();
            }
            prop_assert_eq!(read(shard, usize::MAX), sent);
        }
    }
}
