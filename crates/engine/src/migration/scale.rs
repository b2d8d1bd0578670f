//! Decides which shard serves which buckets of flows, when the number of shards changes or when
//! some shards are busier than others, and tells all threads in order. What the workers do is in
//! `buckets`.
//!
//! The control thread waits until a move has ended, so its commands meet no connection on its way.
//! If a worker does not answer in time, the move ends when it does, and connections stay unless
//! they have moved already. No other move begins before that.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use millrace_steer::{Balancer, Groups, Move, plan};
use serde_json::json;

use crate::control::command::Command;
use crate::control::workers::{PATIENCE, Workers};
use crate::migration::bucket_moves::{Leaving, MoveDecision};

/// The bucket of frames without a flow. It stays: one shard speaks to the link for all.
const OF_NO_FLOW: usize = 0;

/// Buckets that move in one step.
const AT_ONCE: usize = 128;
/// How often the balance of the shards is checked.
const LOOK: Duration = Duration::from_secs(1);
/// The least load of a shard that is worth balancing: in a second, 2,000 short frames or 2 MB.
const IDLE: u64 = 2_000_000;

/// Moves that balance load, and their number.
struct Balance {
    balancer: Balancer,
    next: Instant,
    /// Buckets that each shard has given, and buckets that each has taken.
    given: Vec<u64>,
    taken: Vec<u64>,
}

/// Which shards serve.
pub(crate) struct Scale {
    /// New flows and new sockets go to the first `serving` shards.
    serving: u16,
    groups: Groups,
    balance: Option<Balance>,
    /// A move of which some thread has not heard yet.
    begun: Option<Begun>,
    /// Answers that workers still owe.
    late: Vec<Receiver<()>>,
    /// How long a worker may take to answer.
    patience: Duration,
}

/// A move that has begun and has not moved any bucket.
struct Begun {
    moves: Vec<Move>,
    /// Answers of the new owners: that they expect the buckets, and that they have taken them.
    ready: VecDeque<Receiver<()>>,
    taken: Vec<Receiver<()>>,
    /// The positions that I/O threads have answered, in their order, and the answers that are
    /// missing.
    positions: Vec<Vec<usize>>,
    answers: Option<VecDeque<Receiver<Vec<usize>>>>,
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
            balance,
            begun: None,
            late: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// How many shards serve.
    pub(crate) fn serving(&self) -> u16 {
        self.serving
    }

    /// Has the first `count` shards serve. Returns how many buckets have moved.
    ///
    /// # Errors
    /// [`libc::ENOTSUP`]: shards own queues. [`libc::EINVAL`]: there are not so many shards.
    /// [`libc::EBUSY`]: an earlier move has not ended. [`libc::EIO`]: this move has not ended in
    /// time; it ends later.
    pub(crate) fn to(&mut self, count: u16, workers: &Workers) -> Result<usize, i32> {
        if !workers.can_move_flows() {
            return Err(libc::ENOTSUP);
        }
        if count == 0 || u32::from(count) > workers.len() {
            return Err(libc::EINVAL);
        }
        self.catch_up(workers)?;
        // Without loads: what is in a bucket now need not be there tomorrow.
        let mut moves = plan(&self.groups, &[], count);
        moves.retain(|step| step.bucket != OF_NO_FLOW);
        self.serving = count;
        self.carry_out(&moves, workers)?;
        Ok(moves.len())
    }

