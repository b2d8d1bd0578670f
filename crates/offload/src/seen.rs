//! Which number a flow is expected to go on with: remembered for a few flows, so that what is out
//! of order is not joined.

use millrace_wire::tcp::{Flags, Seq};

use crate::facts::Facts;

/// How many flows are remembered. Of two that share a place the later one is; what is lost is that
/// a hole is noticed.
const PLACES: usize = 64;
/// So many segments in a row that are not what is expected, and the next one is: what fills the
/// hole has gone past.
const PATIENCE: u8 = 200;

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Of the flow; 0: of none.
    tag: u64,
    next: Seq,
    /// Whether something beyond a hole has come.
    ahead: bool,
    unexpected: u8,
}

const NOBODY: Place = Place {
    tag: 0,
    next: Seq(0),
    ahead: false,
    unexpected: 0,
};

/// The flows.
#[derive(Debug)]
pub(crate) struct Seen {
    places: [Place; PLACES],
    /// How many places are taken.
    taken: usize,
}

impl Default for Seen {
    fn default() -> Self {
        Seen {
            places: [NOBODY; PLACES],
            taken: 0,
        }
    }
}

impl Seen {
    fn place(&mut self, tag: u64) -> &mut Place {
        let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &mut self.places[(mixed >> 58) as usize % PLACES]
    }

    /// Whether no flow is remembered.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == 0
    }

    /// A flow goes on with `next`.
    pub(crate) fn note(&mut self, tag: u64, next: Seq) {
        let place = self.place(tag);
        let was_taken = place.tag != 0;
        *place = Place {
            tag,
            next,
            ..NOBODY
        };
        self.taken += usize::from(!was_taken && tag != 0);
    }

    /// Whether a segment can begin a train: it has payload, nothing but that is said by it, and no
    /// hole is before it as far as is known. A segment that cannot is taken note of.
    pub(crate) fn is_next(&mut self, segment: &Facts) -> bool {
        let place = self.place(segment.tag);
        let known = place.tag == segment.tag;
        let ends = Flags::SYN | Flags::FIN | Flags::RST;
        if segment.flags.intersects(ends) {
            if known {
                self.forget(segment.tag);
            }
            return false;
        }
        if segment.seq == segment.end {
            return false;
        }
        let begins = segment.flags == Flags::ACK;
        if !known {
            return begins;
        }
        if segment.seq == place.next && !place.ahead {
            place.next = segment.end;
            return begins;
        }
        place.unexpected += 1;
        if segment.seq.after(place.next) && place.unexpected < PATIENCE {
            place.ahead = true;
        } else if segment.end.after(place.next) || place.unexpected >= PATIENCE {
            // It fills the hole. What comes after that is not known, and learnt from what comes
            // next.
            self.forget(segment.tag);
        }
        false
    }

    /// Nothing is known any more of the flow, which is remembered.
    fn forget(&mut self, tag: u64) {
        *self.place(tag) = NOBODY;
        self.taken -= usize::from(tag != 0);
    }
}
