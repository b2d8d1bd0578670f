//! What several programs share in a shard is divided so that none takes what the others need; and
//! bytes out of order give way where memory is short.

use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use millrace_shard::{Error, HeapMemory, Options, Owner, Reuse, Shard, SocketId};
use millrace_wire::tcp::Flags;

use crate::hostile::{HOST, introduce, syn};
use crate::net::{A, ADDRESSES, B, Net, OWNER, config, pattern};

/// The program that takes all that it can; [`OWNER`] is the other one.
const HOG: Owner = Owner(0);

fn shared(side: usize) -> millrace_shard::Config {
    let mut config = config(side);
    config.limits.shared = true;
    config
}

fn connect(net: &mut Net, owner: Owner, to: Ipv4Addr, port: u16) -> SocketId {
    let now = net.now();
    let remote = SocketAddr::new(to.into(), port);
    net.shards[A]
        .connect(owner, None, remote, &Options::default(), now)
        .expect("connect")
}

#[test]
fn a_flood_at_one_programs_listener_leaves_room_for_half_open_connections_of_others() {
    let mut small = shared(B);
    small.limits.half_open = 300;
    let mut net = Net::with(config(A), small);
    let any = |port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
    net.shards[B]
        .listen(HOG, any(80), 64, Reuse::default())
        .unwrap();
    net.listen(81, 64);
    introduce(&mut net, HOST);
    for port in 1..1_000 {
        net.inject(B, &syn(HOST, port, 80, 7));
    }
    assert_eq!(net.shards[B].usage().half_open, 200);
    assert_eq!(net.shards[B].counters().half_open_limited, 799);
    let cookies = net.shards[B].counters().cookies_sent;
    for port in 1..50 {
        net.inject(B, &syn(HOST, port, 81, 7));
    }
    assert_eq!(net.shards[B].usage().half_open, 249);
    assert_eq!(net.shards[B].counters().cookies_sent, cookies);
}

#[test]
fn orphans_of_one_program_do_not_make_anothers_connections_be_reset() {
    let mut small = shared(A);
    small.limits.orphans = 9;
    let mut net = Net::with(small, config(B));
    net.listen(80, 64);
    let hogs: Vec<_> = (0..20)
        .map(|_| connect(&mut net, HOG, ADDRESSES[B], 80))
        .collect();
    let others: Vec<_> = (0..2).map(|_| net.connect(80)).collect();
    net.run(10_000);
    for id in hogs.into_iter().chain(others) {
        net.close(A, id);
    }
    net.run(10_000);
    assert_eq!(net.shards[A].counters().orphans_refused, 14);
    assert_eq!(net.shards[A].usage().orphans, 8);
    assert_eq!(net.count(A, Flags::RST), 14, "of the first program alone");
}

#[test]
fn a_program_that_binds_every_port_leaves_some_to_others() {
    let mut small = shared(A);
    small.ephemeral = Some((40_000..40_090).collect());
    let mut net = Net::with(small, config(B));
    let mut bind = |owner, port| {
        let local = SocketAddr::new(ADDRESSES[A].into(), port);
        net.shards[A].bind(owner, local, Reuse::default())
    };
    let chosen: Vec<_> = std::iter::from_fn(|| bind(HOG, 0).ok()).collect();
    assert_eq!(chosen.len(), 80);
    assert_eq!(bind(HOG, 0), Err(Error::AddressInUse));
    assert_eq!(
        bind(HOG, 50_000),
        Err(Error::AddressInUse),
        "nor one that it names"
    );
    bind(HOG, 8_080).expect("a port that is chosen for nobody");
    for _ in 0..5 {
        bind(OWNER, 0).expect("a port is left");
    }
    assert_eq!(net.shards[A].counters().ports_limited, 3);
    let now = net.now();
    for id in chosen {
        net.shards[A].abort(id, now).unwrap();
    }
    let local = SocketAddr::new(ADDRESSES[A].into(), 0);
    net.shards[A].bind(HOG, local, Reuse::default()).unwrap();
}

