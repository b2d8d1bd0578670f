//! Datagrams where several shards share one address: each socket hears all of its own, whichever shard they come to.

use std::net::SocketAddr;

use millrace_shard::{
    Arrival, Groups, Hash, HeapMemory, Options, SendTo, Shard, SocketId, Steer, Stray,
};
use millrace_tcp::Instant;

use crate::datagrams::{ANY, frame};
use crate::net::{ADDRESSES, B, Flying, OWNER, config};

const NOW: Instant = Instant::from_micros(1_000_000);

fn shards() -> [Shard<HeapMemory>; 2] {
    [0, 1].map(|own| {
        let mut config = config(B);
        config.steer = Some(Steer {
            own,
            hash: Hash::Keyed([11, 0x1234_5678_9abc_def1, 0xfeed_beef_0bad_cafe]),
            groups: Groups::even(2),
        });
        Shard::new(config, HeapMemory::new(1 << 20), NOW)
    })
}

/// A socket of the first shard at a port, and what stands in for it in the second.
fn bound(shards: &mut [Shard<HeapMemory>; 2], port: u16) -> SocketId {
    let (local, options) = (SocketAddr::new(ANY, port), Options::default());
    let id = shards[0].datagram(OWNER, &options, 0).unwrap();
    shards[0].bind_datagram(id, local, &options).unwrap();
    shards[1]
        .stand_in_datagram(OWNER, &options, 0, local)
        .unwrap();
    id
}

fn heard(shard: &mut Shard<HeapMemory>, id: SocketId) -> Option<Vec<u8>> {
    let mut out = vec![0; 2000];
    let record = shard.recv_from(id, &mut out, false).ok()?;
    out.truncate(record.payload_len as usize);
    Some(out)
}

#[test]
fn a_datagram_is_handed_to_the_shard_of_its_socket() {
    let mut shards = shards();
    let id = bound(&mut shards, 53);
    for port in 1024..1056 {
        let flying = Flying::plain(frame(port, 53, b"x", |_| {}));
        shards[1].input(&flying.as_frame(), NOW);
        let (stray, _) = shards[1].take_stray().expect("it is the other's");
        assert_eq!(stray, Stray::Shard(0, Arrival::ByPin));
        shards[0].input_handed(&flying.as_frame(), Arrival::ByPin, NOW);
        assert_eq!(shards[0].take_stray(), None);
        assert_eq!(heard(&mut shards[0], id).unwrap(), b"x");
    }
    assert_eq!(shards[1].memory().in_use(), 0);
}

#[test]
fn a_connected_socket_has_a_port_whose_answers_come_to_it() {
    let mut shards = shards();
    let remote = SocketAddr::new(ADDRESSES[0].into(), 53);
    for shard in &mut shards {
        let id = shard.datagram(OWNER, &Options::default(), 0).unwrap();
        shard.connect_datagram(id, remote).unwrap();
    }
    for own in [0, 1] {
        let id = shards[own].datagram(OWNER, &Options::default(), 0).unwrap();
        shards[own].connect_datagram(id, remote).unwrap();
        let port = shards[own].view(id).unwrap().local.port();
        let flying = Flying::plain(frame(53, port, b"answer", |_| {}));
        shards[1 - own].input(&flying.as_frame(), NOW);
        let stray = Stray::Shard(own as u16, Arrival::ByTag);
        assert_eq!(shards[1 - own].take_stray(), Some((stray, None)));
        shards[own].input_handed(&flying.as_frame(), Arrival::ByTag, NOW);
        assert_eq!(heard(&mut shards[own], id).unwrap(), b"answer");
    }
}

#[test]
fn sockets_of_two_shards_of_one_host_speak_with_each_other() {
    let mut shards = shards();
    let server = bound(&mut shards, 53);
    let [first, second] = &mut shards;
    let client = second.datagram(OWNER, &Options::default(), 0).unwrap();
    let end = SocketAddr::new(ADDRESSES[B].into(), 53);
    second.connect_datagram(client, end).unwrap();
    let say = |shard: &mut Shard<HeapMemory>, id, to, bytes: &'static [u8]| {
        let what = SendTo {
            to,
            ..SendTo::default()
        };
        let fill = |out: &mut [u8]| out.copy_from_slice(bytes);
        shard.send_to(id, &what, bytes.len(), fill, NOW).unwrap();
    };
    let carry = |from: &mut Shard<HeapMemory>, to: &mut Shard<HeapMemory>, shard| {
        let (target, bytes) = from.take_crossing().expect("it is the other's");
        assert_eq!(target, Some(shard));
        let flying = Flying::plain(bytes.clone());
        to.input_handed(&flying.as_frame(), Arrival::Local, NOW);
        from.return_crossing(bytes);
    };
    say(second, client, None, b"question");
    carry(second, first, 0);
    assert_eq!(heard(first, server).unwrap(), b"question");
    // Nonsense of any length is survived.
    for len in 0..60 {
        let flying = Flying::plain(vec![0xff; len]);
        first.input_handed(&flying.as_frame(), Arrival::Local, NOW);
    }
}
