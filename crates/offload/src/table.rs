//! The table of flows: descriptors made at the start, a free list, and chains from a keyed hash.

use crate::flow::Flow;
use crate::key::Key;
use crate::pool::NONE;

/// The table.
#[derive(Debug)]
pub(crate) struct Table {
    buckets: Vec<u32>,
    flows: Vec<Option<Flow>>,
    /// Descriptors that were given back.
    free: Vec<u32>,
    /// Where the search for a victim goes on.
    hand: u32,
    hash_key: [u64; 2],
}

impl Table {
    pub(crate) fn new(count: usize, hash_key: [u64; 2]) -> Table {
        Table {
            buckets: vec![NONE; count.next_power_of_two()],
            flows: vec![None; count],
            free: (0..count as u32).rev().collect(),
            hand: 0,
            hash_key,
        }
    }

    /// The hash of a key.
    pub(crate) fn hash(&self, key: &Key) -> u64 {
        key.hash(self.hash_key)
    }

    fn bucket(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// The flow of a key.
    pub(crate) fn find(&self, key: &Key, hash: u64) -> Option<u32> {
        let mut index = self.buckets[self.bucket(hash)];
        while index != NONE {
            let flow = self.flow(index);
            if flow.hash == hash && flow.key == *key {
                return Some(index);
            }
            index = flow.chain;
        }
        None
    }

    /// Takes a flow up; `None` when no descriptor is free.
    pub(crate) fn insert(&mut self, flow: Flow) -> Option<u32> {
        let index = self.free.pop()?;
        let bucket = self.bucket(flow.hash);
        let chain = std::mem::replace(&mut self.buckets[bucket], index);
        self.flows[index as usize] = Some(Flow { chain, ..flow });
        Some(index)
    }

    /// Drops a flow.
    pub(crate) fn remove(&mut self, index: u32) {
        let Some(flow) = self.flows[index as usize].take() else {
            return;
        };
        let bucket = self.bucket(flow.hash);
        let mut at = self.buckets[bucket];
        if at == index {
            self.buckets[bucket] = flow.chain;
        } else {
            while at != NONE {
                let chain = self.flow(at).chain;
                if chain == index {
                    self.flow_mut(at).chain = flow.chain;
                    break;
                }
                at = chain;
            }
        }
        self.free.push(index);
    }

    /// A flow that is there.
    pub(crate) fn flow(&self, index: u32) -> &Flow {
        self.flows[index as usize]
            .as_ref()
            .expect("the index of a flow")
    }

    /// A flow that is there.
    pub(crate) fn flow_mut(&mut self, index: u32) -> &mut Flow {
        self.flows[index as usize]
            .as_mut()
            .expect("the index of a flow")
    }

    /// The next flow in turn, if there is one at the place.
    pub(crate) fn next_in_turn(&mut self) -> Option<u32> {
        let index = self.hand;
        self.hand = (self.hand + 1) % self.flows.len() as u32;
        self.flows[index as usize].as_ref().map(|_| index)
    }

    /// A flow that was not used since this was last asked and that `may_go`: the least harm when
    /// one must go. `None` when there is none.
    pub(crate) fn victim(&mut self, may_go: impl Fn(u32) -> bool) -> Option<u32> {
        for _ in 0..2 * self.flows.len() {
            if let Some(index) = self.next_in_turn()
                && !std::mem::take(&mut self.flow_mut(index).used)
                && may_go(index)
            {
                return Some(index);
            }
        }
        None
    }

    /// All flows, with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Flow)> {
        let flows = self.flows.iter().enumerate();
        flows.filter_map(|(index, flow)| Some((index, flow.as_ref()?)))
    }
}
