use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use millrace_sim::Rng;

use super::directory::{Greeting, Verdict};
use super::{Directory, OpenError, Port, memory};
use crate::types::{Channel, Error, Failure, Limits, Payload, PortName, Received, Sent};

const A: PortName = PortName::new(1, 1);
const B: PortName = PortName::new(1, 2);

/// A directory of the test's own, which is removed at its end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let name = format!("millrace-fabric-test-{}-{name}", std::process::id());
        Place(std::env::temp_dir().join(name))
    }

    fn open(&self, name: PortName) -> Port {
        self.open_with(name, Limits::default())
    }

    fn open_with(&self, name: PortName, limits: Limits) -> Port {
        Port::open_in(&Directory::at(&self.0), name, limits).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Polls both until the first one has an entry of its send-completion queue.
fn sent(one: &mut Port, other: &mut Port) -> Sent {
    for _ in 0..10_000_000 {
        one.poll();
        other.poll();
        if let Some(sent) = one.poll_sent() {
            return sent;
        }
    }
    panic!("nothing was sent");
}

fn received(one: &mut Port, other: &mut Port) -> Received {
    for _ in 0..10_000_000 {
        one.poll();
        other.poll();
        if let Some(message) = one.poll_received() {
            return message;
        }
    }
    panic!("nothing was received");
}

fn inline(port: &mut Port, to: PortName, bytes: &[u8]) {
    port.send(to, Channel::System, 0, Payload::Inline(bytes), 7)
        .unwrap();
}

#[test]
fn messages_go_both_ways_on_every_channel() {
    let place = Place::new("channels");
    let (mut a, mut b) = (place.open(A), place.open(B));
    let large: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect();
    for to in [B, A] {
        let (one, other) = match to {
            B => (&mut a, &mut b),
            _ => (&mut b, &mut a),
        };
        inline(one, to, b"hello");
        let message = received(other, one);
        assert_eq!(other.message(&message).unwrap(), b"hello");
        assert_eq!(
            (message.channel, message.from == A),
            (Channel::System, to == B)
        );
        other.free(message.buffer).unwrap();

        let from = one.register(large.len()).unwrap();
        one.bytes_mut(from).unwrap().copy_from_slice(&large);
        let into = other.register(large.len()).unwrap();
        other.post(Channel::Normal(3), into).unwrap();
        let payload = Payload::Buffer(from, large.len());
        one.send(to, Channel::Normal(3), 0, payload, 8).unwrap();
        assert_eq!(one.free(from), Err(Error::BufferInUse), "it is being sent");
        let message = received(other, one);
        assert_eq!(other.message(&message).unwrap(), large);
        assert_eq!(message.buffer, into);

        other.offer(Channel::Open(0), into).unwrap();
        one.send(to, Channel::Open(0), 1000, Payload::Buffer(from, 5_000), 9)
            .unwrap();
        let message = received(other, one);
        assert_eq!((message.offset, message.len), (1000, 5_000));
        assert_eq!(other.bytes(into).unwrap()[1000..6000], large[..5000]);
        for tag in [7, 8, 9] {
            let expected = Sent {
                tag,
                to,
                result: Ok(()),
            };
            assert_eq!(sent(one, other), expected);
        }
        one.free(from).unwrap();
    }
}

#[test]
fn both_may_begin_at_once() {
    let place = Place::new("crossing");
    for _ in 0..20 {
        let (mut a, mut b) = (place.open(A), place.open(B));
        inline(&mut a, B, b"from a");
        inline(&mut b, A, b"from b");
        let message = received(&mut a, &mut b);
        assert_eq!(a.message(&message).unwrap(), b"from b");
        let message = received(&mut b, &mut a);
        assert_eq!(b.message(&message).unwrap(), b"from a");
        assert_eq!((a.peers(), b.peers()), (vec![B], vec![A]));
    }
}

#[test]
fn a_sleeping_port_is_woken() {
    let place = Place::new("sleep");
    let (mut a, mut b) = (place.open(A), place.open(B));
    let limit = Some(Duration::from_secs(60));
    let echo = std::thread::spawn(move || {
        for _ in 0..2_000 {
            assert!(b.wait(limit).unwrap());
            while b.poll_sent().is_some() {}
            while let Some(message) = b.poll_received() {
                let number = b.message(&message).unwrap().to_vec();
                b.free(message.buffer).unwrap();
                inline(&mut b, A, &number);
            }
        }
        b
    });
    for round in 0..1_000u32 {
        inline(&mut a, B, &round.to_ne_bytes());
        let message = loop {
            assert!(a.wait(limit).unwrap());
            while a.poll_sent().is_some() {}
            if let Some(message) = a.poll_received() {
                break message;
            }
        };
        assert_eq!(a.message(&message).unwrap(), round.to_ne_bytes());
        a.free(message.buffer).unwrap();
    }
    drop(a);
    drop(echo);
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let place = Place::new("name");
    let first = place.open(A);
    let directory = Directory::at(&place.0);
    let second = Port::open_in(&directory, A, Limits::default());
    assert!(matches!(second, Err(OpenError::NameTaken(A))));
    assert_eq!(directory.list().unwrap(), [A]);
    drop(first);
    assert_eq!(directory.list().unwrap(), []);
    place.open(A);
}

#[test]
fn a_directory_that_others_can_enter_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new("open");
    std::fs::create_dir(&place.0).unwrap();
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&place.0, open).unwrap();
    let refused = Port::open_in(&Directory::at(&place.0), A, Limits::default());
    assert!(matches!(refused, Err(OpenError::Directory(_))));
}

