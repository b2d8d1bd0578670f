//! Buckets of flows go from one shard to another while traffic flows.
//!
//! 1. The new owner is told ([`Shard::expect`]). From then on frames for these buckets wait there
//!    ([`Misrouted::Awaited`]).
//! 2. The old owner gives the buckets ([`Shard::give`]), and hands over the frames that still come.
//! 3. The new owner takes them ([`Shard::take`]), and processes the frames that waited.
//!
//! So every frame meets a shard that knows its connection. Every other shard is told at any time
//! ([`Shard::assign`]). Until then it hands frames to the old owner, which hands them on.
//!
//! The connections that move are those that a program has, or had. These stay, and are pinned:
//! connections that are being opened or have ended, connections whose port the program bound, and
//! those for which the new owner has no room. [`Shard::give_new`] moves only the buckets, for new
//! flows, and pins all flows that exist.

use std::fmt;
use std::net::SocketAddr;

use millrace_tcp::Instant;

use crate::connection_table::{Place, Tuple};
use crate::ip::reassembly::Packet;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::socket::{Kind, SocketId};
use crate::steering::{Flow, Steer};
use crate::tcp::migration::Moved;

#[cfg(doc)]
use crate::steering::Misrouted;

/// Flows and connections that one shard gives to another.
pub struct FlowBatch {
    buckets: Vec<usize>,
    streams: Vec<Moved>,
    /// Flows of these buckets that are elsewhere, and in which shard.
    pins: Vec<(Flow, u16)>,
    /// Listeners that have answered with SYN cookies, and until when these may come back.
    cookies: Vec<(SocketAddr, Instant)>,
    /// Packets of which some fragments have come.
    fragmented: Vec<Packet>,
}

/// The outcome of taking a batch.
#[derive(Default)]
pub struct Taken {
    /// Each connection by the name that it had, and the one that it has now.
    pub moved: Vec<(SocketId, SocketId)>,
    /// Those for which there was no room, to be put back where they were ([`Shard::put_back`]);
    /// they are pinned there.
    pub refused: Vec<Moved>,
}

impl fmt::Debug for FlowBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = (self.buckets.len(), self.streams.len(), self.pins.len());
        write!(
            f,
            "{} buckets, {} connections, {} pins",
            count.0, count.1, count.2
        )
    }
}

impl FlowBatch {
    /// The buckets whose flows are in it.
    pub fn buckets(&self) -> &[usize] {
        &self.buckets
    }

    /// The connections in it, by the names that they had.
    pub fn connections(&self) -> impl Iterator<Item = SocketId> {
        self.streams.iter().map(|moved| moved.id)
    }

    /// How many connections are in it.
    pub fn len(&self) -> usize {
        self.streams.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}

impl<M: Memory> Shard<M> {
    /// These buckets are about to become this shard's. Until they have been taken it begins no
    /// connection in them, and frames of their flows wait.
    pub fn expect(&mut self, buckets: &[usize]) {
        if let Some(steer) = &mut self.base.env.config.steer {
            for &bucket in buckets {
                steer.groups.release(bucket);
            }
        }
    }

    /// These buckets are another shard's from now on, and were a third one's.
    pub fn assign(&mut self, buckets: &[usize], to: u16) {
        if let Some(steer) = &mut self.base.env.config.steer {
            for &bucket in buckets {
                steer.groups.assign(bucket, to);
            }
            steer.groups.recount();
        }
    }

    /// Flows of datagram sockets that only this shard knows of.
    fn datagrams_in(&self, chosen: &impl Fn(&Tuple) -> bool) -> impl Iterator<Item = Flow> {
        let flows = self.udp.table().iter().filter(|(tuple, _)| chosen(tuple));
        flows.filter_map(|(tuple, place)| {
            let Place::Stream(index) = place else {
                return None;
            };
            match &self.base.sockets.get(index)?.kind {
                Kind::Datagram(datagram) if datagram.is_only_here() => Some(Flow::datagrams(tuple)),
                _ => None,
            }
        })
    }

    /// Whether nothing is about to leave, as after a [`Shard::transmit`] that has met no full port.
    pub fn is_quiet(&self) -> bool {
        !self.tcp.is_stalled() && self.base.network.replies.is_empty()
    }

    /// The connections that would move with these buckets.
    pub fn movable(&self, buckets: &[usize]) -> Vec<SocketId> {
        let Some(steer) = &self.base.env.config.steer else {
            return Vec::new();
        };
        let chosen = chosen(steer, buckets);
        let flows = self.tcp.table().iter().filter(|(tuple, _)| chosen(tuple));
        let streams = flows.filter_map(|(_, place)| match place {
            Place::Stream(index) if self.tcp.may_move(&self.base, index) => {
                Some(self.base.id_of(index))
            }
            _ => None,
        });
        streams.collect()
    }

    /// Gives these buckets, those of them that are this shard's, to another, which expects them,
    /// with those of the connections that `may` go. `None` unless [`Shard::is_quiet`], to be asked
    /// again then, so that nothing of a connection leaves here after the first that leaves there;
    /// and without other shards.
    pub fn give(
        &mut self,
        buckets: &[usize],
        to: u16,
        may: impl Fn(SocketId) -> bool,
    ) -> Option<FlowBatch> {
        if !self.is_quiet() {
            return None;
        }
        self.wrap(buckets, to, |shard, index| {
            shard.tcp.may_move(&shard.base, index) && may(shard.base.id_of(index))
        })
    }

