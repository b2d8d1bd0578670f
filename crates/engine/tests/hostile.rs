//! A program that misbehaves harms only itself.

mod common;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::{Program, audited_engine, end, engine, engine_with_shards, transfer};
use millrace_context::layout::SUBMISSIONS;
use millrace_context::{Operation, SlotRef, Status, Submission};

/// An endless sequence of numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[test]
fn two_ends_in_one_program_talk() {
    let thread = engine("talk");
    let program = Program::attach("talk");
    let listener = program.listener(8000);
    let client = program.connect(8000);
    let server = program.accept(listener);
    transfer(&program, client, server, 3_000_000, || ());
    transfer(&program, server, client, 3_000_000, || ());
    program.close(client);
    program.wait(server, |slot| {
        slot.engine.status().contains(Status::READ_CLOSED)
    });
    program.close(server);
    program.close(listener);
    drop(program);
    end("talk", thread);
}

/// One program overwrites all its memory with random bytes while another transfers checked data.
#[test]
fn a_program_that_scribbles_harms_itself_alone() {
    scribbling_harms_nobody("scribble", 1);
}

#[test]
fn a_program_that_scribbles_at_two_shards_harms_itself_alone() {
    scribbling_harms_nobody("scribble2", 2);
}

fn scribbling_harms_nobody(name: &str, shards: u16) {
    let thread = engine_with_shards(name, shards);
    let good = Program::attach(name);
    let listener = good.listener(8000);
    good.shard.set(u32::from(shards) - 1);
    let client = good.connect(8000);
    let server = good.accept(listener);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(7);
            // Each uses its own port: sockets that one leaves open stay open as long as this
            // process lives.
            for port in 9000.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                scribble(name, &mut random, port);
            }
        });
        for _ in 0..4 {
            transfer(&good, client, server, 1_000_000, || ());
            transfer(&good, server, client, 1_000_000, || ());
        }
        done.store(true, Ordering::Relaxed);
    });
    // The engine serves new programs as before.
    let again = Program::attach(name);
    let listener = again.listener(8001);
    let client = again.connect(8001);
    let server = again.accept(listener);
    transfer(&again, client, server, 100_000, || ());
    drop((good, again));
    end(name, thread);
}

/// Attaches, does a little, and then writes noise over all that the program may write: slots,
/// contexts, pollers, arena.
fn scribble(name: &str, random: &mut Random, port: u16) {
    let bad = Program::attach(name);
    let listener = bad.listener(port);
    bad.shard
        .set(u32::from(port) % bad.attached.geometry.shards);
    let client = bad.connect(port);
    let server = bad.accept(listener);
    bad.send(client, &[1; 10_000]);
    bad.send(server, &[2; 10_000]);
    let header = bad.region.header().geometry;
    let total = header.total();
    for _ in 0..2_000 {
        // The mapping is reached backwards from the end of the arena: all after the header is in
        // it.
        let at = header.slots_at() + (random.next() as usize % (total - header.slots_at() - 8));
        let near = header.slots_at() + (random.next() as usize % (64 * 256));
        let context = header.contexts_at() + (random.next() as usize % 8192);
        for offset in [at, near, context] {
            poke(&bad, offset, random.next());
        }
        bad.ring();
    }
}

fn poke(program: &Program, offset: usize, value: u64) {
    let base = std::ptr::from_ref(program.region.header())
        .cast::<u8>()
        .cast_mut();
    // SAFETY: the address is inside the mapping. The test races with the engine, which reads only
    // atomics and raw bytes.
    unsafe { base.add(offset & !7).cast::<u64>().write_volatile(value) };
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let thread = engine("nonsense");
    let program = Program::attach("nonsense");
    let slot = program.socket();
    let stale = SlotRef {
        generation: slot.generation + 1,
        ..slot
    };
    let nowhere = SlotRef {
        index: u32::MAX,
        generation: 1,
    };
    for wrong in [stale, nowhere] {
        for operation in [
            Operation::Bind,
            Operation::Listen,
            Operation::Connect,
            Operation::Accepted,
            Operation::Close,
            Operation::Watch,
        ] {
            let (result, _) = program.ask(Submission::new(operation, wrong, 1));
            assert_eq!(result, -i64::from(libc::EBADF), "{operation:?}");
        }
    }
    let unwatched = program.ask(Submission::new(Operation::Watch, slot, 77)).0;
    assert_eq!(unwatched, -i64::from(libc::EINVAL), "no such poller");
    let option = program
        .ask(Submission::new(Operation::SetOption, slot, 999))
        .0;
    assert_eq!(option, -i64::from(libc::ENOPROTOOPT));
    let shutdown = program.ask(Submission::new(Operation::Shutdown, slot, 3)).0;
    assert_eq!(shutdown, -i64::from(libc::EINVAL));
    drop(program);
    end("nonsense", thread);
}

