//! What users of other stacks met, and single hostile inputs, as statements about the whole stack.
//! `docs/compliance/hostile.toml` has the list.

use std::collections::HashSet;
use std::net::SocketAddr;

use millrace_shard::{Error, Options};
use millrace_wire::tcp::Flags;

use crate::hostile::{HOST, introduce, segment};
use crate::net::{A, ADDRESSES, B, Flying, Net, OWNER, config};

#[test]
fn b5_identifications_of_ip_tell_nothing() {
    let mut net = Net::new();
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 100_000);
    let packets: Vec<_> = net.log.iter().filter_map(|(_, sent)| sent.tcp()).collect();
    assert!(packets.len() > 70);
    for (header, _) in packets {
        assert_eq!((header.id, header.dont_fragment), (0, true));
    }
}

#[test]
fn c16_a_syn_with_every_congestion_flag_is_answered() {
    let mut net = Net::new();
    net.listen(80, 16);
    introduce(&mut net, HOST);
    let flags = Flags::SYN | Flags::ECE | Flags::CWR;
    let answer = net.inject(
        B,
        &segment((HOST, 1000), (ADDRESSES[B], 80), 1, 0, flags, &[]),
    );
    let (_, reply) = answer[0].tcp().unwrap();
    assert!(reply.flags.contains(Flags::SYN | Flags::ACK));
}

/// The accepted socket is the client's counterpart, however often its place has been used.
#[test]
fn t5_accept_is_right_after_many_connections_on_few_places() {
    let mut small = config(B);
    small.limits.sockets = 4;
    let mut net = Net::with(config(A), small);
    let listener = net.listen(80, 16);
    // Who lives where is asked before.
    let asking = net.connect(80);
    net.run(1_000);
    let first = net.shards[B].accept(listener).unwrap();
    net.close(B, first);
    net.close(A, asking);
    net.run(1_000);
    let mut seen = HashSet::new();
    for round in 0..50_000u32 {
        let client = net.connect(80);
        net.run(220);
        let server = net.shards[B].accept(listener).expect("connected");
        assert!(seen.insert(server), "an id comes again");
        assert_eq!(net.view(B, server).remote, net.view(A, client).local);
        net.send(A, client, &round.to_be_bytes());
        net.run(120);
        assert_eq!(net.recv(B, server), round.to_be_bytes());
        let now = net.now();
        net.shards[A].abort(client, now).unwrap();
        net.run(120);
        net.close(B, server);
        net.log.clear();
    }
    assert_eq!(net.shards[B].counters().sockets_refused, 0);
    net.close(B, listener);
    net.assert_clean();
}

#[test]
fn t6_a_backlog_that_was_full_takes_connections_again() {
    let mut net = Net::new();
    let listener = net.listen(80, 2);
    let clients: Vec<_> = (0..50).map(|_| net.connect(80)).collect();
    net.run(1_000);
    for &client in &clients {
        net.send(A, client, b"request");
    }
    // Nobody accepts for a while, ...
    net.run(10_000_000);
    assert!(net.view(B, listener).pending_accepts <= 3);
    // ... then somebody does: whoever has patience comes through, and nobody waits for ever.
    let mut accepted = 0;
    for _ in 0..2_000 {
        while net.shards[B].accept(listener).is_ok() {
            accepted += 1;
        }
        net.run(100_000);
    }
    let refused = clients.iter().filter(|&&id| net.view(A, id).error != 0);
    assert_eq!(accepted + refused.count(), clients.len());
    assert!(accepted > 10, "{accepted}");
    assert_eq!(net.shards[B].usage().half_open, 0);
    // And the next ones do so at once, one after the other.
    for _ in 0..100 {
        net.connect(80);
        net.run(1_000);
        assert!(net.shards[B].accept(listener).is_ok());
    }
    assert_eq!(net.shards[B].accept(listener), Err(Error::WouldBlock));
}

#[test]
fn t11_sequence_numbers_of_one_instant_have_nothing_in_common() {
    let mut net = Net::new();
    net.pair();
    net.log.clear();
    let now = net.now();
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    for _ in 0..500 {
        net.shards[A]
            .connect(OWNER, None, remote, &Options::default(), now)
            .unwrap();
    }
    net.transmit(A);
    let number = |(_, sent): &(usize, Flying)| Some(sent.tcp()?.1.seq.0);
    let numbers: Vec<u32> = net.log.iter().filter_map(number).collect();
    assert_eq!(numbers.len(), 500);
    let distinct = |of: &dyn Fn(&[u32]) -> u32| {
        let values: HashSet<u32> = numbers.windows(2).map(of).collect();
        values.len()
    };
    // 24 bits of 500 are the same for one pair in 130 runs; the secret here is always the same.
    assert!(distinct(&|pair| pair[0] & 0xff_ffff) >= 497);
    assert!(distinct(&|pair| pair[0] >> 8) >= 497);
    assert!(distinct(&|pair| pair[1].wrapping_sub(pair[0])) >= 497);
}
