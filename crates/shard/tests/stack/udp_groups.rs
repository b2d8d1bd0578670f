//! Groups: RFC 1112, RFC 2236, RFC 3810, and what sockets hear of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{Error, Opt, Reuse, SocketId};
use millrace_wire::checksum::Sum;
use millrace_wire::ethernet::{self, Mac};
use millrace_wire::igmp::{self, Message};
use millrace_wire::{ipv4, ipv6};

use crate::datagrams::{ANY, ANY6, packet, to};
use crate::net::{A, ADDRESSES, B, Net};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);
const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff15, 0, 0, 0, 0, 0, 0, 0x99);

fn shared(net: &mut Net, side: usize, address: IpAddr) -> SocketId {
    let reuse = Reuse {
        address: true,
        port: false,
    };
    net.try_udp_at(side, address, 5353, reuse).expect("bind")
}

fn join(net: &mut Net, side: usize, id: SocketId, group: impl Into<IpAddr>) {
    let now = net.now();
    net.shards[side].join(id, group.into(), now).expect("join");
}

/// IGMP messages that a side has sent, with where they went.
fn igmp_from(net: &Net, from: usize) -> Vec<(Ipv4Addr, u8, Message)> {
    let sent = net.log.iter().filter(|(side, _)| *side == from);
    sent.filter_map(|(_, flying)| {
        let (link, bytes) = ethernet::Header::parse(&flying.bytes).ok()?;
        let (header, _, payload) = ipv4::Header::parse(bytes).ok()?;
        assert!(header.protocol != igmp::PROTOCOL || link.dst.is_multicast());
        let message = (header.protocol == igmp::PROTOCOL).then(|| Message::parse(payload));
        Some((header.dst, header.ttl, message?.ok()?))
    })
    .collect()
}

#[test]
fn rfc1112_7_2_members_hear_a_group_and_others_do_not() {
    let mut net = Net::new();
    let (one, two) = (shared(&mut net, B, ANY), shared(&mut net, B, GROUP.into()));
    let client = net.udp_at(A, ANY, 5000);
    let end = SocketAddr::new(GROUP.into(), 5353);
    net.say(A, client, to(end), b"nobody").unwrap();
    net.run(10_000);
    assert_eq!((net.hears(B, one), net.hears(B, two)), (None, None));
    join(&mut net, B, one, GROUP);
    net.run(10_000);
    net.say(A, client, to(end), b"all").unwrap();
    net.run(10_000);
    let (record, bytes) = net.hear(B, one).unwrap();
    assert_eq!(
        (&bytes[..], record.to, record.hops),
        (&b"all"[..], GROUP.into(), 1)
    );
    assert_eq!(
        net.hears(B, two).unwrap(),
        b"all",
        "what another has joined"
    );
    let now = net.now();
    let only_own = Opt::MulticastAll(false);
    net.shards[B].set_option(two, only_own, now).unwrap();
    net.say(A, client, to(end), b"members").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, one).unwrap(), b"members");
    assert_eq!(net.hears(B, two), None);
    assert_eq!(net.shards[B].counters().icmp_errors_out, 0);
}

#[test]
fn rfc1112_6_1_a_member_on_this_host_hears_unless_told_not_to() {
    let mut net = Net::new();
    let id = shared(&mut net, A, ANY);
    join(&mut net, A, id, GROUP);
    let end = SocketAddr::new(GROUP.into(), 5353);
    net.say(A, id, to(end), b"here").unwrap();
    assert_eq!(net.hears(A, id).unwrap(), b"here");
    let now = net.now();
    let quiet = Opt::MulticastLoop(false);
    net.shards[A].set_option(id, quiet, now).unwrap();
    net.say(A, id, to(end), b"not here").unwrap();
    assert_eq!(net.hears(A, id), None);
}

#[test]
fn rfc2236_3_a_membership_is_reported_twice_and_its_end_once() {
    let mut net = Net::new();
    let (one, two) = (shared(&mut net, A, ANY), shared(&mut net, A, ANY));
    join(&mut net, A, one, GROUP);
    join(&mut net, A, two, GROUP);
    net.run(60_000_000);
    let report = (GROUP, 1, Message::Report(GROUP));
    assert_eq!(igmp_from(&net, A), [report, report]);
    let now = net.now();
    net.shards[A].leave(one, GROUP.into(), now).unwrap();
    net.run(1_000_000);
    assert_eq!(igmp_from(&net, A).len(), 2, "another member is left");
    net.close(A, two);
    net.run(1_000_000);
    let last = igmp_from(&net, A)[2];
    assert_eq!(last, (igmp::ALL_ROUTERS, 1, Message::Other));
    net.close(A, one);
    net.assert_clean();
}

