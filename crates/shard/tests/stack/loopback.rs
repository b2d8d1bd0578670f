//! Traffic of a host with itself: it turns round inside the shard.

use std::net::{Ipv4Addr, SocketAddr};

use millrace_shard::{Error, Options, Reuse, SocketId, ViewFlags, errno};

use crate::net::{A, ADDRESSES, B, Net, OWNER, config};

fn pair(net: &mut Net, address: Ipv4Addr) -> (SocketId, SocketId) {
    let local = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 80);
    let listener = net.shards[A]
        .listen(OWNER, local, 16, Reuse::default())
        .unwrap();
    let now = net.now();
    let client = net.shards[A]
        .connect(
            OWNER,
            None,
            SocketAddr::new(address.into(), 80),
            &Options::default(),
            now,
        )
        .unwrap();
    net.run(1_000);
    let server = net.shards[A].accept(listener).unwrap();
    net.close(A, listener);
    (client, server)
}

#[test]
fn both_loopback_and_the_own_address_turn_round() {
    for address in [
        Ipv4Addr::LOCALHOST,
        Ipv4Addr::new(127, 3, 2, 1),
        ADDRESSES[A],
    ] {
        let mut net = Net::new();
        let (client, server) = pair(&mut net, address);
        assert_eq!(
            net.view(A, server).local,
            SocketAddr::new(address.into(), 80)
        );
        let there = net.transfer((A, client), (A, server), 3_000_000);
        let back = net.transfer((A, server), (A, client), 3_000_000);
        assert!(there.max(back) < 20_000, "3 MB in {there} and {back} us");
        assert!(net.log.is_empty(), "nothing leaves the host");
        let mss = net.shards[A].tcp_info(client, net.now()).unwrap().send_mss;
        assert!(mss > 60_000, "segment size {mss}");
        net.close(A, client);
        net.close(A, server);
        net.assert_clean();
    }
}

#[test]
fn zero_is_this_host() {
    let mut net = Net::new();
    let (client, _) = pair(&mut net, Ipv4Addr::UNSPECIFIED);
    assert_eq!(net.view(A, client).remote.ip(), Ipv4Addr::LOCALHOST);
}

#[test]
fn a_port_without_listener_refuses() {
    let mut net = Net::new();
    let now = net.now();
    let remote = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let client = net.shards[A]
        .connect(OWNER, None, remote, &Options::default(), now)
        .unwrap();
    net.run(1_000);
    assert_eq!(net.shards[A].take_error(client), errno::ECONNREFUSED);
}

#[test]
fn a_socket_may_connect_to_itself() {
    let mut net = Net::new();
    let itself = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 5000);
    let now = net.now();
    let id = net.shards[A]
        .connect(OWNER, Some(itself), itself, &Options::default(), now)
        .unwrap();
    net.run(1_000);
    assert!(net.view(A, id).flags.contains(ViewFlags::CONNECTED));
    net.send(A, id, b"echo");
    net.run(1_000);
    assert_eq!(net.recv(A, id), b"echo");
    net.close(A, id);
    net.assert_clean();
}

#[test]
fn work_in_one_call_is_bounded_and_the_rest_is_announced() {
    let mut net = Net::new();
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 80);
    let listener = net.shards[A]
        .listen(OWNER, local, 4000, Reuse::default())
        .unwrap();
    let now = net.now();
    for _ in 0..500 {
        net.shards[A]
            .connect(OWNER, None, local, &Options::default(), now)
            .unwrap();
    }
    net.transmit(A);
    assert!(net.view(A, listener).pending_accepts < 500);
    assert!(net.shards[A].deadline().unwrap() <= now);
    net.run(1_000);
    assert_eq!(net.view(A, listener).pending_accepts, 500);
}

#[test]
fn without_loopback_the_own_host_is_out_of_reach() {
    let mut quiet = config(A);
    quiet.loopback = false;
    let mut net = Net::with(quiet, config(B));
    let now = net.now();
    for address in [Ipv4Addr::LOCALHOST, ADDRESSES[A]] {
        let remote = SocketAddr::new(address.into(), 80);
        let refused = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
        assert_eq!(refused, Err(Error::NetworkUnreachable));
    }
}
