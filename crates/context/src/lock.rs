//! The word of a lock among the threads of a program: the holder's thread id, and whether a thread
//! may sleep for it.

use crate::futex;
use crate::sync::{AtomicU32, Ordering};

/// Set while a thread may sleep for the lock.
const CONTENDED: u32 = 1 << 31;

/// The holder according to a lock word; 0 for nobody.
pub fn holder(seen: u32) -> u32 {
    seen & !CONTENDED
}

/// Takes the lock if it is free and no thread sleeps for it.
#[inline]
pub fn take_free(word: &AtomicU32, own: u32) -> bool {
    word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Takes the lock after a wait, from the holder in `seen`, which is nobody or dead.
pub fn take_over(word: &AtomicU32, seen: u32, own: u32) -> bool {
    // Other threads may sleep too: whoever takes the lock after a wait wakes the next one.
    word.compare_exchange(seen, own | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Announces that a thread is about to sleep while the word is `seen`. False: the word has changed,
/// so look again.
pub fn may_sleep(word: &AtomicU32, seen: u32) -> bool {
    if seen & CONTENDED == 0 {
        let _ = word.compare_exchange(seen, seen | CONTENDED, Ordering::Relaxed, Ordering::Relaxed);
    }
    seen & CONTENDED != 0
}

/// Releases the lock and wakes one of the threads that sleep for it.
#[inline]
pub fn release(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        futex::wake(word, 1);
    }
}
