//! A hierarchical timer wheel: arm, move and cancel in constant time, whatever the number of
//! timers.
//!
//! Six levels of 64 slots; a tick is 64 us, so the wheel spans 2^42 us (50 days). Timers fire at or
//! after their time, at most one tick late. Each id has at most one timer. Callers are lazy: an id
//! whose deadline moved *later* is left where it is, and looks again when it fires; that is what
//! makes a retransmission timer that moves with every ACK free.

use millrace_tcp::Instant;

const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
const LEVELS: usize = 6;
const TICK_BITS: u32 = 6;
const NONE: u32 = u32::MAX;
/// Nothing is armed for later than this, some 70,000 years: what is comes as if it were then.
const LAST_TICK: u64 = u64::MAX >> PLACE_BITS;
const PLACE_BITS: u32 = 9;
/// The place of a timer that is not armed.
const IDLE: u64 = (1 << PLACE_BITS) - 1;

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    /// Tick at which it fires, and in the low [`PLACE_BITS`] level * 64 + slot, or [`IDLE`].
    fires: u64,
}

impl Node {
    fn tick(&self) -> u64 {
        self.fires >> PLACE_BITS
    }

    fn slot(&self) -> usize {
        (self.fires & IDLE) as usize
    }

    fn is_idle(&self) -> bool {
        self.fires & IDLE == IDLE
    }
}

const IDLE_NODE: Node = Node {
    next: NONE,
    prev: NONE,
    fires: IDLE,
};

/// The wheel. Ids are small integers, for example indices of a slab.
pub struct TimerWheel {
    /// By id, in chunks so that growth copies nothing.
    nodes: Vec<Box<[Node; CHUNK]>>,
    heads: [[u32; SLOTS]; LEVELS],
    occupied: [u64; LEVELS],
    /// Every tick before this one has been fired.
    now: u64,
    /// No occupied slot begins before this tick: until then nothing has to be looked for.
    quiet_until: u64,
    armed: usize,
}

const CHUNK: usize = 256;

impl TimerWheel {
    /// An empty wheel whose time starts at `now`.
    pub fn new(now: Instant) -> TimerWheel {
        TimerWheel {
            nodes: Vec::new(),
            heads: [[NONE; SLOTS]; LEVELS],
            occupied: [0; LEVELS],
            now: now.as_micros() >> TICK_BITS,
            quiet_until: u64::MAX,
            armed: 0,
        }
    }

    /// How many timers are armed.
    pub fn len(&self) -> usize {
        self.armed
    }

    /// Makes sure that `id` fires at `at` or earlier. A timer that is already armed for an earlier
    /// time stays as it is.
    pub fn arm(&mut self, id: u32, at: Instant) {
        // Rounded up: a timer never fires before its time.
        let tick = at
            .as_micros()
            .div_ceil(1 << TICK_BITS)
            .max(self.now)
            .min(LAST_TICK);
        if id as usize >= self.nodes.len() * CHUNK {
            self.reserve(id);
        }
        let node = self.node(id);
        if !node.is_idle() {
            if node.tick() <= tick {
                return;
            }
            self.unlink(id);
        }
        self.link(id, tick);
    }

    /// Disarms `id`, if it is armed.
    pub fn cancel(&mut self, id: u32) {
        if self.armed > 0 && (id as usize) < self.nodes.len() * CHUNK && !self.node(id).is_idle() {
            self.unlink(id);
        }
    }

    /// Takes one timer that is due at `now`, if there is one; it is disarmed. Call until `None`.
    #[inline]
    pub fn pop(&mut self, now: Instant) -> Option<u32> {
        let until = now.as_micros() >> TICK_BITS;
        if until < self.quiet_until {
            // No slot that begins between here and there holds a timer, so each stays filed where
            // its first differing digit says.
            self.now = self.now.max(until);
            return None;
        }
        self.pop_until(until)
    }