#[test]
fn a_port_that_is_not_there_is_an_error_completion() {
    let place = Place::new("nobody");
    let mut a = place.open(A);
    inline(&mut a, PortName::new(9, 9), b"hello");
    assert!(a.wait(Some(Duration::from_secs(60))).unwrap());
    let result = a.poll_sent().unwrap().result;
    assert_eq!(result, Err(Failure::NoSuchPort));
    assert_eq!((a.counters().failed, a.peers().len()), (1, 0));
}

#[test]
fn a_peer_that_ends_is_an_error_completion_and_a_new_one_is_found() {
    let place = Place::new("restart");
    let (mut a, mut b) = (place.open(A), place.open(B));
    inline(&mut a, B, b"one");
    received(&mut b, &mut a);
    assert_eq!(sent(&mut a, &mut b).result, Ok(()));
    let buffer = a.register(100_000).unwrap();
    a.send(
        B,
        Channel::Normal(0),
        0,
        Payload::Buffer(buffer, 100_000),
        1,
    )
    .unwrap();
    drop(b);
    assert!(a.wait(Some(Duration::from_secs(60))).unwrap());
    assert_eq!(a.poll_sent().unwrap().result, Err(Failure::PeerLost));
    let mut b = place.open(B);
    inline(&mut a, B, b"two");
    let message = received(&mut b, &mut a);
    assert_eq!(b.message(&message).unwrap(), b"two");
}

#[test]
fn what_the_receiver_cannot_take_is_an_error_completion() {
    let place = Place::new("refused");
    let limits = Limits {
        wait: millrace_tcp::Duration::from_millis(50),
        ..Limits::default()
    };
    let (mut a, mut b) = (place.open_with(A, limits), place.open(B));
    let buffer = a.register(2_000).unwrap();
    let small = b.register(1_000).unwrap();
    let result = |a: &mut Port, b: &mut Port, channel, offset| {
        let payload = Payload::Buffer(buffer, 2_000);
        a.send(B, channel, offset, payload, 1).unwrap();
        sent(a, b).result
    };
    let nothing_posted = result(&mut a, &mut b, Channel::Normal(0), 0);
    assert_eq!(nothing_posted, Err(Failure::NoBuffer));
    b.post(Channel::Normal(0), small).unwrap();
    assert_eq!(b.post(Channel::Normal(0), small), Err(Error::BufferInUse));
    assert_eq!(b.free(small), Err(Error::BufferInUse));
    assert_eq!(b.bytes_mut(small), Err(Error::BufferInUse));
    let too_long = result(&mut a, &mut b, Channel::Normal(0), 0);
    assert_eq!(too_long, Err(Failure::TooLong));
    let unknown = result(&mut a, &mut b, Channel::Normal(99), 0);
    assert_eq!(unknown, Err(Failure::NoSuchChannel));
    assert_eq!(b.withdraw(Channel::Normal(0)), Ok(Some(small)));
    b.offer(Channel::Open(1), small).unwrap();
    for offset in [0, 999, u64::MAX] {
        let outside = result(&mut a, &mut b, Channel::Open(1), offset);
        assert_eq!(outside, Err(Failure::OutOfRange));
    }
    assert_eq!(b.withdraw(Channel::Open(1)), Ok(Some(small)));
    b.free(small).unwrap();
    assert_eq!(b.free(small), Err(Error::NoSuchBuffer));
    assert_eq!(b.post(Channel::Normal(0), small), Err(Error::NoSuchBuffer));
    assert_eq!(b.counters().violations, 0);
}

