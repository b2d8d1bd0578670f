//! Hints from a shard to the program: "this socket changed, look at its slot".
//!
//! One poller serves one epoll set (or one thread's `poll`/`select`). Each shard has a ring in it,
//! of which it is the one producer. The consumers are the program's threads, which take turns by
//! `lock`. A hint carries no state and may be spurious; when there are more than a ring holds,
//! `overflow` goes up and the program looks at every socket of the set.

use crate::layout::{HINTS, SHARDS_MAX};
use crate::sync::{AtomicU32, Ordering, Step, fence, fence_after_update, is_left_out};

/// In the count of sleepers: a caller waits for the set itself.
const ALWAYS: u32 = 1 << 31;

/// Written by the program, except for `shards`.
#[repr(C, align(64))]
#[derive(Debug)]
struct Common {
    sleepers: AtomicU32,
    lock: AtomicU32,
    /// The number of rings in use. The engine writes it before the program knows of the poller.
    shards: AtomicU32,
}

#[repr(C, align(64))]
#[derive(Debug)]
struct EngineLine {
    tail: AtomicU32,
    overflow: AtomicU32,
}

#[repr(C, align(64))]
#[derive(Debug)]
struct AppLine {
    head: AtomicU32,
    overflow_seen: AtomicU32,
}

/// One shard's ring.
#[repr(C)]
#[derive(Debug)]
struct Ends {
    engine: EngineLine,
    app: AppLine,
}

/// Head pages of a poller; its rings follow them.
#[cfg_attr(not(millrace_loom), repr(C, align(4096)))]
#[derive(Debug)]
pub struct Poller {
    common: Common,
    rings: [Ends; SHARDS_MAX],
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Poller>() == crate::layout::POLLER_HEAD);

/// A poller of zeros, as in a new region. Only the model checker makes one elsewhere.
#[cfg(millrace_loom)]
impl Default for Poller {
    fn default() -> Poller {
        let zero = || AtomicU32::new(0);
        let ends = |_| Ends {
            engine: EngineLine {
                tail: zero(),
                overflow: zero(),
            },
            app: AppLine {
                head: zero(),
                overflow_seen: zero(),
            },
        };
        Poller {
            common: Common {
                sleepers: zero(),
                lock: zero(),
                shards: AtomicU32::new(SHARDS_MAX as u32),
            },
            rings: std::array::from_fn(ends),
        }
    }
}

impl Poller {
    // ---- the engine's side ----

    /// Adds a hint of `shard`; `tail` is its own copy of its ring's tail. Returns the hint's
    /// position for [`Poller::still_pending`].
    pub fn push(&self, rings: &[AtomicU32], shard: u32, tail: &mut u32, slot: u32) -> u32 {
        let Ends { engine, app } = &self.rings[shard as usize];
        let head = app.head.load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= HINTS {
            engine.overflow.fetch_add(1, Ordering::Release);
            return *tail;
        }
        rings[(shard * HINTS + *tail % HINTS) as usize].store(slot, Ordering::Relaxed);
        let position = *tail;
        *tail = tail.wrapping_add(1);
        engine.tail.store(*tail, Ordering::Release);
        position
    }

    /// Whether the program has not taken the hint of `shard` at `position` yet. Then another hint
    /// for the same socket adds nothing.
    pub fn still_pending(&self, shard: u32, tail: u32, position: u32) -> bool {
        let head = self.rings[shard as usize].app.head.load(Ordering::Acquire);
        let ahead = position.wrapping_sub(head);
        ahead < tail.wrapping_sub(head).min(HINTS)
    }

    /// Whether the doorbell must ring, because threads sleep for hints or a caller waits for the
    /// set itself. Read after a full fence that follows the push.
    pub fn has_sleepers(&self) -> bool {
        self.common.sleepers.load(Ordering::Relaxed) > 0
    }

    /// Whether a sleeping thread takes the hints when the doorbell rings, or before it leaves. Read
    /// after a full fence that follows the push.
    pub fn has_waiting_thread(&self) -> bool {
        self.common.sleepers.load(Ordering::Relaxed) & !ALWAYS > 0
    }

    /// Sets all words to zero, for a new use with this many shards.
    pub fn reset(&self, shards: u32) {
        let Common {
            sleepers,
            lock,
            shards: rings,
        } = &self.common;
        for word in [sleepers, lock] {
            word.store(0, Ordering::Release);
        }
        for Ends { engine, app } in self.rings.iter().take(shards as usize) {
            for word in [
                &engine.tail,
                &engine.overflow,
                &app.head,
                &app.overflow_seen,
            ] {
                word.store(0, Ordering::Release);
            }
        }
        rings.store(shards, Ordering::Release);
    }

    // ---- the program's side ----

    /// The program's lock word: the holder's thread id, or 0.
    pub fn lock(&self) -> &AtomicU32 {
        &self.common.lock
    }

    fn in_use(&self) -> &[Ends] {
        let shards = self.common.shards.load(Ordering::Relaxed) as usize;
        &self.rings[..shards.min(SHARDS_MAX)]
    }

