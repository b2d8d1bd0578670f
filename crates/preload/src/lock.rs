//! A lock in memory that several processes map.
//!
//! Its word is the holder's thread id, so that a thread whose signal handler comes back for a lock it holds already is told so instead
//! of waiting for itself, and a lock whose holder has died is taken over.
//!
//! Locks have ranks and are taken in their order, so that no circle of waiting threads can form. A signal handler can break the order: it may
//! have come in the middle of a call that holds anything. Such a one does not wait.

use std::sync::atomic::{AtomicU32, Ordering};

use millrace_context::lock;

use crate::{sys, thread};

/// What a lock is for, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The meaning of numbers of epoll sets.
    Numbers,
    /// An epoll set.
    Set,
    /// The control socket.
    Control,
    /// One direction of a socket.
    Socket,
    /// A poller's ring, the anchor.
    Leaf,
    /// A context.
    Lane,
    /// The shim's own descriptors, and the memory of epoll sets.
    Descriptors,
}

/// Looks before sleeping.
const SPINS: u32 = 64;
/// Looks, each after others have had their turn, before giving up a lock that cannot be waited for.
const TURNS: u32 = 256;
/// How long to sleep before asking whether the holder still lives, in microseconds.
const PATIENCE_US: u64 = 10_000;

/// Holds a lock until dropped.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    rank: Rank,
}

/// Counts a lock of this rank among those that the thread holds, or no more.
fn count(rank: Rank, by: i64) {
    let unit = by << (8 * rank as u32);
    thread::with(|thread| {
        thread
            .locks
            .set(thread.locks.get().wrapping_add(unit as u64));
    });
}

/// Takes a lock. `None`: the calling thread holds it already, or it would have to wait while it holds others that come later (this is a
/// signal handler).
pub fn take(word: &AtomicU32, rank: Rank) -> Option<Guard<'_>> {
    let own = thread::tid();
    let out_of_order = thread::with(|thread| thread.locks.get()) >> (8 * rank as u32) != 0;
    // Counted before it is held, so that a signal handler in between sees too much rather than too little.
    count(rank, 1);
    if lock::take_free(word, own) || wait(word, own, out_of_order) {
        Some(Guard { word, rank })
    } else {
        count(rank, -1);
        None
    }
}

#[cold]
fn wait(word: &AtomicU32, own: u32, out_of_order: bool) -> bool {
    let mut looks = 0;
    loop {
        let seen = word.load(Ordering::Relaxed);
        let take = || lock::take_over(word, seen, own);
        looks += 1;
        match lock::holder(seen) {
            holder if holder == own => return false,
            0 => {
                if take() {
                    return true;
                }
            }
            _ if looks < SPINS => std::hint::spin_loop(),
            _ if out_of_order && looks < TURNS => sys::sched_yield(),
            _ if out_of_order => return false,
            _ if !lock::may_sleep(word, seen) => {}
            holder => {
                let late =
                    sys::futex_wait(word, seen, PATIENCE_US) == Err(rustix::io::Errno::TIMEDOUT);
                if late && !sys::thread_lives(holder) && take() {
                    return true;
                }
            }
        }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        lock::release(self.word);
        count(self.rank, -1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn one_thread_at_a_time() {
        let word = Arc::new(AtomicU32::new(0));
        let count = Arc::new(AtomicU32::new(0));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let (word, count) = (word.clone(), count.clone());
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        let _guard = take(&word, Rank::Socket).unwrap();
                        let seen = count.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        count.store(seen + 1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), 40_000);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn p6_the_own_thread_does_not_wait_for_itself() {
        let word = AtomicU32::new(0);
        let guard = take(&word, Rank::Socket).unwrap();
        assert!(take(&word, Rank::Socket).is_none());
        drop(guard);
        assert!(take(&word, Rank::Socket).is_some());
    }

    #[test]
    fn a_dead_holders_lock_is_taken_over() {
        let word = Arc::new(AtomicU32::new(0));
        let other = word.clone();
        std::thread::spawn(move || std::mem::forget(take(&other, Rank::Socket)))
            .join()
            .unwrap();
        assert!(take(&word, Rank::Socket).is_some());
    }

    #[test]
    fn p6_a_handler_does_not_wait_for_what_may_wait_for_it() {
        let (lane, socket) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
        let held = take(&lane, Rank::Lane).unwrap();
        let (other, (said, heard)) = (socket.clone(), std::sync::mpsc::channel());
        let (done, end) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let guard = take(&other, Rank::Socket).unwrap();
            said.send(()).unwrap();
            end.recv().unwrap();
            drop(guard);
        });
        heard.recv().unwrap();
        // As in a handler that came while the thread had a lane.
        assert!(take(&socket, Rank::Socket).is_none());
        done.send(()).unwrap();
        holder.join().unwrap();
        assert!(take(&socket, Rank::Socket).is_some(), "free ones are taken");
        drop(held);
        assert_eq!(thread::with(|thread| thread.locks.get()), 0);
    }
}
