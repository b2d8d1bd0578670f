//! Tells programs whether a router of the link leads to all of IPv6.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::programs::program::Program;
use crate::programs::table::Programs;

/// Whether a router of the link leads to all of IPv6. One worker writes it; the control thread
/// reads it when it writes the header of a new region.
#[derive(Default)]
pub(crate) struct DefaultRoute(Option<Arc<AtomicU32>>);

impl DefaultRoute {
    /// The one of the worker that writes it to `cell`.
    pub(crate) fn stored_in(cell: Arc<AtomicU32>) -> DefaultRoute {
        DefaultRoute(Some(cell))
    }

    /// Tells a program that has just come.
    pub(crate) fn tell(&self, program: &Program) {
        if let Some(cell) = &self.0 {
            let known = cell.load(Ordering::Relaxed);
            let line = &program.region.header().default_router.0;
            line.store(known, Ordering::Relaxed);
        }
    }

    /// Tells all programs when a router has come or gone.
    pub(crate) fn update(&self, has_router: impl FnOnce() -> bool, programs: &Programs) {
        let Some(cell) = &self.0 else {
            return;
        };
        let known = u32::from(has_router());
        if cell.load(Ordering::Relaxed) != known {
            cell.store(known, Ordering::Relaxed);
            for program in programs.iter() {
                self.tell(program);
            }
        }
    }
}
