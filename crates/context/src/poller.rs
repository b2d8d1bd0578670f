//! Hints from a shard to the program: "this socket changed, look at its slot".
//!
//! One poller serves one epoll set (or one thread's `poll`/`select`). The ring has one producer, the shard. Its consumers are the
//! program's threads, which take turns by `lock`. A hint carries no state and may be spurious; when there are more than the ring
//! holds, `overflow` goes up and the program looks at every socket of the set.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::layout::{HINTS, PAGE};

#[repr(C, align(64))]
#[derive(Debug, Default)]
struct EngineLine {
    tail: AtomicU32,
    overflow: AtomicU32,
}

#[repr(C, align(64))]
#[derive(Debug, Default)]
struct AppLine {
    head: AtomicU32,
    sleepers: AtomicU32,
    lock: AtomicU32,
    overflow_seen: AtomicU32,
}

/// Head page of a poller; the ring follows it.
#[repr(C, align(4096))]
#[derive(Debug, Default)]
pub struct Poller {
    engine: EngineLine,
    app: AppLine,
}

const _: () = assert!(size_of::<Poller>() == PAGE);

impl Poller {
    // ---- the engine's side ----

    /// Adds a hint; `tail` is the engine's own copy of the ring's tail. Returns the hint's position for [`Poller::still_pending`].
    pub fn push(&self, ring: &[AtomicU32], tail: &mut u32, slot: u32) -> u32 {
        let head = self.app.head.load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= HINTS {
            self.engine.overflow.fetch_add(1, Ordering::Release);
            return *tail;
        }
        ring[(*tail % HINTS) as usize].store(slot, Ordering::Relaxed);
        let position = *tail;
        *tail = tail.wrapping_add(1);
        self.engine.tail.store(*tail, Ordering::Release);
        position
    }

    /// Whether the hint at `position` has not been taken yet, so that another for the same socket would say nothing new.
    pub fn still_pending(&self, tail: u32, position: u32) -> bool {
        let head = self.app.head.load(Ordering::Acquire);
        let ahead = position.wrapping_sub(head);
        ahead < tail.wrapping_sub(head).min(HINTS)
    }

    /// Threads that sleep for hints. Read after a full fence that follows the push.
    pub fn sleepers(&self) -> u32 {
        self.app.sleepers.load(Ordering::Relaxed)
    }

    /// All words to zero, for a new use.
    pub fn reset(&self) {
        for word in [
            &self.engine.tail,
            &self.engine.overflow,
            &self.app.head,
            &self.app.sleepers,
            &self.app.lock,
            &self.app.overflow_seen,
        ] {
            word.store(0, Ordering::Release);
        }
    }

    // ---- the program's side ----

    /// The program's lock word: the holder's thread id, or 0.
    pub fn lock(&self) -> &AtomicU32 {
        &self.app.lock
    }

    /// Takes the next hint (under the lock).
    pub fn take(&self, ring: &[AtomicU32]) -> Option<u32> {
        let head = self.app.head.load(Ordering::Relaxed);
        if head == self.engine.tail.load(Ordering::Acquire) {
            return None;
        }
        let slot = ring[(head % HINTS) as usize].load(Ordering::Relaxed);
        self.app.head.store(head.wrapping_add(1), Ordering::Release);
        Some(slot)
    }

    /// Whether there is a hint, or an overflow not looked into yet.
    pub fn pending(&self) -> bool {
        self.app.head.load(Ordering::Relaxed) != self.engine.tail.load(Ordering::Acquire)
            || self.app.overflow_seen.load(Ordering::Relaxed)
                != self.engine.overflow.load(Ordering::Acquire)
    }

    /// Whether hints were lost since the last call (under the lock): look at every socket of the set.
    pub fn overflowed(&self) -> bool {
        let now = self.engine.overflow.load(Ordering::Acquire);
        self.app.overflow_seen.swap(now, Ordering::Relaxed) != now
    }

    /// One thread more is about to sleep. Check [`Poller::pending`] once more after it.
    pub fn sleep_begins(&self) {
        self.app.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It has woken.
    pub fn sleep_ends(&self) {
        self.app.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Vec<AtomicU32> {
        (0..HINTS).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn hints_come_out_as_they_went_in() {
        let (poller, ring, mut tail) = (Poller::default(), ring(), 0);
        for i in 0..2 * HINTS {
            let at = poller.push(&ring, &mut tail, i);
            assert!(poller.still_pending(tail, at));
            assert!(poller.pending());
            assert_eq!(poller.take(&ring), Some(i));
            assert!(!poller.still_pending(tail, at));
        }
        assert_eq!(poller.take(&ring), None);
    }

    #[test]
    fn too_many_hints_are_an_overflow_not_a_loss() {
        let (poller, ring, mut tail) = (Poller::default(), ring(), 0);
        for i in 0..HINTS + 5 {
            poller.push(&ring, &mut tail, i);
        }
        assert!(poller.overflowed());
        assert!(!poller.overflowed());
        assert_eq!(
            std::iter::from_fn(|| poller.take(&ring)).count(),
            HINTS as usize
        );
    }

    #[test]
    fn a_head_that_lies_costs_the_engine_nothing() {
        let (poller, ring, mut tail) = (Poller::default(), ring(), 0);
        poller.app.head.store(77, Ordering::Relaxed);
        let at = poller.push(&ring, &mut tail, 1);
        assert_eq!(tail.wrapping_sub(at), 0, "taken as full");
    }
}
