//! Which shard a flow belongs to, where several share one address: by its tag, and by the group
//! that the tag is in.
//!
//! The tag decides for flows that no shard knows yet. A shard that opens a connection chooses a
//! port whose tag comes back to it, so the tag is right for those too; the few whose port the
//! program chose are *pinned*: the shard that the tag names knows who has them.

pub mod migration;
pub mod misrouted;

use std::collections::BTreeMap;

use millrace_steer::{Groups, Hash, NOBODY, Tuple};

/// How flows are divided among the shards that share an address.
#[derive(Clone, Debug)]
pub struct Steer {
    /// The number of this shard.
    pub own: u16,
    /// Maps a flow to its tag; equal in all shards.
    pub hash: Hash,
    /// Maps a tag to its shard; equal in all shards.
    pub groups: Groups,
}

impl Steer {
    /// The shard that a flow belongs to; [`NOBODY`] while it is on its way to this one.
    pub fn owner(&self, tuple: &Tuple) -> u16 {
        self.groups.of(self.hash.tag(tuple))
    }

    /// Whether a flow belongs to this shard.
    pub fn is_own(&self, tuple: &Tuple) -> bool {
        self.owner(tuple) == self.own
    }

    /// Whether it has no bucket: it begins nothing for others, and what it opens itself is pinned
    /// where its tag leads.
    pub fn has_none(&self) -> bool {
        !self.groups.has(self.own)
    }

    /// Whether the owner of a flow is not known yet.
    pub fn is_awaited(&self, tuple: &Tuple) -> bool {
        self.owner(tuple) == NOBODY
    }
}

/// How a frame came to a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrival {
    /// From its port.
    #[default]
    Link,
    /// From another shard, because of its tag.
    ByTag,
    /// From another shard, because the flow is pinned here: it goes no further.
    ByPin,
    /// Back from the shard that it was pinned to, which has the flow no more: the pin goes.
    Back,
    /// From another shard, which has taken it in too.
    Copy,
    /// From another shard of this host: no frame, but a datagram between two sockets of it
    /// (`crate::udp`).
    Local,
}

impl Arrival {
    /// As a small number.
    pub fn to_bits(self) -> u8 {
        self as u8
    }

    /// Back from one.
    pub fn from_bits(bits: u8) -> Option<Arrival> {
        [
            Arrival::Link,
            Arrival::ByTag,
            Arrival::ByPin,
            Arrival::Back,
            Arrival::Copy,
            Arrival::Local,
        ]
        .into_iter()
        .find(|arrival| arrival.to_bits() == bits)
    }
}

/// How to handle a frame after the shard has processed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misrouted {
    /// It is this shard's: nothing was done here but to check it.
    Shard(u16, Arrival),
    /// It was taken in here, and concerns every other shard as well, as [`Arrival::Copy`].
    AllShards,
    /// Its connection may be on the way here ([`crate::Shard::expect`]): nothing was done but to
    /// check it. To be put in again, with the others of its kind in their order, once that has been
    /// taken.
    Awaited,
}

/// A flow that is pinned, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Its ends.
    pub tuple: Tuple,
    /// Whether the flow is UDP.
    pub datagrams: bool,
}

impl Flow {
    /// A flow of TCP.
    pub fn stream(tuple: Tuple) -> Flow {
        Flow {
            tuple,
            datagrams: false,
        }
    }

    /// A flow of UDP.
    pub fn datagrams(tuple: Tuple) -> Flow {
        Flow {
            tuple,
            datagrams: true,
        }
    }
}

/// Flows that belong here by their tag and are another shard's: the program chose their port, or
/// they were there before their bucket moved.
#[derive(Default)]
pub struct Pins {
    shards: BTreeMap<Flow, u16>,
}

impl Pins {
    /// Pins a flow; false when it is another shard's already, or there are `limit` of them.
    pub fn insert(&mut self, flow: Flow, shard: u16, limit: usize) -> bool {
        match self.shards.get(&flow) {
            Some(other) => *other == shard,
            None if self.shards.len() >= limit => false,
            None => {
                self.shards.insert(flow, shard);
                true
            }
        }
    }

    /// Removes the pin of a flow.
    pub fn remove(&mut self, flow: &Flow, shard: u16) {
        if self.get(flow) == Some(shard) {
            self.shards.remove(flow);
        }
    }

    /// Removes the pin of a flow, whichever shard has it.
    pub fn forget(&mut self, flow: &Flow) {
        self.shards.remove(flow);
    }

    /// Takes out the pins of the chosen flows.
    pub fn take(&mut self, chosen: impl Fn(&Tuple) -> bool) -> Vec<(Flow, u16)> {
        let taken = self.shards.extract_if(.., |flow, _| chosen(&flow.tuple));
        taken.collect()
    }

    /// The number of pins.
    pub fn len(&self) -> usize {
        self.shards.len()
    }

    /// The shard that has the flow.
    pub fn get(&self, flow: &Flow) -> Option<u16> {
        self.shards.get(flow).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn a_pinned_flow_is_one_shards() {
        let mut pins = Pins::default();
        let tuple = {
            let end = |text: &str| text.parse::<SocketAddr>().unwrap();
            Tuple::new(end("10.0.0.1:5000"), end("10.0.0.2:80")).unwrap()
        };
        let flow = Flow::stream(tuple);
        assert!(pins.insert(flow, 1, 1));
        assert!(pins.insert(flow, 1, 1), "once more changes nothing");
        assert!(!pins.insert(flow, 2, 1));
        assert!(!pins.insert(Flow::datagrams(tuple), 2, 1), "the limit");
        pins.remove(&flow, 2);
        assert_eq!(pins.get(&flow), Some(1));
        pins.remove(&flow, 1);
        assert_eq!(pins.get(&flow), None);
    }
}
