//! What bindings for other languages are made of.

use std::net::{Ipv4Addr, SocketAddr};

use millrace::{
    Builder, Capabilities, ChecksumState, Egress, Frame, Instant, Link, Offload, Options, Stack,
    ViewFlags,
};

/// Takes packets out of their frames.
#[derive(Default)]
struct Packets(Vec<Vec<u8>>);

impl Egress for Packets {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> bool {
        assert_eq!(offload, Offload::None);
        assert_eq!(head[12..14], [8, 0], "IPv4, and nobody is asked for");
        self.0.push([&head[14..], payload[0], payload[1]].concat());
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: millrace::Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            tx_checksum: false,
            tx_segmentation_max: 0,
            rx_aggregated: false,
            trusted_checksum: false,
            queues: 1,
        }
    }
}

fn host(last: u8) -> Stack {
    Builder::new()
        .link(Link::packets(1500))
        .address(Ipv4Addr::new(10, 0, 0, last), 24)
        .manual_clock()
        .secret([last; 32])
        .build()
        .expect("a host")
}

/// Carries what one host has to say to the other; returns how many packets that was.
fn carry(from: &Stack, to: &Stack) -> usize {
    let mut packets = Packets::default();
    from.transmit(&mut packets);
    for packet in &packets.0 {
        let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0xfe, 8, 0];
        to.input(&Frame {
            bytes: &[&head, &packet[..]].concat(),
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        });
    }
    packets.0.len()
}

#[test]
fn packets_without_frames_carry_a_connection() {
    let (one, two) = (host(1), host(2));
    two.keep_changed(true);
    let at: SocketAddr = (Ipv4Addr::new(10, 0, 0, 2), 80).into();
    let options = Options::default();
    let listener = two.with_sockets(|sockets| {
        let id = sockets.bind(at, &options).expect("free");
        sockets.listen(id, 1).expect("bound");
        id
    });
    let client = one.with_sockets(|sockets| {
        let id = sockets.stream(&options).expect("room");
        sockets.connect(id, at).expect("a way");
        id
    });
    one.set_now(Instant::from_micros(1000));
    two.set_now(Instant::from_micros(1000));
    while carry(&one, &two) + carry(&two, &one) > 0 {}
    let view = one
        .with_sockets(|sockets| sockets.view(client))
        .expect("open");
    assert!(view.flags.contains(ViewFlags::CONNECTED));
    let mut changed = Vec::new();
    two.take_changed(|id| changed.push(id));
    assert!(changed.contains(&listener), "{changed:?}");
    let accepted = two.with_sockets(|sockets| sockets.accept(listener));
    assert!(accepted.is_ok());
    two.take_changed(|id| assert_ne!(id, listener, "it was told before"));
}

#[test]
fn the_callers_link_has_one_shard() {
    let part = |shards| {
        Builder::new()
            .link(Link::packets(1500))
            .address(Ipv4Addr::new(10, 0, 0, 1), 24)
            .parts(shards)
    };
    assert_eq!(part(1).expect("one").len(), 1);
    assert!(part(2).is_err());
    assert!(part(0).is_err());
}
