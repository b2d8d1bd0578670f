//! Buckets of flows move between shards while traffic flows.

use std::collections::BTreeMap;

use std::net::{Ipv6Addr, SocketAddr};

use millrace_shard::{Error, FlowBatch, Options, Reuse, Shard, SocketId, Taken, Usage};

use crate::memory::HostMemory;
use crate::net::{A, ADDRESSES, B, OWNER};
use crate::steering::{End, Moves, World, address_of, seeds, shards_of};

/// Connections to the second host, as many as are asked for, and those that its shards open, with
/// the ends there second.
fn connections(world: &mut World, seed: u64, count: u16) -> (Vec<[End; 2]>, Vec<End>) {
    let (listeners, beyond) = (world.listen(B, 80), world.listen(A, 80)[0]);
    let shards = world.hosts[B].shards.len();
    let mut ours = BTreeMap::new();
    let options = Options::default();
    for round in 0..count {
        let now = world.now();
        let (side, shard) = match round % 3 {
            0 => (B, usize::from(round) % shards),
            _ => (A, 0),
        };
        let remote = address_of(1 - side, seed);
        let stack = &mut world.hosts[side].shards[shard];
        let id = stack.connect(OWNER, None, remote, &options, now).unwrap();
        let port = stack.view(id).unwrap().local.port();
        ours.insert((side, port), End { side, shard, id });
        world.run(50);
    }
    world.restless = 0;
    world.run(20_000_000);
    let mut pairs = Vec::new();
    let mut accept = |world: &mut World, side: usize, shard: usize, listener: SocketId| {
        while let Ok(id) = world.hosts[side].shards[shard].accept(listener) {
            let view = world.hosts[side].shards[shard].view(id).unwrap();
            let theirs = ours[&(1 - side, view.remote.port())];
            let end = End { side, shard, id };
            pairs.push(if side == B {
                [theirs, end]
            } else {
                [end, theirs]
            });
        }
    };
    for (shard, listener) in listeners.iter().enumerate() {
        accept(world, B, shard, *listener);
    }
    accept(world, A, 0, beyond);
    assert_eq!(pairs.len(), usize::from(count), "seed {seed}");
    let listening = listeners.into_iter().enumerate();
    let mut listening: Vec<End> = listening
        .map(|(shard, id)| End { side: B, shard, id })
        .collect();
    listening.push(End {
        side: A,
        shard: 0,
        id: beyond,
    });
    (pairs, listening)
}

/// Closes everything, and nothing is left.
fn finish(world: &mut World, pairs: &[[End; 2]], listening: &[End], seed: u64) {
    settle(world);
    for end in pairs.iter().flatten().chain(listening) {
        world.close(*end);
    }
    world.run(3_000_000_000);
    for shard in world.hosts.iter().flat_map(|host| &host.shards) {
        assert_eq!(shard.usage(), Usage::default(), "seed {seed}");
        assert_eq!(shard.memory().in_use(), 0, "seed {seed}");
    }
}

/// Lets what is on its way arrive.
fn settle(world: &mut World) {
    world.restless = 0;
    while world.hosts[B].is_moving() {
        world.run(1_000);
    }
}

fn back(pairs: &[[End; 2]]) -> Vec<[End; 2]> {
    pairs.iter().map(|[a, b]| [*b, *a]).collect()
}

/// The sum of a counter over the second host's shards.
fn count(world: &World, name: &str) -> u64 {
    let shards = world.hosts[B].shards.iter();
    let counters = shards.flat_map(|shard| shard.counters().iter());
    counters
        .filter(|(found, _)| *found == name)
        .map(|(_, count)| count)
        .sum()
}

#[test]
fn connections_go_on_while_buckets_move_on_a_bad_link() {
    for seed in seeds() {
        let mut world = World::new(shards_of(seed), seed);
        // Some begin while theirs move.
        world.restless = 300;
        let (pairs, listening) = connections(&mut world, seed, 24);
        world.restless = 200;
        world.transfer(&pairs, 60_000);
        world.transfer(&back(&pairs), 60_000);
        assert!(world.moves > 20, "seed {seed}: {} moves", world.moves);
        settle(&mut world);
        let moved = count(&world, "connections_taken");
        assert!(moved > 20, "seed {seed}: {moved} connections");
        assert_eq!(count(&world, "connections_given"), moved, "seed {seed}");
        finish(&mut world, &pairs, &listening, seed);
    }
}

/// On a link that keeps order and loses nothing every segment is sent once, so nothing was lost or
/// overtaken on the way.
#[test]
fn a_hand_over_loses_and_reorders_nothing() {
    for seed in seeds() {
        let mut world = World::new(shards_of(seed), seed);
        (world.loss, world.jitter, world.any_queue) = (0, 1, false);
        let (pairs, listening) = connections(&mut world, seed, 12);
        world.restless = 700;
        world.transfer(&pairs, 1_000_000);
        world.transfer(&back(&pairs), 1_000_000);
        settle(&mut world);
        assert!(world.moves > 10, "seed {seed}: {} moves", world.moves);
        let now = world.now();
        for shard in world.hosts.iter_mut().flat_map(|host| &mut host.shards) {
            shard.for_each_socket(now, |socket| {
                let again = socket
                    .tcp
                    .as_ref()
                    .map_or(0, |tcp| tcp.segments_retransmitted);
                assert_eq!(again, 0, "seed {seed}: {}", socket.local);
            });
        }
        finish(&mut world, &pairs, &listening, seed);
    }
}