    /// As [`Shard::give`], for flows to come alone: those that there are stay, and are pinned.
    /// Nothing that they are about to send is in the way. None without other shards.
    pub fn give_new(&mut self, buckets: &[usize], to: u16) -> Option<FlowBatch> {
        self.wrap(buckets, to, |_, _| false)
    }

    fn wrap(
        &mut self,
        buckets: &[usize],
        to: u16,
        may_move: impl Fn(&Self, u32) -> bool,
    ) -> Option<FlowBatch> {
        let steer = self.base.env.config.steer.as_ref()?;
        let own = steer.own;
        let mut buckets = buckets.to_vec();
        buckets.retain(|bucket| steer.groups.of_bucket(*bucket) == Some(own) && own != to);
        let chosen = chosen(steer, &buckets);
        let here: Vec<(Tuple, Place)> = self
            .tcp
            .table()
            .iter()
            .filter(|(tuple, _)| chosen(tuple))
            .collect();
        let mut pins = self.base.steering.pins_mut().take(&chosen);
        let fragmented = self.base.network.reassembly.take(&chosen);
        let mut streams = Vec::new();
        for (tuple, place) in here {
            match place {
                Place::Stream(index) if may_move(self, index) => {
                    streams.extend(self.tcp.take_out(&mut self.base, index));
                }
                _ => pins.push((Flow::stream(tuple), own)),
            }
        }
        pins.extend(self.datagrams_in(&chosen).map(|flow| (flow, own)));
        self.base.env.counters.connections_given += streams.len() as u64;
        let cookies = self.base.sockets.iter().filter_map(|(_, socket)| {
            let Kind::Listener(listener) = &socket.kind else {
                return None;
            };
            let some = listener.cookies_until > Instant::from_micros(0);
            some.then_some((listener.local, listener.cookies_until))
        });
        let cookies = cookies.collect();
        self.assign(&buckets, to);
        Some(FlowBatch {
            buckets,
            streams,
            pins,
            cookies,
            fragmented,
        })
    }

    /// Takes what another shard has given. Frames that have waited for these buckets are to be put
    /// in again, in their order.
    pub fn take(&mut self, batch: FlowBatch, from: u16, now: Instant) -> Taken {
        let Some(own) = self.base.env.config.steer.as_ref().map(|steer| steer.own) else {
            return Taken {
                moved: Vec::new(),
                refused: batch.streams,
            };
        };
        self.assign(&batch.buckets, own);
        for (flow, shard) in batch.pins {
            if shard != own {
                // They were counted where they were.
                self.base
                    .steering
                    .pins_mut()
                    .insert(flow, shard, usize::MAX);
            }
        }
        for (local, until) in batch.cookies {
            self.tcp.expect_cookies(&mut self.base, local, until);
        }
        self.base.network.reassembly.put(batch.fragmented);
        let mut taken = Taken::default();
        for moved in batch.streams {
            let (id, tuple) = (moved.id, moved.tuple());
            match self.tcp.put_in(&mut self.base, moved, now) {
                Ok(new) => taken.moved.push((id, new)),
                Err(moved) => {
                    taken.refused.push(moved);
                    if let Some(tuple) = tuple {
                        self.base
                            .steering
                            .pins_mut()
                            .insert(Flow::stream(tuple), from, usize::MAX);
                    }
                }
            }
        }
        self.base.env.counters.connections_taken += taken.moved.len() as u64;
        taken
    }

    /// Puts back what the other shard had no room for; returns old and new names. One for which
    /// there is no room here either, any more, is lost.
    pub fn put_back(&mut self, refused: Vec<Moved>, now: Instant) -> Vec<(SocketId, SocketId)> {
        let mut moved = Vec::new();
        for one in refused {
            let id = one.id;
            match self.tcp.put_in(&mut self.base, one, now) {
                Ok(new) => moved.push((id, new)),
                Err(mut lost) => {
                    self.base.env.counters.connections_lost += 1;
                    // The other shard has pinned it here.
                    if let Some(tuple) = lost.tuple() {
                        self.base.steering.note_lost(Flow::stream(tuple));
                    }
                    let owner = lost.socket.owner;
                    let stream = lost.socket.stream_mut();
                    if let Some(block) = stream.and_then(|stream| stream.recv.block()) {
                        self.base.memory.adopt(owner, block);
                        self.base.memory.free(owner, block);
                    }
                }
            }
        }
        moved
    }
}

/// Whether a flow is in one of these buckets.
fn chosen(steer: &Steer, buckets: &[usize]) -> impl Fn(&Tuple) -> bool + use<> {
    let mut which = vec![false; steer.groups.buckets()];
    for &bucket in buckets {
        if let Some(which) = which.get_mut(bucket) {
            *which = true;
        }
    }
    let (hash, groups) = (steer.hash.clone(), steer.groups.clone());
    move |tuple| which[groups.bucket(hash.tag(tuple))]
}
