//! In what order a thread serves its virtual queues.

use std::fmt;
use std::str::FromStr;

/// Queues that one scheduler can serve: a bit each.
pub const QUEUES_MAX: usize = 64;
/// Records that a queue gives in its turn; a weight counts in these.
const TURN: u32 = 8;
/// The largest weight.
const WEIGHT_MAX: u16 = 1000;

/// How the next queue is chosen among those that have something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Each in its turn.
    #[default]
    RoundRobin,
    /// The first, as long as it has something; then the second.
    Strict,
    /// Each in its turn, and in its turn in proportion to its weight; queues beyond the list have a
    /// weight of 1.
    Weighted(Vec<u16>),
    /// The one that has given the fewest bytes. One that had nothing for a while is not owed for
    /// that.
    LeastLoaded,
}

/// Why a text is no policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError;

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "one of round-robin, strict, least-loaded, or weighted:W,... with a weight of 1 to {WEIGHT_MAX} for each queue, {QUEUES_MAX} at most"
        )
    }
}

impl std::error::Error for PolicyError {}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Policy, PolicyError> {
        let weights = match text {
            "round-robin" => return Ok(Policy::RoundRobin),
            "strict" => return Ok(Policy::Strict),
            "least-loaded" => return Ok(Policy::LeastLoaded),
            _ => text.strip_prefix("weighted:").ok_or(PolicyError)?,
        };
        let weight = |text: &str| match text.parse() {
            Ok(weight @ 1..=WEIGHT_MAX) => Ok(weight),
            _ => Err(PolicyError),
        };
        let weights: Vec<u16> = weights.split(',').map(weight).collect::<Result<_, _>>()?;
        if weights.len() > QUEUES_MAX {
            return Err(PolicyError);
        }
        Ok(Policy::Weighted(weights))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Policy::RoundRobin => f.write_str("round-robin"),
            Policy::Strict => f.write_str("strict"),
            Policy::LeastLoaded => f.write_str("least-loaded"),
            Policy::Weighted(weights) => {
                let weights: Vec<String> = weights.iter().map(u16::to_string).collect();
                write!(f, "weighted:{}", weights.join(","))
            }
        }
    }
}

/// A policy at work.
#[derive(Debug)]
pub struct Scheduler {
    policy: Policy,
    /// Whose turn it is, and how much is left of it.
    at: u32,
    left: u32,
    /// Bytes that each queue has given, for [`Policy::LeastLoaded`].
    given: Box<Given>,
}

/// Written for each record, so on cache lines of its own: schedulers of different threads are made
/// side by side.
#[repr(align(64))]
#[derive(Debug)]
struct Given([u64; QUEUES_MAX]);

impl Scheduler {
    /// For 64 queues at most.
    pub fn new(policy: Policy) -> Scheduler {
        Scheduler {
            policy,
            // The first turn is the first queue's.
            at: QUEUES_MAX as u32 - 1,
            left: 0,
            given: Box::new(Given([0; QUEUES_MAX])),
        }
    }

    /// The queue to take the next record from, of those whose bit is set in `ready`; none if none
    /// is.
    #[inline]
    pub fn pick(&mut self, ready: u64) -> Option<usize> {
        if ready == 0 {
            return None;
        }
        if self.left == 0 || ready >> self.at & 1 == 0 {
            self.turn(ready);
        }
        self.left -= 1;
        Some(self.at as usize)
    }

    /// Gives the next turn.
    fn turn(&mut self, ready: u64) {
        self.left = TURN;
        self.at = match &self.policy {
            Policy::RoundRobin => after(self.at, ready),
            Policy::Weighted(weights) => {
                let at = after(self.at, ready);
                self.left *= weights
                    .get(at as usize)
                    .map_or(1, |weight| u32::from(*weight).max(1));
                at
            }
            Policy::Strict => {
                // Another may have something by the next record.
                self.left = 1;
                ready.trailing_zeros()
            }
            Policy::LeastLoaded => {
                let given = |at: u32| self.given.0.get(at as usize).copied().unwrap_or(0);
                let ready = (0..u64::BITS).filter(|at| ready >> at & 1 == 1);
                let at = ready.min_by_key(|at| given(*at)).unwrap_or(0);
                // What it did not use while it had nothing is gone: it may be a turn behind the
                // last.
                let behind = given(self.at).saturating_sub(TURN_BYTES);
                if let Some(given) = self.given.0.get_mut(at as usize) {
                    *given = (*given).max(behind);
                }
                at
            }
        };
    }

    /// A record of so many bytes has been taken from a queue.
    #[inline]
    pub fn took(&mut self, queue: usize, bytes: usize) {
        if let Some(given) = self.given.0.get_mut(queue) {
            *given += bytes as u64;
        }
    }
}

/// What a queue that had nothing may be behind: a turn of the largest frames.
const TURN_BYTES: u64 = TURN as u64 * 65_536;

