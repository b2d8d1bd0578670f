//! Who has a slot: the processes that hold it, or the queue in which it waits for one.

use crate::socket::{Process, Waiting};

/// Processes that are held without memory of their own.
const FEW: usize = 3;

/// Who has a slot. While it waits to be accepted no process does.
#[derive(Debug)]
pub enum Keepers {
    /// It waits to be accepted: see [`Waiting`].
    Queue {
        /// The listener's slot.
        listener: u32,
        /// Its place in the listener's queue.
        position: u64,
    },
    /// A few processes.
    Few {
        /// How many of the list.
        len: u8,
        /// These, and then what means nothing.
        list: [Process; FEW],
    },
    /// More, or fewer again: few slots have them, and a word is less than three.
    Many(Box<Vec<Process>>),
}

impl Default for Keepers {
    fn default() -> Keepers {
        Keepers::Few {
            len: 0,
            list: [0; FEW],
        }
    }
}

impl From<Waiting> for Keepers {
    fn from(Waiting { listener, position }: Waiting) -> Keepers {
        Keepers::Queue { listener, position }
    }
}

impl Keepers {
    /// Where it waits to be accepted, if it does.
    #[inline]
    pub fn waiting(&self) -> Option<Waiting> {
        match self {
            Keepers::Queue { listener, position } => Some(Waiting {
                listener: *listener,
                position: *position,
            }),
            _ => None,
        }
    }

    /// It waits no more: nobody has it yet.
    pub fn take_waiting(&mut self) -> Option<Waiting> {
        let waiting = self.waiting()?;
        *self = Keepers::default();
        Some(waiting)
    }

    /// Processes that hold it.
    #[inline]
    pub fn holders(&self) -> &[Process] {
        match self {
            Keepers::Queue { .. } => &[],
            Keepers::Few { len, list } => &list[..usize::from(*len)],
            Keepers::Many(list) => list,
        }
    }

    /// A process more holds it.
    pub fn hold(&mut self, process: Process) {
        match self {
            Keepers::Queue { .. } => {
                *self = Keepers::default();
                self.hold(process);
            }
            Keepers::Few { len, list } if usize::from(*len) < FEW => {
                list[usize::from(*len)] = process;
                *len += 1;
            }
            Keepers::Few { list, .. } => {
                let mut all = list.to_vec();
                all.push(process);
                *self = Keepers::Many(Box::new(all));
            }
            Keepers::Many(list) => list.push(process),
        }
    }

    /// A process lets go of it once; whether it held it.
    pub fn let_go(&mut self, process: Process) -> bool {
        let Some(at) = self.holders().iter().position(|holder| *holder == process) else {
            return false;
        };
        match self {
            Keepers::Queue { .. } => {}
            Keepers::Few { len, list } => {
                *len -= 1;
                list[at] = list[usize::from(*len)];
            }
            Keepers::Many(list) => {
                list.swap_remove(at);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_took_hold_and_did_not_let_go_holds() {
        let mut keepers = Keepers::default();
        let mut model = Vec::new();
        for process in [1, 2, 3, 2, 9, 9, 1] {
            keepers.hold(process);
            model.push(process);
            assert_eq!(keepers.holders(), model);
        }
        for process in [2, 8, 9, 1, 3, 2, 2, 9, 1, 9] {
            let at = model.iter().position(|holder| *holder == process);
            assert_eq!(keepers.let_go(process), at.is_some());
            at.map(|at| model.swap_remove(at));
            assert_eq!(keepers.holders(), model);
        }
        assert!(keepers.holders().is_empty());
    }

    #[test]
    fn what_waits_is_held_by_nobody() {
        let waiting = Waiting {
            listener: 7,
            position: u64::MAX,
        };
        let mut keepers = Keepers::from(waiting);
        assert!(keepers.holders().is_empty() && !keepers.let_go(0));
        assert_eq!(keepers.take_waiting(), Some(waiting));
        assert_eq!((keepers.waiting(), keepers.take_waiting()), (None, None));
        keepers.hold(5);
        assert_eq!(keepers.holders(), [5]);
    }

    #[test]
    fn they_are_small() {
        assert_eq!(size_of::<Keepers>(), 16);
    }
}
