//! What programs are told, while they run, of where the engine can send.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::programs::program::Program;
use crate::worker::Worker;

/// Whether a router of the link leads to all of IPv6: kept by one worker, read by whoever writes the header of a new region.
#[derive(Default)]
pub(crate) struct DefaultRoute(Option<Arc<AtomicU32>>);

impl DefaultRoute {
    /// To be kept in `cell`.
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
}

impl Worker {
    /// Tells all programs when a router has come or gone.
    pub(crate) fn publish_default_route(&mut self) {
        let Some(cell) = &self.default_route.0 else {
            return;
        };
        let known = u32::from(self.shard.has_default_router());
        if cell.load(Ordering::Relaxed) != known {
            cell.store(known, Ordering::Relaxed);
            for program in self.programs.iter().flatten() {
                self.default_route.tell(program);
            }
        }
    }
}