fn query(group: Ipv4Addr, tenths: u8) -> Vec<u8> {
    let mut message = vec![0x11, tenths, 0, 0];
    message.extend_from_slice(&group.octets());
    let sum = Sum::of(&message).finish();
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = packet(
        ADDRESSES[B],
        igmp::ALL_HOSTS,
        &message,
        Mac::of_group_v4(igmp::ALL_HOSTS),
    );
    let header = ethernet::HEADER_LEN;
    bytes[header + 9] = igmp::PROTOCOL;
    bytes[header + 10..header + 12].fill(0);
    let sum = Sum::of(&bytes[header..header + ipv4::HEADER_LEN]).finish();
    bytes[header + 10..header + 12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

#[test]
fn rfc2236_3_a_query_is_answered_in_time() {
    let mut net = Net::new();
    let id = shared(&mut net, A, ANY);
    join(&mut net, A, id, GROUP);
    net.run(60_000_000);
    let before = igmp_from(&net, A).len();
    for (group, answers) in [
        (Ipv4Addr::UNSPECIFIED, 1),
        (GROUP, 2),
        (Ipv4Addr::new(239, 9, 9, 9), 2),
    ] {
        net.inject(A, &query(group, 20));
        net.run(2_000_000);
        assert_eq!(igmp_from(&net, A).len() - before, answers);
    }
    let mut damaged = query(GROUP, 20);
    damaged[ethernet::HEADER_LEN + ipv4::HEADER_LEN + 5] ^= 1;
    net.inject(A, &damaged);
    assert_eq!(net.shards[A].counters().igmp_dropped, 1);
}

#[test]
fn rfc3810_6_1_groups_of_ipv6_are_reported_and_heard() {
    let mut net = Net::v6();
    let id = shared(&mut net, B, ANY6);
    let before = net.shards[B].counters().mld_reports_out;
    join(&mut net, B, id, GROUP_V6);
    net.run(3_000_000);
    assert_eq!(net.shards[B].counters().mld_reports_out, before + 2);
    let client = net.udp_at(A, ANY6, 5000);
    let end = SocketAddr::new(GROUP_V6.into(), 5353);
    net.say(A, client, to(end), b"six").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, id).unwrap(), b"six");
    let now = net.now();
    net.shards[B].leave(id, GROUP_V6.into(), now).unwrap();
    net.run(10_000);
    assert_eq!(net.shards[B].counters().mld_reports_out, before + 3);
    let left = net.log.iter().rev().find_map(|(side, flying)| {
        let (header, payload) = flying.v6()?;
        (*side == B && header.next_header == ipv6::HOP_BY_HOP).then(|| payload.to_vec())
    });
    // Hop-by-hop header, ICMPv6 header, then the kind of the record: CHANGE_TO_INCLUDE_MODE.
    assert_eq!(left.unwrap()[16], 3);
    net.say(A, client, to(end), b"none").unwrap();
    net.run(10_000);
    assert_eq!(net.hears(B, id), None);
}

#[test]
fn membership_is_refused_as_on_linux() {
    let mut net = Net::new();
    let id = shared(&mut net, A, ANY);
    let now = net.now();
    let shard = &mut net.shards[A];
    assert_eq!(
        shard.join(id, ADDRESSES[B].into(), now),
        Err(Error::Invalid)
    );
    assert_eq!(
        shard.leave(id, GROUP.into(), now),
        Err(Error::AddressNotAvailable)
    );
    for number in 0..20 {
        shard
            .join(id, Ipv4Addr::new(239, 0, 0, number).into(), now)
            .unwrap();
    }
    assert_eq!(
        shard.join(id, Ipv4Addr::new(239, 0, 0, 7).into(), now),
        Err(Error::AddressInUse)
    );
    assert_eq!(shard.join(id, GROUP.into(), now), Err(Error::NoMemory));
    net.close(A, id);
    net.assert_clean();
}
