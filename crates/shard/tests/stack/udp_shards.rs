//! Datagrams where several shards share one address: each socket hears all of its own, whichever
//! shard they come to.

use std::net::SocketAddr;

use millrace_shard::{
    Arrival, Groups, Hash, HeapMemory, Misrouted, Options, SendTo, Shard, SocketId, Steer, errno,
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
        .stand_in_datagram(OWNER, &options, (0, 0), local)
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
        let (misrouted, _) = shards[1].take_misrouted().expect("it is the other's");
        assert_eq!(misrouted, Misrouted::Shard(0, Arrival::ByPin));
        shards[0].input_handed(&flying.as_frame(), Arrival::ByPin, NOW);
        assert_eq!(shards[0].take_misrouted(), None);
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
        let misrouted = Misrouted::Shard(own as u16, Arrival::ByTag);
        assert_eq!(shards[1 - own].take_misrouted(), Some((misrouted, None)));
        shards[own].input_handed(&flying.as_frame(), Arrival::ByTag, NOW);
        assert_eq!(heard(&mut shards[own], id).unwrap(), b"answer");
    }
}

#[test]
fn a_datagram_to_nobody_on_this_host_comes_back_from_the_other_shard() {
    let [mut first, mut second] = shards();
    let end = |port| SocketAddr::new(ADDRESSES[B].into(), port);
    // Half of these flows are the other shard's by their tag: whether anybody is there it has to
    // say.
    let mut asked = 0;
    for port in 5000..5032 {
        let id = first.datagram(OWNER, &Options::default(), 0).unwrap();
        let options = Options::default();
        first.bind_datagram(id, end(port), &options).unwrap();
        first.connect_datagram(id, end(4000)).unwrap();
        let what = SendTo::default();
        first.send_to(id, &what, 1, |_| {}, NOW).unwrap();
        if let Some((to, bytes)) = first.take_crossing() {
            assert_eq!(to, Some(1));
            assert_eq!(first.view(id).unwrap().error, 0);
            let flying = Flying::plain(bytes);
            second.input_handed(&flying.as_frame(), Arrival::Local, NOW);
            let (to, bytes) = second.take_crossing().unwrap();
            assert_eq!(to, Some(0));
            let flying = Flying::plain(bytes);
            first.input_handed(&flying.as_frame(), Arrival::Local, NOW);
            asked += 1;
        }
        assert_eq!(first.view(id).unwrap().error, errno::ECONNREFUSED);
    }
    assert!((1..32).contains(&asked));
    assert_eq!(
        (first.take_crossing(), second.take_crossing()),
        (None, None)
    );
}

