//! Parts that few connections ever need, kept out of the memory of the others.

use millrace_wire::tcp::Seq;

use crate::ecn::PriorAck;
use crate::fast_open::FastOpen;
use crate::pacing::Pacing;
use crate::pmtud::Pmtud;
use crate::urgent::Urgent;

/// Allocated when the first of the parts is needed.
#[derive(Debug, Default)]
pub(crate) struct ColdState {
    /// Urgent data.
    pub(crate) urgent: Urgent,
    /// Path MTU discovery, while the path is smaller than the link.
    pub(crate) pmtud: Option<Pmtud>,
    /// TCP Fast Open.
    pub(crate) fast_open: Option<FastOpen>,
    /// Pacing, by the congestion control or a rate that the program set.
    pub(crate) pacing: Option<Pacing>,
    /// DCTCP: an acknowledgement with the former state of marks that is due first.
    pub(crate) prior_ack: Option<PriorAck>,
    /// Sequence number of the RST for a segment that is refused.
    pub(crate) refuse_seq: Seq,
}
