//! Frames that belong to another shard, where several shards share one address.
//!
//! A flow that is in this shard's connection table is processed here, wherever its frames arrive. A
//! flow that is not in the table belongs to the shard that its tag names ([`crate::steering`]):
//! that shard has its part of the listeners, or knows the shard to which the flow is pinned. So a
//! frame is handed over once as a rule, and twice at most.

use millrace_steer::NOBODY;
use millrace_wire::ethernet;

use crate::connection_table::Tuple;
use crate::counters::Counters;
use crate::steering::{Arrival, Flow, Misrouted, Pins, Steer};

/// Decides which frames belong to other shards, and remembers what to do with the last one.
#[derive(Default)]
pub struct Steering {
    /// How the frame that is being processed came.
    arrival: Arrival,
    misrouted: Option<Misrouted>,
    /// A packet that was put together from fragments and belongs to another shard.
    reassembled: Option<Vec<u8>>,
    /// Flows that belong here by their tag and are pinned to other shards.
    pins: Pins,
    /// Flows that belong to other shards by their tag, were pinned here, and are over.
    unpinned: Vec<Flow>,
}

impl Steering {
    /// How the frame that is being processed came.
    #[inline]
    pub fn arrival(&self) -> Arrival {
        self.arrival
    }

    /// The next frame comes this way.
    pub fn set_arrival(&mut self, arrival: Arrival) {
        self.arrival = arrival;
    }

    /// Takes what is left to do with the last frame. See [`crate::Shard::take_misrouted`].
    pub fn take_misrouted(&mut self) -> Option<(Misrouted, Option<Vec<u8>>)> {
        let misrouted = self.misrouted.take()?;
        Some((misrouted, self.reassembled.take()))
    }

    /// A packet was put together: if it belongs to another shard, that one gets it whole.
    pub fn hand_over_reassembled(
        &mut self,
        link: &ethernet::Header,
        header_len: usize,
        payload: &[u8],
        emit: impl FnOnce(&mut [u8]),
    ) {
        if self.misrouted.is_none() {
            return;
        }
        let mut frame = vec![0; ethernet::HEADER_LEN + header_len];
        link.emit(&mut frame);
        emit(&mut frame[ethernet::HEADER_LEN..]);
        frame.extend_from_slice(payload);
        self.reassembled = Some(frame);
    }

    /// Whether a segment of a connection that is not in the table belongs to another shard. If so
    /// its frame is to be handed over.
    #[cold]
    pub fn is_segment_misrouted(
        &mut self,
        steer: Option<&Steer>,
        counters: &mut Counters,
        tuple: &Tuple,
    ) -> bool {
        let Some(steer) = steer else {
            return false;
        };
        let owner = steer.owner(tuple);
        let to = match self.arrival {
            Arrival::Link | Arrival::ByTag => {
                return self.is_first_misrouted(steer, counters, Flow::stream(*tuple));
            }
            // The connection is over here, which its owner is about to hear; the segment may begin
            // another connection with the same endpoints.
            Arrival::ByPin if owner != steer.own && owner != NOBODY => Some((owner, Arrival::Back)),
            Arrival::Back => {
                self.pins.forget(&Flow::stream(*tuple));
                None
            }
            Arrival::ByPin | Arrival::Copy | Arrival::Local => None,
        };
        self.hand_over(counters, to)
    }

    /// As [`Steering::is_segment_misrouted`], for a datagram. `home`: the shard that owns the
    /// socket which the datagram is for.
    pub fn is_datagram_misrouted(
        &mut self,
        steer: Option<&Steer>,
        counters: &mut Counters,
        home: Option<u16>,
        tuple: &Tuple,
    ) -> bool {
        let (Some(steer), Arrival::Link | Arrival::ByTag) = (steer, self.arrival) else {
            return false;
        };
        match home {
            Some(home) => self.hand_over(counters, Some((home, Arrival::ByPin))),
            None => self.is_first_misrouted(steer, counters, Flow::datagrams(*tuple)),
        }
    }

    /// Whether a flow that no socket of this shard has belongs to another shard. The frame came
    /// from the link, or from a shard that went by the tag and may not know yet that the flow has
    /// moved on.
    fn is_first_misrouted(&mut self, steer: &Steer, counters: &mut Counters, flow: Flow) -> bool {
        let owner = steer.owner(&flow.tuple);
        if owner == NOBODY {
            self.misrouted = Some(Misrouted::Awaited);
            return true;
        }
        let to = match owner == steer.own {
            false => Some((owner, Arrival::ByTag)),
            true => self.pins.get(&flow).map(|shard| (shard, Arrival::ByPin)),
        };
        self.hand_over(counters, to)
    }

    fn hand_over(&mut self, counters: &mut Counters, to: Option<(u16, Arrival)>) -> bool {
        if let Some((shard, arrival)) = to {
            counters.frames_misrouted += 1;
            self.misrouted = Some(Misrouted::Shard(shard, arrival));
        }
        to.is_some()
    }

    /// The last frame says something about neighbours, routers or groups: every shard gets a copy.
    pub fn copy_to_all_shards(&mut self, steer: Option<&Steer>) {
        if steer.is_some() && self.arrival == Arrival::Link {
            self.misrouted = Some(Misrouted::AllShards);
        }
    }

    /// Flows that belong here by their tag and are pinned to other shards.
    pub fn pins(&self) -> &Pins {
        &self.pins
    }

    /// As [`Steering::pins`], to change them.
    pub fn pins_mut(&mut self) -> &mut Pins {
        &mut self.pins
    }

    /// A flow is over here: if it belongs to another shard by its tag, the pin there can go.
    pub fn note_over(&mut self, steer: Option<&Steer>, flow: Flow) {
        if steer.is_some_and(|steer| !steer.is_own(&flow.tuple)) {
            self.unpinned.push(flow);
        }
    }

    /// A flow is lost that another shard has pinned here: the pin can go.
    pub fn note_lost(&mut self, flow: Flow) {
        self.unpinned.push(flow);
    }

    /// Takes the flows whose pins can go. A connection in TIME-WAIT may have begun anew with the
    /// same endpoints: `is_known` tells.
    pub fn take_unpinned(&mut self, is_known: impl Fn(&Flow) -> bool) -> Vec<Flow> {
        let mut over = std::mem::take(&mut self.unpinned);
        over.retain(|flow| !is_known(flow));
        over
    }
}
