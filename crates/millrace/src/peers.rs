//! The other shards of an engine: frames that came to the wrong one, and flows that one has another
//! hand over.
//!
//! They are few: what a shard sends teaches a TAP device, as it teaches a NIC that steers by flow,
//! which queue answers belong to.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use millrace_shard::{Arrival, Flow, HeapMemory, Misrouted, Shard};
use millrace_tcp::Instant;
use millrace_wire::offload::{ChecksumState, Frame};

use crate::pins::{Pins, Request};
use crate::tasks::Remote;

/// Frames that wait for one shard, from all others together; further ones are dropped.
const WAITING_MAX: usize = 1024;
/// Frames taken in one round, and requests.
const BURST: usize = 256;

/// A frame on its way from shard to shard. Its transport checksum has been verified.
struct Handed {
    bytes: Vec<u8>,
    checksum: ChecksumState,
    segment_size: u16,
    arrival: Arrival,
}

struct Peer {
    frames: SyncSender<Handed>,
    requests: Sender<Request>,
    remote: Arc<Remote>,
    /// Something was given to it in this round.
    given: bool,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers")
            .field("own", &self.own)
            .finish_non_exhaustive()
    }
}

/// What one shard has of the others.
pub(crate) struct Peers {
    own: usize,
    peers: Vec<Peer>,
    frames: Receiver<Handed>,
    requests: Receiver<Request>,
    /// Flows of this shard that others hand over.
    pub(crate) pins: Pins,
    /// Frames dropped because a shard did not keep up.
    dropped: u64,
}

impl Peers {
    /// The parts of the shards with these doorbells, in their order.
    pub(crate) fn mesh(remotes: &[Arc<Remote>]) -> Vec<Peers> {
        let (senders, receivers): (Vec<_>, Vec<_>) =
            remotes.iter().map(|_| sync_channel(WAITING_MAX)).unzip();
        let (askers, asked): (Vec<_>, Vec<_>) = remotes.iter().map(|_| channel()).unzip();
        let peers = |_| {
            let peer = |at: usize| Peer {
                frames: senders[at].clone(),
                requests: askers[at].clone(),
                remote: remotes[at].clone(),
                given: false,
            };
            (0..remotes.len()).map(peer).collect()
        };
        let parts = receivers.into_iter().zip(asked).enumerate();
        parts
            .map(|(own, (frames, requests))| Peers {
                own,
                peers: peers(own),
                frames,
                requests,
                pins: Pins::default(),
                dropped: 0,
            })
            .collect()
    }

    /// Which shard this is.
    pub(crate) fn own(&self) -> u16 {
        self.own as u16
    }

    /// Asks another shard for something; one that is no more does nothing.
    pub(crate) fn tell(&self, to: u16, request: Request) {
        if let Some(peer) = self.peers.get(usize::from(to))
            && peer.requests.send(request).is_ok()
        {
            peer.remote.ring();
        }
    }

    /// Has the shard `owner` keep the frames of a flow again.
    pub(crate) fn unpin(&self, owner: u16, flow: Flow) {
        let shard = self.own();
        self.tell(owner, Request::Unpin { flow, shard });
    }

    /// Does what others ask for; returns how much that was.
    fn grant(&self, shard: &mut Shard<HeapMemory>) -> usize {
        for count in 0..BURST {
            match self.requests.try_recv() {
                Ok(Request::Pin {
                    flow,
                    shard: to,
                    reply,
                }) => reply.say(shard.pin(flow, to)),
                Ok(Request::Unpin { flow, shard: to }) => shard.unpin(&flow, to),
                Err(_) => return count,
            }
        }
        BURST
    }

    /// Takes in what others have handed over or ask for; returns how much that was.
    pub(crate) fn take(&mut self, shard: &mut Shard<HeapMemory>, now: Instant) -> usize {
        let granted = self.grant(shard);
        for count in 0..BURST {
            let Ok(handed) = self.frames.try_recv() else {
                return granted + count;
            };
            let frame = Frame {
                bytes: &handed.bytes,
                checksum: handed.checksum,
                segment_size: handed.segment_size,
            };
            shard.input_handed(&frame, handed.arrival, now);
            self.pass_stray(shard, &frame);
        }
        granted + BURST
    }

    /// Hands the frame that was taken in last to the shard whose it is, if that is another.
    pub(crate) fn pass_stray(&mut self, shard: &mut Shard<HeapMemory>, frame: &Frame<'_>) {
        let Some((stray, whole)) = shard.take_misrouted() else {
            return;
        };
        let checksum = match frame.checksum {
            // It has been verified on the way here.
            ChecksumState::Unchecked => ChecksumState::Valid,
            known => known,
        };
        match stray {
            Misrouted::Shard(to, arrival) => {
                let handed = match whole {
                    Some(bytes) => Handed {
                        bytes,
                        checksum: ChecksumState::Valid,
                        segment_size: 0,
                        arrival,
                    },
                    None => Handed {
                        bytes: frame.bytes.to_vec(),
                        checksum,
                        segment_size: frame.segment_size,
                        arrival,
                    },
                };
                self.give(to.into(), handed);
            }
            // Nothing moves between these shards.
            Misrouted::Awaited => {}
            Misrouted::AllShards => {
                let own = self.own;
                for to in (0..self.peers.len()).filter(|&to| to != own) {
                    let handed = Handed {
                        bytes: frame.bytes.to_vec(),
                        checksum,
                        segment_size: frame.segment_size,
                        arrival: Arrival::Copy,
                    };
                    self.give(to, handed);
                }
            }
        }
    }

    fn give(&mut self, to: usize, handed: Handed) {
        let Some(peer) = self.peers.get_mut(to) else {
            return;
        };
        match peer.frames.try_send(handed) {
            Ok(()) => peer.given = true,
            Err(_) => self.dropped += 1,
        }
    }

    /// Hands over what the shard's sockets have said to those of others, and wakes who was given
    /// something. Flows that are over need not be handed over any more.
    pub(crate) fn flush(&mut self, shard: &mut Shard<HeapMemory>) {
        for flow in shard.take_unpinned() {
            if let Some(owner) = self.pins.over(&flow) {
                self.unpin(owner, flow);
            }
        }
        while let Some((to, bytes)) = shard.take_crossing() {
            let all = (0..self.peers.len()).filter(|&to| to != self.own);
            let those: Vec<usize> = match to {
                Some(to) => vec![to.into()],
                None => all.collect(),
            };
            for to in those {
                let handed = Handed {
                    bytes: bytes.clone(),
                    checksum: ChecksumState::Valid,
                    segment_size: 0,
                    arrival: Arrival::Local,
                };
                self.give(to, handed);
            }
            shard.return_crossing(bytes);
        }
        for peer in self.peers.iter_mut().filter(|peer| peer.given) {
            peer.given = false;
            peer.remote.ring();
        }
    }

    /// Frames dropped because a shard did not keep up.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }
}
