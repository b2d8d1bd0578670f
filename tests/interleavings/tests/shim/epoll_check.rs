//! If something is there and somebody waits for it in a set, somebody runs.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, epoll_event};
use loom::thread;
use millrace_context::layout::{ASLEEP, NAPPING};
use millrace_context::sync::{Ordering, Step};

use crate::check::{check, check_to, fails, fails_without};
use crate::engine::{self, batch};
use crate::kernel;
use crate::process::thread::begin;
use crate::readiness::sleep::Call;
use crate::readiness::{bits, epoll, epoll_sets};
use crate::shard::{SOCKET, Shard};

const SET: u32 = 0;

fn shard() -> Shard {
    Shard::new(engine::get().unwrap())
}

fn control(operation: i32) {
    let event = epoll_event {
        events: bits::IN,
        u64: 5,
    };
    epoll::control(SET, operation, 0, SOCKET, Some(event)).unwrap();
}

/// `epoll_wait`; whether it has reported the socket.
fn wait(timeout_us: Option<u64>) -> bool {
    let memory = epoll_sets::memory(SET).unwrap();
    let mut events = [epoll_event { events: 0, u64: 0 }; 2];
    let wait = epoll::Wait {
        index: SET,
        events: &mut events,
        timeout_us,
        mask: std::ptr::null(),
        call: Call,
    };
    let count = epoll::wait(wait, memory).unwrap();
    assert!(count == 0 || { events[0].u64 } == 5);
    count > 0
}

/// Makes the set and its memory.
fn begin_set() {
    begin(0);
    let engine = engine::get().unwrap();
    let slot = engine.region.slot(SOCKET.index).unwrap();
    slot.engine
        .generation
        .store(SOCKET.generation, Ordering::Relaxed);
    epoll_sets::register(kernel::SET);
    epoll_sets::memory_or_new(SET, engine).unwrap();
}

/// Closes the set.
fn end_set() {
    epoll_sets::release(SET);
}

/// A thread has taken a socket out of the set and another puts it in again and waits.
fn out_and_in(shard: fn() -> Shard) {
    begin_set();
    control(EPOLL_CTL_ADD);
    let mut shard = shard();
    shard.serve_until(1);
    let serving = thread::spawn(move || {
        shard.serve_until(3);
        shard.receive();
    });
    control(EPOLL_CTL_DEL);
    let waiter = thread::spawn(|| {
        begin(1);
        control(EPOLL_CTL_ADD);
        assert!(wait(None));
    });
    waiter.join().unwrap();
    serving.join().unwrap();
    end_set();
}

#[test]
fn a_socket_put_in_again_is_reported() {
    check_to(2, || out_and_in(shard));
}

#[test]
fn without_numbers_of_requests_it_is_not() {
    fails(|| out_and_in(|| shard().without_order()));
}

/// A thread sleeps in a set that has no millrace socket. Another adds the first, and looks into the
/// set without waiting.
fn first_socket() {
    begin_set();
    let mut shard = shard();
    let waiter = thread::spawn(|| {
        begin(1);
        assert!(wait(None));
    });
    control(EPOLL_CTL_ADD);
    wait(Some(0));
    shard.serve();
    shard.receive();
    wait(Some(0));
    waiter.join().unwrap();
    let engine = engine::get().unwrap();
    let (poller, _) = engine.region.poller(0).unwrap();
    assert!(!poller.has_sleepers(), "all have left");
    end_set();
}

#[test]
fn who_sleeps_in_the_kernels_set_hears_of_the_first_socket() {
    check(first_socket);
}

#[test]
fn who_is_not_counted_does_not() {
    fails_without(Step::CountIn, || {
        first_socket();
    });
}

/// A thread sleeps in a set. Another looks into it without waiting, and may take the ring.
fn ring_taken() {
    begin_set();
    control(EPOLL_CTL_ADD);
    let mut shard = shard();
    shard.serve_until(1);
    let waiter = thread::spawn(|| {
        begin(1);
        assert!(wait(None));
    });
    let serving = thread::spawn(move || shard.receive());
    wait(Some(0));
    waiter.join().unwrap();
    serving.join().unwrap();
    end_set();
}

#[test]
fn who_sleeps_while_another_takes_the_ring_hears_of_it() {
    check_to(2, ring_taken);
}

#[test]
fn whose_ring_is_not_passed_on_does_not() {
    fails_without(Step::PassOn, || {
        ring_taken();
    });
}

/// Two threads sleep in a set; the socket stays ready, so both hear of it.
fn two_sleepers() {
    begin_set();
    control(EPOLL_CTL_ADD);
    let mut shard = shard();
    shard.serve_until(1);
    let waiter = thread::spawn(|| {
        begin(1);
        assert!(wait(None));
    });
    let serving = thread::spawn(move || shard.receive());
    assert!(wait(None));
    waiter.join().unwrap();
    serving.join().unwrap();
    end_set();
}

#[test]
fn all_who_sleep_hear_of_a_socket_that_stays_ready() {
    check_to(2, two_sleepers);
}

/// A thread that has just had events asks for a watch and waits again. The shard naps or sleeps.
fn batch_and_shard(wakefulness: u32, fenced: bool) {
    begin_set();
    let mut shard = shard();
    let serving = thread::spawn(move || {
        shard.serve_asleep(wakefulness, fenced);
        shard.receive();
    });
    batch::begin(engine::get().unwrap());
    control(EPOLL_CTL_ADD);
    assert!(wait(None));
    serving.join().unwrap();
    end_set();
}

#[test]
fn a_shard_that_sleeps_or_naps_hears_of_what_a_batch_has_asked() {
    check(|| batch_and_shard(ASLEEP, true));
    check(|| batch_and_shard(NAPPING, true));
}

#[test]
fn a_shard_that_sleeps_without_a_fence_does_not() {
    fails(|| batch_and_shard(ASLEEP, false));
}

#[test]
fn a_shard_that_naps_without_a_fence_does_not() {
    fails(|| batch_and_shard(NAPPING, false));
}
