//! What few connections ever need, apart from the others' memory.

use crate::fast_open::FastOpen;
use crate::pmtud::Pmtud;
use crate::urgent::Urgent;

/// Allocated when the first of it is needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ColdState {
    /// Marks of urgent data.
    pub(crate) urgent: Urgent,
    /// The path, if it is not as large as the link.
    pub(crate) pmtud: Option<Pmtud>,
    /// Payload on the SYN.
    pub(crate) fast_open: Option<FastOpen>,
}
