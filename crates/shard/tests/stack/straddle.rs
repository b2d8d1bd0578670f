//! What is under way, or ends, or begins anew, while its bucket of flows moves or has moved.

use std::net::SocketAddr;

use millrace_shard::{Options, SocketId};
use millrace_steer::{Pair, Tuple};

use crate::net::{A, ADDRESSES, B, OWNER};
use crate::steering::{End, World, cut_segment};

/// The bucket of a flow of the second host's, and the shard that has it.
fn bucket_of(world: &World, tuple: &Tuple) -> (usize, usize) {
    let steer = world.hosts[B].shards[0].config().steer.clone();
    let steer = steer.expect("several shards");
    let bucket = steer.groups.bucket(steer.hash.tag(tuple));
    let shard = steer.groups.of_bucket(bucket).expect("it is a bucket");
    (bucket, shard.into())
}

/// Moves a bucket from a shard to the other, for new flows alone if it is said, and waits until it
/// is there.
fn hand_over(world: &mut World, bucket: usize, from: usize, new_flows_only: bool) {
    world.hosts[B].hand_over(vec![bucket], from, 1 - from, 3, new_flows_only);
    while world.hosts[B].is_moving() {
        world.run(100);
    }
}

/// The fragments of a packet come to the shard that has the flow between its addresses. When that
/// moves between two of them they go along.
#[test]
fn rfc1122_3_3_2_fragments_before_a_move_and_after_it_are_put_together() {
    let mut world = World::new(2, 5);
    let (server, [first, second]) = cut_segment(&mut world);
    let between = Tuple::V4(Pair {
        local: ADDRESSES[B],
        remote: ADDRESSES[A],
        local_port: 0,
        remote_port: 0,
    });
    let (bucket, shard) = bucket_of(&world, &between);
    let now = world.now();
    world.hosts[B].receive(shard, &first, now);
    assert_eq!(world.hosts[B].shards[shard].usage().fragmented, 1);
    hand_over(&mut world, bucket, shard, false);
    assert_eq!(world.hosts[B].shards[shard].usage().fragmented, 0);
    assert_eq!(world.hosts[B].shards[1 - shard].usage().fragmented, 1);
    let now = world.now();
    world.hosts[B].receive(1 - shard, &second, now);
    world.run(100);
    let End { shard, id, .. } = world.current(&server).expect("nothing is on its way");
    let mut buffer = [0; 2000];
    let got = world.hosts[B].shards[shard].recv(id, &mut buffer, now);
    assert_eq!((got, &buffer[..1000]), (Ok(1000), &[7; 1000][..]));
}

/// A connection of the first host's from this port that a shard of the second host's has, and whose
/// bucket the other one has: it is pinned.
fn pinned(world: &mut World, listeners: &[SocketId], port: u16) -> (SocketId, End) {
    let (client, server) = connect(world, listeners, port);
    let tuple = Tuple::new(
        SocketAddr::from((ADDRESSES[B], 80)),
        SocketAddr::from((ADDRESSES[A], port)),
    );
    let (bucket, shard) = bucket_of(world, &tuple.expect("of one family"));
    assert_eq!(shard, server.shard);
    hand_over(world, bucket, shard, true);
    assert_eq!(world.hosts[B].shards[1 - shard].usage().pinned, 1);
    (client, server)
}

/// A connection from this port, and its other end.
fn connect(world: &mut World, listeners: &[SocketId], port: u16) -> (SocketId, End) {
    let [local, remote] = [(A, port), (B, 80)].map(|(side, port)| (ADDRESSES[side], port).into());
    let now = world.now();
    world.forget_senders();
    let client = &mut world.hosts[A].shards[0];
    let id = client.connect(OWNER, Some(local), remote, &Options::default(), now);
    world.run(1_000_000);
    let accepted = (0..2).find_map(|shard| {
        let id = world.hosts[B].shards[shard].accept(listeners[shard]);
        id.ok().map(|id| End { side: B, shard, id })
    });
    (id.expect("the port is free"), accepted.expect("it listens"))
}

fn say(world: &mut World, client: SocketId, server: End) {
    let shard = &mut world.hosts[A].shards[0];
    assert_eq!(shard.send(client, b"hello", true), Ok(5));
    world.run(1_000_000);
    let now = world.now();
    let mut buffer = [0; 100];
    let got = world.hosts[B].shards[server.shard].recv(server.id, &mut buffer, now);
    assert_eq!((got, &buffer[..5]), (Ok(5), &b"hello"[..]));
}

/// A connection that is over where it was pinned, of which its bucket's shard has not heard: the
/// next with the same ends meets nothing there, comes back, takes the pin with it, and is accepted
/// where its bucket is.
#[test]
fn a_frame_that_meets_nothing_where_it_was_pinned_comes_back() {
    let mut world = World::new(2, 4);
    world.loss = 0;
    let listeners = world.listen(B, 80);
    let (client, server) = pinned(&mut world, &listeners, 6000);
    // What is told of flows that are over waits while something moves.
    let bucket = (0..)
        .find(|bucket| {
            let steer = world.hosts[B].shards[0].config().steer.clone();
            let owner = steer.expect("several shards").groups.of_bucket(*bucket);
            owner == Some(server.shard as u16)
        })
        .expect("it has some");
    world.hosts[B].hand_over(vec![bucket], server.shard, 1 - server.shard, 1 << 20, true);
    let now = world.now();
    let shard = &mut world.hosts[B].shards[server.shard];
    shard.abort(server.id, now).unwrap();
    world.run(1_000_000);
    let now = world.now();
    world.hosts[A].shards[0].close(client, now).unwrap();
    let other = 1 - server.shard;
    assert_eq!(world.hosts[B].shards[other].usage().pinned, 1);
    let (client, again) = connect(&mut world, &listeners, 6000);
    assert_eq!(again.shard, other);
    assert_eq!(world.hosts[B].shards[other].usage().pinned, 0);
    say(&mut world, client, again);
    assert!(world.hosts[B].is_moving());
}

/// RFC 9293 3.6.1: a connection in TIME-WAIT may begin anew. It is pinned as long as it is one or
/// the other, and no longer.
#[test]
fn rfc9293_3_6_1_what_begins_anew_from_time_wait_stays_pinned() {
    let mut world = World::new(2, 4);
    world.loss = 0;
    let listeners = world.listen(B, 80);
    let (mut client, mut server) = pinned(&mut world, &listeners, 6000);
    let home = server.shard;
    let pins = |world: &World| world.hosts[B].shards[1 - home].usage().pinned;
    for _ in 0..3 {
        say(&mut world, client, server);
        // It closes first, and waits.
        world.close(server);
        world.run(100_000);
        let now = world.now();
        world.hosts[A].shards[0].close(client, now).unwrap();
        world.run(1_000_000);
        assert_eq!(world.hosts[B].shards[home].usage().time_wait, 1);
        assert_eq!(pins(&world), 1);
        (client, server) = connect(&mut world, &listeners, 6000);
        assert_eq!((server.shard, pins(&world)), (home, 1));
    }
    world.close(server);
    world.run(100_000);
    let now = world.now();
    world.hosts[A].shards[0].close(client, now).unwrap();
    world.run(300_000_000);
    assert_eq!(pins(&world), 0);
    let (client, server) = connect(&mut world, &listeners, 6000);
    assert_eq!(server.shard, 1 - home);
    say(&mut world, client, server);
}
