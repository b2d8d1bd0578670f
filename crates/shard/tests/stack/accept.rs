//! Listeners: backlog, wildcard and specific addresses, sharing, and what becomes of those that
//! wait.

use std::net::{Ipv4Addr, SocketAddr};

use millrace_shard::{Error, How, Opt, OptName, Options, Poll, Reuse, ViewFlags, errno};
use millrace_tcp::State;
use millrace_wire::tcp::Flags;

use crate::net::{A, ADDRESSES, B, Net, OWNER};

const REUSE: Reuse = Reuse {
    address: true,
    port: false,
};
const NO_REUSE: Reuse = Reuse {
    address: false,
    port: false,
};

fn any(port: u16) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)
}

#[test]
fn the_listener_shows_what_waits_and_hands_it_over_in_order() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    assert_eq!(net.shards[B].accept(listener), Err(Error::WouldBlock));
    let clients = [net.connect(80), net.connect(80)];
    let mut changed = Vec::new();
    net.shards[B].take_changed(&mut changed);
    net.run(10_000);
    net.shards[B].take_changed(&mut changed);
    assert!(changed.contains(&listener));
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    assert_eq!(net.view(B, listener).poll(), Poll::IN);
    for client in clients {
        let server = net.shards[B].accept(listener).unwrap();
        assert_eq!(net.view(B, server).remote, net.view(A, client).local);
    }
    assert_eq!(net.view(B, listener).poll(), Poll::empty());
}

#[test]
fn e3_with_a_full_queue_the_final_ack_is_ignored_and_tried_again() {
    let mut net = Net::new();
    let listener = net.listen(80, 1);
    let clients: Vec<_> = (0..2).map(|_| net.connect(80)).collect();
    net.run(10_000);
    // Both wait: backlog 1 lets two in. Two more are stopped at their SYN.
    let late: Vec<_> = (0..2).map(|_| net.connect(80)).collect();
    net.run(10_000);
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    assert!(net.shards[B].counters().listen_overflows >= 2);
    assert_eq!(net.count(B, Flags::RST), 0);
    assert!(
        late.iter()
            .all(|&id| net.view(A, id).state == Some(State::SynSent))
    );
    for _ in 0..2 {
        net.shards[B].accept(listener).unwrap();
    }
    net.run(4_000_000);
    assert_eq!(net.view(B, listener).pending_accepts, 2);
    for id in clients.iter().chain(&late) {
        assert_eq!(net.view(A, *id).state, Some(State::Established));
    }
}

#[test]
fn e3_handshakes_that_race_for_the_last_place() {
    let mut net = Net::new();
    let listener = net.listen(80, 0);
    // All SYNs are there before the first ACK.
    let clients: Vec<_> = (0..4).map(|_| net.connect(80)).collect();
    net.run(10_000);
    assert_eq!(net.view(B, listener).pending_accepts, 1);
    assert!(net.shards[B].counters().accept_queue_full >= 3);
    let mut accepted = 0;
    for _ in 0..40 {
        while net.shards[B].accept(listener).is_ok() {
            accepted += 1;
        }
        net.run(1_000_000);
    }
    assert_eq!(accepted, 4);
    assert_eq!(net.count(B, Flags::RST), 0);
    for client in clients {
        assert_eq!(net.view(A, client).state, Some(State::Established));
    }
}

#[test]
fn c17_data_before_accept_waits_with_the_connection() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let client = net.connect(80);
    net.run(10_000);
    net.send(A, client, b"early");
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert!(net.view(B, server).poll().contains(Poll::IN));
    assert_eq!(net.recv(B, server), b"early");
}

#[test]
fn defer_accept_hands_over_with_data_or_after_its_time() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let now = net.now();
    net.shards[B]
        .set_option(listener, Opt::DeferAccept(2), now)
        .unwrap();
    assert_eq!(
        net.shards[B].option(listener, OptName::DeferAccept),
        Ok(Opt::DeferAccept(3))
    );
    let (talks, waits) = (net.connect(80), net.connect(80));
    net.run(500_000);
    assert_eq!(net.view(A, talks).state, Some(State::Established));
    assert_eq!(net.view(B, listener).pending_accepts, 0);
    net.send(A, talks, b"early");
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.recv(B, server), b"early");
    assert_eq!(net.view(B, listener).pending_accepts, 0);
    net.run(3_000_000);
    let server = net.shards[B].accept(listener).unwrap();
    assert_eq!(net.view(B, server).remote, net.view(A, waits).local);
    net.send(A, waits, b"late");
    net.run(10_000);
    assert_eq!(net.recv(B, server), b"late");
}

#[test]
fn a_connection_reset_while_it_waits_is_still_accepted() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let client = net.connect(80);
    net.run(10_000);
    let now = net.now();
    net.shards[A].abort(client, now).unwrap();
    net.run(10_000);
    let server = net.shards[B].accept(listener).unwrap();
    let mut buffer = [0; 10];
    assert_eq!(
        net.shards[B].recv(server, &mut buffer, now),
        Err(Error::Connection(errno::ECONNRESET))
    );
}

#[test]
fn closing_a_listener_resets_those_that_wait() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let client = net.connect(80);
    net.run(10_000);
    net.close(B, listener);
    net.run(10_000);
    assert_eq!(net.shards[A].take_error(client), errno::ECONNRESET);
    net.close(A, client);
    net.assert_clean();
}

#[test]
fn closing_a_listener_forgets_half_open_connections() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let client = net.connect(80);
    net.hand = Box::new(|side, flying| side == A || flying.tcp().is_none());
    net.run(10_000);
    assert_eq!(net.shards[B].usage().half_open, 1);
    net.close(B, listener);
    assert_eq!(net.shards[B].usage().half_open, 0);
    net.close(A, client);
    net.assert_clean();
}

