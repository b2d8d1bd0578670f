//! Atomics of the processor, or of the checker of interleavings (`--cfg millrace_loom`,
//! tests/interleavings).

#[cfg(not(millrace_loom))]
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(millrace_loom)]
pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};

/// Who uses which bytes of a ring, for the checker: it fails if the writer can write what the
/// reader may still read, or the reader read what is not written yet.
#[cfg(not(millrace_loom))]
#[derive(Debug)]
pub(crate) struct Uses;

#[cfg(not(millrace_loom))]
impl Uses {
    #[inline]
    pub(crate) fn of(_: usize, _: usize) -> Uses {
        Uses
    }
    #[inline]
    pub(crate) fn writes(&self, _: usize, _: usize) {}
    #[inline]
    pub(crate) fn reads(&self, _: usize, _: usize) {}
}

/// By units.
#[cfg(millrace_loom)]
#[derive(Debug)]
pub(crate) struct Uses {
    unit: usize,
    cells: Box<[loom::cell::UnsafeCell<()>]>,
}

#[cfg(millrace_loom)]
impl Uses {
    pub(crate) fn of(size: usize, unit: usize) -> Uses {
        let cells = (0..size / unit).map(|_| loom::cell::UnsafeCell::new(()));
        Uses {
            unit,
            cells: cells.collect(),
        }
    }

    fn units(&self, position: usize, len: usize) -> impl Iterator<Item = usize> {
        let units = position / self.unit..(position + len).div_ceil(self.unit);
        units.map(|unit| unit % self.cells.len())
    }

    pub(crate) fn writes(&self, position: usize, len: usize) {
        for unit in self.units(position, len) {
            self.cells[unit].with_mut(|_| ());
        }
    }

    pub(crate) fn reads(&self, position: usize, len: usize) {
        for unit in self.units(position, len) {
            self.cells[unit].with(|_| ());
        }
    }
}
