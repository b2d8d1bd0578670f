//! What two threads ask for by contexts of their own.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32};
use loom::sync::{Arc, Mutex};
use loom::thread;
use millrace_context::submission::{Cursor, SubmissionCell};
use millrace_context::sync::{Ordering, fence};
use millrace_context::{Context, Operation, Slot, SlotRef, Submission, futex, lock};

use crate::watches::Watches;
use crate::{check, fails};

const SOCKET: SlotRef = SlotRef {
    index: 0,
    generation: 0,
};
const POLLER: u32 = 3;

#[derive(Default)]
struct Lane {
    context: Context,
    ring: [SubmissionCell; 2],
}

impl Lane {
    fn submit(&self, submission: &Submission) {
        self.context.submit(&self.ring, submission);
    }

    fn take(&self, cursor: &mut Cursor) -> Option<Submission> {
        self.context.take(&self.ring, cursor).unwrap()
    }
}

#[derive(Default)]
struct Shared {
    lanes: [Lane; 2],
    slot: Slot,
    /// The program's lock, and what is true under it.
    lock: Mutex<u32>,
    /// Whether the slot has moved.
    is_given: AtomicBool,
}

/// One thread takes a socket out of a set, the other puts it in; one after the other, by the set's
/// lock. The shard takes contexts in their order, whatever came first.
fn out_and_in(numbered: bool) {
    let shared = Arc::new(Shared::default());
    let mut watches = Watches::default();
    watches.watch(POLLER, 1, 0);
    let ask = |lane: usize, operation: Operation, watched: u32| {
        let shared = shared.clone();
        move || {
            let mut is_watched = shared.lock.lock().unwrap();
            *is_watched = watched;
            let mut submission = Submission::new(operation, SOCKET, POLLER);
            submission.arguments[0] = 1;
            if numbered {
                submission.arguments[2] = shared.slot.app.next_watch_order();
            }
            shared.lanes[lane].submit(&submission);
        }
    };
    let threads = [
        thread::spawn(ask(0, Operation::Unwatch, 0)),
        thread::spawn(ask(1, Operation::Watch, 1)),
    ];
    let mut cursors = [Cursor::default(); 2];
    let mut served = 0;
    while served < 2 {
        for (lane, cursor) in shared.lanes.iter().zip(&mut cursors) {
            let Some(submission) = lane.take(cursor) else {
                continue;
            };
            let order = submission.arguments[2] as u32;
            match submission.operation {
                Operation::Watch => {
                    watches.watch(POLLER, submission.arguments[0] as u32, order);
                }
                _ => watches.unwatch(POLLER, order),
            }
            served += 1;
        }
        thread::yield_now();
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let watched = *shared.lock.lock().unwrap();
    let wanted = watches.as_slice().iter().filter(|watch| watch.wants(1));
    assert_eq!(wanted.count() as u32, watched);
}

#[test]
fn the_later_request_to_watch_or_not_counts() {
    check(|| out_and_in(true));
}

#[test]
fn without_numbers_the_earlier_one_may_count() {
    fails(|| out_and_in(false));
}

/// Two threads send by one socket. Each waits until what went by another context has been taken.
fn two_sends(follows: bool) {
    let shared = Arc::new(Shared::default());
    let send = |lane: usize| {
        let shared = shared.clone();
        move || {
            let mut sent = shared.lock.lock().unwrap();
            if let Some(before) = shared.slot.app.goes_by(lane as u32).filter(|_| follows) {
                let other = &shared.lanes[before as usize].context;
                let position = other.position();
                while !other.taken(position) {
                    thread::yield_now();
                }
            }
            shared.lanes[lane].submit(&Submission::new(Operation::Shutdown, SOCKET, *sent));
            *sent += 1;
        }
    };
    let threads = [thread::spawn(send(0)), thread::spawn(send(1))];
    let mut cursors = [Cursor::default(); 2];
    let mut served = 0;
    while served < 2 {
        for (lane, cursor) in shared.lanes.iter().zip(&mut cursors) {
            if let Some(submission) = lane.take(cursor) {
                assert_eq!(submission.parameter, served);
                served += 1;
                lane.context.publish(cursor);
            }
        }
        thread::yield_now();
    }
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn what_two_threads_send_by_one_socket_keeps_its_order() {
    check(|| two_sends(true));
}

#[test]
fn who_does_not_follow_may_overtake() {
    fails(|| two_sends(false));
}

/// A thread accepts while another shuts the listener down, upon which the shard resets what nobody
/// has claimed.
fn a_claim_and_the_end_of_a_queue(looks: bool) {
    #[derive(Default)]
    struct Shared {
        listener: Slot,
        accepted: Slot,
    }
    const RING: u64 = 12;
    let shared = Arc::new(Shared::default());
    shared.listener.engine.ring.store(RING, Ordering::Relaxed);
    let shard = thread::spawn({
        let shared = shared.clone();
        move || {
            shared.listener.engine.end_queue();
            shared.accepted.app.claimed_by() != 0
        }
    });
    shared.accepted.app.claim(0);
    let is_sure = !looks || shared.listener.engine.has_queue(RING);
    let found = shard.join().unwrap();
    assert!(found || !is_sure, "the connection was reset and accepted");
}

#[test]
fn who_accepts_from_a_queue_that_ends_knows_it() {
    check(|| a_claim_and_the_end_of_a_queue(true));
}

#[test]
fn who_does_not_look_again_accepts_what_was_reset() {
    fails(|| a_claim_and_the_end_of_a_queue(false));
}

/// A slot moves to another shard while a thread asks for two things about it, the second of the new
/// shard if it has heard of it.
fn a_slot_that_moves(waits: bool) {
    let shared = Arc::new(Shared::default());
    // Shard 0 gives the slot to shard 1, and hands on what it finds later. What each of them has
    // done is under the lock.
    let old = thread::spawn({
        let shared = shared.clone();
        move || {
            let mut cursor = Cursor::default();
            let mut serve = || {
                while let Some(submission) = shared.lanes[0].take(&mut cursor) {
                    let mut done = shared.lock.lock().unwrap();
                    assert_eq!(submission.parameter, *done);
                    *done += 1;
                }
                shared.lanes[0].context.publish(&cursor);
            };
            shared.slot.engine.shard.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            serve();
            // What comes later is handed on.
            shared.is_given.store(true, Ordering::Release);
            while *shared.lock.lock().unwrap() == 0 {
                thread::yield_now();
                serve();
            }
        }
    });
    let lane = &shared.lanes[0];
    lane.submit(&Submission::new(Operation::Nop, SOCKET, 0));
    if shared.slot.engine.has_moved_from(0) && waits {
        while !lane.context.taken(lane.context.position()) {
            thread::yield_now();
        }
    }
    if shared.slot.engine.shard.load(Ordering::Relaxed) == 1 {
        // The new shard serves it as soon as it has the slot.
        while !shared.is_given.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let mut done = shared.lock.lock().unwrap();
        assert!(*done == 1, "the second request came first");
        *done += 1;
    }
    old.join().unwrap();
}

#[test]
fn what_is_asked_of_a_slots_new_shard_comes_second() {
    check(|| a_slot_that_moves(true));
}

#[test]
fn who_does_not_wait_for_the_old_shard_may_come_first() {
    fails(|| a_slot_that_moves(false));
}

/// Threads take turns by a lock. Nobody's turn is seen half done, and nobody sleeps for a lock that
/// is free.
fn turns_by_a_lock(wakes: bool) {
    struct Shared {
        word: AtomicU32,
        turns: UnsafeCell<u32>,
    }
    // SAFETY: who holds the lock alone looks at the turns, which is what the checker checks.
    unsafe impl Sync for Shared {}
    let shared = Arc::new(Shared {
        word: AtomicU32::new(0),
        turns: UnsafeCell::new(0),
    });
    let turn = |own: u32| {
        let shared = shared.clone();
        move || {
            let word = &shared.word;
            let mut has = lock::take_free(word, own);
            while !has {
                let seen = word.load(Ordering::Relaxed);
                match lock::holder(seen) {
                    0 => has = lock::take_over(word, seen, own),
                    _ if !lock::may_sleep(word, seen) => {}
                    _ => futex::wait(word, seen, None).unwrap(),
                }
            }
            // SAFETY: as above.
            shared.turns.with_mut(|turns| unsafe { *turns += 1 });
            match wakes {
                true => lock::release(word),
                false => word.store(0, Ordering::Release),
            }
        }
    };
    let threads = [1, 2].map(|own| thread::spawn(turn(own)));
    turn(3)();
    for thread in threads {
        thread.join().unwrap();
    }
    // SAFETY: nobody else is left.
    assert_eq!(shared.turns.with(|turns| unsafe { *turns }), 3);
}

#[test]
fn threads_take_turns_by_a_lock() {
    check(|| turns_by_a_lock(true));
}

#[test]
fn who_gives_a_lock_back_without_a_look_leaves_a_sleeper() {
    fails(|| turns_by_a_lock(false));
}
