//! TCP Fast Open (RFC 7413): payload on the SYN, between hosts that have met.

use std::net::SocketAddr;

use millrace_shard::{FastOpenKeys, HeapMemory, Opt, Options, Shard, SocketId, ViewFlags};
use millrace_tcp::State;
use millrace_wire::tcp::{Cookie, Flags};

use crate::net::{A, ADDRESSES, B, Net, OWNER, config};

/// A listener that lets so many in before their handshake is complete.
fn listen(net: &mut Net, limit: u16) -> SocketId {
    let listener = net.listen(80, 16);
    let now = net.now();
    net.shards[B]
        .set_option(listener, Opt::FastOpen(limit), now)
        .unwrap();
    listener
}

/// Begins to open fast; how much the SYN takes along.
fn open(net: &mut Net) -> (SocketId, u16) {
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    let now = net.now();
    let shard = &mut net.shards[A];
    let id = shard
        .connect(OWNER, None, remote, &Options::default(), now)
        .unwrap();
    let room = shard.open_fast(id, now).unwrap();
    (id, room)
}

/// The hosts meet: the client gets a cookie.
fn meet(net: &mut Net, listener: SocketId) {
    let (client, room) = open(net);
    assert_eq!(room, 0);
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
    let server = net.shards[B].accept(listener).unwrap();
    net.close(A, client);
    net.run(1_000);
    net.close(B, server);
    net.run(10_000);
    net.log.clear();
}

/// Flags, payload and cookie of each segment sent so far.
fn segments(net: &Net) -> Vec<(usize, Flags, usize, Option<Cookie>)> {
    let of = |(side, sent): &(usize, crate::net::Flying)| {
        let (_, segment) = sent.tcp()?;
        Some((
            *side,
            segment.flags - Flags::PSH,
            segment.payload.len(),
            segment.options.fast_open(),
        ))
    };
    net.log.iter().filter_map(of).collect()
}

const SYN_ACK: Flags = Flags::SYN.union(Flags::ACK);

#[test]
fn rfc7413_3_a_cookie_is_asked_for_and_given() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    let (client, room) = open(&mut net);
    assert_eq!(room, 0, "nothing is known of the host");
    net.run(10_000);
    let sent = segments(&net);
    assert_eq!(sent[0], (A, Flags::SYN, 0, Some(Cookie::REQUEST)));
    let (side, flags, len, cookie) = sent[1];
    assert_eq!((side, flags, len), (B, SYN_ACK, 0));
    assert_eq!(cookie.unwrap().as_bytes().len(), 8);
    assert_eq!(net.shards[B].counters().fast_open_cookies_out, 1);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
    // Who does not open fast gives none.
    net.listen(81, 4);
    let remote = SocketAddr::new(ADDRESSES[B].into(), 81);
    let now = net.now();
    let other = net.shards[A]
        .connect(OWNER, None, remote, &Options::default(), now)
        .unwrap();
    net.log.clear();
    assert!(net.shards[A].open_fast(other, now).unwrap() > 0);
    net.send(A, other, b"x");
    net.run(10_000);
    let sent = segments(&net);
    assert_eq!((sent[0].1, sent[0].2), (Flags::SYN, 1));
    assert_eq!(sent[1], (B, SYN_ACK, 0, None));
    assert!(!net.shards[A].tcp_info(other, now).unwrap().syn_data);
    net.close(B, listener);
}

/// RFC 7413 3, figure 2: the request comes with the SYN, and the answer goes before the handshake
/// is complete.
#[test]
fn rfc7413_4_2_request_and_answer_in_one_round_trip() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let (client, room) = open(&mut net);
    assert!(room > 1_000, "{room}");
    net.run(5_000);
    assert!(net.log.is_empty(), "the SYN waits for something to carry");
    net.send(A, client, b"request");
    let start = net.now_us;
    net.run(net.latency_us);
    let server = net.shards[B].accept(listener).expect("accepted at once");
    assert_eq!(net.view(B, server).state, Some(State::SynReceived));
    assert_eq!(net.recv(B, server), b"request");
    net.send(B, server, b"answer");
    net.run(net.latency_us);
    assert_eq!(net.recv(A, client), b"answer");
    assert_eq!(net.now_us - start, 2 * net.latency_us);
    let sent = segments(&net);
    assert_eq!((sent[0].1, sent[0].2), (Flags::SYN, 7));
    assert_eq!((sent[1].0, sent[1].1), (B, SYN_ACK));
    assert_eq!((sent[2].0, sent[2].1, sent[2].2), (B, Flags::ACK, 6));
    net.run(10_000);
    assert_eq!(net.view(B, server).state, Some(State::Established));
    for (side, id) in [(A, client), (B, server)] {
        assert!(net.shards[side].tcp_info(id, net.now()).unwrap().syn_data);
    }
    assert_eq!(net.shards[B].counters().fast_opens, 1);
    net.transfer((A, client), (B, server), 0);
    net.close(A, client);
    net.run(1_000);
    net.close(B, server);
    net.close(B, listener);
    net.assert_clean();
}