    /// Takes the next hint (under the lock).
    pub fn take(&self, rings: &[AtomicU32]) -> Option<u32> {
        let rings = rings.chunks_exact(HINTS as usize);
        for (Ends { engine, app }, ring) in self.in_use().iter().zip(rings) {
            let head = app.head.load(Ordering::Relaxed);
            if head != engine.tail.load(Ordering::Acquire) {
                let slot = ring[(head % HINTS) as usize].load(Ordering::Relaxed);
                app.head.store(head.wrapping_add(1), Ordering::Release);
                return Some(slot);
            }
        }
        None
    }

    /// Whether there is a hint, or an overflow that nobody has handled.
    pub fn pending(&self) -> bool {
        self.in_use().iter().any(|Ends { engine, app }| {
            app.head.load(Ordering::Relaxed) != engine.tail.load(Ordering::Acquire)
                || app.overflow_seen.load(Ordering::Relaxed)
                    != engine.overflow.load(Ordering::Acquire)
        })
    }

    /// Whether hints were lost since the last call (under the lock). Then look at every socket of
    /// the set.
    pub fn overflowed(&self) -> bool {
        let mut lost = false;
        for Ends { engine, app } in self.in_use() {
            let now = engine.overflow.load(Ordering::Acquire);
            lost |= app.overflow_seen.swap(now, Ordering::Relaxed) != now;
        }
        lost
    }

    /// Counts a thread that is about to sleep. The thread then checks [`Poller::pending`] once
    /// more, since the shard reads the count after it has pushed a hint.
    pub fn sleep_begins(&self) {
        self.common.sleepers.fetch_add(1, Ordering::Relaxed);
        fence_after_update();
    }

    /// The thread no longer sleeps. It takes the hints once more before it leaves: a hint that was
    /// pushed while it was counted may have gone to no other thread (EPOLLEXCLUSIVE). The shard
    /// gives later ones to others.
    pub fn sleep_ends(&self) {
        self.common.sleepers.fetch_sub(1, Ordering::Relaxed);
        fence_after_update();
    }

    /// Sleeps by `wait`, unless there are hints, or `listed` says that sockets are listed.
    pub fn sleep<T>(&self, listed: impl FnOnce() -> bool, wait: impl FnOnce() -> T) -> Option<T> {
        self.sleep_begins();
        // Hints from before the count ring nobody.
        let slept = (!self.pending() && !listed()).then(wait);
        self.sleep_ends();
        slept
    }

    /// Whether a thread that has taken the ring, which wakes one thread, and leaves must ring
    /// again: for hints or ready sockets (`listed`) that others have to handle.
    pub fn must_pass_on(&self, listed: impl FnOnce() -> bool) -> bool {
        fence(Ordering::SeqCst);
        !is_left_out(Step::PassOn) && self.has_sleepers() && (self.pending() || listed())
    }

    /// A caller waits for the set itself (`poll`, or another set): from now on the doorbell always
    /// rings.
    pub fn sleeps_always(&self) {
        self.common.sleepers.fetch_or(ALWAYS, Ordering::Relaxed);
        fence_after_update();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: u32 = 3;

    fn poller() -> (Box<Poller>, Vec<AtomicU32>) {
        // SAFETY: integers only, for which zeros are good.
        let poller: Box<Poller> = unsafe { Box::new_zeroed().assume_init() };
        poller.reset(SHARDS);
        let rings = (0..SHARDS * HINTS).map(|_| AtomicU32::new(0)).collect();
        (poller, rings)
    }

    #[test]
    fn hints_come_out_as_they_went_in() {
        let (poller, rings) = poller();
        for shard in 0..SHARDS {
            let mut tail = 0;
            for i in 0..2 * HINTS {
                let at = poller.push(&rings, shard, &mut tail, i);
                assert!(poller.still_pending(shard, tail, at));
                assert!(poller.pending());
                assert_eq!(poller.take(&rings), Some(i));
                assert!(!poller.still_pending(shard, tail, at));
            }
            assert_eq!(poller.take(&rings), None);
        }
    }

    #[test]
    fn each_shard_has_a_ring_of_its_own() {
        let (poller, rings) = poller();
        let mut tails = [0; SHARDS as usize];
        for i in 0..90 {
            let shard = i % SHARDS;
            poller.push(&rings, shard, &mut tails[shard as usize], i);
        }
        let mut taken: Vec<u32> = std::iter::from_fn(|| poller.take(&rings)).collect();
        taken.sort_unstable();
        assert_eq!(taken, (0..90).collect::<Vec<u32>>());
        assert!(!poller.pending());
    }

    #[test]
    fn too_many_hints_are_an_overflow_not_a_loss() {
        let (poller, rings) = poller();
        let mut tail = 0;
        for i in 0..HINTS + 5 {
            poller.push(&rings, 1, &mut tail, i);
        }
        assert!(poller.overflowed());
        assert!(!poller.overflowed());
        assert_eq!(
            std::iter::from_fn(|| poller.take(&rings)).count(),
            HINTS as usize
        );
    }

    #[test]
    fn a_head_that_lies_costs_the_engine_nothing() {
        let (poller, rings) = poller();
        let mut tail = 0;
        poller.rings[0].app.head.store(77, Ordering::Relaxed);
        let at = poller.push(&rings, 0, &mut tail, 1);
        assert_eq!(tail.wrapping_sub(at), 0, "taken as full");
    }
}