    /// When [`Scale::check`] has something to do; none if it never has.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.begun.is_some() {
            return Some(LOOK);
        }
        let balance = self.balance.as_ref()?;
        Some(balance.next.saturating_duration_since(Instant::now()))
    }

    /// Ends late moves. If it is time, checks the loads and moves buckets from busy shards to
    /// others.
    pub(crate) fn check(&mut self, workers: &Workers) {
        if self.begun.is_some() && self.catch_up(workers).is_err() {
            return;
        }
        let now = Instant::now();
        let Some(balance) = self.balance.as_mut().filter(|balance| balance.next <= now) else {
            return;
        };
        balance.next = now + LOOK;
        let load = workers.load();
        let moves = balance.balancer.look(&self.groups, &load, self.serving);
        if moves.is_empty() || self.catch_up(workers).is_err() {
            return;
        }
        if let Some(balance) = &mut self.balance {
            balance.given.resize(workers.len() as usize, 0);
            balance.taken.resize(workers.len() as usize, 0);
            for step in &moves {
                balance.given[usize::from(step.from)] += 1;
                balance.taken[usize::from(step.to)] += 1;
            }
        }
        if self.carry_out(&moves, workers).is_err() {
            eprintln!("millrace: a shard does not answer; flows that should move wait for it");
        }
    }

    /// Ends late moves.
    ///
    /// # Errors
    /// [`libc::EBUSY`]: a move has not ended.
    fn catch_up(&mut self, workers: &Workers) -> Result<(), i32> {
        if let Some(begun) = self.begun.take() {
            self.go_on(begun, workers, Duration::ZERO)
                .map_err(|_| libc::EBUSY)?;
        }
        // A worker that has ended without an answer waits for nothing.
        self.late
            .retain(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        match self.late.is_empty() {
            true => Ok(()),
            false => Err(libc::EBUSY),
        }
    }

    /// Moves buckets in small steps, so that no shard is busy for long.
    fn carry_out(&mut self, moves: &[Move], workers: &Workers) -> Result<(), i32> {
        for some in moves.chunks(AT_ONCE) {
            self.begin(some, workers)?;
        }
        Ok(())
    }

    fn begin(&mut self, moves: &[Move], workers: &Workers) -> Result<(), i32> {
        let mut taken = Vec::new();
        let mut ready = VecDeque::new();
        for (to, from) in by(moves, |step| (step.to, step.from)) {
            let ((told, arrived), (done, knows)) = (mpsc::channel(), mpsc::channel());
            let expect = Command::Expect {
                buckets: from.values().flatten().copied().collect(),
                batches: from.len(),
                taken: told,
                done,
            };
            workers.send_to(to, expect);
            taken.push(arrived);
            ready.push_back(knows);
        }
        let begun = Begun {
            moves: moves.to_vec(),
            ready,
            taken,
            positions: Vec::new(),
            answers: None,
        };
        self.go_on(begun, workers, self.patience)?;
        match self.late.is_empty() {
            true => Ok(()),
            false => Err(libc::EIO),
        }
    }

    /// Tells the new owners, then the I/O threads, then has the old owners give.
    fn go_on(
        &mut self,
        mut begun: Begun,
        workers: &Workers,
        patience: Duration,
    ) -> Result<(), i32> {
        while let Some(knows) = begun.ready.front() {
            if knows.recv_timeout(patience).is_err() {
                self.begun = Some(begun);
                return Err(libc::EIO);
            }
            begun.ready.pop_front();
        }
        let answers = begun.answers.get_or_insert_with(|| {
            for step in &begun.moves {
                self.groups.assign(step.bucket, step.to);
            }
            self.groups.recount();
            workers.switch(&self.groups).into()
        });
        while let Some(answer) = answers.front() {
            let Ok(positions) = answer.recv_timeout(patience) else {
                self.begun = Some(begun);
                return Err(libc::EIO);
            };
            begun.positions.push(positions);
            answers.pop_front();
        }
        let mut gone = Vec::new();
        for (from, to) in by(&begun.moves, |step| (step.from, step.to)) {
            let of_queue = |queues: &Vec<usize>| queues.get(usize::from(from)).copied();
            let positions = begun.positions.iter().filter_map(of_queue).collect();
            let (decision, (given, gives)) = (MoveDecision::default(), mpsc::channel());
            let buckets = to.into_iter().collect();
            let leaving = Leaving::new(buckets, positions, decision.clone(), given);
            workers.send_to(from, Command::Give(leaving));
            gone.push((decision, gives));
        }
        for (decision, gives) in gone {
            let heard = || gives.recv_timeout(self.patience).is_ok();
            // A shard that has begun to give ends soon.
            if !heard() && (decision.give_up() || !heard()) {
                self.late.push(gives);
            }
        }
        for taken in begun.taken {
            let in_time = self.late.is_empty() && taken.recv_timeout(self.patience).is_ok();
            if !in_time {
                self.late.push(taken);
            }
        }
        let moves: Arc<[Move]> = begun.moves.into();
        // Until a shard hears of it, it asks the old owner.
        workers.send(|_| Command::Assign {
            moves: moves.clone(),
        });
        Ok(())
    }

    /// The shard and the load of each bucket.
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
            // By shard, the buckets that have moved for balance. Null: balance is off.
            "given": balance.map(|balance| &balance.given),
            "taken": balance.map(|balance| &balance.taken),
        })
    }
}

