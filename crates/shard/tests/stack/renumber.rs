//! A host that has its addresses together with a kernel, and goes by what that has.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{ConflictDetection, Error, Ipv6, Network, Options, Via};
use millrace_wire::ethernet;
use millrace_wire::ndp::Message;

use crate::net::{A, ADDRESSES, ADDRESSES_V6, B, MACS, Net, OWNER, config, config_v6};

const FAR: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x80);

/// A has the kernel's addresses.
fn with_kernel() -> Net {
    let mut a = config_v6(A);
    a.conflict_detection = ConflictDetection::Kernel;
    a.ipv6 = a.ipv6.map(|ipv6| Ipv6 { probes: 0, ..ipv6 });
    let mut net = Net::with(a, config_v6(B));
    net.run(1_500_000);
    net
}

fn network() -> Network {
    Network {
        addresses: vec![(ADDRESSES[A], 24)],
        addresses_v6: vec![(ADDRESSES_V6[A], 64)],
        ..Network::default()
    }
}

fn renumber(net: &mut Net, network: Network) {
    let now = net.now();
    net.shards[A].renumber(network, now);
}

/// Neighbour discovery but for questions, and reports of groups, are the kernel's to send.
#[test]
fn rfc4861_6_3_7_who_has_the_kernels_addresses_says_nothing_of_them() {
    let mut net = with_kernel();
    net.run(60_000_000);
    let sent = net.log.iter().filter(|(from, _)| *from == A);
    assert_eq!(sent.count(), 0);
    // Asked for, it asks for others alone, and from an address of the kernel's.
    let remote = SocketAddr::new(ADDRESSES_V6[B].into(), 80);
    net.listen_v6(80);
    net.connect_to(remote);
    net.run(1_000);
    let mut said = net.log.iter().filter(|(from, _)| *from == A);
    let (header, message) = said.next().and_then(|(_, flying)| flying.ndp()).unwrap();
    assert!(matches!(message, Message::NeighbourSolicitation { .. }));
    assert_eq!(header.src, ADDRESSES_V6[A]);
}

#[test]
fn a_connection_goes_on_when_addresses_and_routes_change() {
    let mut net = with_kernel();
    let (client, server, _) = net.pair_v6();
    let mut second = network();
    second.addresses.push((Ipv4Addr::new(172, 16, 0, 1), 16));
    second.routes_v6.push(Via {
        prefix: Ipv6Addr::UNSPECIFIED,
        prefix_len: 0,
        gateway: ADDRESSES_V6[B],
    });
    renumber(&mut net, second);
    net.send(A, client, b"still here");
    net.run(10_000);
    assert_eq!(net.recv(B, server), b"still here");
    // The address is gone: nothing comes, and it is not an error; back, what was not heard is sent
    // again.
    let mut without = network();
    without.addresses_v6.clear();
    renumber(&mut net, without);
    net.send(A, client, b"gone");
    net.send(B, server, b"for whom");
    net.run(500_000);
    assert_eq!((net.recv(B, server), net.recv(A, client)), (vec![], vec![]));
    renumber(&mut net, network());
    net.run(5_000_000);
    assert_eq!(net.recv(B, server), b"gone");
    assert_eq!(net.recv(A, client), b"for whom");
}

#[test]
fn rfc4861_5_2_the_next_hop_is_looked_for_anew_when_routes_change() {
    let mut net = with_kernel();
    let connect = |net: &mut Net| {
        let now = net.now();
        let far = SocketAddr::new(FAR.into(), 80);
        net.shards[A].connect(OWNER, None, far, &Options::default(), now)
    };
    assert_eq!(connect(&mut net), Err(Error::NetworkUnreachable));
    let by = |gateway: Ipv6Addr| Network {
        routes_v6: vec![Via {
            prefix: FAR,
            prefix_len: 32,
            gateway,
        }],
        ..network()
    };
    renumber(&mut net, by(ADDRESSES_V6[B]));
    connect(&mut net).expect("a way");
    net.run(10_000);
    let tcp_to = |net: &Net| {
        let mut sent = net.log.iter().filter(|(from, flying)| {
            let content = flying.v6().map(|(header, _)| header.next_header);
            *from == A && content == Some(millrace_wire::tcp::PROTOCOL)
        });
        let last = sent.next_back().map(|(_, flying)| flying);
        last.map(|flying| ethernet::Header::parse(&flying.bytes).unwrap().0.dst)
    };
    assert_eq!(tcp_to(&net), Some(MACS[B]));
    // Another gateway, which is asked for by the retransmission of the SYN.
    let other: Ipv6Addr = "fe80::77".parse().unwrap();
    renumber(&mut net, by(other));
    net.log.clear();
    net.run(2_000_000);
    let asked = net.log.iter().any(|(from, flying)| {
        let is_for = |message| matches!(message, Message::NeighbourSolicitation { target, .. } if target == other);
        *from == A && flying.ndp().is_some_and(|(_, message)| is_for(message))
    });
    assert!(asked);
    assert_eq!(tcp_to(&net), None, "nothing by the way that was");
}

#[test]
fn a_host_may_lose_its_last_address() {
    let mut a = config(A);
    a.conflict_detection = ConflictDetection::Kernel;
    let mut net = Net::with(a, config(B));
    let (client, server, _) = net.pair();
    renumber(&mut net, Network::default());
    net.send(A, client, b"x");
    net.run(1_000_000);
    assert_eq!(net.recv(B, server), b"");
    let now = net.now();
    let remote = SocketAddr::new(ADDRESSES[B].into(), 80);
    let refused = net.shards[A].connect(OWNER, None, remote, &Options::default(), now);
    assert_eq!(refused, Err(Error::NetworkUnreachable));
    renumber(&mut net, network());
    net.run(5_000_000);
    assert_eq!(net.recv(B, server), b"x");
}
