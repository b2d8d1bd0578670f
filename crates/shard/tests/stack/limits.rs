//! Limits: the new is refused, the old is kept, a counter says so; and after everything is over
//! nothing is left.

use std::net::SocketAddr;

use millrace_shard::{Error, HeapMemory, Options, Shard};
use millrace_wire::tcp::Flags;

use crate::net::{A, ADDRESSES, B, Net, OWNER, Random, config};

#[test]
fn sockets() {
    let mut small = config(B);
    small.limits.sockets = 3;
    let mut net = Net::with(config(A), small);
    let listener = net.listen(80, 16);
    for _ in 0..4 {
        net.connect(80);
    }
    net.run(10_000);
    // Two fit beside the listener; the others stay half open until there is room.
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    assert!(net.shards[B].counters().sockets_refused >= 2);
    let now = net.now();
    let refused = net.shards[B].connect(
        OWNER,
        None,
        SocketAddr::new(ADDRESSES[A].into(), 80),
        &Options::default(),
        now,
    );
    assert_eq!(refused, Err(Error::TooManySockets));
    let first = net.shards[B].accept(listener).unwrap();
    let now = net.now();
    net.shards[B].abort(first, now).unwrap();
    net.run(5_000_000);
    assert_eq!(net.view(B, listener).pending_accepts, 2);
}

#[test]
fn time_wait() {
    let mut small = config(A);
    small.limits.time_wait = 5;
    let mut net = Net::with(small, config(B));
    let listener = net.listen(80, 64);
    for _ in 0..10 {
        let client = net.connect(80);
        net.run(1_000);
        let server = net.shards[B].accept(listener).unwrap();
        net.close(A, client);
        net.run(1_000);
        net.close(B, server);
        net.run(1_000);
    }
    assert_eq!(net.shards[A].usage().time_wait, 5);
    assert_eq!(net.shards[A].counters().time_wait_overflow, 5);
    assert_eq!(net.shards[A].usage().table, 5);
}

#[test]
fn orphans() {
    let mut small = config(A);
    small.limits.orphans = 2;
    let mut net = Net::with(small, config(B));
    net.listen(80, 64);
    let clients: Vec<_> = (0..5).map(|_| net.connect(80)).collect();
    net.run(10_000);
    for client in clients {
        net.close(A, client);
    }
    net.run(10_000);
    assert_eq!(net.shards[A].usage().orphans, 2);
    assert_eq!(net.shards[A].counters().orphans_refused, 3);
    assert_eq!(net.count(A, Flags::RST), 3);
}

#[test]
fn send_memory() {
    let mut small = config(A);
    small.limits.send_memory = 100 << 10;
    let mut net = Net::with(small, config(B));
    let listener = net.listen(80, 64);
    let clients: Vec<_> = (0..3).map(|_| net.connect(80)).collect();
    net.run(10_000);
    assert_eq!(
        net.shards[A].send(clients[0], &[1; 60_000], true),
        Ok(60_000)
    );
    assert_eq!(
        net.shards[A].send(clients[1], &[1; 60_000], true),
        Ok(32 << 10)
    );
    assert_eq!(net.shards[A].counters().send_memory_exhausted, 1);
    assert_eq!(
        net.shards[A].send(clients[2], &[1; 60_000], true),
        Ok(4 << 10)
    );
    let server = net.shards[B].accept(listener).unwrap();
    for _ in 0..100 {
        net.run(10_000);
        net.recv(B, server);
    }
    assert!(net.shards[A].send(clients[1], &[1; 10], true).is_ok());
}

#[test]
fn ephemeral_ports_run_out_and_time_wait_gives_them_back() {
    let mut net = Net::new();
    let now = net.now();
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    let all: Vec<_> = (0..28_232)
        .map(|_| {
            net.shards[A]
                .connect(OWNER, None, remote, &Options::default(), now)
                .expect("a free port")
        })
        .collect();
    let refused = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
    assert_eq!(refused, Err(Error::AddressNotAvailable));
    assert_eq!(net.shards[A].counters().ports_exhausted, 1);
    // Another destination has them all.
    let other = SocketAddr::new(ADDRESSES[B].into(), 81);
    assert!(
        net.shards[A]
            .connect(OWNER, None, other, &Options::default(), now)
            .is_ok()
    );
    let local = net.view(A, all[7]).local;
    net.close(A, all[7]);
    net.run(100);
    let again = net.shards[A]
        .connect(OWNER, None, remote, &Options::default(), now)
        .unwrap();
    assert_eq!(net.view(A, again).local, local);
}

#[test]
fn t12_time_wait_does_not_stop_a_busy_client() {
    let mut net = Net::new();
    let listener = net.listen(80, 64);
    // All ports but a few go through TIME-WAIT; the connects go on.
    let mut random = Random(3);
    let first = net.connect(80);
    net.run(1_000);
    let server = net.shards[B].accept(listener).unwrap();
    net.close(B, server);
    net.close(A, first);
    for round in 0..30_000u32 {
        let client = net.connect(80);
        net.run(220);
        let server = net.shards[B].accept(listener).expect("connected");
        net.close(A, client);
        net.run(110);
        net.close(B, server);
        net.run(110);
        net.log.clear();
        if round % 1000 == 0 {
            net.run(random.below(100_000));
        }
    }
    assert_eq!(net.shards[A].counters().ports_exhausted, 0);
    assert_eq!(net.shards[B].counters().passive_opens, 30_001);
    assert!(net.shards[A].usage().time_wait > 20_000);
    net.close(B, listener);
    net.assert_clean();
}