#[test]
fn shutdown_ends_listening_and_a_second_listen_resumes() {
    let mut net = Net::new();
    let listener = net.listen(80, 16);
    let now = net.now();
    net.shards[B].shutdown(listener, How::Both, now).unwrap();
    assert_eq!(net.shards[B].accept(listener), Err(Error::Invalid));
    net.shards[B].listen_bound(listener, 5, None).unwrap();
    let client = net.connect(80);
    net.run(10_000);
    assert!(net.view(A, client).flags.contains(ViewFlags::CONNECTED));
}

#[test]
fn the_specific_address_wins_over_the_wildcard() {
    let mut net = Net::new();
    let shared = Reuse {
        address: false,
        port: true,
    };
    let wildcard = net.shards[B].listen(OWNER, any(80), 5, shared).unwrap();
    let specific = net.shards[B]
        .listen(OWNER, SocketAddr::new(ADDRESSES[B].into(), 80), 5, shared)
        .unwrap();
    net.connect(80);
    net.run(10_000);
    assert!(net.shards[B].accept(specific).is_ok());
    assert!(net.shards[B].accept(wildcard).is_err());
}

#[test]
fn an_address_is_taken_once() {
    let mut net = Net::new();
    let shard = &mut net.shards[B];
    let first = shard.listen(OWNER, any(80), 5, REUSE).unwrap();
    assert_eq!(
        shard.listen(OWNER, any(80), 5, REUSE),
        Err(Error::AddressInUse)
    );
    assert_eq!(
        shard.bind(OWNER, SocketAddr::new(ADDRESSES[B].into(), 80), REUSE),
        Err(Error::AddressInUse)
    );
    assert_eq!(
        shard.bind(OWNER, SocketAddr::new(ADDRESSES[A].into(), 81), REUSE),
        Err(Error::AddressNotAvailable)
    );
    let now = net.now();
    net.shards[B].close(first, now).unwrap();
    assert!(net.shards[B].listen(OWNER, any(80), 5, NO_REUSE).is_ok());
}

#[test]
fn two_bound_sockets_may_share_but_only_one_may_listen() {
    let mut net = Net::new();
    let shard = &mut net.shards[B];
    let first = shard.bind(OWNER, any(80), REUSE).unwrap();
    let second = shard.bind(OWNER, any(80), REUSE).unwrap();
    shard.listen_bound(first, 5, None).unwrap();
    assert_eq!(
        shard.listen_bound(second, 5, None),
        Err(Error::AddressInUse)
    );
}

#[test]
fn a_restarted_server_needs_reuse_for_its_port_in_time_wait() {
    let mut net = Net::new();
    let (client, server, listener) = net.pair();
    net.close(B, server);
    net.run(10_000);
    net.close(A, client);
    net.close(B, listener);
    net.run(10_000);
    assert_eq!(net.shards[B].usage().time_wait, 1);
    assert_eq!(
        net.shards[B].listen(OWNER, any(80), 5, NO_REUSE),
        Err(Error::AddressInUse)
    );
    assert!(net.shards[B].listen(OWNER, any(80), 5, REUSE).is_ok());
}

#[test]
fn port_zero_gives_each_its_own() {
    let mut net = Net::new();
    let ids: Vec<_> = (0..100)
        .map(|_| net.shards[B].bind(OWNER, any(0), NO_REUSE).unwrap())
        .collect();
    let ports: std::collections::HashSet<u16> =
        ids.iter().map(|&id| net.view(B, id).local.port()).collect();
    assert_eq!(ports.len(), 100);
}

#[test]
fn a_bound_socket_connects_from_its_port() {
    let mut net = Net::new();
    net.listen(80, 16);
    let now = net.now();
    let id = net.shards[A].bind(OWNER, any(4444), REUSE).unwrap();
    net.shards[A]
        .connect_bound(id, SocketAddr::new(ADDRESSES[B].into(), 80), now)
        .unwrap();
    assert_eq!(
        net.shards[A].connect_bound(id, SocketAddr::new(ADDRESSES[B].into(), 80), now),
        Err(Error::InProgress)
    );
    net.run(10_000);
    assert_eq!(
        net.shards[A].connect_bound(id, SocketAddr::new(ADDRESSES[B].into(), 80), now),
        Err(Error::AlreadyConnected)
    );
    assert_eq!(
        net.view(A, id).local,
        SocketAddr::new(ADDRESSES[A].into(), 4444)
    );
    let local = Some(SocketAddr::new(ADDRESSES[A].into(), 4444));
    let options = Options {
        reuse: REUSE,
        ..Options::default()
    };
    let again = net.shards[A].connect(
        OWNER,
        local,
        SocketAddr::new(ADDRESSES[B].into(), 80),
        &options,
        now,
    );
    assert_eq!(again, Err(Error::AddressNotAvailable));
}

#[test]
fn reuse_port_spreads_connections_over_listeners() {
    let mut net = Net::new();
    let shared = Reuse {
        address: false,
        port: true,
    };
    let listeners: Vec<_> = (0..4)
        .map(|_| net.shards[B].listen(OWNER, any(80), 500, shared).unwrap())
        .collect();
    for _ in 0..200 {
        net.connect(80);
    }
    net.run(100_000);
    let waiting: Vec<u32> = listeners
        .iter()
        .map(|&id| net.view(B, id).pending_accepts)
        .collect();
    assert_eq!(waiting.iter().sum::<u32>(), 200);
    assert!(waiting.iter().all(|&count| count > 20), "{waiting:?}");
}