#[test]
fn a_program_that_sends_to_every_address_leaves_others_their_neighbours() {
    let mut small = shared(A);
    small.limits.neighbours = 64;
    let mut net = Net::with(small, config(B));
    let listener = net.listen(80, 64);
    let scan = |net: &mut Net, hosts: std::ops::Range<u8>| {
        for host in hosts {
            connect(net, HOG, Ipv4Addr::new(10, 0, 0, host), 80);
            net.run(100);
        }
    };
    scan(&mut net, 10..110);
    assert_eq!(net.shards[A].usage().neighbours, 64);
    // All of them are wanted by connections, and the other program's is found all the same, and
    // stays.
    let client = net.connect(80);
    net.run(10_000);
    let server = net.shards[B].accept(listener).expect("connected");
    scan(&mut net, 110..250);
    assert!(net.shards[A].counters().neighbours_limited > 0);
    net.transfer((A, client), (B, server), 10_000);
    let arps = net.log.iter().filter_map(|(from, flying)| {
        let arp = flying.arp().filter(|_| *from == A)?;
        (arp.target_ip == ADDRESSES[B]).then_some(())
    });
    assert_eq!(arps.count(), 1, "nobody asks for it again");
}

/// RFC 2018 8: a receiver may discard what it has reported and not acknowledged; the sender keeps
/// it until it is acknowledged.
#[test]
fn rfc2018_8_what_was_dropped_for_want_of_memory_comes_again() {
    const TOTAL: u64 = 48 << 10;
    let mut net = Net::with(config(A), config(B));
    net.shards[B] = Shard::new(config(B), HeapMemory::new(160 << 10), net.now());
    let (client, server, listener) = net.pair();
    // The first segment with payload is lost, and again and again; what is behind it is stored.
    let losing = Rc::new(Cell::new(true));
    let still = losing.clone();
    net.hand = Box::new(move |from, flying| {
        !(still.get() && from == A && flying.bytes.windows(6).any(|six| six == b"first!"))
    });
    let stream: Vec<u8> = (0..TOTAL)
        .map(|at| {
            if at < 6 {
                b"first!"[at as usize]
            } else {
                pattern(at)
            }
        })
        .collect();
    net.send(A, client, &stream);
    net.run(100_000);
    let held = net.shards[B].memory().in_use();
    assert!(held > 10 << 10, "{held} bytes are stored beyond the gap");
    // Others fill what is left, in order, and find no more.
    let mut fillers = Vec::new();
    for _ in 0..6 {
        let filler = net.connect(80);
        net.run(10_000);
        fillers.push((filler, net.shards[B].accept(listener).expect("connected")));
        net.send(A, filler, &[7; 40_000]);
        net.run(100_000);
    }
    let counters = *net.shards[B].counters();
    assert!(counters.receive_memory_exhausted > 0);
    assert!(counters.out_of_order_pruned > 0);
    losing.set(false);
    let mut got = Vec::new();
    for _ in 0..3_000 {
        net.run(10_000);
        got.extend(net.recv(B, server));
        for (_, filler) in &fillers {
            net.recv(B, *filler);
        }
    }
    assert!(got == stream, "{} bytes of {TOTAL}", got.len());
    assert_eq!(net.count(A, Flags::RST) + net.count(B, Flags::RST), 0);
}

/// Send memory that a crowd has used is given back when it is gone, and a shard at rest has no
/// timer for that.
#[test]
fn memory_of_a_crowd_is_given_back() {
    let mut net = Net::with(config(A), config(B));
    let listener = net.listen(80, 1_000);
    let clients: Vec<_> = (0..400).map(|_| net.connect(80)).collect();
    net.run(100_000);
    for client in &clients {
        net.send(A, *client, &[1; 64 << 10]);
    }
    net.run(100_000);
    while let Ok(server) = net.shards[B].accept(listener) {
        net.recv(B, server);
        net.run(1_000);
        net.recv(B, server);
    }
    for client in clients {
        let now = net.now();
        net.shards[A].abort(client, now).unwrap();
    }
    net.run(20_000_000);
    assert_eq!(net.shards[A].usage().send_memory, 0);
    let given = net.shards[A].counters().memory_given_back;
    assert!(given > 2 << 20, "{given}");
    net.run(2_000_000_000);
    assert_eq!(net.shards[A].counters().memory_given_back, given);
    assert_eq!(net.shards[A].deadline(), None);
}
