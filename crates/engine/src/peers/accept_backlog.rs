//! Connections that wait for room in the accept queue of a listener that several shards serve.

use std::collections::{HashMap, VecDeque};

use millrace_context::SlotRef;

use crate::programs::slot::ProgramSlot;

/// Connections that wait, and the listeners that must be tried again.
#[derive(Debug, Default)]
pub(crate) struct AcceptBacklog {
    /// Connections that other shards accepted for a listener whose queue is full.
    late: HashMap<ProgramSlot, VecDeque<SlotRef>>,
    /// Listeners with connections that wait for room.
    stuck: Vec<ProgramSlot>,
}

impl AcceptBacklog {
    /// Another shard accepted a connection for a listener.
    pub(crate) fn push(&mut self, listener: ProgramSlot, accepted: SlotRef) {
        self.late.entry(listener).or_default().push_back(accepted);
    }

    /// Hands waiting connections to `append` while the queue has room. Returns how many were
    /// handed, and whether none is left.
    pub(crate) fn drain_into(
        &mut self,
        listener: ProgramSlot,
        mut append: impl FnMut(SlotRef) -> bool,
    ) -> (usize, bool) {
        let Some(late) = self.late.get_mut(&listener) else {
            return (0, true);
        };
        let mut moved = 0;
        while late.front().is_some_and(|slot| append(*slot)) {
            late.pop_front();
            moved += 1;
        }
        let done = late.is_empty();
        if done {
            self.late.remove(&listener);
        } else {
            self.note_stuck(listener);
        }
        (moved, done)
    }

    /// A listener must be tried again.
    pub(crate) fn note_stuck(&mut self, listener: ProgramSlot) {
        if !self.stuck.contains(&listener) {
            self.stuck.push(listener);
        }
    }

    /// The listener does not listen any more in this shard.
    pub(crate) fn forget_stuck(&mut self, listener: ProgramSlot) {
        self.stuck.retain(|stuck| *stuck != listener);
    }

    /// The listener does not listen any more.
    pub(crate) fn forget(&mut self, listener: ProgramSlot) {
        self.late.remove(&listener);
        self.forget_stuck(listener);
    }

    /// Whether a listener must be tried again.
    pub(crate) fn has_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Takes the listeners that must be tried again.
    pub(crate) fn take_stuck(&mut self) -> Vec<ProgramSlot> {
        std::mem::take(&mut self.stuck)
    }

    /// The listener has moved to another slot.
    pub(crate) fn rename_stuck(&mut self, from: ProgramSlot, to: ProgramSlot) {
        for stuck in self.stuck.iter_mut().filter(|stuck| **stuck == from) {
            *stuck = to;
        }
    }

    /// Takes the connections that wait for a listener.
    pub(crate) fn take_late(&mut self, listener: ProgramSlot) -> Vec<SlotRef> {
        self.late.remove(&listener).into_iter().flatten().collect()
    }

    /// Connections wait for a listener, in this order.
    pub(crate) fn set_late(&mut self, listener: ProgramSlot, slots: Vec<SlotRef>) {
        if !slots.is_empty() {
            self.late.insert(listener, slots.into());
            self.note_stuck(listener);
        }
    }
}