/// What is read can only be what was received.
/// A listener's backlog is reckoned with how many the program says that it has accepted.
#[test]
fn accepting_what_never_came_is_not_believed() {
    let thread = engine("accepting");
    let program = Program::attach("accepting");
    let slot = program.socket();
    let shared = program.region.slot(slot.index).unwrap();
    let listen = Submission::new(Operation::Listen, slot, 4);
    shared.app.consumed.store(u64::MAX, Ordering::Release);
    assert_eq!(program.ask(listen).0, -i64::from(libc::EINVAL));
    shared.app.consumed.store(0, Ordering::Release);
    program.close(slot);
    // A program that claims this while it listens is served as far as its memory goes, and others
    // go on.
    let listener = program.listener(8000);
    let shared = program.region.slot(listener.index).unwrap();
    let clients: Vec<SlotRef> = (0..8).map(|_| program.connect(8000)).collect();
    shared.app.consumed.store(u64::MAX, Ordering::Release);
    let more: Vec<SlotRef> = (0..8).map(|_| program.connect(8000)).collect();
    for client in clients.into_iter().chain(more) {
        program.close(client);
    }
    program.close(listener);
    let listener = program.listener(8001);
    let client = program.connect(8001);
    let server = program.accept(listener);
    transfer(&program, client, server, 10_000, || ());
    drop(program);
    end("accepting", thread);
}

#[test]
fn reading_beyond_what_was_received_ends_the_connection() {
    let thread = engine("beyond");
    let program = Program::attach("beyond");
    let listener = program.listener(8000);
    let client = program.connect(8000);
    let server = program.accept(listener);
    let shared = program.region.slot(server.index).unwrap();
    shared.app.consumed.store(1 << 40, Ordering::Release);
    program.ask(Submission::new(Operation::Consumed, server, 0));
    program.wait(client, |slot| {
        slot.engine.status().contains(Status::READ_CLOSED)
    });
    drop(program);
    end("beyond", thread);
}

#[test]
fn who_is_cut_off_is_written() {
    let path = std::env::temp_dir().join(format!("mr-cut-off-{}", std::process::id()));
    let thread = audited_engine("cut-off", &path);
    let program = Program::attach("cut-off");
    let (context, _) = program.region.context(program.attached.context).unwrap();
    // SAFETY: a context begins with the tail of its ring, in shared memory that each process may
    // write.
    let tail = unsafe { &*std::ptr::from_ref(context).cast::<AtomicU32>() };
    tail.store(u32::MAX / 2, Ordering::Release);
    program.ring();
    let read = || std::fs::read_to_string(&path).unwrap_or_default();
    let start = Instant::now();
    while !read().contains("event=cut_off why=\"submission tail") {
        assert!(start.elapsed() < Duration::from_secs(20), "{}", read());
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(program);
    end("cut-off", thread);
    assert!(read().contains("event=end"));
    std::fs::remove_file(path).unwrap();
}

/// A program may submit as fast as the ring has room, without waiting for replies.
#[test]
fn a_full_submission_ring_is_served_whole() {
    let thread = engine("full");
    let program = Program::attach("full");
    let slot = program.socket();
    let (context, ring) = program.region.context(program.attached.context).unwrap();
    for round in 0..5 * SUBMISSIONS {
        while context.room() == 0 {
            program.ring();
            std::thread::yield_now();
        }
        context.submit(ring, &Submission::new(Operation::Unwatch, slot, round));
    }
    program.ring();
    let (result, _) = program.ask(Submission::new(Operation::Nop, slot, 0));
    assert_eq!(result, 0);
    assert!(context.drained());
    drop(program);
    end("full", thread);
}
