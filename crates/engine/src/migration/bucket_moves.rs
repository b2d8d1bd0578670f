//! Buckets that are about to come to a shard or to leave it.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use millrace_context::sync::{AtomicU32, Ordering};
use millrace_tcp::Instant;

/// The buckets that come to a shard, and those that leave it.
#[derive(Debug, Default)]
pub(crate) struct BucketMoves {
    arriving: Option<Arriving>,
    leaving: Option<Leaving>,
}

#[derive(Debug)]
struct Arriving {
    batches: usize,
    taken: Sender<()>,
}

/// Buckets that are to leave.
#[derive(Debug)]
pub struct Leaving {
    /// The buckets, by the shard that gets them.
    pub(crate) buckets: Vec<(u16, Vec<usize>)>,
    /// How far each I/O thread had written this shard's queue when it began to steer the buckets
    /// elsewhere.
    pub(crate) positions: Vec<usize>,
    /// Whether connections may go along.
    pub(crate) decision: MoveDecision,
    /// Told when the buckets have left.
    pub(crate) given: Sender<()>,
    /// Positions in the rings to the other shards, once the queues have been received up to theirs.
    handed: Option<Vec<usize>>,
    /// When the buckets could first have left.
    since: Option<Instant>,
}

impl Leaving {
    pub(crate) fn new(
        buckets: Vec<(u16, Vec<usize>)>,
        positions: Vec<usize>,
        decision: MoveDecision,
        given: Sender<()>,
    ) -> Leaving {
        Leaving {
            buckets,
            positions,
            decision,
            given,
            handed: None,
            since: None,
        }
    }

    /// Where the rings to the other shards had been written up to when this was first asked.
    pub(crate) fn handed(&mut self, positions: impl FnOnce() -> Vec<usize>) -> &[usize] {
        self.handed.get_or_insert_with(positions)
    }

    /// When this was first asked.
    pub(crate) fn since(&mut self, now: Instant) -> Instant {
        *self.since.get_or_insert(now)
    }
}

/// Whether connections go along with their buckets. The first to decide wins: the shard when it
/// begins to give, or the control thread when it waits no longer. Then connections move only while
/// the control thread waits, so its commands meet no connection on its way.
#[derive(Clone, Debug, Default)]
pub struct MoveDecision(Arc<AtomicU32>);

impl MoveDecision {
    const GOES: u32 = 1;
    const LATE: u32 = 2;

    fn settle(&self, decision: u32) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let before = self.0.compare_exchange(0, decision, success, failure);
        before.is_ok() || before == Err(decision)
    }

    /// The shard begins to give. Returns whether connections go along.
    pub(crate) fn begin(&self) -> bool {
        self.settle(MoveDecision::GOES)
    }

    /// The control thread waits no longer. Returns whether connections stay, because the shard has
    /// not begun.
    pub(crate) fn give_up(&self) -> bool {
        self.settle(MoveDecision::LATE)
    }
}

impl BucketMoves {
    /// Buckets are about to come in so many batches; `taken` is told when all are here.
    pub(crate) fn expect(&mut self, batches: usize, taken: Sender<()>) {
        self.arriving = Some(Arriving { batches, taken });
    }

    /// A batch has come. Returns whether it is the last one.
    pub(crate) fn count_batch(&mut self) -> bool {
        let Some(arriving) = &mut self.arriving else {
            return false;
        };
        arriving.batches = arriving.batches.saturating_sub(1);
        arriving.batches == 0
    }

    /// All batches are here.
    pub(crate) fn end_arrival(&mut self) {
        if let Some(arriving) = self.arriving.take() {
            // The control thread does not wait any more if that took too long.
            let _ = arriving.taken.send(());
        }
    }

    /// Buckets are to leave.
    pub(crate) fn set_leaving(&mut self, leaving: Leaving) {
        self.leaving = Some(leaving);
    }

    /// Whether buckets are to leave.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// The buckets that are to leave.
    pub(crate) fn leaving_mut(&mut self) -> Option<&mut Leaving> {
        self.leaving.as_mut()
    }

    /// Takes the buckets that are to leave.
    pub(crate) fn take_leaving(&mut self) -> Option<Leaving> {
        self.leaving.take()
    }
}

#[cfg(all(test, not(millrace_loom)))]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decides_whether_connections_go_along() {
        let decision = MoveDecision::default();
        assert!(decision.begin() && decision.begin());
        assert!(!decision.give_up());
        let decision = MoveDecision::default();
        assert!(decision.give_up());
        assert!(!decision.begin());
    }
}
