//! How many connections may wait to be accepted: exactly one more than the backlog, as on Linux
//! (`sk_acceptq_is_full`), wherever they wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::{Memory, Owner};

/// A count that one shard writes, on a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Count(AtomicU64);

/// The queue of a listener that programs take connections from by themselves, after
/// [`crate::Shard::accept`] has handed them over; and that several shards may fill.
#[derive(Clone, Debug)]
pub struct AcceptQueue {
    /// Tells the memory's owner which queue is meant: see [`Memory::read_upto`].
    label: u32,
    /// How far the program had taken connections when it was made.
    base: u64,
    /// Connections that each shard has queued since.
    queued: Arc<[Count]>,
    own: u16,
    /// The shard of its listener.
    home: u16,
}

impl AcceptQueue {
    /// The queue called `label`, of which the program has taken `base` connections before, as shard
    /// `own` of `shards` fills it, whose socket it is.
    pub fn new(label: u32, base: u64, own: u16, shards: u32) -> AcceptQueue {
        AcceptQueue {
            label,
            base,
            queued: (0..shards).map(|_| Count::default()).collect(),
            own,
            home: own,
        }
    }

    /// The shard of its listener.
    pub(crate) fn home(&self) -> u16 {
        self.home
    }

    /// The same queue as another shard fills it.
    #[must_use]
    pub fn of_shard(&self, own: u16) -> AcceptQueue {
        AcceptQueue {
            own,
            ..self.clone()
        }
    }

    /// Connections that all shards have queued.
    fn sum(&self) -> u64 {
        let counts = self.queued.iter();
        counts.map(|count| count.0.load(Ordering::Relaxed)).sum()
    }
}

/// The count of connections that wait at a listener.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// As the program asked.
    pub limit: u32,
    /// Connections that this shard has queued.
    queued: u64,
    /// Of those, the ones that [`crate::Shard::accept`] has handed over.
    handed: u64,
    /// Connections that the program has taken, as it was known last.
    taken: u64,
    /// Unless what is handed over is taken.
    queue: Option<AcceptQueue>,
}

impl Backlog {
    pub fn new(limit: u32, queue: Option<AcceptQueue>) -> Backlog {
        Backlog {
            limit,
            queued: 0,
            handed: 0,
            taken: 0,
            queue,
        }
    }

    /// Connections that the program has taken.
    fn taken<M: Memory>(&self, memory: &M, owner: Owner) -> u64 {
        match &self.queue {
            Some(queue) => memory
                .read_upto(owner, queue.label)
                .saturating_sub(queue.base),
            None => self.handed,
        }
    }

    /// Connections that wait when the program has taken so many.
    fn waiting_after(&self, taken: u64) -> u64 {
        let queued = self.queue.as_ref().map_or(self.queued, AcceptQueue::sum);
        // A program that says that it has taken what it was not given does not make the shard's own
        // part any smaller.
        queued.saturating_sub(taken).max(self.queued - self.handed)
    }

    /// Connections that wait.
    pub fn waiting<M: Memory>(&self, memory: &M, owner: Owner) -> u64 {
        self.waiting_after(self.taken(memory, owner))
    }

    /// Whether no more may wait. How far the program has come is looked at only if it matters.
    pub fn is_full<M: Memory>(&mut self, memory: &M, owner: Owner) -> bool {
        let limit = u64::from(self.limit);
        if self.waiting_after(self.taken) <= limit {
            return false;
        }
        self.taken = self.taken(memory, owner);
        self.waiting_after(self.taken) > limit
    }

    /// Counts a connection in, unless no more may wait. Each shard says first that it has one, and
    /// looks at the others then: of two that want the last place one at least sees the other, and
    /// whose peer is sent away comes again.
    pub fn admit<M: Memory>(&mut self, memory: &M, owner: Owner) -> bool {
        if self.is_full(memory, owner) {
            return false;
        }
        self.set_queued(self.queued + 1);
        if self
            .queue
            .as_ref()
            .is_none_or(|queue| queue.queued.len() < 2)
        {
            return true;
        }
        fence(Ordering::SeqCst);
        let fits = self.waiting_after(self.taken) <= u64::from(self.limit) + 1;
        if !fits {
            self.retract();
        }
        fits
    }

