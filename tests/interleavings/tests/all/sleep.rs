//! If something is there and somebody waits for it, somebody runs.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::thread;
use millrace_context::layout::{ASLEEP, AWAKE, HINTS, Line, NAPPING, announced};
use millrace_context::submission::{Cursor, SubmissionCell};
use millrace_context::sync::{AtomicU32, Ordering, Step, fence};
use millrace_context::{Context, KernelWaits, Operation, Poller, SlotRef, Submission, futex};
use millrace_steer::ring::ring;

use crate::kernel::Bell;
use crate::{check, fails, fails_without};

/// A poller with its hints, and what rings when nobody looks.
#[derive(Default)]
pub struct Set {
    pub poller: Poller,
    pub bell: Bell,
    hints: [AtomicU32; HINTS as usize],
}

impl Set {
    /// The shard has news of a slot: it hints, and rings who sleeps.
    pub fn tell(&self, slots: impl IntoIterator<Item = u32>) {
        let mut tail = 0;
        for slot in slots {
            self.poller.push(&self.hints, 0, &mut tail, slot);
        }
        fence(Ordering::SeqCst);
        if self.poller.has_sleepers() {
            self.bell.ring();
        }
    }

    pub fn push(&self, slot: u32) {
        self.poller.push(&self.hints, 0, &mut 0, slot);
    }

    pub fn take(&self) -> Option<u32> {
        self.poller.take(&self.hints)
    }

    /// `epoll_wait` until there is a hint.
    pub fn wait(&self) -> u32 {
        loop {
            if let Some(slot) = self.take() {
                return slot;
            }
            self.poller.sleep(|| false, || self.bell.wait());
        }
    }
}

fn a_hint_and_a_sleeper() {
    let set = Arc::new(Set::default());
    let shard = thread::spawn({
        let set = set.clone();
        move || set.tell([7])
    });
    assert_eq!(set.wait(), 7);
    shard.join().unwrap();
}

#[test]
fn who_sleeps_for_a_hint_gets_it() {
    check(a_hint_and_a_sleeper);
}

#[test]
fn who_sleeps_without_a_fence_does_not() {
    fails_without(Step::Fences, || {
        a_hint_and_a_sleeper();
    });
}

#[test]
fn too_many_hints_are_noticed() {
    check(|| {
        let set = Arc::new(Set::default());
        let shard = thread::spawn({
            let set = set.clone();
            move || set.tell(0..HINTS + 1)
        });
        let mut taken = 0;
        while taken < HINTS + 1 && !set.poller.overflowed() {
            match set.take() {
                Some(slot) => {
                    assert_eq!(slot, taken);
                    taken += 1;
                }
                None => {
                    set.poller.sleep(|| false, || set.bell.wait());
                }
            }
        }
        shard.join().unwrap();
    });
}

/// A thread sleeps in a set; another looks into it without waiting, and takes the ring that was
/// meant for the first.
fn a_ring_taken_by_another(passes_on: bool) {
    let set = Arc::new(Set::default());
    let shard = thread::spawn({
        let set = set.clone();
        move || set.tell([7])
    });
    let passer_by = thread::spawn({
        let set = set.clone();
        move || {
            if set.bell.look() && passes_on && set.poller.must_pass_on(|| false) {
                set.bell.ring();
            }
        }
    });
    assert_eq!(set.wait(), 7);
    shard.join().unwrap();
    passer_by.join().unwrap();
}

#[test]
fn a_ring_that_a_passer_by_takes_is_passed_on() {
    check(|| a_ring_taken_by_another(true));
}

#[test]
fn a_ring_that_is_not_passed_on_is_lost() {
    fails(|| a_ring_taken_by_another(false));
}

/// A set to which another thread adds the first millrace socket while a thread sleeps in the
/// kernel's own wait.
#[derive(Default)]
struct NewSet {
    set: Set,
    waits: KernelWaits,
    has_poller: AtomicBool,
}

impl NewSet {
    fn poller(&self) -> Option<&Poller> {
        let shown = self.has_poller.load(Ordering::Acquire);
        shown.then_some(&self.set.poller)
    }

    fn wait(&self) -> u32 {
        while self.poller().is_none() {
            self.waits.begin();
            if self.poller().is_none() {
                self.set.bell.wait();
            }
            self.waits.end(|| self.poller());
        }
        self.set.wait()
    }
}

fn the_first_socket_of_a_set(counts_in: bool) {
    let new = Arc::new(NewSet::default());
    let adder = thread::spawn({
        let new = new.clone();
        move || {
            new.has_poller.store(true, Ordering::Release);
            if !counts_in || new.waits.count_in(&new.set.poller) {
                new.set.bell.ring();
            }
            // The shard is asked to watch, and has news.
            new.set.tell([7]);
        }
    });
    let passer_by = thread::spawn({
        let new = new.clone();
        move || {
            if new.set.bell.look() && new.poller().is_some_and(|own| own.must_pass_on(|| false)) {
                new.set.bell.ring();
            }
        }
    });
    assert_eq!(new.wait(), 7);
    adder.join().unwrap();
    passer_by.join().unwrap();
    assert!(!new.set.poller.has_sleepers(), "all have left");
}

