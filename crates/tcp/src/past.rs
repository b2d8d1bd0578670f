//! What a connection needs from its first disturbance on: a loss, what came twice, a mark of the network's. Most never have one.

use millrace_wire::tcp::{Flags, Seq};

use crate::rack::Rack;
use crate::recovery::Repair;
use crate::tail::Tail;
use crate::undo::Undo;

/// What disturbances leave, of both directions. The default is that there was none.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// SND.NXT when the last loss was acted upon (RecoveryPoint of RFC 6675); 0 before the first.
    pub(crate) high: u64,
    /// Segments that the peer must have received, by its duplicate acknowledgements; only without selective
    /// acknowledgement.
    pub(crate) duplicates: u16,
    pub(crate) rack: Rack,
    pub(crate) tail: Tail,
    /// What is needed only while something is out of the ordinary.
    pub(crate) repair: Option<Box<Repair>>,
    /// How to go back if there was nothing to repair.
    pub(crate) undo: Option<Box<Undo>>,
    /// Bytes received again, to be reported in the next SACK option (RFC 2883).
    pub(crate) again: Option<(Seq, Seq)>,
    /// SND.NXT when a mark was last acted upon, modulo 2^32: one reduction in a round trip.
    pub(crate) reduced_until: Seq,
    /// What is to be acknowledged with the mark's former state first, low half of a stream offset (RFC 8257 3.2).
    pub(crate) former: Option<(u32, Flags)>,
    /// Sequence number of a RST with [`crate::connection::Pending::REFUSE`].
    pub(crate) refuse_seq: Seq,
    /// What is counted, for [`crate::Info`].
    pub(crate) bytes_retransmitted: u64,
    pub(crate) segments_retransmitted: u32,
    pub(crate) dsacks: u32,
    pub(crate) timeouts: u32,
}

static NONE: Past = Past {
    high: 0,
    duplicates: 0,
    rack: Rack::NEW,
    tail: Tail::NONE,
    repair: None,
    undo: None,
    again: None,
    reduced_until: Seq(0),
    former: None,
    refuse_seq: Seq(0),
    bytes_retransmitted: 0,
    segments_retransmitted: 0,
    dsacks: 0,
    timeouts: 0,
};

/// The past of a connection, without memory of its own while there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disturbed(Option<Box<Past>>);

impl Disturbed {
    /// What there was.
    #[inline]
    pub(crate) fn past(&self) -> &Past {
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// The same, to change, if there was anything.
    #[inline]
    pub(crate) fn past_mut(&mut self) -> Option<&mut Past> {
        self.0.as_deref_mut()
    }

    /// Something happens: the past, to be changed.
    pub(crate) fn begin(&mut self) -> &mut Past {
        self.0.get_or_insert_with(|| Box::new(NONE.clone()))
    }

    /// The repair in progress.
    #[inline]
    pub(crate) fn repair(&self) -> Option<&Repair> {
        self.0.as_ref()?.repair.as_deref()
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn repair_mut(&mut self) -> Option<&mut Repair> {
        self.0.as_mut()?.repair.as_deref_mut()
    }

    /// How to go back, if that may still be right.
    #[inline]
    pub(crate) fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.0.as_mut()?.undo.as_deref_mut()
    }

    /// Whether bytes that were received again are to be reported.
    #[inline]
    pub(crate) fn reports_again(&self) -> bool {
        self.0.as_ref().is_some_and(|past| past.again.is_some())
    }

    /// Whether there is nothing to repair and nothing to report.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        let is_calm = |past: &Past| past.repair.is_none() && past.again.is_none();
        self.0.as_deref().is_none_or(is_calm)
    }

    /// There is nothing more to repair.
    pub(crate) fn end_repair(&mut self) {
        if let Some(past) = self.past_mut() {
            past.repair = None;
        }
    }
}