/// Groups buckets by two shards.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::control::workers::WorkerHandle;
    use crate::doorbell::doorbell;
    use crate::links::io_thread::{IoHandle, Switch, no_load};

    /// Shards and an I/O thread that answer when the test tells them to.
    struct Slow {
        workers: Workers,
        commands: Vec<Receiver<Command>>,
        switches: Receiver<Switch>,
        /// Told by the shards that take buckets, when they have come.
        taken: Vec<mpsc::Sender<()>>,
        /// For each time that a shard gave: whether connections went along.
        live: Vec<bool>,
    }

    fn slow(shards: u16) -> (Slow, Scale) {
        let groups = Groups::even(1);
        let (senders, commands): (Vec<_>, Vec<_>) = (0..shards).map(|_| mpsc::channel()).unzip();
        let thread = || std::thread::spawn(|| ());
        let handle = |commands| WorkerHandle {
            commands,
            doorbell: doorbell().unwrap(),
            thread: thread(),
        };
        let (switched, switches) = mpsc::channel();
        let io = IoHandle {
            thread: thread(),
            doorbell: doorbell().unwrap(),
            counters: Arc::default(),
            gauges: Vec::new(),
            load: no_load(groups.buckets()),
            switches: switched,
            flags: Arc::default(),
        };
        let workers = Workers {
            shards: senders.into_iter().map(handle).collect(),
            io: vec![io],
            owners: 0,
        };
        let mut scale = Scale::new(1, groups, false);
        scale.patience = Duration::from_millis(1);
        let slow = Slow {
            workers,
            commands,
            switches,
            taken: Vec::new(),
            live: Vec::new(),
        };
        (slow, scale)
    }

    impl Slow {
        fn switch(&mut self) {
            for Switch { positions, .. } in self.switches.try_iter() {
                // The control thread may not wait any more: the test provokes that.
                let _ = positions.send(vec![0; self.commands.len()]);
            }
        }

        fn carry_out(&mut self) {
            let before = self.live.len();
            for command in self.commands.iter().flat_map(Receiver::try_iter) {
                match command {
                    Command::Expect { taken, done, .. } => {
                        let _ = done.send(());
                        self.taken.push(taken);
                    }
                    Command::Give(leaving) => {
                        self.live.push(leaving.decision.begin());
                        let _ = leaving.given.send(());
                    }
                    Command::Assign { .. } => {}
                    other => panic!("{other:?}"),
                }
            }
            if self.live.len() > before {
                for taken in self.taken.drain(..) {
                    let _ = taken.send(());
                }
            }
        }
    }

    #[test]
    fn what_does_not_end_in_time_ends_later_and_others_can_begin() {
        let (mut slow, mut scale) = slow(2);
        assert_eq!(scale.to(2, &slow.workers), Err(libc::EIO), "nobody answers");
        assert_eq!(scale.serving(), 2);
        for _ in 0..3 {
            assert_eq!(scale.to(2, &slow.workers), Err(libc::EBUSY));
            assert!(scale.patience().is_some(), "it is looked after");
            scale.check(&slow.workers);
        }
        slow.carry_out();
        scale.check(&slow.workers);
        assert_eq!(scale.to(2, &slow.workers), Err(libc::EBUSY));
        slow.switch();
        scale.check(&slow.workers);
        assert_eq!(
            scale.to(2, &slow.workers),
            Err(libc::EBUSY),
            "none has given"
        );
        slow.carry_out();
        assert_eq!(
            slow.live,
            [false],
            "connections stay: nobody waits for them"
        );
        // The other buckets, in small steps.
        let mut times = 0;
        while scale.to(2, &slow.workers) != Ok(0) {
            slow.carry_out();
            scale.check(&slow.workers);
            slow.switch();
            scale.check(&slow.workers);
            slow.carry_out();
            times += 1;
            assert!(times < 20);
        }
        assert!(slow.live.iter().all(|live| !live) && slow.live.len() == 4);
        let shards: Vec<usize> = (0..2)
            .map(|shard| {
                let buckets = 0..scale.groups.buckets();
                let of = |bucket: &usize| scale.groups.of_bucket(*bucket) == Some(shard);
                buckets.filter(of).count()
            })
            .collect();
        assert_eq!(shards, [512, 512]);
    }

    #[test]
    fn what_is_answered_in_time_moves_with_its_connections() {
        let (mut slow, mut scale) = slow(3);
        scale.patience = PATIENCE;
        let ended = Arc::new(AtomicBool::new(false));
        let over = ended.clone();
        let (workers, answering) = {
            let empty = Workers {
                shards: Vec::new(),
                io: Vec::new(),
                owners: 0,
            };
            let workers = std::mem::replace(&mut slow.workers, empty);
            let answer = move || {
                while !over.load(Ordering::Relaxed) {
                    slow.switch();
                    slow.carry_out();
                    std::thread::yield_now();
                }
                slow
            };
            (workers, std::thread::spawn(answer))
        };
        for (count, moved) in [(3, 682), (1, 682), (1, 0), (2, 512)] {
            let some = scale.to(count, &workers).unwrap();
            assert!(some.abs_diff(moved) <= 2, "{some}");
        }
        assert_eq!(scale.to(4, &workers), Err(libc::EINVAL));
        assert_eq!(scale.to(0, &workers), Err(libc::EINVAL));
        ended.store(true, Ordering::Relaxed);
        let slow = answering.join().unwrap();
        assert!(slow.live.len() > 10 && slow.live.iter().all(|live| *live));
    }
}