    /// Counts one out that came to nothing.
    pub fn retract(&mut self) {
        self.set_queued(self.queued - 1);
    }

    fn set_queued(&mut self, queued: u64) {
        self.queued = queued;
        if let Some(queue) = &self.queue
            && let Some(count) = queue.queued.get(usize::from(queue.own))
        {
            count.0.store(queued, Ordering::Relaxed);
        }
    }

    /// The program's queue is called otherwise from now on: it has another owner.
    pub fn rename(&mut self, label: u32) {
        if let Some(queue) = &mut self.queue {
            queue.label = label;
        }
    }

    /// [`crate::Shard::accept`] has handed one over.
    pub fn hand_over(&mut self) {
        self.handed += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Block, HeapMemory};

    const OWNER: Owner = Owner(1);

    /// A program that has taken so many.
    struct Taken(u64);

    impl Memory for Taken {
        fn allocate(&mut self, _: Owner, _: u8) -> Option<Block> {
            None
        }
        fn free(&mut self, _: Owner, _: Block) {}
        fn write(&mut self, _: Owner, _: Block, _: usize, _: &[u8]) {}
        fn copy(&mut self, _: Owner, _: (Block, usize), _: (Block, usize), _: usize) {}
        fn read(&self, _: Owner, _: Block, _: usize, _: &mut [u8]) {}
        fn read_upto(&self, _: Owner, label: u32) -> u64 {
            assert_eq!(label, 9);
            self.0
        }
    }

    #[test]
    fn one_more_than_the_backlog_waits_until_the_program_takes_it() {
        let mut backlog = Backlog::new(1, Some(AcceptQueue::new(9, 100, 0, 1)));
        let mut program = Taken(100);
        assert!(backlog.admit(&program, OWNER) && backlog.admit(&program, OWNER));
        assert!(!backlog.admit(&program, OWNER));
        backlog.hand_over();
        assert!(backlog.is_full(&program, OWNER), "handed over is not taken");
        assert_eq!(backlog.waiting(&program, OWNER), 2);
        program.0 += 1;
        assert!(backlog.admit(&program, OWNER));
        assert!(backlog.is_full(&program, OWNER));
        backlog.retract();
        assert!(backlog.admit(&program, OWNER));
        // With a larger backlog at once more.
        backlog.limit = 2;
        assert!(backlog.admit(&program, OWNER) && !backlog.admit(&program, OWNER));
    }

    #[test]
    fn shards_share_the_backlog() {
        let queue = AcceptQueue::new(9, 0, 0, 2);
        let other = queue.of_shard(1);
        let mut shards = [queue, other].map(|queue| Backlog::new(2, Some(queue)));
        let mut program = Taken(0);
        assert!(shards[0].admit(&program, OWNER));
        assert!(shards[1].admit(&program, OWNER));
        assert!(shards[1].admit(&program, OWNER));
        assert!(shards.iter_mut().all(|shard| !shard.admit(&program, OWNER)));
        for shard in [0, 1, 1] {
            shards[shard].hand_over();
        }
        program.0 = 3;
        assert!((0..3).all(|_| shards[0].admit(&program, OWNER)));
        assert!(shards.iter_mut().all(|shard| !shard.admit(&program, OWNER)));
    }

    #[test]
    fn without_a_program_accept_makes_room() {
        let memory = HeapMemory::new(0);
        let mut backlog = Backlog::new(0, None);
        assert!(backlog.admit(&memory, OWNER) && !backlog.admit(&memory, OWNER));
        backlog.hand_over();
        assert!(backlog.admit(&memory, OWNER));
    }

    #[test]
    fn a_program_that_lies_fills_no_more_of_the_shard() {
        for read in [0, 4, u64::MAX] {
            let mut backlog = Backlog::new(0, Some(AcceptQueue::new(9, 5, 0, 1)));
            assert!(backlog.admit(&Taken(read), OWNER));
            assert!(!backlog.admit(&Taken(read), OWNER));
        }
    }
}
