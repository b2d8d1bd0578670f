//! The sockets of other shards that this shard has replicas of.

use std::collections::HashMap;

use millrace_shard::SocketId;

use crate::programs::slot::ProgramSlot;

/// Stands in for another shard's bound or listening socket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replica {
    pub(crate) id: SocketId,
    /// Generation of the slot that it stands for.
    pub(crate) generation: u32,
    /// The shard that has it.
    pub(crate) home: u16,
}

/// All replicas, by the slot of the original and by their own socket.
#[derive(Debug, Default)]
pub(crate) struct Replicas {
    by_slot: HashMap<ProgramSlot, Replica>,
    slots: HashMap<SocketId, ProgramSlot>,
}

impl Replicas {
    pub(crate) fn insert(&mut self, place: ProgramSlot, replica: Replica) {
        self.by_slot.insert(place, replica);
        self.slots.insert(replica.id, place);
    }

    /// The replica of the socket at a slot.
    pub(crate) fn get(&self, place: ProgramSlot) -> Option<Replica> {
        self.by_slot.get(&place).copied()
    }

    /// The slot whose socket `id` is a replica of.
    pub(crate) fn original_of(&self, id: SocketId) -> Option<ProgramSlot> {
        self.slots.get(&id).copied()
    }

    pub(crate) fn remove(&mut self, place: ProgramSlot) -> Option<Replica> {
        let replica = self.by_slot.remove(&place)?;
        self.slots.remove(&replica.id);
        Some(replica)
    }

    /// The original has moved to another slot. Returns the replica.
    pub(crate) fn rename(
        &mut self,
        from: ProgramSlot,
        to: ProgramSlot,
        generation: u32,
    ) -> Option<Replica> {
        let replica = Replica {
            generation,
            ..self.remove(from)?
        };
        self.insert(to, replica);
        Some(replica)
    }

    /// The slots of a program whose sockets have replicas here.
    pub(crate) fn slots_of(&self, program: u32) -> Vec<ProgramSlot> {
        let places = self.by_slot.keys().copied();
        places.filter(|place| place.program == program).collect()
    }
}
