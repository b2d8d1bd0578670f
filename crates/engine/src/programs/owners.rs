//! Who owns a slot: the processes that hold it, or the accept queue that it waits in.

/// A process slot of a program.
pub type Process = u16;

/// Holds a socket once for each message that it is in: see `crate::migration::scm_rights`. No
/// process has this slot number.
pub const IN_FLIGHT: Process = Process::MAX;

/// The place of an accepted connection that its program has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The listener's slot.
    pub listener: u32,
    /// Its position in the accept queue.
    pub position: u64,
}

/// Holders that need no allocation.
const FEW: usize = 3;

/// The owners of a slot. A slot in an accept queue has no holder.
#[derive(Debug)]
pub enum Owners {
    /// It waits in an accept queue: see [`Waiting`].
    Queue {
        /// The listener's slot.
        listener: u32,
        /// Its position in the accept queue.
        position: u64,
    },
    /// A few processes.
    Few {
        /// How many entries of the list are used.
        len: u8,
        /// The processes. The other entries mean nothing.
        list: [Process; FEW],
    },
    /// More processes, or fewer again. Few slots have them, and a box takes one word where a list
    /// takes three.
    #[allow(clippy::box_collection, reason = "a box takes one word, a list three")]
    Many(Box<Vec<Process>>),
}

impl Default for Owners {
    fn default() -> Owners {
        Owners::Few {
            len: 0,
            list: [0; FEW],
        }
    }
}

impl From<Waiting> for Owners {
    fn from(Waiting { listener, position }: Waiting) -> Owners {
        Owners::Queue { listener, position }
    }
}

impl Owners {
    /// Its place in an accept queue, if it waits in one.
    #[inline]
    pub fn waiting(&self) -> Option<Waiting> {
        match self {
            Owners::Queue { listener, position } => Some(Waiting {
                listener: *listener,
                position: *position,
            }),
            _ => None,
        }
    }

    /// Takes it out of the accept queue. It has no owner then.
    pub fn take_waiting(&mut self) -> Option<Waiting> {
        let waiting = self.waiting()?;
        *self = Owners::default();
        Some(waiting)
    }

    /// The processes that hold it.
    #[inline]
    pub fn holders(&self) -> &[Process] {
        match self {
            Owners::Queue { .. } => &[],
            Owners::Few { len, list } => &list[..usize::from(*len)],
            Owners::Many(list) => list,
        }
    }

    /// A process takes hold of it.
    pub fn hold(&mut self, process: Process) {
        match self {
            Owners::Queue { .. } => {
                *self = Owners::default();
                self.hold(process);
            }
            Owners::Few { len, list } if usize::from(*len) < FEW => {
                list[usize::from(*len)] = process;
                *len += 1;
            }
            Owners::Few { list, .. } => {
                let mut all = list.to_vec();
                all.push(process);
                *self = Owners::Many(Box::new(all));
            }
            Owners::Many(list) => list.push(process),
        }
    }

    /// A process releases it once. Returns whether it held it.
    pub fn release(&mut self, process: Process) -> bool {
        let Some(at) = self.holders().iter().position(|holder| *holder == process) else {
            return false;
        };
        match self {
            Owners::Queue { .. } => {}
            Owners::Few { len, list } => {
                *len -= 1;
                list[at] = list[usize::from(*len)];
            }
            Owners::Many(list) => {
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
        let mut owners = Owners::default();
        let mut model = Vec::new();
        for process in [1, 2, 3, 2, 9, 9, 1] {
            owners.hold(process);
            model.push(process);
            assert_eq!(owners.holders(), model);
        }
        for process in [2, 8, 9, 1, 3, 2, 2, 9, 1, 9] {
            let at = model.iter().position(|holder| *holder == process);
            assert_eq!(owners.release(process), at.is_some());
            at.map(|at| model.swap_remove(at));
            assert_eq!(owners.holders(), model);
        }
        assert!(owners.holders().is_empty());
    }

    #[test]
    fn what_waits_is_held_by_nobody() {
        let waiting = Waiting {
            listener: 7,
            position: u64::MAX,
        };
        let mut owners = Owners::from(waiting);
        assert!(owners.holders().is_empty() && !owners.release(0));
        assert_eq!(owners.take_waiting(), Some(waiting));
        assert_eq!((owners.waiting(), owners.take_waiting()), (None, None));
        owners.hold(5);
        assert_eq!(owners.holders(), [5]);
    }

    #[test]
    fn they_are_small() {
        assert_eq!(size_of::<Owners>(), 16);
    }
}
