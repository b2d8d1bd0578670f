//! Names of slots: which slot of which program, and which slot shows a socket of the shard.

use millrace_shard::SocketId;

/// A slot of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramSlot {
    pub(crate) program: u32,
    pub(crate) slot: u32,
}

/// The slot that shows each socket of a shard, by the index of the socket.
#[derive(Debug, Default)]
pub(crate) struct SocketSlots(Vec<ProgramSlot>);

impl SocketSlots {
    const NOWHERE: ProgramSlot = ProgramSlot {
        program: u32::MAX,
        slot: 0,
    };

    /// Notes which slot shows a socket.
    pub(crate) fn note(&mut self, id: SocketId, place: ProgramSlot) {
        let index = id.index() as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, SocketSlots::NOWHERE);
        }
        self.0[index] = place;
    }

    /// The slot that last showed a socket of this index. The socket may be another one by now.
    #[inline]
    pub(crate) fn get(&self, id: SocketId) -> Option<ProgramSlot> {
        let place = self.0.get(id.index() as usize).copied()?;
        (place != SocketSlots::NOWHERE).then_some(place)
    }
}
