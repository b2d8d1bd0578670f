//! Several shards in one engine.

mod common;

use std::net::Ipv4Addr;
use std::sync::atomic::Ordering;

use common::{Program, end, engine_with_shards, transfer};
use millrace_context::{Address, Operation, SlotRef, Status, Submission};

/// Binds on every address. Returns the outcome.
fn bind(program: &Program, slot: SlotRef, port: u16) -> i64 {
    let mut bind = Submission::new(Operation::Bind, slot, 0);
    let any = Address::v4(Ipv4Addr::UNSPECIFIED, port);
    bind.arguments[..3].copy_from_slice(&any.to_words());
    program.ask(bind).0
}

fn connect_bound(program: &Program, slot: SlotRef, port: u16) -> i64 {
    let mut connect = Submission::new(Operation::Connect, slot, 0);
    let words = Address::v4(Ipv4Addr::LOCALHOST, port).to_words();
    connect.arguments[..3].copy_from_slice(&words);
    program.ask(connect).0
}

#[test]
fn connections_from_every_shard_reach_one_listener() {
    let thread = engine_with_shards("reach", 3);
    let program = Program::attach("reach");
    let listener = program.listener(8000);
    assert_eq!(program.shard_of(listener), 0);
    for shard in [2, 0, 1, 2] {
        program.shard.set(shard);
        let client = program.connect(8000);
        assert_eq!(program.shard_of(client), shard);
        let server = program.accept(listener);
        assert_eq!(
            program.shard_of(server),
            shard,
            "it is served where it was accepted"
        );
        transfer(&program, client, server, 1_000_000, || ());
        transfer(&program, server, client, 1_000_000, || ());
        program.close(client);
        program.wait(server, |slot| {
            slot.engine.status().contains(Status::READ_CLOSED)
        });
        program.close(server);
    }
    drop(program);
    end("reach", thread);
}

/// A thread that read long ago which shard to ask asks the wrong one. That shard has the right one
/// carry the request out before it goes on.
#[test]
fn what_another_shard_is_asked_for_is_done_where_the_socket_is() {
    let thread = engine_with_shards("strays", 3);
    let program = Program::attach("strays");
    let listener = program.listener(8000);
    // A listener never moves: only its own shard may be asked.
    let shared = program.region.slot(listener.index).unwrap();
    for (asked, outcome) in [(1, -i64::from(libc::EBADF)), (0, 0)] {
        shared.engine.shard.store(asked, Ordering::Relaxed);
        let listen = Submission::new(Operation::Listen, listener, 64);
        assert_eq!(program.ask(listen).0, outcome);
    }
    for shard in 0..3 {
        program.shard.set(shard);
        let client = program.connect(8000);
        let server = program.accept(listener);
        let mut turn = shard;
        let mut ask_others = || {
            turn += 1;
            for slot in [client, server] {
                // Earlier requests to the former shard come first.
                assert_eq!(program.ask(Submission::new(Operation::Nop, slot, 0)).0, 0);
                let shared = program.region.slot(slot.index).unwrap();
                shared.engine.shard.store(turn % 3, Ordering::Relaxed);
            }
        };
        transfer(&program, client, server, 1_000_000, &mut ask_others);
        transfer(&program, server, client, 1_000_000, &mut ask_others);
        ask_others();
        program.close(client);
        program.wait(server, |slot| {
            slot.engine.status().contains(Status::READ_CLOSED)
        });
        let (gone, wrong) = (client.index, server.generation + 1);
        for (index, generation) in [(gone, client.generation), (server.index, wrong)] {
            let slot = SlotRef { index, generation };
            for asked in 0..3 {
                let shared = program.region.slot(index).unwrap();
                shared.engine.shard.store(asked, Ordering::Relaxed);
                let close = Submission::new(Operation::Close, slot, 0);
                assert_eq!(program.ask(close).0, -i64::from(libc::EBADF));
            }
        }
        program.close(server);
    }
    drop(program);
    end("strays", thread);
}

#[test]
fn an_address_is_one_sockets_in_every_shard() {
    let thread = engine_with_shards("address", 2);
    let program = Program::attach("address");
    let in_use = -i64::from(libc::EADDRINUSE);
    for (first, second) in [(0, 1), (1, 0)] {
        program.shard.set(first);
        let listener = program.listener(8000);
        program.shard.set(second);
        let other = program.socket();
        assert_eq!(bind(&program, other, 8000), in_use);
        program.close(listener);
        assert_eq!(bind(&program, other, 8000), 0, "it is free in every shard");
        program.close(other);
    }
    // A port that the engine chooses is free in every shard.
    let chosen: Vec<u16> = (0..40)
        .map(|round| {
            program.shard.set(round % 2);
            let slot = program.socket();
            assert_eq!(bind(&program, slot, 0), 0);
            let shared = program.region.slot(slot.index).unwrap();
            shared.cold.local().port
        })
        .collect();
    let mut distinct = chosen.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), chosen.len());
    drop(program);
    end("address", thread);
}

/// The tag of a flow whose port the program chose may name another shard.
#[test]
fn bound_ports_connect_from_any_shard() {
    let thread = engine_with_shards("bound", 2);
    let program = Program::attach("bound");
    let listener = program.listener(8000);
    for port in 5000..5016 {
        program.shard.set(u32::from(port) % 2);
        let client = program.socket();
        assert_eq!(bind(&program, client, port), 0);
        assert_eq!(connect_bound(&program, client, 8000), 0);
        let server = program.accept(listener);
        let shared = program.region.slot(server.index).unwrap();
        assert_eq!(shared.cold.remote().port, port);
        transfer(&program, client, server, 10_000, || ());
        program.close(client);
        program.close(server);
    }
    drop(program);
    end("bound", thread);
}

#[test]
fn closing_a_listener_resets_what_other_shards_accepted_for_it() {
    let thread = engine_with_shards("queue", 2);
    let program = Program::attach("queue");
    let listener = program.listener(8000);
    program.shard.set(1);
    let client = program.connect(8000);
    program.wait(listener, |slot| {
        slot.engine.received.load(Ordering::Acquire) == 1
    });
    program.close(listener);
    program.wait(client, |slot| {
        slot.engine.error.load(Ordering::Acquire) & 0xffff == libc::ECONNRESET as u32
    });
    drop(program);
    end("queue", thread);
}

/// Exactly one more than the backlog waits, whichever shards the connections came to. When the
/// program takes them, the others follow.
#[test]
fn a_backlog_is_one_for_all_shards() {
    let thread = engine_with_shards("backlog", 2);
    let program = Program::attach("backlog");
    let listener = program.listener(8000);
    let backlog = Submission::new(Operation::Listen, listener, 4);
    assert_eq!(program.ask(backlog).0, 0);
    let clients: Vec<SlotRef> = (0..12)
        .map(|round| {
            program.shard.set(round % 2);
            let slot = program.socket();
            assert_eq!(connect_bound(&program, slot, 8000), 0);
            slot
        })
        .collect();
    program.wait(listener, |slot| {
        slot.engine.received.load(Ordering::Acquire) >= 5
    });
    let waiting = program.region.slot(listener.index).unwrap();
    assert_eq!(waiting.engine.received.load(Ordering::Acquire), 5);
    for _ in &clients {
        program.accept(listener);
    }
    for client in clients {
        program.wait(client, |slot| {
            slot.engine.status().contains(Status::CONNECTED)
        });
    }
    drop(program);
    end("backlog", thread);
}