    fn pop_until(&mut self, until: u64) -> Option<u32> {
        loop {
            if self.now > until {
                return None;
            }
            let id = self.heads[0][self.now as usize & (SLOTS - 1)];
            if id != NONE {
                self.unlink(id);
                return Some(id);
            }
            let next = self.next_tick().unwrap_or(u64::MAX);
            if next > until {
                self.now = until;
                self.quiet_until = next;
                return None;
            }
            self.now = next;
            self.cascade();
        }
    }

    /// When [`TimerWheel::pop`] must be called next. May be early by the coarseness of a distant
    /// timer's slot, never late.
    pub fn deadline(&self) -> Option<Instant> {
        self.next_tick()
            .map(|tick| Instant::from_micros(tick << TICK_BITS))
    }

    /// The tick at which the next occupied slot, of any level, begins. What is filed at a level
    /// comes before all that is filed above it.
    fn next_tick(&self) -> Option<u64> {
        if self.armed == 0 {
            return None;
        }
        let level = self.occupied.iter().position(|&occupied| occupied != 0)?;
        let shift = SLOT_BITS * level as u32;
        let position = self.now >> shift;
        let ahead = self.occupied[level]
            .rotate_right((position & (SLOTS as u64 - 1)) as u32)
            .trailing_zeros();
        Some((position + u64::from(ahead)) << shift)
    }

    /// Re-files the timers of every upper slot that begins at `now`.
    fn cascade(&mut self) {
        for level in 1..LEVELS {
            let shift = SLOT_BITS * level as u32;
            if self.now & ((1 << shift) - 1) != 0 {
                break;
            }
            let position = (self.now >> shift) as usize & (SLOTS - 1);
            let mut id = self.heads[level][position];
            self.heads[level][position] = NONE;
            self.occupied[level] &= !(1 << position);
            while id != NONE {
                let node = *self.node(id);
                self.armed -= 1;
                self.link(id, node.tick());
                id = node.next;
            }
        }
    }

    #[inline(always)]
    fn link(&mut self, id: u32, tick: u64) {
        let tick = tick.max(self.now);
        // The level is that of the first digit (in base 64) where `tick` and `now` differ, so no
        // timer is ever in the slot that `now` is in, but for level 0. One beyond the wheel waits
        // in the most distant slot and is filed again there.
        let span = 1u64 << (SLOT_BITS * LEVELS as u32);
        let place = tick.min(self.now + span - (span >> SLOT_BITS) - 1);
        let differ = place ^ self.now;
        let digit = ((differ | 1).ilog2() / SLOT_BITS) as usize;
        let level = digit.min(LEVELS - 1);
        let shift = SLOT_BITS * level as u32;
        let slot = (place >> shift) as usize & (SLOTS - 1);
        self.quiet_until = self.quiet_until.min(place >> shift << shift);
        let head = self.heads[level][slot];
        *self.node_mut(id) = Node {
            next: head,
            prev: NONE,
            fires: tick << PLACE_BITS | (level * SLOTS + slot) as u64,
        };
        if head != NONE {
            self.node_mut(head).prev = id;
        }
        self.heads[level][slot] = id;
        self.occupied[level] |= 1 << slot;
        self.armed += 1;
    }

    #[inline(always)]
    fn unlink(&mut self, id: u32) {
        let node = *self.node(id);
        let (level, slot) = (node.slot() / SLOTS, node.slot() % SLOTS);
        if node.prev == NONE {
            self.heads[level][slot] = node.next;
            if node.next == NONE {
                self.occupied[level] &= !(1 << slot);
            }
        } else {
            self.node_mut(node.prev).next = node.next;
        }
        if node.next != NONE {
            self.node_mut(node.next).prev = node.prev;
        }
        self.node_mut(id).fires = IDLE;
        self.armed -= 1;
    }

    #[cold]
    fn reserve(&mut self, id: u32) {
        while id as usize >= self.nodes.len() * CHUNK {
            self.nodes.push(Box::new([IDLE_NODE; CHUNK]));
        }
    }

