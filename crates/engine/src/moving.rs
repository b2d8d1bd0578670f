//! Buckets on their way from one shard to another, as the workers see it. `scale` says which are to go.
//!
//! The new owner is told first, and keeps what comes for them. Then the I/O threads take them off the old one, which gives as soon as it has had all that was
//! in its queues until then, and whoever it handed some of that to has had it, too. The new one takes, and what it has kept it takes in. So nothing
//! overtakes what was received before it.
//!
//! Connections do not move: they are pinned where they are, and the new owner hands over what comes for them.

use std::sync::mpsc::Sender;

use millrace_shard::Parcel;

use crate::peers::Request;
use crate::queues::Awaited;
use crate::worker::{Wire, Worker};

/// What is on its way to or from a shard.
#[derive(Debug, Default)]
pub(crate) struct Moving {
    arriving: Option<Arriving>,
    leaving: Option<Leaving>,
}

#[derive(Debug)]
struct Arriving {
    parcels: usize,
    taken: Sender<()>,
}

#[derive(Debug)]
struct Leaving {
    /// By the shard that gets them.
    buckets: Vec<(u16, Vec<usize>)>,
    /// Of the I/O threads.
    positions: Vec<usize>,
    /// Of the rings to the other shards, once the queues have come to theirs.
    handed: Option<Vec<usize>>,
}

impl Moving {
    /// Whether this shard is to give some.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

impl Worker {
    /// Buckets are about to come.
    pub(crate) fn expect_buckets(&mut self, buckets: &[usize], parcels: usize, taken: Sender<()>) {
        self.shard.expect(buckets);
        let steer = self.shard.config().steer.as_ref();
        let of = steer.map_or(0, |steer| steer.groups.buckets());
        if let Some(Wire::Queues(queues)) = &mut self.wire {
            queues.awaited = Some(Box::new(Awaited::new(of, buckets)));
        }
        self.moving.arriving = Some(Arriving { parcels, taken });
    }

    /// Buckets are to go.
    pub(crate) fn leave_buckets(&mut self, buckets: Vec<(u16, Vec<usize>)>, positions: Vec<usize>) {
        self.moving.leaving = Some(Leaving {
            buckets,
            positions,
            handed: None,
        });
    }

    /// Gives them if it is time; at the end of a round, when what others are to have of it is theirs.
    pub(crate) fn give_buckets(&mut self) {
        let (Some(leaving), Some(peers)) = (&mut self.moving.leaving, &self.peers) else {
            return;
        };
        let passed = match &self.wire {
            Some(Wire::Queues(queues)) => queues.side.inbound.has_passed(&leaving.positions),
            _ => true,
        };
        if !passed {
            return;
        }
        let handed = leaving.handed.get_or_insert_with(|| peers.positions());
        if !peers.are_read_up_to(handed) {
            return;
        }
        let Some(leaving) = self.moving.leaving.take() else {
            return;
        };
        let from = peers.own;
        for (to, buckets) in leaving.buckets {
            if let Some(parcel) = self.shard.give_new(&buckets, to) {
                peers.tell(to.into(), Request::Take { parcel, from });
            }
        }
    }

    /// Buckets have come.
    pub(crate) fn take_parcel(&mut self, parcel: Parcel, from: u16) {
        let buckets = parcel.buckets().to_vec();
        // There are no connections in it that could be refused.
        self.shard.take(parcel, from, self.now);
        if let Some(peers) = &mut self.peers {
            let unpinned = std::mem::take(&mut peers.unpinned);
            for (flow, shard) in unpinned {
                match self.shard.is_awaited(&flow) {
                    true => peers.unpinned.push((flow, shard)),
                    false => self.shard.unpin(&flow, shard),
                }
            }
        }
        let mut done = false;
        if let Some(arriving) = &mut self.moving.arriving {
            arriving.parcels = arriving.parcels.saturating_sub(1);
            done = arriving.parcels == 0;
        }
        self.take_kept(&buckets, done);
        self.take_awaited();
        if done && let Some(arriving) = self.moving.arriving.take() {
            // Nobody waits any more if that took too long.
            let _ = arriving.taken.send(());
        }
    }

    /// Takes in what was kept for buckets that have come; nothing is kept any more after the last of them.
    fn take_kept(&mut self, buckets: &[usize], last: bool) {
        let Some(Wire::Queues(queues)) = &mut self.wire else {
            return;
        };
        let Some(awaited) = &mut queues.awaited else {
            return;
        };
        awaited.arrived(buckets);
        let (shard, peers) = (&mut self.shard, &mut self.peers);
        let (counters, now) = (&mut self.counters, self.now);
        awaited.take(|frame| {
            shard.input(frame, now);
            counters.frames_in += 1;
            if let Some(peers) = peers
                && let Some((stray, whole)) = shard.take_stray()
            {
                peers.pass(stray, frame, whole.as_deref(), counters);
            }
        });
        if last {
            queues.awaited = None;
        }
    }
}
