//! A region that this process has mapped.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::layout::{
    CONTEXT_STRIDE, Geometry, HINTS, Header, PAGE, POLLER_HEAD, STAGING, SUBMISSIONS,
};
use crate::poller::Poller;
use crate::slot::Slot;
use crate::submission::{Context, SubmissionCell};

/// Creates the file behind a region: sparse, and sealed so that no holder can make it shorter under
/// another's feet (a shorter file would turn the engine's next access into SIGBUS).
pub fn create(geometry: &Geometry) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create(
        "millrace-region",
        MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
    )?;
    rustix::fs::ftruncate(&file, geometry.total() as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// A region in this process's memory. Unmapped when dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    geometry: Geometry,
}

// SAFETY: the mapping is plain shared memory; everything reached through `&Region` is atomic or
// copied through raw pointers.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps the file. `geometry` is the engine's own, or the one that the engine has sent.
    pub fn map(file: BorrowedFd<'_>, geometry: Geometry) -> io::Result<Region> {
        // SAFETY: a new mapping chosen by the kernel overlaps nothing; its length is that of the
        // sealed file.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                geometry.total(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file.as_fd(),
                0,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Region { base, geometry })
    }

    /// The number of each part.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.geometry.total());
        // SAFETY: every caller passes an offset of the layout, which lies inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The header, as the engine wrote it before anyone else mapped the region; only its lines
    /// change later.
    pub fn header(&self) -> &Header {
        // SAFETY: the first pages hold a Header: plain words that do not change while shared, and
        // atomics.
        unsafe { &*self.at(0).cast::<Header>() }
    }

    /// Writes the header.
    ///
    /// # Safety
    /// Only for the engine, and before the region is shared.
    pub unsafe fn write_header(&self, header: Header) {
        // SAFETY: inside the mapping, aligned to a page, and nobody else looks yet.
        unsafe { self.at(0).cast::<Header>().write(header) };
    }

    /// A socket's slot; `None` if the index is out of range.
    pub fn slot(&self, index: u32) -> Option<&Slot> {
        // SAFETY: in bounds by the check; a Slot is atomics only, valid for any bytes.
        (index < self.geometry.slots).then(|| unsafe {
            &*self
                .at(self.geometry.slots_at() + index as usize * size_of::<Slot>())
                .cast::<Slot>()
        })
    }

    fn context_at(&self, index: u32) -> Option<*mut u8> {
        (index < self.geometry.contexts)
            .then(|| self.at(self.geometry.contexts_at() + index as usize * CONTEXT_STRIDE))
    }

    /// A context's head and its submission ring.
    pub fn context(&self, index: u32) -> Option<(&Context, &[SubmissionCell])> {
        let base = self.context_at(index)?;
        // SAFETY: in bounds by `context_at`; both are atomics only.
        unsafe {
            Some((
                &*base.cast::<Context>(),
                std::slice::from_raw_parts(
                    base.add(PAGE).cast::<SubmissionCell>(),
                    SUBMISSIONS as usize,
                ),
            ))
        }
    }

    /// Copies into a context's staging ring. Copies nothing beyond the ring.
    pub fn stage(&self, context: u32, at: usize, from: &[u8]) {
        if let Some(to) = self.staging(context, at, from.len()) {
            // SAFETY: `staging` checked the bounds; `from` is private memory and cannot overlap.
            // The bytes may race with a hostile thread of the program: they are only ever moved as
            // raw bytes.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        }
    }

    /// Copies out of a context's staging ring. Beyond the ring `to` stays as it is.
    pub fn unstage(&self, context: u32, at: usize, to: &mut [u8]) {
        if let Some(from) = self.staging(context, at, to.len()) {
            // SAFETY: as in `stage`.
            unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
        }
    }

    /// A raw pointer to `len` bytes of a context's staging ring, for system calls that fill it;
    /// `None` beyond the ring.
    pub fn staging(&self, context: u32, at: usize, len: usize) -> Option<*mut u8> {
        let base = self.context_at(context)?;
        let end = at.checked_add(len)?;
        // SAFETY: inside the context, whose stride holds the whole staging ring.
        (end <= STAGING as usize).then(|| unsafe {
            base.add(PAGE + SUBMISSIONS as usize * size_of::<SubmissionCell>() + at)
        })
    }

    /// A poller's head, and its rings one after the other.
    pub fn poller(&self, index: u32) -> Option<(&Poller, &[AtomicU32])> {
        if index >= self.geometry.pollers {
            return None;
        }
        let base =
            self.at(self.geometry.pollers_at() + index as usize * self.geometry.poller_stride());
        // SAFETY: in bounds by the check; both are atomics only.
        unsafe {
            Some((
                &*base.cast::<Poller>(),
                std::slice::from_raw_parts(
                    base.add(POLLER_HEAD).cast::<AtomicU32>(),
                    HINTS as usize * self.geometry.shards as usize,
                ),
            ))
        }
    }

    /// A raw pointer to `len` bytes of the arena at `at`; `None` beyond the arena.
    pub fn arena(&self, at: u64, len: usize) -> Option<*mut u8> {
        let end = at.checked_add(len as u64)?;
        (end <= self.geometry.arena).then(|| self.at(self.geometry.arena_at() + at as usize))
    }

    /// Copies `data` to `at` in the arena. Copies nothing beyond the arena.
    pub fn write_arena(&self, at: u64, data: &[u8]) {
        if let Some(to) = self.arena(at, data.len()) {
            // SAFETY: bounds checked; `data` is private memory. Readers in the program copy raw
            // bytes.
            unsafe { to.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        }
    }

    /// Copies from `at` in the arena. Beyond the arena `out` stays as it is.
    pub fn read_arena(&self, at: u64, out: &mut [u8]) {
        if let Some(from) = self.arena(at, out.len()) {
            // SAFETY: bounds checked; raw bytes are copied, whoever writes them meanwhile.
            unsafe { from.copy_to_nonoverlapping(out.as_mut_ptr(), out.len()) };
        }
    }

    /// Copies within the arena; the ranges may overlap. Copies nothing beyond the arena.
    pub fn copy_arena(&self, from: u64, to: u64, len: usize) {
        if let (Some(from), Some(to)) = (self.arena(from, len), self.arena(to, len)) {
            // SAFETY: bounds checked; `copy` allows overlap.
            unsafe { std::ptr::copy(from, to, len) };
        }
    }

    /// Returns the memory behind a range of the arena to the kernel. The range reads as zero
    /// afterwards.
    pub fn release_arena(&self, at: u64, len: usize) -> io::Result<()> {
        if let Some(from) = self.arena(at, len) {
            // SAFETY: the range is inside our own mapping and holds nothing that anyone still
            // needs.
            unsafe { rustix::mm::madvise(from.cast(), len, rustix::mm::Advice::LinuxRemove)? };
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; no reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.geometry.total()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::SlotRef;
    use crate::submission::{Cursor, Operation, Submission};

    fn region() -> Region {
        let geometry = Geometry {
            slots: 16,
            contexts: 2,
            pollers: 2,
            shards: 1,
            arena: 1 << 20,
        };
        let file = create(&geometry).unwrap();
        Region::map(file.as_fd(), geometry).unwrap()
    }

    #[test]
    fn parts_are_in_bounds_or_nothing() {
        let region = region();
        assert!(region.slot(15).is_some() && region.slot(16).is_none());
        assert!(region.context(1).is_some() && region.context(2).is_none());
        assert!(region.poller(1).is_some() && region.poller(2).is_none());
        assert!(region.arena(0, 1 << 20).is_some());
        assert!(region.arena(1, 1 << 20).is_none() && region.arena(u64::MAX, 2).is_none());
        assert!(region.staging(0, STAGING as usize - 1, 2).is_none());
    }

    #[test]
    fn the_file_cannot_be_resized() {
        let geometry = Geometry {
            slots: 16,
            contexts: 1,
            pollers: 1,
            shards: 1,
            arena: 4096,
        };
        let file = create(&geometry).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        assert!(rustix::fs::ftruncate(&file, 1 << 40).is_err());
    }

    #[test]
    fn staged_payload_arrives() {
        let region = region();
        let (context, ring) = region.context(1).unwrap();
        let mut cursor = Cursor::default();
        for round in 0..20u8 {
            let data = vec![round; 100_000];
            assert!(context.staging_room() >= 100_000);
            let mut done = 0;
            for (at, len) in context.staging_pieces(100_000) {
                region.stage(1, at, &data[done..done + len]);
                done += len;
            }
            context.submit(
                ring,
                &Submission::new(
                    Operation::Send,
                    SlotRef {
                        index: 0,
                        generation: 0,
                    },
                    100_000,
                ),
            );
            let taken = context.take(ring, &mut cursor).unwrap().unwrap();
            let mut out = Vec::new();
            for (at, len) in cursor.staged(u64::from(taken.parameter)) {
                let mut piece = vec![0; len];
                region.unstage(1, at, &mut piece);
                out.extend(piece);
            }
            cursor.unstage(100_000);
            context.publish(&cursor);
            assert_eq!(out, data);
        }
    }

    #[test]
    fn the_arena_keeps_bytes_and_gives_memory_back() {
        let region = region();
        region.write_arena(8192, b"abc");
        region.copy_arena(8192, 16384, 3);
        let mut out = [0; 3];
        region.read_arena(16384, &mut out);
        assert_eq!(&out, b"abc");
        region.release_arena(16384, 4096).unwrap();
        region.read_arena(16384, &mut out);
        assert_eq!(&out, &[0; 3]);
    }
}
