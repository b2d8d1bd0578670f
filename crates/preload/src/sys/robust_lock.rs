//! A lock in memory that several processes map.
//!
//! The lock word is the holder's thread id. So a signal handler that wants a lock of its own thread
//! is refused instead of waiting for itself, and a lock whose holder has died is taken over.
//!
//! Locks have ranks and are taken in rank order, which prevents deadlock. A signal handler can
//! break the order, because it may interrupt a call that holds any lock. Such a handler does not
//! wait.

use std::sync::atomic::{AtomicU32, Ordering};

use millrace_context::lock;

use crate::process::thread;
use crate::sys;

/// The purposes of locks, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The numbers of epoll sets.
    Numbers,
    /// An epoll set.
    Set,
    /// The control socket.
    Control,
    /// One direction of a socket.
    Socket,
    /// A poller's ring, or the placeholder.
    Leaf,
    /// A context.
    Submission,
    /// The shim's own descriptors, and the memory of epoll sets.
    Descriptors,
}

/// How often a thread looks before it sleeps.
const SPINS: u32 = 64;
/// How often a thread looks, and yields in between, before it gives up a lock that it cannot wait
/// for.
const TURNS: u32 = 256;
/// The sleep after which a thread checks whether the holder lives, in microseconds.
const PATIENCE_US: u64 = 10_000;

/// A lock that is held until this is dropped.
pub struct Guard<'a> {
    word: &'a AtomicU32,
    rank: Rank,
}

/// Adds `by` to the thread's count of held locks of this rank.
fn count(rank: Rank, by: i64) {
    let unit = by << (8 * rank as u32);
    thread::with(|thread| {
        thread
            .locks
            .set(thread.locks.get().wrapping_add(unit as u64));
    });
}

/// Takes a lock. `None`: the calling thread holds it already, or would have to wait while it holds
/// a lock of a later rank. Both happen only in a signal handler.
pub fn take(word: &AtomicU32, rank: Rank) -> Option<Guard<'_>> {
    let own = thread::tid();
    let out_of_order = thread::with(|thread| thread.locks.get()) >> (8 * rank as u32) != 0;
    // Counted before the lock is held: a signal handler in between sees too many locks rather than
    // too few.
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
    let mut attempts = 0;
    loop {
        let seen = word.load(Ordering::Relaxed);
        let take = || lock::take_over(word, seen, own);
        attempts += 1;
        match lock::holder(seen) {
            holder if holder == own => return false,
            0 => {
                if take() {
                    return true;
                }
            }
            _ if attempts < SPINS => std::hint::spin_loop(),
            _ if out_of_order && attempts < TURNS => sys::sched_yield(),
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
        let (handle, socket) = (AtomicU32::new(0), Arc::new(AtomicU32::new(0)));
        let held = take(&handle, Rank::Submission).unwrap();
        let (other, (said, heard)) = (socket.clone(), std::sync::mpsc::channel());
        let (done, end) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let guard = take(&other, Rank::Socket).unwrap();
            said.send(()).unwrap();
            end.recv().unwrap();
            drop(guard);
        });
        heard.recv().unwrap();
        // As in a signal handler whose thread has a submission handle.
        assert!(take(&socket, Rank::Socket).is_none());
        done.send(()).unwrap();
        holder.join().unwrap();
        assert!(take(&socket, Rank::Socket).is_some(), "free ones are taken");
        drop(held);
        assert_eq!(thread::with(|thread| thread.locks.get()), 0);
    }
}
