//! All programs that a worker serves, by their number.

use libc::EBADF;
use millrace_context::{Context, SlotRef};

use crate::programs::program::Program;
use crate::programs::slot::ProgramSlot;

/// The programs of a worker. The numbers of programs that have ended are used again.
#[derive(Debug, Default)]
pub(crate) struct Programs(Vec<Option<Program>>);

impl Programs {
    /// Adds a program under its number.
    pub(crate) fn insert(&mut self, program: Program) {
        let index = program.owner.0 as usize;
        if self.0.len() <= index {
            self.0.resize_with(index + 1, || None);
        }
        self.0[index] = Some(program);
    }

    /// Forgets a program.
    pub(crate) fn remove(&mut self, program: u32) {
        if let Some(entry) = self.0.get_mut(program as usize) {
            *entry = None;
        }
    }

    /// All numbers that programs have or had.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.0.len() as u32
    }

    #[inline]
    pub(crate) fn get(&self, program: u32) -> Option<&Program> {
        self.0.get(program as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, program: u32) -> Option<&mut Program> {
        self.0.get_mut(program as usize)?.as_mut()
    }

    pub(crate) fn has(&self, program: u32) -> bool {
        self.get(program).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Program> {
        self.0.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Program> {
        self.0.iter_mut().flatten()
    }

    /// The slot that a reference names.
    ///
    /// # Errors
    /// `EBADF`: this worker does not serve the slot, or the reference is of an earlier use of it.
    pub(crate) fn find(&self, program: u32, slot: SlotRef) -> Result<ProgramSlot, i32> {
        let this = self.get(program).ok_or(EBADF)?;
        this.find(slot)
            .map(|slot| ProgramSlot { program, slot })
            .ok_or(EBADF)
    }

    /// The contexts of all programs, which the threads of the programs write.
    pub(crate) fn contexts(&self) -> impl Iterator<Item = &Context> {
        self.iter().flat_map(|program| {
            let contexts = program.contexts.iter();
            let shared = contexts.filter_map(|entry| program.region.context(entry.index));
            shared.map(|(context, _)| context)
        })
    }

    /// Whether a context has requests that were not served.
    pub(crate) fn have_requests(&self) -> bool {
        self.iter().any(|program| {
            program.contexts.iter().any(|entry| {
                program
                    .region
                    .context(entry.index)
                    .is_some_and(|(context, _)| context.pending(&entry.cursor))
            })
        })
    }
}
