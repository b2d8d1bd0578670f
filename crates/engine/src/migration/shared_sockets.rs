//! Which slots show one socket, where several programs hold it.

use std::collections::HashMap;

use crate::programs::slot::ProgramSlot;

/// The slots of shared sockets.
#[derive(Debug, Default)]
pub(crate) struct SharedSockets {
    groups: HashMap<ProgramSlot, u64>,
    places: HashMap<u64, Vec<ProgramSlot>>,
    next: u64,
    /// In this round a program was served out of its turn so that a socket could leave it.
    busy: bool,
}

impl SharedSockets {
    /// Begins a round. In each round one program may be served out of its turn.
    pub(crate) fn begin_round(&mut self) {
        self.busy = false;
    }

    /// Whether other programs hold the socket of a slot too.
    pub(crate) fn contains(&self, place: ProgramSlot) -> bool {
        !self.groups.is_empty() && self.groups.contains_key(&place)
    }

    /// All slots of a socket. The last one has the socket.
    pub(crate) fn of(&self, place: ProgramSlot) -> &[ProgramSlot] {
        let group = self.groups.get(&place);
        let places = group.and_then(|group| self.places.get(group));
        places.map_or(&[], Vec::as_slice)
    }

    /// A socket has moved from one slot to another.
    pub(crate) fn note(&mut self, from: ProgramSlot, to: ProgramSlot) {
        let group = *self.groups.entry(from).or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.groups.insert(to, group);
        let places = self.places.entry(group).or_insert_with(|| vec![from]);
        places.retain(|place| *place != to);
        places.push(to);
    }

    /// Forgets a slot that is free.
    pub(crate) fn forget(&mut self, place: ProgramSlot) {
        let Some(group) = self.groups.remove(&place) else {
            return;
        };
        let Some(places) = self.places.get_mut(&group) else {
            return;
        };
        places.retain(|other| *other != place);
        if let [last] = places[..] {
            self.groups.remove(&last);
            self.places.remove(&group);
        }
    }

    /// Slots of a program whose sockets other programs hold as well.
    pub(crate) fn slots_of(&self, program: u32) -> Vec<ProgramSlot> {
        let places = self.groups.keys().copied();
        places.filter(|place| place.program == program).collect()
    }

    /// Adds, for each socket that changed, the slots of the other programs that hold it.
    pub(crate) fn add_other_slots(&self, changed: &mut Vec<ProgramSlot>) {
        if self.groups.is_empty() {
            return;
        }
        for at in 0..changed.len() {
            if let Some((last, others)) = self.of(changed[at]).split_last()
                && *last == changed[at]
            {
                changed.extend_from_slice(others);
            }
        }
    }

    /// Whether a socket may leave its program now: once in a round, since the program is served
    /// out of its turn for that.
    pub(crate) fn may_move(&self) -> bool {
        !self.busy
    }

    /// A program is served out of its turn.
    pub(crate) fn begin_move(&mut self) {
        self.busy = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_where_it_went_last() {
        let place = |program| ProgramSlot { program, slot: 7 };
        let mut shared_sockets = SharedSockets::default();
        assert!(!shared_sockets.contains(place(1)) && shared_sockets.of(place(1)).is_empty());
        shared_sockets.note(place(1), place(2));
        shared_sockets.note(place(2), place(3));
        shared_sockets.note(place(3), place(1));
        for program in 1..=3 {
            assert_eq!(
                shared_sockets.of(place(program)),
                [place(2), place(3), place(1)]
            );
        }
        shared_sockets.forget(place(3));
        assert_eq!(shared_sockets.of(place(1)), [place(2), place(1)]);
        shared_sockets.forget(place(1));
        assert!(!shared_sockets.contains(place(1)) && !shared_sockets.contains(place(2)));
    }
}
