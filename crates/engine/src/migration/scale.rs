//! Which shards serve which buckets of flows: what is to move when their number changes, or when some have too much to do, and the order in which all are told. `bucket_moves` is what
//! the workers do.
//!
//! The control thread waits until a move has ended, so nothing that it tells workers meets a connection on its way. If a worker does not answer in time the move ends when
//! it does, without its connections unless these have gone already, and no other begins before.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::time::{Duration, Instant};

use millrace_steer::{Balancer, Groups, Move, plan};
use serde_json::json;

use crate::control::command::Command;
use crate::control::workers::{PATIENCE, Workers};
use crate::migration::bucket_moves::{Leaving, MoveDecision};

/// The bucket of what is of no flow stays where it is: one shard speaks for all to the link.
const OF_NO_FLOW: usize = 0;

/// Buckets that move at once.
const AT_ONCE: usize = 128;
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
    balance: Option<Balance>,
    /// What the new owners and the I/O threads have not all heard of yet.
    begun: Option<Begun>,
    /// Answers that are late.
    late: Vec<Receiver<()>>,
    /// How long a worker may take to answer.
    patience: Duration,
}

/// A move of which nobody has given anything yet.
struct Begun {
    moves: Vec<Move>,
    /// Of the new owners: those that have not said yet that they expect something, and what all say in the end.
    ready: VecDeque<Receiver<()>>,
    taken: Vec<Receiver<()>>,
    /// Of the I/O threads, in their order, once they are told: what they have answered, and what they have not.
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

    /// How many serve.
    pub(crate) fn serving(&self) -> u16 {
        self.serving
    }

    /// Has the first `count` shards serve. Returns how many buckets have moved, or an errno: [`libc::ENOTSUP`] where shards own queues, [`libc::EINVAL`] when there are not so
    /// many shards, [`libc::EBUSY`] while an earlier move has not ended, [`libc::EIO`] when this one has not in time: it ends later.
    pub(crate) fn to(&mut self, count: u16, workers: &Workers) -> Result<usize, i32> {
        if !workers.can_move_flows() {
            return Err(libc::ENOTSUP);
        }
        if count == 0 || u32::from(count) > workers.len() {
            return Err(libc::EINVAL);
        }
        self.catch_up(workers)?;
        // By number: what is in a bucket now need not be there tomorrow.
        let mut moves = plan(&self.groups, &[], count);
        moves.retain(|step| step.bucket != OF_NO_FLOW);
        self.serving = count;
        self.carry_out(&moves, workers)?;
        Ok(moves.len())
    }

    /// How long until there is something to be done without being asked; none if there never is.
    pub(crate) fn patience(&self) -> Option<Duration> {
        if self.begun.is_some() {
            return Some(LOOK);
        }
        let balance = self.balance.as_ref()?;
        Some(balance.next.saturating_duration_since(Instant::now()))
    }

    /// Does what is to be done without being asked: ends what is late, and looks, if it is time, whether some shards have too much to do, which moves to those that have less.
    pub(crate) fn look(&mut self, workers: &Workers) {
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
            eprintln!("millrace: a shard does not answer: flows that are to move wait for it");
        }
    }

    /// [`libc::EBUSY`] unless all that was begun has ended.
    fn catch_up(&mut self, workers: &Workers) -> Result<(), i32> {
        if let Some(begun) = self.begun.take() {
            self.go_on(begun, workers, Duration::ZERO)
                .map_err(|_| libc::EBUSY)?;
        }
        // One that has ended without an answer does not wait for anything, either.
        self.late
            .retain(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        match self.late.is_empty() {
            true => Ok(()),
            false => Err(libc::EBUSY),
        }
    }

    /// A few at once, so that no shard is long at it.
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

    /// Once the new owners know of it, and then the I/O threads, has the old owners give.
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
            // Who has begun to give is soon done.
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
        // Until a shard hears of it it asks the old owner.
        workers.send(|_| Command::Assign {
            moves: moves.clone(),
        });
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::control::workers::WorkerHandle;
    use crate::doorbell::doorbell;
    use crate::links::io_thread::{IoHandle, Switch, no_load};

    /// Shards and an I/O thread that answer when the test says so.
    struct Slow {
        workers: Workers,
        commands: Vec<Receiver<Command>>,
        switches: Receiver<Switch>,
        /// Told by the shards that get something, when it has come.
        taken: Vec<mpsc::Sender<()>>,
        /// Whether connections went along, of each time that a shard gave.
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
                // If nobody waits any more that is what is tested.
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
            scale.look(&slow.workers);
        }
        slow.carry_out();
        scale.look(&slow.workers);
        assert_eq!(scale.to(2, &slow.workers), Err(libc::EBUSY));
        slow.switch();
        scale.look(&slow.workers);
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
        // The rest, a few at once.
        let mut times = 0;
        while scale.to(2, &slow.workers) != Ok(0) {
            slow.carry_out();
            scale.look(&slow.workers);
            slow.switch();
            scale.look(&slow.workers);
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