#[test]
fn a_sender_waits_for_credit_and_nothing_is_lost() {
    let place = Place::new("credit");
    let limits = Limits {
        system_buffers: 4,
        ..Limits::default()
    };
    let (mut a, mut b) = (place.open(A), place.open_with(B, limits));
    for number in 0..100u8 {
        inline(&mut a, B, &[number]);
    }
    for number in 0..100u8 {
        let message = received(&mut b, &mut a);
        assert_eq!(b.message(&message).unwrap(), [number]);
        b.free(message.buffer).unwrap();
    }
    assert!(a.counters().waited > 0);
    let mut refused = 0;
    while a
        .send(B, Channel::System, 0, Payload::Inline(b"x"), 0)
        .is_ok()
    {
        refused += 1;
    }
    assert_eq!((refused, a.counters().queue_full), (1024 - 100, 1));
}

/// Asks a port for a pair, as a process that then does what it likes.
fn intrude(place: &Place, to: PortName, from: PortName) -> (OwnedFd, OwnedFd, OwnedFd) {
    let socket = Directory::at(&place.0).connect(to).unwrap();
    let file = memory::create().unwrap();
    let bell = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let verdict = Verdict::Asks;
    let greeting = Greeting { verdict, from, to };
    greeting
        .send(&socket, &[file.as_fd(), bell.as_fd()])
        .unwrap();
    (socket, file, bell)
}

#[test]
fn a_process_that_scribbles_over_its_memory_harms_no_other_pair() {
    let place = Place::new("scribble");
    let (mut a, mut b) = (place.open(A), place.open(B));
    let len = 200_000;
    let (from, into) = (a.register(len).unwrap(), b.register(len).unwrap());
    let mut rng = Rng::new(1);
    let mut violations = 0;
    for round in 0..200u16 {
        let name = PortName::new(2, round);
        let (_socket, file, _bell) = intrude(&place, B, name);
        for _ in 0..2_000 {
            b.poll();
        }
        // The transfer beside it.
        let fill: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
        a.bytes_mut(from).unwrap().copy_from_slice(&fill);
        b.post(Channel::Normal(0), into).unwrap();
        a.send(B, Channel::Normal(0), 0, Payload::Buffer(from, len), 1)
            .unwrap();
        let mut is_done = false;
        for _ in 0..1_000_000 {
            let words = (0..8).map(|_| match rng.below(4) {
                0 => (rng.next() as usize, rng.next()),
                1 => (rng.below(2048) as usize, rng.next()),
                // A cell's head with the right tag.
                _ => {
                    let cell = rng.below(4);
                    let kind = rng.below(9) << 24 | rng.below(3) << 16 | rng.below(17);
                    let at = 4096 + cell as usize * 128;
                    (at, (cell + 1) << 32 | kind)
                }
            });
            memory::scribble(file.as_fd(), words).unwrap();
            a.poll();
            b.poll();
            if let Some(message) = b.poll_received() {
                if message.from != A {
                    let _ = b.free(message.buffer);
                    continue;
                }
                assert_eq!(b.message(&message).unwrap(), fill);
                is_done = true;
                break;
            }
        }
        assert!(is_done);
        assert_eq!(sent(&mut a, &mut b).result, Ok(()));
        violations = b.counters().violations;
    }
    assert!(violations > 0, "some of it was noticed");
    assert_eq!(a.counters().violations, 0);
}

#[test]
fn memory_that_can_shrink_is_refused() {
    let place = Place::new("shrink");
    let (mut a, mut b) = (place.open(A), place.open(B));
    let socket = Directory::at(&place.0).connect(B).unwrap();
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("hostile", flags).unwrap();
    rustix::fs::ftruncate(&file, 1 << 20).unwrap();
    let greeting = Greeting {
        verdict: Verdict::Asks,
        from: PortName::new(3, 3),
        to: B,
    };
    greeting
        .send(&socket, &[file.as_fd(), file.as_fd()])
        .unwrap();
    inline(&mut a, B, b"hello");
    received(&mut b, &mut a);
    for _ in 0..5_000 {
        b.poll();
    }
    assert_eq!(b.peers(), [A]);
}

#[test]
fn strangers_that_say_nothing_are_limited() {
    let place = Place::new("strangers");
    let (mut a, mut b) = (place.open(A), place.open(B));
    let mut silent = HashMap::new();
    for number in 0..200 {
        if let Ok(socket) = Directory::at(&place.0).connect(B) {
            silent.insert(number, socket);
        }
        for _ in 0..2_000 {
            b.poll();
        }
    }
    drop(silent);
    inline(&mut a, B, b"hello");
    received(&mut b, &mut a);
}