#[test]
fn those_that_share_a_port_share_what_comes_to_any_shard() {
    let mut shards = shards();
    let mut options = Options::default();
    options.reuse.port = true;
    let local = SocketAddr::new(ANY, 53);
    // Each is bound in its own shard first, as two programs do it at once.
    let ids = [0, 1].map(|own| {
        let id = shards[own].datagram(OWNER, &options, own as u32).unwrap();
        shards[own].bind_datagram(id, local, &options).unwrap();
        id
    });
    for own in [0u16, 1] {
        let shard = &mut shards[1 - usize::from(own)];
        let whose = (own, own.into());
        shard
            .stand_in_datagram(OWNER, &options, whose, local)
            .unwrap();
    }
    let mut counts = [0; 2];
    for port in 1024..1088 {
        let mut whose = [0, 1].map(|at: usize| {
            let flying = Flying::plain(frame(port, 53, b"x", |_| {}));
            shards[at].input(&flying.as_frame(), NOW);
            if let Some((misrouted, _)) = shards[at].take_misrouted() {
                assert_eq!(misrouted, Misrouted::Shard(1 - at as u16, Arrival::ByPin));
                shards[1 - at].input_handed(&flying.as_frame(), Arrival::ByPin, NOW);
                assert_eq!(shards[1 - at].take_misrouted(), None);
            }
            let heard = [0, 1].map(|own: usize| heard(&mut shards[own], ids[own]).is_some());
            assert_ne!(heard[0], heard[1], "exactly one hears it");
            usize::from(heard[1])
        });
        whose.sort_unstable();
        assert_eq!(whose[0], whose[1], "the same, whichever queue it came by");
        counts[whose[0]] += 1;
    }
    assert!(counts.iter().all(|count| *count > 8), "{counts:?}");
    // What is handed over when the choice has changed meanwhile is heard all the same.
    for port in 1024..1088 {
        let flying = Flying::plain(frame(port, 53, b"x", |_| {}));
        shards[1].input_handed(&flying.as_frame(), Arrival::ByPin, NOW);
        assert!(heard(&mut shards[1], ids[1]).is_some());
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
    // The client's port was chosen at connect: only its own shard knows of it, which the flow's tag
    // names.
    let back = second.view(client).unwrap().local;
    say(first, server, Some(back), b"answer");
    carry(first, second, 1);
    assert_eq!(heard(second, client).unwrap(), b"answer");
    // With another peer it may need another port for that.
    for port in 54..70 {
        let peer = SocketAddr::new(ADDRESSES[0].into(), port);
        second.connect_datagram(client, peer).unwrap();
        let local = second.view(client).unwrap().local.port();
        let flying = Flying::plain(frame(port, local, b"other", |_| {}));
        second.input(&flying.as_frame(), NOW);
        assert_eq!(heard(second, client).unwrap(), b"other");
    }
    // Nonsense of any length is survived.
    for len in 0..60 {
        let flying = Flying::plain(vec![0xff; len]);
        first.input_handed(&flying.as_frame(), Arrival::Local, NOW);
    }
}

/// The port was chosen for its flow, so no other shard stands in for the socket: its flow is pinned
/// when its bucket moves, until the socket has no such peer any more.
#[test]
fn a_connected_socket_hears_its_peer_when_its_bucket_has_moved() {
    let mut shards = shards();
    let remote = SocketAddr::new(ADDRESSES[0].into(), 53);
    let id = shards[0].datagram(OWNER, &Options::default(), 0).unwrap();
    shards[0].connect_datagram(id, remote).unwrap();
    let port = shards[0].view(id).unwrap().local.port();
    let all: Vec<usize> = (0..1024).collect();
    shards[1].expect(&all);
    let batch = shards[0].give_new(&all, 1).expect("several shards");
    shards[1].take(batch, 0, NOW);
    let flying = Flying::plain(frame(53, port, b"answer", |_| {}));
    for queue in [1, 0] {
        let handed = shards[queue].take_misrouted();
        assert_eq!(handed, None);
        shards[queue].input(&flying.as_frame(), NOW);
        if queue == 1 {
            let misrouted = Misrouted::Shard(0, Arrival::ByPin);
            assert_eq!(shards[1].take_misrouted(), Some((misrouted, None)));
            shards[0].input_handed(&flying.as_frame(), Arrival::ByPin, NOW);
        }
        assert_eq!(heard(&mut shards[0], id).unwrap(), b"answer");
    }
    // A shard without buckets opens flows all the same, and says whom to tell.
    let other = shards[0].datagram(OWNER, &Options::default(), 0).unwrap();
    shards[0].connect_datagram(other, remote).unwrap();
    let (owner, flow) = shards[0].opened_elsewhere(other).expect("it has none");
    assert_eq!((owner, flow.datagrams), (1, true));
    shards[1].pin(flow, 0).unwrap();
    assert_eq!(shards[1].usage().pinned, 2);
    for id in [id, other] {
        shards[0].close(id, NOW).unwrap();
    }
    for flow in shards[0].take_unpinned() {
        shards[1].unpin(&flow, 0);
    }
    assert_eq!(shards[1].usage().pinned, 0);
}
