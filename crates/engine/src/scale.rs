//! How many shards serve: which buckets are to move when that changes, and the order in which all are told. `moving` is what the workers do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use millrace_steer::{Balancer, Groups, Move, plan};
use serde_json::json;

use crate::command::Command;
use crate::workers::{PATIENCE, Workers};

/// The bucket of what is of no flow stays where it is: one shard speaks for all to the link.
const OF_NO_FLOW: usize = 0;

/// How often it is looked whether some shards have too much to do.
const LOOK: Duration = Duration::from_secs(1);
/// What a shard has at least of which some is worth moving: in a second, 2,000 short frames or 2 MB.
const IDLE: u64 = 2_000_000;

/// Moves for load, and what has come of it.
struct Balance {
    balancer: Balancer,
    next: Instant,
    /// Buckets that each shard has given, and has got.
    given: Vec<u64>,
    taken: Vec<u64>,
}

/// The shards that serve, of those that there are.
pub(crate) struct Scale {
    /// New flows and new sockets go to the first so many.
    serving: u16,
    groups: Groups,
    /// A move did not come to an end: who has what is not known.
    failed: bool,
    balance: Option<Balance>,
}

impl Scale {
    pub(crate) fn new(serving: u16, groups: Groups, balance: bool) -> Scale {
        let balance = balance.then(|| Balance {
            balancer: Balancer::new(OF_NO_FLOW, IDLE),
            next: Instant::now(),
            given: Vec::new(),
            taken: Vec::new(),
        });
        Scale {
            serving,
            groups,
            failed: false,
            balance,
        }
    }

    /// How many serve.
    pub(crate) fn serving(&self) -> u16 {
        self.serving
    }

    /// Has the first `count` shards serve. Returns how many buckets have moved, or an errno: [`libc::ENOTSUP`] where shards own queues, [`libc::EINVAL`] when there are not so
    /// many shards, [`libc::EBUSY`] when the last time did not end.
    pub(crate) fn to(&mut self, count: u16, workers: &Workers) -> Result<usize, i32> {
        if !workers.can_move_flows() {
            return Err(libc::ENOTSUP);
        }
        if count == 0 || u32::from(count) > workers.len() {
            return Err(libc::EINVAL);
        }
        if self.failed {
            return Err(libc::EBUSY);
        }
        // By number: what buckets had was of flows that stay where they are, and new ones are in all buckets alike.
        let mut moves = plan(&self.groups, &[], count);
        moves.retain(|step| step.bucket != OF_NO_FLOW);
        self.serving = count;
        if moves.is_empty() {
            return Ok(0);
        }
        self.have_moved(&moves, workers)?;
        Ok(moves.len())
    }

    /// How long until it is to be looked whether some shards have too much to do; none if that is not wanted.
    pub(crate) fn patience(&self) -> Option<Duration> {
        let balance = self.balance.as_ref().filter(|_| !self.failed)?;
        Some(balance.next.saturating_duration_since(Instant::now()))
    }

    /// Looks, if it is time, whether some shards have too much to do, and has some of it moved to those that have less.
    pub(crate) fn balance(&mut self, workers: &Workers) {
        if self.patience() != Some(Duration::ZERO) {
            return;
        }
        let Some(balance) = &mut self.balance else {
            return;
        };
        balance.next = Instant::now() + LOOK;
        let load = workers.load();
        let moves = balance.balancer.look(&self.groups, &load, self.serving);
        if moves.is_empty() {
            return;
        }
        balance.given.resize(workers.len() as usize, 0);
        balance.taken.resize(workers.len() as usize, 0);
        for step in &moves {
            balance.given[usize::from(step.from)] += 1;
            balance.taken[usize::from(step.to)] += 1;
        }
        if self.have_moved(&moves, workers).is_err() {
            eprintln!("millrace: a shard did not answer: flows are not moved any more");
        }
    }

    fn have_moved(&mut self, moves: &[Move], workers: &Workers) -> Result<(), i32> {
        self.failed = true;
        self.carry_out(moves, workers)?;
        self.failed = false;
        Ok(())
    }

    fn carry_out(&mut self, moves: &[Move], workers: &Workers) -> Result<(), i32> {
        let arriving = by(moves, |step| (step.to, step.from));
        let mut taken = Vec::new();
        let mut ready = Vec::new();
        for (&to, from) in &arriving {
            let ((told, arrived), (done, knows)) = (mpsc::channel(), mpsc::channel());
            let expect = Command::Expect {
                buckets: from.values().flatten().copied().collect(),
                parcels: from.len(),
                taken: told,
                done,
            };
            workers.tell(to, expect);
            taken.push(arrived);
            ready.push(knows);
        }
        wait(ready)?;
        for step in moves {
            self.groups.assign(step.bucket, step.to);
        }
        self.groups.recount();
        let positions = workers.switch(&self.groups)?;
        for (from, to) in by(moves, |step| (step.from, step.to)) {
            let of_queue = |queues: &Vec<usize>| queues.get(usize::from(from)).copied();
            let give = Command::Give {
                buckets: to.into_iter().collect(),
                positions: positions.iter().filter_map(of_queue).collect(),
            };
            workers.tell(from, give);
        }
        wait(taken)?;
        let moves: Arc<[Move]> = moves.into();
        workers.ask(|_, done| Command::Assign {
            moves: moves.clone(),
            done,
        })?;
        Ok(())
    }

    /// Which shard has each bucket, and what it has had.
    pub(crate) fn json(&self, workers: &Workers) -> serde_json::Value {
        let buckets = 0..self.groups.buckets();
        let shards: Vec<_> = buckets
            .map(|bucket| self.groups.of_bucket(bucket))
            .collect();
        let balance = self.balance.as_ref();
        json!({
            "serving": self.serving,
            "shards": shards,
            "load": workers.load(),
            // By shard, buckets that have moved for their load; none if they are not to.
            "given": balance.map(|balance| &balance.given),
            "taken": balance.map(|balance| &balance.taken),
        })
    }
}

/// Buckets by two shards, one within the other.
fn by(
    moves: &[Move],
    key: impl Fn(&Move) -> (u16, u16),
) -> BTreeMap<u16, BTreeMap<u16, Vec<usize>>> {
    let mut all = BTreeMap::<u16, BTreeMap<u16, Vec<usize>>>::new();
    for step in moves {
        let (outer, inner) = key(step);
        let buckets = all.entry(outer).or_default().entry(inner).or_default();
        buckets.push(step.bucket);
    }
    all
}

fn wait(answers: Vec<mpsc::Receiver<()>>) -> Result<(), i32> {
    let mut answers = answers.into_iter();
    answers.try_for_each(|answer| answer.recv_timeout(PATIENCE).map_err(|_| libc::EIO))
}
