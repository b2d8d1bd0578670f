//! The word of a lock among the threads of a program: the holder's thread id, and whether others
//! may sleep for it.

use crate::futex;
use crate::sync::{AtomicU32, Ordering};

/// Set while somebody may sleep for the lock.
const CONTENDED: u32 = 1 << 31;

/// The holder in a word that was read; 0: nobody.
pub fn holder(seen: u32) -> u32 {
    seen & !CONTENDED
}

/// Takes the lock if it is free, and nobody sleeps for it.
#[inline]
pub fn take_free(word: &AtomicU32, own: u32) -> bool {
    word.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Takes the lock after a wait, from the holder in `seen`, which is nobody or dead.
pub fn take_over(word: &AtomicU32, seen: u32, own: u32) -> bool {
    // Others may sleep too: whoever takes it after a wait wakes the next.
    word.compare_exchange(seen, own | CONTENDED, Ordering::Acquire, Ordering::Relaxed)
        .is_ok()
}

/// Says that somebody is about to sleep while the word is `seen`. False: it says so by now, or has
/// changed: look again.
pub fn may_sleep(word: &AtomicU32, seen: u32) -> bool {
    if seen & CONTENDED == 0 {
        let _ = word.compare_exchange(seen, seen | CONTENDED, Ordering::Relaxed, Ordering::Relaxed);
    }
    seen & CONTENDED != 0
}

/// Gives the lock back, and wakes one of those that sleep for it.
#[inline]
pub fn release(word: &AtomicU32) {
    if word.swap(0, Ordering::Release) & CONTENDED != 0 {
        futex::wake(word, 1);
    }
}
