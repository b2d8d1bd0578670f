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
        Capabilities::plain(millrace::Mac([2, 0, 0, 0, 0, 1]), 1500)
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

#[test]
fn each_link_has_its_own_packets_and_numbers() {
    let peer = |net| {
        Builder::new()
            .link(Link::packets(1500))
            .address(Ipv4Addr::new(10, net, 0, 2), 24)
            .manual_clock()
    };
    let own = |net| Ipv4Addr::new(10, net, 0, 1);
    let both = Builder::new()
        .link(Link::packets(1500))
        .address(own(1), 24)
        .link(Link::packets(9000))
        .address(own(2), 24)
        .manual_clock()
        .build()
        .expect("a host");
    for (link, net) in [(0, 1), (1, 2)] {
        let handle = both.on_link(link).expect("it is there");
        handle.keep_changed(true);
        let peer = peer(net).build().expect("a host");
        let listener = millrace::TcpListener::bind(&peer, "0.0.0.0:80").expect("free");
        listener.set_nonblocking(true);
        let to = SocketAddr::from(([10, net, 0, 2], 80));
        let options = Options::default();
        let id = handle.with_sockets(|sockets| {
            let id = sockets.stream(&options).expect("room");
            sockets.connect(id, to).expect("a way");
            id
        });
        while carry(&handle, &peer) + carry(&peer, &handle) > 0 {}
        let view = handle.with_sockets(|sockets| sockets.view(id));
        let view = view.expect("open");
        assert!(view.flags.contains(ViewFlags::CONNECTED));
        assert_eq!(view.local.ip(), own(net));
        assert_eq!(
            listener.accept().expect("it has come").1,
            view.local,
            "link {link}"
        );
        let mut changed = Vec::new();
        handle.take_changed(|id| changed.push(id));
        assert!(changed.contains(&id));
        let frames = handle.counters().frames_out;
        assert!(frames > 0);
        let other = both.on_link(1 - link).expect("it is there").counters();
        assert_eq!(both.counters().frames_out, frames + other.frames_out);
    }
}
