//! Connections in TIME-WAIT. All wait equally long, so they stand in line, and only the first is
//! ever looked at.

use millrace_tcp::{Instant, TimeWait};

use crate::connection_table::Tuple;
use crate::slab::Slab;

const NONE: u32 = u32::MAX;
/// Between two looks at who is done, in microseconds: nobody waits for an end that is a little
/// late, and each look may wake a thread.
const EXPIRY_STEP_US: u64 = 16_384;

/// One connection in TIME-WAIT.
pub struct TimeWaitEntry {
    /// Its ends.
    pub tuple: Tuple,
    /// The verdict.
    pub state: TimeWait,
    /// Whether its socket had `SO_REUSEADDR`.
    pub reuse: bool,
    /// Whether segments carry timestamps.
    pub timestamps: bool,
    /// When it came here.
    pub since: Instant,
    next: u32,
    prev: u32,
}

/// The line.
pub struct TimeWaitTable {
    entries: Slab<TimeWaitEntry>,
    first: u32,
    last: u32,
}

impl TimeWaitTable {
    /// An empty table of at most `limit` connections.
    pub fn new(limit: u32) -> TimeWaitTable {
        TimeWaitTable {
            entries: Slab::new(limit),
            first: NONE,
            last: NONE,
        }
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Every connection.
    pub fn iter(&self) -> impl Iterator<Item = &TimeWaitEntry> {
        self.entries.iter().map(|(_, waiting)| waiting)
    }

    /// Puts a connection at the end of the line; `None` when the table is full.
    pub fn insert(
        &mut self,
        tuple: Tuple,
        state: TimeWait,
        reuse: bool,
        timestamps: bool,
        now: Instant,
    ) -> Option<u32> {
        let waiting = TimeWaitEntry {
            tuple,
            state,
            reuse,
            timestamps,
            since: now,
            next: NONE,
            prev: NONE,
        };
        let index = self.entries.insert(waiting).ok()?;
        self.append(index);
        Some(index)
    }

    /// The connection at `index`.
    pub fn get(&self, index: u32) -> Option<&TimeWaitEntry> {
        self.entries.get(index)
    }

    /// The connection at `index`, to change. When that moves its deadline, [`TimeWaitTable::renew`]
    /// must follow.
    pub fn get_mut(&mut self, index: u32) -> Option<&mut TimeWaitEntry> {
        self.entries.get_mut(index)
    }

    /// Its wait has started over: to the end of the line.
    pub fn renew(&mut self, index: u32) {
        self.detach(index);
        self.append(index);
    }

    /// Takes a connection out.
    pub fn remove(&mut self, index: u32) -> Option<TimeWaitEntry> {
        self.entries.get(index)?;
        self.detach(index);
        self.entries.remove(index)
    }

    /// Takes the first in line out if its time is over.
    pub fn pop(&mut self, now: Instant) -> Option<TimeWaitEntry> {
        if self.entries.get(self.first)?.state.deadline() > now {
            return None;
        }
        self.remove(self.first)
    }

    /// When it is time to look: the first in line is done then, and those that are done soon after
    /// it. A thread that has nothing else to do is woken for many at once.
    pub fn deadline(&self) -> Option<Instant> {
        let first = self.entries.get(self.first)?.state.deadline();
        let steps = first.as_micros().div_ceil(EXPIRY_STEP_US);
        Some(Instant::from_micros(steps.saturating_mul(EXPIRY_STEP_US)))
    }

    fn append(&mut self, index: u32) {
        let last = self.last;
        if let Some(entry) = self.entries.get_mut(index) {
            (entry.prev, entry.next) = (last, NONE);
        }
        match self.entries.get_mut(last) {
            Some(entry) => entry.next = index,
            None => self.first = index,
        }
        self.last = index;
    }

    fn detach(&mut self, index: u32) {
        let Some((prev, next)) = self
            .entries
            .get(index)
            .map(|entry| (entry.prev, entry.next))
        else {
            return;
        };
        match self.entries.get_mut(prev) {
            Some(entry) => entry.next = next,
            None => self.first = next,
        }
        match self.entries.get_mut(next) {
            Some(entry) => entry.prev = prev,
            None => self.last = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use millrace_tcp::{Config, Connection, Duration, Limits, Open, ReceiveBuffer, Settings};
    use millrace_wire::tcp::{Flags, Options, Segment, Seq};

    use super::*;
    use crate::connection_table::Pair;

    struct Nowhere;

    impl ReceiveBuffer for Nowhere {
        fn store(&mut self, _: u64, _: &[u8]) -> bool {
            false
        }
    }

    /// A connection that was opened and closed, in TIME-WAIT since `now`.
    fn waiting(now: Instant) -> TimeWait {
        let config = Config::default();
        let open = Open {
            iss: Seq(100),
            timestamp_offset: 0,
            mss: 1_460,
            default_mss: 536,
            receive_limit: 65_535,
        };
        let mut connection = Connection::connect(&config, &Settings::default().into(), open, now);
        let mut say = |flags: Flags, seq: u32, ack: u32| {
            while connection
                .poll_transmit(&config, &Limits { max_payload: 0 }, now)
                .is_some()
            {}
            let segment = Segment {
                src_port: 80,
                dst_port: 1_000,
                seq: Seq(seq),
                ack: Seq(ack),
                flags,
                window: 1_000,
                urgent: 0,
                options: Options::default(),
                payload: &[],
                marked: false,
            };
            connection.on_segment(&config, &segment, &mut Nowhere, now);
            connection.shutdown_write(now);
        };
        say(Flags::SYN | Flags::ACK, 500, 101);
        say(Flags::FIN | Flags::ACK, 501, 102);
        connection.time_wait(&config, now).expect("in TIME-WAIT")
    }

    fn tuple(i: u32) -> Tuple {
        Tuple::V4(Pair {
            local: Ipv4Addr::LOCALHOST,
            remote: Ipv4Addr::from_bits(i),
            local_port: 80,
            remote_port: 1_000,
        })
    }

    /// All but the first are over, which cannot be: were one of them looked at, it would go.
    #[test]
    fn t12_of_a_hundred_thousand_only_the_first_is_looked_at() {
        let start = Instant::from_millis(1_000_000);
        let late = waiting(start + Duration::from_secs(100));
        let early = waiting(start);
        let mut table = TimeWaitTable::new(100_001);
        table.insert(tuple(0), late.clone(), false, false, start);
        for i in 1..=100_000 {
            table.insert(tuple(i), early.clone(), false, false, start);
        }
        assert_eq!(table.len(), 100_001);
        let step = table.deadline().unwrap();
        assert!(step >= late.deadline());
        assert!(step - late.deadline() < Duration::from_micros(EXPIRY_STEP_US));
        let now = start + Duration::from_secs(90);
        assert!(table.pop(now).is_none());
        // Taking an entry out of the middle, or renewing it, leaves the others as they are.
        assert_eq!(
            table.remove(50_000).map(|out| out.tuple),
            Some(tuple(50_000))
        );
        table.renew(0);
        let order: Vec<Tuple> = std::iter::from_fn(|| table.pop(now))
            .map(|out| out.tuple)
            .collect();
        assert_eq!(order.len(), 99_999);
        assert_eq!(order[49_999..50_001], [tuple(50_001), tuple(50_002)]);
        assert_eq!(table.deadline(), Some(step));
    }
}