#[test]
fn replies() {
    let mut small = config(B);
    small.limits.replies = 10;
    let mut net = Net::with(config(A), small);
    crate::hostile::introduce(&mut net, crate::hostile::HOST);
    net.listen(80, 64);
    net.ports[B].room = 0;
    for i in 0..50 {
        net.inject(
            B,
            &crate::hostile::syn(crate::hostile::HOST, 1000 + i, 80, 1),
        );
    }
    assert_eq!(net.shards[B].counters().replies_dropped, 40);
    net.ports[B].room = 1000;
    net.transmit(B);
    assert_eq!(net.count(B, Flags::SYN), 10);
}

/// Everything at once, from seeds, with loss; then nothing is left.
#[test]
fn after_everything_is_closed_nothing_is_in_use() {
    for seed in 1..=6 {
        let mut net = Net::new();
        if seed % 2 == 0 {
            net = net.with_offloads();
        }
        let mut loss = Random(seed * 31);
        net.hand = Box::new(move |_, _| loss.below(40) != 0);
        let mut random = Random(seed);
        let listener = net.listen(80, 8);
        let mut open = [Vec::new(), Vec::new()];
        for _ in 0..1500 {
            match random.below(12) {
                0..=2 => {
                    let port = if random.below(20) == 0 { 81 } else { 80 };
                    let id = net.connect(port);
                    open[A].push(id);
                }
                3 => {
                    while let Ok(id) = net.shards[B].accept(listener) {
                        open[B].push(id);
                    }
                }
                4..=8 => {
                    let side = random.below(2) as usize;
                    if !open[side].is_empty() {
                        let id = open[side][random.below(open[side].len() as u64) as usize];
                        let _ = net.shards[side].send(
                            id,
                            &vec![1; random.below(50_000) as usize],
                            random.below(4) != 0,
                        );
                        if random.below(3) > 0 {
                            net.recv(side, id);
                        }
                    }
                }
                9 => {
                    let side = random.below(2) as usize;
                    if !open[side].is_empty() {
                        let at = random.below(open[side].len() as u64) as usize;
                        let id = open[side].swap_remove(at);
                        let now = net.now();
                        match random.below(4) {
                            0 => net.shards[side].abort(id, now).unwrap(),
                            _ => net.shards[side].close(id, now).unwrap(),
                        }
                    }
                }
                _ => net.run(random.below(20_000)),
            }
        }
        net.hand = Box::new(|_, _| true);
        for side in [A, B] {
            for id in std::mem::take(&mut open[side]) {
                net.close(side, id);
            }
        }
        net.close(B, listener);
        net.assert_clean();
    }
}

#[test]
fn the_same_calls_give_the_same_frames() {
    let run = || {
        let mut net = Net::new();
        let mut loss = Random(8);
        net.hand = Box::new(move |_, _| loss.below(30) != 0);
        net.listen(80, 8);
        let client = net.connect(80);
        net.run(5_000_000);
        let _ = net.shards[A].send(client, &[7; 60_000], true);
        net.run(5_000_000);
        net.log
            .iter()
            .map(|(side, flying)| (*side, flying.bytes.clone()))
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn an_idle_connection_is_small() {
    // The entry of a socket; its timer's node has 16 bytes, and a place in the table 17, of which
    // up to 7 in 8 are used.
    let size = Shard::<HeapMemory>::SOCKET_SIZE;
    assert!(size <= 464, "{size} bytes");
}

/// What programs left behind gives way when memory for those that are there runs out (Linux's
/// `tcp_out_of_resources`).
#[test]
fn e6_orphans_give_their_memory_up_when_it_is_short() {
    let mut small = config(A);
    small.limits.send_memory = 1 << 20;
    let mut net = Net::with(small, config(B));
    let listener = net.listen(80, 64);
    let clients: Vec<_> = (0..16).map(|_| net.connect(80)).collect();
    let last = net.connect(80);
    net.run(10_000);
    let mut accepted = Vec::new();
    while let Ok(server) = net.shards[B].accept(listener) {
        accepted.push(server);
    }
    assert_eq!(accepted.len(), 17);
    // The peers do not read. Windows fill, then the send rings, and the programs go.
    for _ in 0..20 {
        for &client in &clients[..12] {
            let _ = net.shards[A].send(client, &[1; 30_000], true);
        }
        net.run(10_000);
    }
    for &client in &clients[..12] {
        net.close(A, client);
    }
    assert_eq!(net.shards[A].counters().orphans_starved, 0);
    net.run(1_000_000);
    assert_eq!(net.shards[A].usage().orphans, 12);
    // Others want memory now: whoever is left behind is reset when next its time-out comes.
    for &client in clients[12..].iter().chain([&last]) {
        while net.shards[A].send(client, &[2; 30_000], true).is_ok() {}
    }
    assert!(net.shards[A].counters().send_memory_exhausted > 0);
    net.run(10_000_000);
    let starved = net.shards[A].counters().orphans_starved;
    assert!(
        starved > 0 && starved < 12,
        "{starved}: no more than needed"
    );
    assert_eq!(net.shards[A].usage().orphans as u64, 12 - starved);
    assert_eq!(net.count(A, Flags::RST) as u64, starved);
    // While there is memory they may take their time, but not for ever.
    net.run(600_000_000);
    assert_eq!(net.shards[A].usage().orphans, 0);
}
