//! An earlier request of one thread is served before a later one of another, on rings and on the
//! control socket.

mod common;

use common::{Program, end, engine_with_shards};
use millrace_context::protocol::Kind;
use millrace_context::{Operation, SlotRef, Status, Submission};

const IN: u64 = 1;

/// Fills most of shard 1's ring with slow requests: they are for a socket of shard 0, which shard 1
/// must ask each time.
fn occupy(program: &Program, of_shard_0: SlotRef) {
    for _ in 0..1000 {
        program.leave(1, &Submission::new(Operation::Unwatch, of_shard_0, 63));
    }
}

#[test]
fn what_was_closed_before_a_fork_the_child_does_not_hold() {
    let name = "closed-before-fork";
    let thread = engine_with_shards(name, 2);
    let program = Program::attach(name);
    let elsewhere = program.socket();
    program.shard.set(1);
    let listener = program.listener(8000);
    occupy(&program, elsewhere);
    program.leave(1, &Submission::new(Operation::Close, listener, 0));
    program.announce();
    // Its address is free.
    program.listener(8000);
    drop(program);
    end(name, thread);
}

#[test]
fn what_a_process_sent_before_it_died_arrives() {
    let name = "sent-before-death";
    let thread = engine_with_shards(name, 2);
    let program = Program::attach(name);
    program.shard.set(1);
    let listener = program.listener(8000);
    let announced = program.announce();
    let (mut child, said) = program.spawn(announced, "sends_before_it_dies");
    let server = program.accept(listener);
    let [index, position] = said[..] else {
        panic!("the child says {said:?}")
    };
    let (context, _) = program.region.context(index as u32).unwrap();
    let position = position as u32;
    child.kill().unwrap();
    child.wait().unwrap();
    program.wait(server, |_| context.taken(position));
    program.wait(server, |slot| {
        let ended = Status::READ_CLOSED | Status::DEAD;
        slot.engine.status().intersects(ended)
    });
    assert_eq!(program.receive(server), b"hello");
    drop(program);
    end(name, thread);
}

/// The child of [`what_a_process_sent_before_it_died_arrives`].
#[test]
fn sends_before_it_dies() {
    let Some(child) = Program::as_child() else {
        return;
    };
    let elsewhere = child.socket();
    child.shard.set(1);
    let client = child.connect(8000);
    occupy(&child, elsewhere);
    let index = child.attached.context + 1;
    let (context, _) = child.region.context(index).unwrap();
    let [(at, len), _] = context.staging_pieces(5);
    assert_eq!(len, 5);
    child.region.stage(index, at, b"hello");
    child.leave(1, &Submission::new(Operation::Send, client, 5));
    child.say(&[index.into(), context.position().into()]);
}

#[test]
fn a_request_to_watch_with_a_poller_that_is_gone_means_no_other_one() {
    let name = "old-poller";
    let thread = engine_with_shards(name, 2);
    let program = Program::attach(name);
    let elsewhere = program.socket();
    program.shard.set(1);
    let socket = program.socket();
    let poller = || program.control(Kind::Poller, [0; 4]).map(|words| words[0]);
    let old = poller().unwrap();
    occupy(&program, elsewhere);
    let mut watch = Submission::new(Operation::Watch, socket, old as u32);
    // The socket was last checked long ago, so there is a hint at once.
    watch.arguments = [IN, u64::MAX, 1, 0, 0, 0];
    program.leave(1, &watch);
    program.tell(Kind::PollerGone, [old, 0, 0, 0]);
    // Until the index is used again.
    while poller().unwrap() != old {}
    let nop = Submission::new(Operation::Nop, socket, 0);
    assert_eq!(program.ask(nop).0, 0, "all has been served");
    let (shared, _) = program.region.poller(old as u32).unwrap();
    assert!(!shared.pending());
    drop(program);
    end(name, thread);
}
