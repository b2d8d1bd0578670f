//! Active opens: which port they get, and what they owe to the connection that had it before.

use std::net::SocketAddr;

use millrace_shard::{Error, Opt, OptName, Options, SocketId, ViewFlags};
use millrace_wire::tcp::{Flags, Seq};

use crate::net::{A, ADDRESSES, B, Net, OWNER};

/// Connects from a port that the program has chosen.
fn connect_from(net: &mut Net, local: SocketAddr) -> Result<SocketId, Error> {
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    let options = Options {
        reuse: millrace_shard::Reuse {
            address: true,
            port: false,
        },
        ..Options::default()
    };
    let now = net.now();
    net.shards[A].connect(OWNER, Some(local), remote, &options, now)
}

/// The number after the last that A has used.
fn end_of(net: &Net) -> Seq {
    let (_, last) = net
        .log
        .iter()
        .rev()
        .filter(|(side, _)| *side == A)
        .find_map(|(_, flying)| flying.tcp())
        .expect("A has sent something");
    last.seq + last.sequence_len()
}

/// The old connection has sent faster than the clock of initial sequence numbers goes: the new one
/// begins beyond it all the same, or its peer would take it for an old duplicate.
#[test]
fn rfc6191_2_a_connection_begins_beyond_the_one_whose_place_it_takes() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let local = SocketAddr::new(ADDRESSES[A].into(), 5_000);
    let client = connect_from(&mut net, local).unwrap();
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    net.transfer((A, client), (B, server), 8_000_000);
    net.close(A, client);
    net.run(10_000);
    net.close(B, server);
    net.run(10_000);
    assert_eq!(net.shards[A].usage().time_wait, 1);
    let end = end_of(&net);
    // Not at once: by then the clock of timestamps must have moved on.
    assert_eq!(
        connect_from(&mut net, local),
        Err(Error::AddressNotAvailable)
    );
    assert_eq!(net.shards[A].counters().ports_exhausted, 1);
    net.run(1_000_000);
    net.log.clear();
    let again = connect_from(&mut net, local).unwrap();
    net.run(10_000);
    let (_, syn) = net.log[0].1.tcp().unwrap();
    assert_eq!(syn.flags & (Flags::SYN | Flags::ACK), Flags::SYN);
    assert!(syn.seq.after(end), "{:?} after {end:?}", syn.seq);
    assert!(
        net.view(A, again).flags.contains(ViewFlags::CONNECTED),
        "the peer believes it"
    );
    assert_eq!(net.shards[A].counters().time_wait_reused, 1);
    assert_eq!(net.shards[A].usage().time_wait, 0);
}

/// The peer is in TIME-WAIT as well, after a close from both ends at once.
#[test]
fn rfc9293_3_10_7_4_both_ends_leave_time_wait_for_a_new_connection() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let local = SocketAddr::new(ADDRESSES[A].into(), 5_000);
    let client = connect_from(&mut net, local).unwrap();
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    net.close(A, client);
    net.close(B, server);
    net.run(1_100_000);
    let waiting = |net: &Net| [A, B].map(|side| net.shards[side].usage().time_wait);
    assert_eq!(waiting(&net), [1, 1]);
    let again = connect_from(&mut net, local).unwrap();
    net.run(10_000);
    assert!(net.view(A, again).flags.contains(ViewFlags::CONNECTED));
    assert_eq!(waiting(&net), [0, 0]);
}

/// Linux's `IP_BIND_ADDRESS_NO_PORT`: connections to several peers may share a port, which a port
/// that is chosen before cannot.
#[test]
fn a_bind_may_leave_the_port_to_connect() {
    let mut net = Net::new();
    net.listen(80, 16);
    let now = net.now();
    let options = Options {
        address_only: true,
        ..Options::default()
    };
    let local = SocketAddr::new(ADDRESSES[A].into(), 0);
    let shard = &mut net.shards[A];
    let id = shard.bind_with(OWNER, local, &options).unwrap();
    assert_eq!(shard.view(id).unwrap().local, local);
    assert_eq!(shard.usage().ports, 0);
    assert_eq!(
        shard.option(id, OptName::AddressOnly),
        Ok(Opt::AddressOnly(true))
    );
    // A port that the program names it gets.
    let named = SocketAddr::new(ADDRESSES[A].into(), 7_000);
    let other = shard.bind_with(OWNER, named, &options).unwrap();
    assert_eq!(shard.view(other).unwrap().local, named);
    shard.close(other, now).unwrap();
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    shard.connect_bound(id, remote, now).unwrap();
    net.run(10_000);
    let view = net.view(A, id);
    assert!(view.flags.contains(ViewFlags::CONNECTED));
    assert_eq!(view.local.ip(), ADDRESSES[A]);
    assert!(view.local.port() >= 32_768);
    net.close(A, id);
    net.run(120_000_000);
    assert_eq!(net.shards[A].usage().ports, 0);
}
