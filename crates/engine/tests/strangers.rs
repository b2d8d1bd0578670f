//! Flaws of the engine that random programs have shown, and that a program could use.

mod common;

use std::os::fd::AsFd as _;

use common::{Program, end, engine, engine_with_shards};
use millrace_context::protocol::{Descriptors, Kind, Request};
use millrace_context::{Address, Operation, SlotRef, Submission};

/// A context closes a socket while its shard asks the others for the address: the socket is closed
/// before or after that.
#[test]
fn a_socket_is_not_closed_while_its_address_is_asked_for() {
    const PORT: u16 = 8100;
    let name = "closed-while-bound";
    let thread = engine_with_shards(name, 2);
    let program = Program::attach(name);
    for turn in 0..300 {
        let socket = program.socket();
        // Each request takes both shards a moment, so the two meet in many places.
        for _ in 0..turn % 16 {
            program.leave(1, &Submission::new(Operation::Unwatch, socket, 63));
        }
        program.leave(1, &Submission::new(Operation::Close, socket, 0));
        let mut bind = Submission::new(Operation::Bind, socket, 0);
        let address = Address::v4(std::net::Ipv4Addr::UNSPECIFIED, PORT);
        bind.arguments[..3].copy_from_slice(&address.to_words());
        // It may come too late.
        let bound = program.ask(bind).0;
        if bound == 0 {
            program.ask(Submission::new(Operation::Listen, socket, 8));
        }
        program.close(socket);
        // Shard 1 has served all.
        let nop = Submission::new(Operation::Nop, socket, 0);
        program.leave(1, &nop);
        program.ring();
        let (context, _) = program
            .region
            .context(program.attached.context + 1)
            .unwrap();
        while !context.drained() {
            std::thread::yield_now();
        }
        program.close(socket);
        let listener = program.listener(PORT);
        program.close(listener);
    }
    drop(program);
    end(name, thread);
}

/// A process that shows one descriptor over and over holds its socket a limited number of times, so
/// the list of holders stays short.
#[test]
fn a_process_holds_a_socket_only_so_often() {
    let name = "held-often";
    let thread = engine(name);
    let program = Program::attach(name);
    let socket = program.socket();
    let words = socket.to_bits().to_ne_bytes();
    let (_, mut came) = program.call(Kind::Pass, &words, &[]).unwrap();
    let shown = came.take(0).unwrap();
    let claim = || {
        let shown = [shown.as_fd(); 8];
        let request = Request::new(Kind::Claim, [0; 16], [0; 4]);
        let answer = program.call(Kind::Claim, &[], &shown);
        let (answer, _): (_, Descriptors) = answer.unwrap_or_else(|e| panic!("{request:?}: {e}"));
        answer.words.map(SlotRef::from_bits)
    };
    let refused = (0..1000).find(|_| {
        let words = claim();
        words.iter().any(|word| word.generation == 0)
    });
    assert!(refused.is_some_and(|times| times > 8), "{refused:?}");
    drop(program);
    end(name, thread);
}