/// More than fits on the SYN follows when there is a connection, each byte once.
#[test]
fn rfc7413_4_2_1_the_rest_follows_the_handshake() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let (client, room) = open(&mut net);
    let bytes: Vec<u8> = (0..20_000u64).map(crate::net::pattern).collect();
    assert_eq!(net.send(A, client, &bytes), bytes.len());
    net.run(50_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), bytes);
    assert_eq!(segments(&net)[0].2, usize::from(room));
}

/// The server has another secret than when it gave the cookie: the handshake goes its usual way,
/// and brings a new one. RFC 7413 4.1.2: the key changes, and for a while what was made with the
/// one before is good still.
#[test]
fn rfc7413_4_1_2_a_cookie_of_the_key_before_is_good_and_replaced() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    let set = |net: &mut Net, primary: u8, backup: Option<u8>| {
        let keys = FastOpenKeys {
            primary: [primary; 16],
            backup: backup.map(|key| [key; 16]),
        };
        let now = net.now();
        let outcome = net.shards[B].set_option(listener, Opt::FastOpenKeys(keys), now);
        outcome.unwrap();
    };
    let request = |net: &mut Net| {
        net.log.clear();
        let (client, room) = open(net);
        if room == 0 {
            // Without a cookie the request waits for the connection.
            net.run(10_000);
        }
        net.send(A, client, b"request");
        net.run(10_000);
        let server = net.shards[B].accept(listener).unwrap();
        assert_eq!(net.recv(B, server), b"request");
        net.close(A, client);
        net.run(1_000);
        net.close(B, server);
        net.run(10_000);
        let sent = segments(net);
        let answer = sent.iter().find(|sent| sent.1 == SYN_ACK).unwrap();
        (sent[0].2, sent[0].3, answer.3)
    };
    set(&mut net, 1, None);
    let (_, _, first) = request(&mut net);
    let first = first.expect("a cookie of the first key");
    assert_eq!(request(&mut net), (7, Some(first), None));
    set(&mut net, 2, Some(1));
    let (carried, offered, second) = request(&mut net);
    assert_eq!((carried, offered), (7, Some(first)));
    let second = second.expect("a cookie of the second key");
    assert_ne!(second, first);
    assert_eq!(net.shards[B].counters().fast_opens, 2);
    set(&mut net, 2, None);
    assert_eq!(request(&mut net), (7, Some(second), None));
    assert_eq!(net.shards[B].counters().fast_opens, 3);
    set(&mut net, 3, None);
    let (_, offered, third) = request(&mut net);
    assert_eq!(offered, Some(second));
    assert!(third.is_some_and(|third| third != second));
    assert_eq!(net.shards[B].counters().fast_opens_refused, 1);
}

#[test]
fn rfc7413_4_2_2_a_bad_cookie_costs_a_round_trip_and_no_more() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let mut other = config(B);
    other.secret = [77; 32];
    net.shards[B] = Shard::new(other, HeapMemory::new(64 << 20), net.now());
    let listener = listen(&mut net, 4);
    let (client, room) = open(&mut net);
    assert!(room > 0);
    net.send(A, client, b"request");
    net.run(net.latency_us);
    assert!(net.shards[B].accept(listener).is_err());
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"request");
    assert_eq!(net.shards[B].counters().fast_opens_refused, 1);
    assert!(!net.shards[A].tcp_info(client, net.now()).unwrap().syn_data);
    // The next time it is good again.
    let (client, _) = open(&mut net);
    net.send(A, client, b"again");
    net.run(net.latency_us);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"again");
}