    fn node(&self, id: u32) -> &Node {
        &self.nodes[id as usize / CHUNK][id as usize % CHUNK]
    }

    fn node_mut(&mut self, id: u32) -> &mut Node {
        &mut self.nodes[id as usize / CHUNK][id as usize % CHUNK]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(wheel: &mut TimerWheel, now: u64) -> Vec<u32> {
        let mut fired: Vec<u32> =
            std::iter::from_fn(|| wheel.pop(Instant::from_micros(now))).collect();
        fired.sort_unstable();
        fired
    }

    #[test]
    fn a_timer_is_small() {
        assert_eq!(size_of::<Node>(), 16);
    }

    #[test]
    fn fires_at_or_after_its_time_and_within_a_tick() {
        let mut wheel = TimerWheel::new(Instant::from_micros(1_000_003));
        wheel.arm(7, Instant::from_micros(1_040_003));
        assert!(drain(&mut wheel, 1_040_002).is_empty());
        assert_eq!(drain(&mut wheel, 1_040_003 + 64), [7]);
        assert_eq!(wheel.len(), 0);
    }

    #[test]
    fn a_later_deadline_leaves_the_timer_and_an_earlier_moves_it() {
        let mut wheel = TimerWheel::new(Instant::from_micros(0));
        wheel.arm(1, Instant::from_micros(10_000));
        wheel.arm(1, Instant::from_micros(90_000));
        assert_eq!(wheel.len(), 1);
        assert_eq!(drain(&mut wheel, 11_000), [1]);
        wheel.arm(1, Instant::from_micros(900_000));
        wheel.arm(1, Instant::from_micros(20_000));
        assert_eq!(drain(&mut wheel, 21_000), [1]);
        assert_eq!(drain(&mut wheel, 2_000_000), []);
    }

    #[test]
    fn every_timer_of_a_random_set_fires_once_and_in_time() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut wheel = TimerWheel::new(Instant::from_micros(123_456));
        let mut due = std::collections::BTreeMap::new();
        let mut now = 123_456u64;
        for round in 0..20_000u32 {
            let id = (random() % 500) as u32;
            if random() % 4 == 0 {
                wheel.cancel(id);
                due.remove(&id);
            } else {
                // From one tick to beyond the span of the wheel.
                let at = now + (1 << (random() % 44)) + random() % 1000;
                let earlier = due.get(&id).is_none_or(|&old| at < old);
                wheel.arm(id, Instant::from_micros(at));
                if earlier {
                    due.insert(id, at);
                }
            }
            if round % 3 == 0 {
                // Jump to the wheel's own deadline, or somewhere near.
                let next = wheel.deadline().map_or(now + 1000, |at| at.as_micros());
                now = now.max(if random() % 2 == 0 {
                    next
                } else {
                    now + random() % 100_000
                });
                for id in drain(&mut wheel, now) {
                    let at = due.remove(&id).expect("armed");
                    assert!(at <= now, "fired early");
                }
                let late = due.values().filter(|&&at| at + 64 <= now).count();
                assert_eq!(late, 0, "a due timer did not fire");
                assert_eq!(wheel.len(), due.len());
            }
        }
    }

    #[test]
    fn the_deadline_is_never_late() {
        let mut wheel = TimerWheel::new(Instant::from_micros(0));
        for (id, at) in [
            (0, 70u64),
            (1, 5_000),
            (2, 300_000),
            (3, 20_000_000),
            (4, 4_000_000_000),
        ] {
            wheel.arm(id, Instant::from_micros(at));
        }
        let mut fired = Vec::new();
        while let Some(at) = wheel.deadline() {
            assert!(fired.len() < 5);
            fired.extend(std::iter::from_fn(|| wheel.pop(at)));
        }
        assert_eq!(fired, [0, 1, 2, 3, 4]);
    }
}