#[test]
fn who_sleeps_in_the_kernels_set_hears_of_its_first_socket() {
    check(|| the_first_socket_of_a_set(true));
}

#[test]
fn who_is_rung_but_not_counted_does_not() {
    fails(|| the_first_socket_of_a_set(false));
}

#[test]
fn who_begins_to_wait_without_a_fence_does_not() {
    fails_without(Step::Fences, || the_first_socket_of_a_set(true));
}

/// A thread that is blocked on a socket.
fn a_change_and_a_sleeper() {
    let slot = Arc::new(<[AtomicU32; 3]>::default());
    let shard = thread::spawn({
        let slot = slot.clone();
        move || {
            let [received, sequence, waiters] = &*slot;
            received.store(1, Ordering::Release);
            futex::change(sequence, waiters);
        }
    });
    let [received, sequence, waiters] = &*slot;
    loop {
        let seen = sequence.load(Ordering::Acquire);
        if received.load(Ordering::Acquire) == 1 {
            break;
        }
        futex::counted(waiters, || futex::wait(sequence, seen, None)).unwrap();
    }
    shard.join().unwrap();
}

#[test]
fn who_is_blocked_on_a_socket_wakes_when_it_changes() {
    check(a_change_and_a_sleeper);
}

#[test]
fn who_is_blocked_without_a_fence_does_not() {
    // The kernel has one, so the shard's is the one that is missed.
    fails_without(Step::Fences, || {
        a_change_and_a_sleeper();
    });
}

/// A shard that sleeps when it has nothing to do, and the program that asks it for something.
fn a_request_and_a_shard(wakefulness: u32, fence: bool) {
    struct Shared {
        context: Context,
        ring: [SubmissionCell; 2],
        line: Line,
        bell: Bell,
    }
    let shared = Arc::new(Shared {
        context: Context::default(),
        ring: Default::default(),
        line: Line(AtomicU32::new(AWAKE)),
        bell: Bell::default(),
    });
    let shard = thread::spawn({
        let shared = shared.clone();
        move || {
            let mut cursor = Cursor::default();
            loop {
                if let Some(request) = shared.context.take(&shared.ring, &mut cursor).unwrap() {
                    shared.context.publish(&cursor);
                    shared.context.reply.answer(request.parameter.into(), &[]);
                    futex::wake(&shared.context.reply.sequence, 1);
                    return;
                }
                shared.line.announce(wakefulness);
                if fence {
                    announced();
                }
                if !shared.context.pending(&cursor) {
                    shared.bell.wait();
                }
                shared.line.announce(AWAKE);
            }
        }
    });
    let slot = SlotRef {
        index: 0,
        generation: 0,
    };
    let reply = &shared.context.reply;
    shared
        .context
        .submit(&shared.ring, &Submission::new(Operation::Nop, slot, 5));
    // In a batch a shard that naps is left alone. At its end it is not.
    for left_alone in [&[AWAKE, NAPPING][..], &[AWAKE]] {
        if !left_alone.contains(&shared.line.wakefulness()) {
            shared.bell.ring();
        }
    }
    while reply.sequence.load(Ordering::Acquire) == 0 {
        futex::wait(&reply.sequence, 0, None).unwrap();
    }
    assert_eq!(reply.read(&mut []), (5, 0));
    shard.join().unwrap();
}

#[test]
fn a_shard_that_sleeps_or_naps_is_rung_for_a_request() {
    check(|| a_request_and_a_shard(ASLEEP, true));
    check(|| a_request_and_a_shard(NAPPING, true));
}

#[test]
fn a_shard_that_says_so_without_a_fence_is_not() {
    fails(|| a_request_and_a_shard(ASLEEP, false));
}

/// A shard, or a thread that owns queues, that sleeps until another one hands it a frame.
fn a_frame_and_a_thread(fences: bool) {
    let (mut writer, mut reader) = ring(0);
    let shared = Arc::new((Line(AtomicU32::new(AWAKE)), Bell::default()));
    let giver = thread::spawn({
        let shared = shared.clone();
        move || {
            let (line, bell) = &*shared;
            assert!(writer.write(7, [b"frame"]));
            writer.commit();
            if line.wakefulness() != AWAKE {
                bell.ring();
            }
        }
    });
    let (line, bell) = &*shared;
    while reader.next().is_none() {
        line.announce(ASLEEP);
        if fences {
            announced();
        }
        if reader.is_empty() {
            bell.wait();
        }
        line.announce(AWAKE);
    }
    giver.join().unwrap();
}

#[test]
fn who_sleeps_for_frames_is_rung() {
    check(|| a_frame_and_a_thread(true));
}

#[test]
fn who_sleeps_for_frames_without_a_fence_is_not() {
    fails(|| a_frame_and_a_thread(false));
}
