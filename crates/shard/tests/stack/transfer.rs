//! Streams: whole, in order, under loss and reordering, with and without a port's help; and the
//! memory they take.

use millrace_shard::{Opt, Poll, ViewFlags};
use millrace_tcp::State;
use millrace_wire::tcp::Flags;

use crate::net::{A, B, Net, Random, config};

#[test]
fn rfc9293_3_5_handshake_and_both_directions() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    assert_eq!(net.view(A, client).state, Some(State::Established));
    assert_eq!(net.view(B, server).state, Some(State::Established));
    assert_eq!(net.view(A, client).remote, net.view(B, server).local);
    assert_eq!(net.view(A, client).local, net.view(B, server).remote);
    net.send(A, client, b"question");
    net.run(1_000);
    assert_eq!(net.recv(B, server), b"question");
    net.send(B, server, b"answer");
    net.run(1_000);
    assert_eq!(net.recv(A, client), b"answer");
}

#[test]
fn bulk_over_a_plain_port_is_cut_and_summed_here() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 3_000_000);
    assert_eq!(net.shards[B].counters().tcp_checksum, 0);
    net.transfer((B, server), (A, client), 1_000_000);
}

#[test]
fn bulk_over_an_offloading_port_leaves_in_large_units() {
    let mut net = Net::new().with_offloads();
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 5_000_000);
    let largest = net.log.iter().map(|(_, flying)| flying.bytes.len()).max();
    assert!(largest > Some(32_000), "largest unit {largest:?}");
}

#[test]
fn a_port_with_small_units_gets_whole_segments() {
    let mut net = Net::new().with_offloads();
    net.ports[A].capabilities.tx_segmentation_max = 8_000;
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 1_000_000);
    for (_, flying) in net
        .log
        .iter()
        .filter(|(side, flying)| *side == A && flying.segment_size > 0)
    {
        assert!(flying.bytes.len() <= 8_000);
    }
}

#[test]
fn streams_survive_loss_and_reordering() {
    for seed in 1..=5 {
        let mut net = Net::new();
        let mut random = Random(seed * 7919);
        net.hand = Box::new(move |_, _| random.below(50) != 0);
        let listener = net.listen(80, 16);
        let client = net.connect(80);
        net.run(10_000_000);
        let server = net.shards[B]
            .accept(listener)
            .expect("connected in spite of loss");
        net.transfer((A, client), (B, server), 500_000);
        net.transfer((B, server), (A, client), 200_000);
    }
}

#[test]
fn c2_corrupted_segments_are_dropped_and_counted() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    let mut random = Random(99);
    net.hand = Box::new(move |_, flying| {
        if flying.bytes.len() > 200 && random.below(30) == 0 {
            let at = 60 + random.below(flying.bytes.len() as u64 - 60) as usize;
            flying.bytes[at] ^= 1 << random.below(8);
        }
        true
    });
    net.transfer((A, client), (B, server), 500_000);
    assert!(net.shards[B].counters().tcp_checksum > 3);
}

#[test]
fn a_full_port_delays_and_loses_nothing() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.ports[A].room = 1;
    net.transfer((A, client), (B, server), 200_000);
    assert!(net.shards[A].counters().egress_full > 10);
    // A tail probe or two may go off because the port is slower than the path was; no loss is seen.
    let again = net.shards[A]
        .tcp_info(client, net.now())
        .unwrap()
        .segments_retransmitted;
    assert!(again < 5, "{again}");
}

#[test]
fn a_full_port_is_no_reason_to_spin() {
    let mut net = Net::new();
    let (client, _, _) = net.pair();
    net.send(A, client, &[1; 50_000]);
    net.ports[A].room = 0;
    net.transmit(A);
    let deadline = net.shards[A].deadline();
    assert!(deadline.is_none_or(|at| at > net.now()), "{deadline:?}");
}

#[test]
fn an_idle_connection_holds_no_buffer() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 300_000);
    net.run(1_000_000);
    for side in [A, B] {
        assert_eq!(net.shards[side].usage().send_memory, 0);
        assert_eq!(net.shards[side].memory().in_use(), 0);
    }
    assert_eq!(net.view(B, server).ring, None);
}

#[test]
fn a_small_message_takes_a_small_ring() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.send(A, client, b"hello");
    assert_eq!(net.shards[A].usage().send_memory, 4096);
    net.run(1_000);
    assert_eq!(net.view(B, server).ring.map(|ring| ring.log2), Some(12));
}

#[test]
fn t10_buffers_grow_with_the_path() {
    let mut net = Net::new().with_offloads();
    net.latency_us = 20_000;
    let (client, server, _) = net.pair();
    let first = net.transfer((A, client), (B, server), 2_000_000);
    let second = net.transfer((A, client), (B, server), 10_000_000);
    let limit = net.view(A, client).send_limit;
    assert!(limit > 256 << 10, "send buffer {limit}");
    // 64 KB a round trip would take 6 s.
    assert!(
        second < 3_000_000,
        "2 MB in {first} us, then 10 MB in {second} us"
    );
}