/// RFC 7413 4.1.3.1: something on the way drops such SYNs. They go again without payload, and
/// others are not tried for a while.
#[test]
fn rfc7413_4_1_3_1_a_lost_syn_goes_again_without_payload() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    net.hand = Box::new(|side, flying| {
        let carries = |segment: &millrace_wire::tcp::Segment<'_>| {
            segment.flags.contains(Flags::SYN) && !segment.payload.is_empty()
        };
        side != A || !flying.tcp().is_some_and(|(_, segment)| carries(&segment))
    });
    let (client, _) = open(&mut net);
    net.send(A, client, b"request");
    net.run(3_000_000);
    let sent = segments(&net);
    assert_eq!((sent[0].1, sent[0].2), (Flags::SYN, 7));
    assert_eq!(sent[1], (A, Flags::SYN, 0, None));
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"request");
    assert_eq!(net.shards[A].counters().fast_opens_lost, 1);
    assert_eq!(open(&mut net).1, 0);
    net.run(61_000_000);
    assert!(open(&mut net).1 > 0);
}

/// The SYN-ACK is lost: the SYN that comes again is answered, and the payload is not delivered
/// twice.
#[test]
fn rfc7413_4_2_2_a_lost_syn_ack_is_repeated() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let mut lost = 0;
    net.hand = Box::new(move |side, flying| {
        let answer = side == B
            && flying
                .tcp()
                .is_some_and(|(_, segment)| segment.flags.contains(Flags::SYN));
        lost += u32::from(answer);
        !answer || lost > 1
    });
    let (client, _) = open(&mut net);
    net.send(A, client, b"request");
    net.run(5_000_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"request");
    assert_eq!(net.view(B, server).state, Some(State::Established));
    net.send(A, client, b" and more");
    net.send(B, server, b"answer");
    net.run(1_000_000);
    assert_eq!(net.recv(B, server), b" and more");
    assert_eq!(net.recv(A, client), b"answer");
}

/// RFC 7413 5.1: no more than so many are let in before their handshake is complete; the others
/// take the usual way.
#[test]
fn rfc7413_5_1_pending_fast_opens_are_limited() {
    let mut net = Net::new();
    let listener = listen(&mut net, 2);
    meet(&mut net, listener);
    // No handshake is completed.
    net.hand = Box::new(|side, flying| {
        side != A
            || flying
                .tcp()
                .is_none_or(|(_, segment)| segment.flags.contains(Flags::SYN))
    });
    for _ in 0..5 {
        let (client, _) = open(&mut net);
        net.send(A, client, b"request");
        net.run(1_000);
    }
    assert_eq!(net.shards[B].counters().fast_opens, 2);
    assert_eq!(net.shards[B].counters().fast_opens_limited, 3);
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    // Those that never complete it go, and others may come.
    net.run(200_000_000);
    while let Ok(server) = net.shards[B].accept(listener) {
        assert_ne!(net.view(B, server).error, 0);
        net.close(B, server);
    }
    net.hand = Box::new(|_, _| true);
    let (client, _) = open(&mut net);
    net.send(A, client, b"request");
    net.run(10_000);
    assert_eq!(net.shards[B].counters().fast_opens, 3);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
}

/// The program answers and closes before the handshake is complete.
#[test]
fn rfc7413_4_2_2_a_whole_conversation_before_the_handshake_is_complete() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let (client, _) = open(&mut net);
    net.send(A, client, b"request");
    net.run(net.latency_us);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"request");
    net.send(B, server, &[9; 5_000]);
    net.close(B, server);
    net.run(net.latency_us);
    assert_eq!(net.recv(A, client), [9; 5_000]);
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::END_OF_STREAM));
    net.close(A, client);
    net.close(B, listener);
    net.assert_clean();
}

/// A program that gives up while its SYN waits leaves nothing.
#[test]
fn a_syn_that_waits_ends_with_its_program() {
    let mut net = Net::new();
    let listener = listen(&mut net, 4);
    meet(&mut net, listener);
    let (client, room) = open(&mut net);
    assert!(room > 0);
    net.close(A, client);
    net.run(1_000);
    assert!(net.log.is_empty());
    net.close(B, listener);
    net.assert_clean();
}