/// The next bit that is set behind bit `at`, round and round.
fn after(at: u32, ready: u64) -> u32 {
    let behind = ready & (!0u64).checked_shl(at + 1).unwrap_or(0);
    match behind {
        0 => ready.trailing_zeros(),
        behind => behind.trailing_zeros(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What queues give in `steps` records when those in `ready` always have more, of so many bytes
    /// each.
    fn given(policy: Policy, ready: u64, bytes: [usize; 4], steps: u32) -> [u32; 4] {
        let mut scheduler = Scheduler::new(policy);
        let mut counts = [0; 4];
        for _ in 0..steps {
            let queue = scheduler.pick(ready).unwrap();
            scheduler.took(queue, bytes[queue]);
            counts[queue] += 1;
        }
        counts
    }

    #[test]
    fn round_robin_gives_each_as_much() {
        assert_eq!(given(Policy::RoundRobin, 0b1111, [64; 4], 320), [80; 4]);
        assert_eq!(
            given(Policy::RoundRobin, 0b1010, [64; 4], 320),
            [0, 160, 0, 160]
        );
    }

    #[test]
    fn strict_priority_gives_the_first() {
        assert_eq!(given(Policy::Strict, 0b1110, [64; 4], 30), [0, 30, 0, 0]);
        let mut scheduler = Scheduler::new(Policy::Strict);
        assert_eq!(
            [scheduler.pick(8), scheduler.pick(10), scheduler.pick(8)],
            [Some(3), Some(1), Some(3)]
        );
    }

    #[test]
    fn weights_are_kept_and_one_where_none_is_said() {
        let weighted = |weights: &[u16]| Policy::Weighted(weights.to_vec());
        assert_eq!(
            given(weighted(&[4, 2, 1, 1]), 15, [64; 4], 640),
            [320, 160, 80, 80]
        );
        assert_eq!(given(weighted(&[3]), 3, [64; 4], 320), [240, 80, 0, 0]);
        assert_eq!(
            given(weighted(&[4, 1, 1, 1]), 0b1110, [64; 4], 240),
            [0, 80, 80, 80]
        );
    }

    #[test]
    fn least_loaded_evens_out_bytes() {
        let counts = given(Policy::LeastLoaded, 3, [1500, 500, 0, 0], 4000);
        assert!(
            counts[0].abs_diff(1000) < 20 && counts[1].abs_diff(3000) < 20,
            "{counts:?}"
        );
    }

    #[test]
    fn a_queue_that_was_idle_does_not_starve_the_others() {
        let mut scheduler = Scheduler::new(Policy::LeastLoaded);
        for _ in 0..10_000 {
            let queue = scheduler.pick(1).unwrap();
            scheduler.took(queue, 1500);
        }
        let mut counts = [0u32; 2];
        for _ in 0..2000 {
            let queue = scheduler.pick(3).unwrap();
            scheduler.took(queue, 1500);
            counts[queue] += 1;
        }
        // It is a turn of the largest frames ahead.
        assert!(
            counts[1].abs_diff(counts[0]) <= 2 * (TURN_BYTES / 1500) as u32,
            "{counts:?}"
        );
    }

    #[test]
    fn policies_are_read_as_they_are_written() {
        for text in [
            "round-robin",
            "strict",
            "least-loaded",
            "weighted:1",
            "weighted:3,1,1000",
        ] {
            assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "fair",
            "weighted",
            "weighted:",
            "weighted:0",
            "weighted:1,",
            "weighted:1001",
        ] {
            assert_eq!(text.parse::<Policy>(), Err(PolicyError), "{text}");
        }
    }

    proptest! {
        #[test]
        fn only_queues_that_have_something_are_picked(
            ready in proptest::collection::vec(any::<u64>(), 1..200),
            policy in prop_oneof![
                Just(Policy::RoundRobin),
                Just(Policy::Strict),
                Just(Policy::LeastLoaded),
                Just(Policy::Weighted(vec![5, 1, 1000])),
            ],
        ) {
            let mut scheduler = Scheduler::new(policy);
            for ready in ready {
                match scheduler.pick(ready) {
                    Some(queue) => {
                        prop_assert!(ready >> queue & 1 == 1);
                        scheduler.took(queue, 1500);
                    }
                    None => prop_assert_eq!(ready, 0),
                }
            }
        }

        #[test]
        fn in_turns_nobody_waits_longer_than_all_the_others_take(
            ready in 1..u64::MAX,
            weights in proptest::collection::vec(1..4u16, 0..64),
        ) {
            for policy in [Policy::RoundRobin, Policy::Weighted(weights.clone()), Policy::LeastLoaded] {
                let mut scheduler = Scheduler::new(policy);
                let mut seen = 0;
                for _ in 0..64 * 3 * TURN {
                    let queue = scheduler.pick(ready).unwrap();
                    scheduler.took(queue, 100);
                    seen |= 1u64 << queue;
                }
                prop_assert_eq!(seen, ready);
            }
        }
    }
}