/// Buckets move for flows to come, and every connection stays where it is: pinned, wherever its
/// bucket goes, until it is over.
#[test]
fn connections_stay_where_they_are_while_buckets_move_for_new_ones() {
    for seed in seeds() {
        let mut world = World::new(shards_of(seed), seed);
        world.moves_of = Moves::NewFlows;
        world.restless = 300;
        let (pairs, listening) = connections(&mut world, seed, 24);
        world.restless = 200;
        world.transfer(&pairs, 60_000);
        world.transfer(&back(&pairs), 60_000);
        settle(&mut world);
        assert!(world.moves > 20, "seed {seed}: {} moves", world.moves);
        assert_eq!(count(&world, "connections_given"), 0, "seed {seed}");
        let pinned = world.hosts[B]
            .shards
            .iter()
            .map(|shard| shard.usage().pinned);
        assert!(pinned.sum::<usize>() > 0, "seed {seed}");
        finish(&mut world, &pairs, &listening, seed);
    }
}

/// Both kinds of moves, in any order.
#[test]
fn buckets_move_with_their_connections_or_without() {
    for seed in seeds() {
        let mut world = World::new(shards_of(seed), seed);
        world.moves_of = Moves::Either;
        world.restless = 300;
        let (pairs, listening) = connections(&mut world, seed, 24);
        world.restless = 200;
        world.transfer(&pairs, 60_000);
        world.transfer(&back(&pairs), 60_000);
        finish(&mut world, &pairs, &listening, seed);
    }
}

/// A shard with room for a listener and two connections, to which the first one gives all that it
/// has; how many connections that is, and what has become of it.
fn give_too_much(world: &mut World) -> (Shard<HostMemory>, usize, Taken) {
    let (pairs, _) = connections(world, 4, 12);
    let now = world.now();
    let mut config = world.hosts[B].shards[1].config().clone();
    config.limits.sockets = 3;
    let few = pairs.iter().filter(|[_, end]| end.shard == 0).count();
    assert!(few > 3);
    let mut small = Shard::new(config, HostMemory::new(1 << 20, false), now);
    let local = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 80));
    small.listen(OWNER, local, 64, Reuse::default()).unwrap();
    let buckets = buckets_of(world, 0);
    small.expect(&buckets);
    let batch = give(world, &buckets);
    let total = batch.len();
    let taken = small.take(batch, 0, now);
    assert_eq!((taken.moved.len(), taken.refused.len()), (2, total - 2));
    assert_eq!(small.usage().pinned, total - 2);
    (small, total, taken)
}

/// What the other shard has no room for stays where it is, under another name, and its flow is
/// pinned.
#[test]
fn what_there_is_no_room_for_stays() {
    let mut world = World::new(2, 4);
    let (_, total, taken) = give_too_much(&mut world);
    let now = world.now();
    let names = world.hosts[B].shards[0].put_back(taken.refused, now);
    assert_eq!(names.len(), total - 2);
    for (old, new) in names {
        let shard = &mut world.hosts[B].shards[0];
        assert!(shard.view(old).is_none() && shard.view(new).is_some());
    }
}

/// What there is no room for any more where it was, either, is over, and its pins go.
#[test]
fn what_there_is_no_room_for_anywhere_is_lost() {
    let mut world = World::new(2, 4);
    let (mut small, total, taken) = give_too_much(&mut world);
    let now = world.now();
    assert_eq!(small.put_back(taken.refused, now), []);
    let lost = |(name, count)| (name == "connections_lost").then_some(count);
    assert_eq!(
        small.counters().iter().find_map(lost),
        Some(total as u64 - 2)
    );
    let over = small.take_unpinned();
    assert_eq!(over.len(), total - 2);
    for flow in over {
        small.unpin(&flow, 0);
    }
    assert_eq!(small.usage().pinned, 0);
}

fn buckets_of(world: &World, shard: usize) -> Vec<usize> {
    let steer = world.hosts[B].shards[shard].config().steer.clone();
    let groups = steer.expect("several shards").groups;
    (0..groups.buckets())
        .filter(|bucket| groups.of_bucket(*bucket) == Some(shard as u16))
        .collect()
}

/// What the first shard gives the second.
fn give(world: &mut World, buckets: &[usize]) -> FlowBatch {
    let batch = world.hosts[B].shards[0].give(buckets, 1, |_| true);
    batch.expect("nothing is about to leave")
}

/// While a bucket is on its way nobody opens a connection that may be in it.
#[test]
fn what_is_awaited_is_nobodys() {
    let mut world = World::new(2, 6);
    let remote = address_of(A, 6);
    let buckets = buckets_of(&world, 0);
    world.hosts[B].shards[1].expect(&buckets);
    let now = world.now();
    let shard = &mut world.hosts[B].shards[1];
    let mut refused = 0;
    for port in 5000..5032 {
        let local = SocketAddr::from((ADDRESSES[B], port));
        let id = shard.bind(OWNER, local, Reuse::default()).unwrap();
        // It belongs to no other shard that could be asked.
        assert_eq!(shard.must_pin(id, remote), None);
        match shard.connect_bound(id, remote, now) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, Error::AddressNotAvailable);
                refused += 1;
            }
        }
    }
    assert!((8..24).contains(&refused), "{refused} of 32");
    // Of its own there are enough.
    let options = Options::default();
    for _ in 0..32 {
        shard.connect(OWNER, None, remote, &options, now).unwrap();
    }
}

#[test]
fn a_parcel_goes_from_thread_to_thread() {
    fn is_send<T: Send>() {}
    is_send::<FlowBatch>();
}