#[test]
fn an_ack_rides_on_the_reply_of_the_same_batch() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    for _ in 0..40 {
        net.send(A, client, b"ping");
        net.run(200);
        net.recv(B, server);
        net.send(B, server, b"pong");
        net.run(200);
        net.recv(A, client);
    }
    net.log.clear();
    net.send(A, client, b"ping");
    net.transmit(A);
    let frame = net.log[0].1.clone();
    let now = net.now();
    net.shards[B].input(&frame.as_frame(), now);
    net.send(B, server, b"pong");
    net.transmit(B);
    let out: Vec<_> = net.log[1..]
        .iter()
        .filter_map(|(_, flying)| flying.tcp())
        .collect();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].1.payload, b"pong");
}

#[test]
fn connections_take_turns() {
    let mut net = Net::new().with_offloads();
    let listener = net.listen(80, 64);
    let clients: Vec<_> = (0..8).map(|_| net.connect(80)).collect();
    net.run(10_000);
    while net.shards[B].accept(listener).is_ok() {}
    for &client in &clients {
        net.send(A, client, &[7; 60_000]);
    }
    net.log.clear();
    net.transmit(A);
    let ports: Vec<u16> = net
        .log
        .iter()
        .filter_map(|(_, flying)| flying.tcp())
        .map(|(_, segment)| segment.src_port)
        .collect();
    let distinct: std::collections::HashSet<_> = ports.iter().take(16).collect();
    assert_eq!(distinct.len(), 8, "{ports:?}");
}

#[test]
fn write_space_shows_when_a_third_is_free() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    assert!(net.view(A, client).poll().contains(Poll::OUT));
    while net.shards[A].send(client, &[1; 10_000], true).is_ok() {}
    assert!(!net.view(A, client).flags.contains(ViewFlags::WRITABLE));
    net.run(100_000);
    net.recv(B, server);
    net.run(100_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::WRITABLE));
}

#[test]
fn t1_an_answer_of_ten_segments_leaves_in_one_flight() {
    let mut net = Net::new();
    let (_, server, _) = net.pair();
    net.log.clear();
    net.send(B, server, &[1; 14_000]);
    net.transmit(B);
    let bytes: usize = net
        .log
        .iter()
        .filter_map(|(_, flying)| flying.tcp())
        .map(|(_, segment)| segment.payload.len())
        .sum();
    assert_eq!(bytes, 14_000);
}

#[test]
fn without_receive_memory_nothing_is_acknowledged_and_nothing_lost() {
    let mut net = Net::with(config(A), config(B));
    net.shards[B] = millrace_shard::Shard::new(
        config(B),
        millrace_shard::HeapMemory::new(8 << 10),
        net.now(),
    );
    let (client, server, _) = net.pair();
    net.send(A, client, &[3; 40_000]);
    net.run(500_000);
    assert!(net.shards[B].counters().receive_memory_exhausted > 0);
    let mut total = 0;
    for _ in 0..2_000 {
        total += net.recv(B, server).len();
        net.run(50_000);
    }
    assert_eq!(total, 40_000);
    assert_eq!(net.count(A, Flags::RST), 0);
}

/// A program that writes whenever there is room serves all its connections alike only if they have
/// the same room.
#[test]
fn who_sends_at_the_same_time_shares_the_room_for_it() {
    let mut large = config(B);
    large.buffers.send_default = 1 << 20;
    large.buffers.send_max = 4 << 20;
    let mut net = Net::with(config(A), large);
    let listener = net.listen(80, 64);
    for _ in 0..32 {
        net.connect(80);
    }
    net.run(10_000);
    let servers: Vec<_> = (0..32)
        .map(|_| net.shards[B].accept(listener).unwrap())
        .collect();
    let whole = vec![0; 2 << 20];
    let alone = net.send(B, servers[0], &whole);
    assert_eq!(alone, 1 << 20, "alone it has all of its buffer");
    for &server in &servers[1..] {
        net.send(B, server, &[1; 100]);
    }
    net.transmit(B);
    let now = net.now();
    for &server in &servers[1..] {
        let limit = net.view(B, server).send_limit;
        assert_eq!(limit, (4 << 20) / 32, "a part of what is comfortable");
        assert_eq!(net.shards[B].room_to_send(server), Ok(limit as usize - 100));
        assert_eq!(net.send(B, server, &whole), limit as usize - 100);
    }
    // Who has set its buffer has what it has set.
    let set = Opt::SendBuffer(500_000);
    net.shards[B].set_option(servers[1], set, now).unwrap();
    assert_eq!(net.view(B, servers[1]).send_limit, 500_000);
    let taken = (4 << 20) / 32;
    assert_eq!(net.send(B, servers[1], &whole), 500_000 - taken);
}
