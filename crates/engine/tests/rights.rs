//! Sockets in messages (SCM_RIGHTS): who may take them, how long they stay open, and how many there
//! can be.

mod common;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use common::{Program, end, engine, engine_with_shards, transfer};
use libc::{EBADF, EINVAL, ESTALE, ETOOMANYREFS};
use millrace_context::protocol::{CLAIMED_MAX, Kind, PASSED_MAX, PASSED_NAME};
use millrace_context::{SlotRef, Status};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Stand-ins for sockets.
fn pass(program: &Program, sockets: &[SlotRef]) -> Result<Vec<OwnedFd>, i32> {
    let words: Vec<u8> = sockets
        .iter()
        .flat_map(|socket| socket.to_bits().to_ne_bytes())
        .collect();
    let (_, mut came) = program.call(Kind::Pass, &words, &[])?;
    assert_eq!(came.len(), sockets.len());
    Ok((0..came.len()).map(|at| came.take(at).unwrap()).collect())
}

/// The sockets that they stand for, or an errno for each.
fn claim(program: &Program, shown: &[BorrowedFd<'_>]) -> Result<Vec<Result<SlotRef, i32>>, i32> {
    let (answer, _) = program.call(Kind::Claim, &[], shown)?;
    let words = answer.words.iter().take(shown.len());
    let each = words.map(|word| match SlotRef::from_bits(*word) {
        socket if socket.generation == 0 => Err(socket.index as i32),
        socket => Ok(socket),
    });
    Ok(each.collect())
}

fn claim_one(program: &Program, shown: impl AsFd) -> Result<SlotRef, i32> {
    claim(program, &[shown.as_fd()]).unwrap()[0]
}

fn is_closed(program: &Program, peer: SlotRef) -> bool {
    let shared = program.region.slot(peer.index).unwrap();
    let over = Status::READ_CLOSED | Status::DEAD;
    shared.engine.status().intersects(over)
}

fn wait_closed(program: &Program, peer: SlotRef) {
    program.wait(peer, |_| is_closed(program, peer));
}

/// Both ends of a connection.
fn connection(program: &Program, port: u16) -> (SlotRef, SlotRef) {
    let listener = program.listener(port);
    let client = program.connect(port);
    let server = program.accept(listener);
    program.close(listener);
    (client, server)
}

fn held_as_long_as_it_is_open(name: &str, shards: u16) {
    let thread = engine_with_shards(name, shards);
    let program = Program::attach(name);
    for shard in 0..u32::from(shards) {
        program.shard.set(shard);
        let (client, server) = connection(&program, 8000 + shard as u16);
        // It is in two messages, and one of them is in the queue of a socket.
        let mut passed = pass(&program, &[server, server]).unwrap();
        program.close(server);
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut space = [std::mem::MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let inside = passed.pop().unwrap();
        let sent = [inside.as_fd()];
        control.push(rustix::net::SendAncillaryMessage::ScmRights(&sent));
        let bytes = [std::io::IoSlice::new(b"m")];
        rustix::net::sendmsg(&one, &bytes, &mut control, rustix::net::SendFlags::empty()).unwrap();
        drop(inside);
        drop(passed);
        // When the engine answers, it has heard all earlier messages.
        assert_eq!(claim_one(&program, &one), Err(ESTALE));
        assert!(!is_closed(&program, client));
        drop((one, other));
        wait_closed(&program, client);
        program.close(client);
    }
    drop(program);
    end(name, thread);
}

#[test]
fn a_socket_is_open_as_long_as_what_stands_for_it() {
    held_as_long_as_it_is_open("rights-open", 1);
}

#[test]
fn a_socket_of_any_shard_is_open_as_long_as_what_stands_for_it() {
    held_as_long_as_it_is_open("rights-open2", 2);
}

#[test]
fn who_shows_it_holds_it() {
    let thread = engine("rights-claim");
    let program = Program::attach("rights-claim");
    let (client, server) = connection(&program, 8000);
    let passed = pass(&program, &[server]).unwrap();
    program.close(server);
    for _ in 0..3 {
        assert_eq!(claim_one(&program, &passed[0]), Ok(server));
    }
    drop(passed);
    transfer(&program, client, server, 100_000, || ());
    // It was claimed three times, so it is held three times.
    program.close(server);
    program.close(server);
    transfer(&program, server, client, 100_000, || ());
    program.close(server);
    wait_closed(&program, client);
    program.close(client);
    drop(program);
    end("rights-claim", thread);
}

#[test]
fn nobody_gets_what_was_not_passed_to_the_program() {
    let thread = engine("rights-forged");
    let program = Program::attach("rights-forged");
    let other = Program::attach("rights-forged");
    let (client, server) = connection(&program, 8000);
    let passed = pass(&program, &[server]).unwrap();
    // The slots of the other program have the same numbers.
    assert_eq!(pass(&other, &[server]).err(), Some(EBADF));
    // Descriptors that resemble a stand-in, and descriptors that do not.
    let flags = SocketFlags::CLOEXEC;
    let (forged, _peer) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    let mut name = PASSED_NAME.to_vec();
    name.extend(b"forged-by-a-test");
    rustix::net::bind(&forged, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
    let (pipe, _end) = rustix::pipe::pipe().unwrap();
    let shown = [forged.as_fd(), pipe.as_fd(), passed[0].as_fd()];
    let outcome = [Err(ESTALE), Err(ESTALE), Ok(server)];
    assert_eq!(claim(&program, &shown).unwrap(), outcome);
    assert_eq!(claim(&program, &[]).err(), Some(EINVAL));
    let many = [pipe.as_fd(); CLAIMED_MAX + 1];
    assert_eq!(claim(&program, &many).err(), Some(EINVAL));
    // A stand-in that is shut down gives the socket up.
    rustix::net::shutdown(&passed[0], rustix::net::Shutdown::Both).unwrap();
    let gone = || claim_one(&program, &passed[0]) == Err(ESTALE);
    program.wait(client, |_| gone());
    for end in [client, server, server] {
        program.close(end);
    }
    drop((program, other));
    end("rights-forged", thread);
}

/// The socket moves with its unread data, and comes back when the other program closes it.
#[test]
fn another_program_that_shows_it_has_it() {
    let thread = engine("rights-across");
    let program = Program::attach("rights-across");
    let other = Program::attach("rights-across");
    let (client, server) = connection(&program, 8000);
    let passed = pass(&program, &[server]).unwrap();
    transfer(&program, client, server, 100_000, || ());
    let theirs = claim_one(&other, &passed[0]).unwrap();
    program.wait(server, |slot| {
        slot.engine.status().contains(Status::ELSEWHERE)
    });
    // Once for each time that it is shown.
    assert_eq!(claim_one(&other, &passed[0]), Ok(theirs));
    other.close(theirs);
    other.close(theirs);
    program.wait(server, |slot| {
        !slot.engine.status().contains(Status::ELSEWHERE)
    });
    transfer(&program, server, client, 100_000, || ());
    drop(passed);
    program.close(server);
    wait_closed(&program, client);
    program.close(client);
    drop((program, other));
    end("rights-across", thread);
}

#[test]
fn what_a_process_does_not_hold_it_cannot_pass() {
    let thread = engine("rights-held");
    let program = Program::attach("rights-held");
    let (client, server) = connection(&program, 8000);
    let stale = SlotRef {
        generation: server.generation + 1,
        ..server
    };
    let beyond = SlotRef {
        index: u32::MAX >> 3,
        generation: 1,
    };
    for bad in [stale, beyond] {
        assert_eq!(pass(&program, &[server, bad]).err(), Some(EBADF));
    }
    assert_eq!(pass(&program, &[]).err(), Some(EINVAL));
    assert_eq!(
        pass(&program, &[server; PASSED_MAX + 1]).err(),
        Some(EINVAL)
    );
    // A refused message holds nothing.
    program.close(server);
    wait_closed(&program, client);
    assert_eq!(pass(&program, &[server]).err(), Some(EBADF));
    program.close(client);
    drop(program);
    end("rights-held", thread);
}

#[test]
fn as_many_are_on_their_way_as_may_be() {
    let thread = engine("rights-many");
    let program = Program::attach("rights-many");
    let (client, server) = connection(&program, 8000);
    for port in [8001, 8002] {
        let mut all = Vec::new();
        let refused = loop {
            match pass(&program, &[server; PASSED_MAX]) {
                Ok(passed) => all.extend(passed),
                Err(errno) => break errno,
            }
        };
        assert_eq!((refused, all.len()), (ETOOMANYREFS, 1024));
        // Another program has a limit of its own.
        let other = Program::attach("rights-many");
        let listener = other.listener(port);
        assert!(pass(&other, &[listener]).is_ok());
        all.truncate(1000);
        assert!(pass(&program, &[server; 24]).is_ok());
    }
    program.close(server);
    wait_closed(&program, client);
    let shared = program.region.slot(client.index).unwrap();
    assert_eq!(shared.engine.error.load(Ordering::Relaxed), 0);
    program.close(client);
    drop(program);
    end("rights-many", thread);
}
