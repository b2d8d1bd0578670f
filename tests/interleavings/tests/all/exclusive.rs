//! Two sets watch a socket exclusively. If something is there for them and a thread of one of them
//! waits, one hears of it.

use loom::sync::Arc;
use loom::thread;
use millrace_context::sync::{Ordering, Step, fence};

use crate::sleep::Set;
use crate::watches::Watches;
use crate::{check, fails, fails_without};

const IN: u32 = 1;
const EXCLUSIVE: u32 = 1 << 28;
/// The socket, and what a thread tells the other when it is done.
const SLOT: u32 = 7;

/// The shard tells one. The thread that sleeps in the first set leaves at once, for its time or a
/// signal.
fn an_event_and_a_thread_that_leaves(looks_again: bool) {
    let sets = Arc::new([Set::default(), Set::default()]);
    let shard = thread::spawn({
        let sets = sets.clone();
        move || {
            let mut watches = Watches::default();
            watches.watch(0, IN | EXCLUSIVE, 1);
            watches.watch(1, IN | EXCLUSIVE, 2);
            let waits = |poller: u32| sets[poller as usize].poller.has_waiting_thread();
            let chosen = watches.hint(
                IN,
                &mut (),
                |(), poller| waits(poller),
                |(), watch| sets[watch.poller as usize].push(SLOT),
            );
            fence(Ordering::SeqCst);
            let ring = || {
                for set in sets.iter().filter(|set| set.poller.has_sleepers()) {
                    set.bell.ring();
                }
            };
            ring();
            if let Some(chosen) = chosen.filter(|chosen| looks_again && !waits(*chosen)) {
                watches.hint_rest(IN, chosen, |watch| sets[watch.poller as usize].push(SLOT));
                fence(Ordering::SeqCst);
                ring();
            }
        }
    });
    let leaver = thread::spawn({
        let sets = sets.clone();
        move || {
            sets[0].poller.sleep(|| false, || ());
            sets[0].take()
        }
    });
    // It sleeps since before that, so one of the two waits in any case.
    sets[1].poller.sleep_begins();
    let found = leaver.join().unwrap();
    if found.is_none() {
        while !sets[1].poller.pending() {
            sets[1].bell.wait();
        }
    }
    sets[1].poller.sleep_ends();
    shard.join().unwrap();
}

#[test]
fn what_the_chosen_one_does_not_see_another_hears_of() {
    check(|| an_event_and_a_thread_that_leaves(true));
}

#[test]
fn without_a_second_look_nobody_may_hear_of_it() {
    fails(|| an_event_and_a_thread_that_leaves(false));
}

#[test]
fn without_a_fence_before_the_last_look_nobody_may_hear_of_it() {
    fails_without(Step::Fences, || an_event_and_a_thread_that_leaves(true));
}
