//! The memory of a pair of ports, and the two rings in it.
//!
//! Each direction has a ring of cells and a ring of bytes. A cell is a record's head and a body of
//! up to [`CELL_BODY`] bytes; a longer body lies in the ring of bytes, in one piece. The first word
//! of a cell tells by its tag that the cell was written in this round, so the reader looks at
//! nothing else. The reader tells in a line of its own how far it has read.
//!
//! The peer may write anything anywhere at any time. Positions of our own are kept in private
//! memory; what is read from the peer is copied, checked and then used; bodies are moved as raw
//! bytes and no reference to them is made. The file cannot be made shorter: its seals are checked
//! before it is mapped.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::record::{Body, Head, Words};
use crate::session::Violation;

const PAGE: usize = 4096;
/// Cells of a ring.
pub const CELLS: u64 = 1024;
const CELL: usize = 128;
const CELL_HEAD: usize = 32;
/// Bytes of a body that lie in its cell.
pub const CELL_BODY: usize = CELL - CELL_HEAD;
/// Bytes of a ring of bytes.
const BYTES: u64 = 256 << 10;
/// The largest body.
pub const PIECE_MAX: usize = 16 << 10;
/// Less room than this is not worth a piece of a message.
const PIECE_MIN: u64 = 4 << 10;
const DIRECTION: usize = CELLS as usize * CELL + BYTES as usize;
/// Bytes of the whole.
const LEN: usize = PAGE + 2 * DIRECTION;
/// The reader tells of its progress after so many cells at the latest.
const TELL_EVERY: u64 = 64;

/// Creates the file behind a pair's memory: of a fixed length, for good.
pub fn create() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("millrace-fabric", flags)?;
    rustix::fs::ftruncate(&file, LEN as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// What the reader of a direction tells its writer. Alone on its lines.
#[repr(C, align(128))]
struct Progress {
    cells: AtomicU64,
    bytes: AtomicU64,
    is_asleep: AtomicU32,
}

/// A pair's memory, mapped.
#[derive(Debug)]
struct Mapping(NonNull<u8>);

// SAFETY: it is plain shared memory; everything in it is atomic or moved as raw bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that is as [`create`] makes it; any other is an error.
    fn new(file: BorrowedFd<'_>) -> io::Result<Mapping> {
        let seals = rustix::fs::fcntl_get_seals(file)?;
        let stat = rustix::fs::fstat(file)?;
        // A page of a huge-page file may be missing when it is touched, which is SIGBUS; its blocks
        // are larger.
        let is_ours = seals.contains(SealFlags::SHRINK | SealFlags::GROW)
            && stat.st_size == LEN as i64
            && stat.st_blksize == PAGE as i64;
        if !is_ours {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer's memory can shrink or is of another size",
            ));
        }
        // SAFETY: a new mapping chosen by the kernel overlaps nothing; the file has LEN bytes for
        // good.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                LEN,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        NonNull::new(base.cast())
            .map(Mapping)
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// A pointer to `len` bytes at `at`.
    #[inline]
    fn at(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at <= LEN && len <= LEN - at);
        // SAFETY: inside the mapping.
        unsafe { self.0.as_ptr().add(at) }
    }

    #[inline]
    fn progress(&self, direction: usize) -> &Progress {
        // SAFETY: inside the first page, aligned, and atomics only, for which any bytes are valid.
        unsafe { &*self.at(direction * 1024, size_of::<Progress>()).cast() }
    }

    /// The head of a cell.
    #[inline]
    fn head(&self, direction: usize, cell: u64) -> &[AtomicU64; 4] {
        let at = PAGE + direction * DIRECTION + (cell % CELLS) as usize * CELL;
        // SAFETY: inside the direction, aligned to 128 bytes, and atomics only.
        unsafe { &*self.at(at, CELL_HEAD).cast() }
    }

    /// `len` bytes of a body: in its cell, or in the ring of bytes at `position`. None if they are
    /// not inside of it.
    #[inline]
    fn body(&self, direction: usize, cell: u64, position: u64, len: usize) -> Option<*mut u8> {
        let start = PAGE + direction * DIRECTION;
        if len <= CELL_BODY {
            return Some(self.at(start + (cell % CELLS) as usize * CELL + CELL_HEAD, len));
        }
        let is_inside = position < BYTES && len as u64 <= BYTES - position;
        is_inside.then(|| self.at(start + CELLS as usize * CELL + position as usize, len))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; writer and reader, which use it, hold it.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), LEN) };
    }
}

/// The body of a record, in the pair's memory.
#[derive(Debug)]
pub struct SharedBody<'a> {
    at: *const u8,
    len: usize,
    _memory: &'a Mapping,
}

impl Body for SharedBody<'_> {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn copy_to(&self, to: &mut [u8]) {
        assert_eq!(to.len(), self.len);
        // SAFETY: `Reader::peek` has checked that these bytes are in the mapping; `to` is private
        // memory. The peer may write them meanwhile: they are only moved, as raw bytes.
        unsafe { self.at.copy_to_nonoverlapping(to.as_mut_ptr(), self.len) };
    }
}

/// The way out.
#[repr(align(128))]
#[derive(Debug)]
pub struct Writer {
    memory: Arc<Mapping>,
    direction: usize,
    /// Cells and bytes written, and how many of them had been read when that was last looked at.
    cells: u64,
    bytes: u64,
    cells_read: u64,
    bytes_read: u64,
    /// The peer told of a progress that cannot be.
    pub is_broken: bool,
}

/// The way in.
#[repr(align(128))]
#[derive(Debug)]
pub struct Reader {
    memory: Arc<Mapping>,
    direction: usize,
    cells: u64,
    bytes: u64,
    /// Cells that the peer was told.
    cells_told: u64,
}

/// Maps a pair's memory. Its two ports have different values of `is_first`.
pub fn map(file: BorrowedFd<'_>, is_first: bool) -> io::Result<(Writer, Reader)> {
    let memory = Arc::new(Mapping::new(file)?);
    let direction = usize::from(!is_first);
    let writer = Writer {
        memory: memory.clone(),
        direction,
        cells: 0,
        bytes: 0,
        cells_read: 0,
        bytes_read: 0,
        is_broken: false,
    };
    let reader = Reader {
        memory,
        direction: 1 - direction,
        cells: 0,
        bytes: 0,
        cells_told: 0,
    };
    Ok((writer, reader))
}

/// What stands in the upper half of a cell's first word when the cell has been written for the
/// `position`th time.
#[inline]
fn tag(position: u64) -> u32 {
    (position as u32).wrapping_add(1)
}

impl Writer {
    /// Looks how far the peer has read.
    #[cold]
    fn look(&mut self) {
        let progress = self.memory.progress(self.direction);
        let cells = progress.cells.load(Ordering::Acquire);
        let bytes = progress.bytes.load(Ordering::Acquire);
        if (self.cells_read..=self.cells).contains(&cells)
            && (self.bytes_read..=self.bytes).contains(&bytes)
        {
            (self.cells_read, self.bytes_read) = (cells, bytes);
        } else {
            self.is_broken = true;
        }
    }

    /// Where a body of `len` bytes goes in the ring of bytes, counted from the beginning, if there
    /// is room.
    fn place(&self, len: u64) -> Option<u64> {
        let to_end = BYTES - self.bytes % BYTES;
        let start = match len <= to_end {
            true => self.bytes,
            false => self.bytes + to_end,
        };
        (start + len - self.bytes_read <= BYTES).then_some(start)
    }

    /// Writes a record; false when there is no room.
    #[inline]
    pub fn push(&mut self, head: Head, body: &[u8]) -> bool {
        let is_long = body.len() > CELL_BODY;
        debug_assert!(body.len() <= PIECE_MAX);
        if self.is_broken {
            return false;
        }
        if self.cells - self.cells_read == CELLS {
            self.look();
            if self.cells - self.cells_read == CELLS {
                return false;
            }
        }
        let mut start = 0;
        if is_long {
            let mut place = self.place(body.len() as u64);
            if place.is_none() {
                self.look();
                place = self.place(body.len() as u64);
            }
            let Some(place) = place else {
                return false;
            };
            start = place % BYTES;
            self.bytes = place + body.len() as u64;
        }
        if let Some(to) = self
            .memory
            .body(self.direction, self.cells, start, body.len())
        {
            // SAFETY: in the mapping by `Mapping::body`; `body` is private memory and cannot
            // overlap it.
            unsafe { to.copy_from_nonoverlapping(body.as_ptr(), body.len()) };
        }
        let words = head.to_words();
        let cell = self.memory.head(self.direction, self.cells);
        let first = u64::from(tag(self.cells)) << 32
            | u64::from(words.kind) << 24
            | u64::from(words.channel_kind) << 16
            | u64::from(words.channel);
        cell[1].store(
            u64::from(words.ticket) << 32 | u64::from(words.value),
            Ordering::Relaxed,
        );
        cell[2].store(words.offset, Ordering::Relaxed);
        cell[3].store((body.len() as u64) << 32 | start, Ordering::Relaxed);
        cell[0].store(first, Ordering::Release);
        self.cells += 1;
        true
    }

    /// The largest body that there is room for, if it is worth it.
    pub fn room(&mut self) -> Option<usize> {
        for looked in [false, true] {
            if looked {
                self.look();
            }
            if self.is_broken {
                return None;
            }
            let has_cell = self.cells - self.cells_read < CELLS;
            let fits = [PIECE_MAX as u64, PIECE_MIN];
            let fits = fits.into_iter().find(|len| self.place(*len).is_some());
            if let Some(len) = fits.filter(|_| has_cell) {
                return Some(len as usize);
            }
        }
        None
    }

    /// How many records were written.
    pub fn position(&self) -> u64 {
        self.cells
    }

    /// Whether the peer sleeps, as it says; it is told that it is being woken.
    pub fn take_sleeper(&self) -> bool {
        let word = &self.memory.progress(self.direction).is_asleep;
        let is_asleep = word.load(Ordering::Relaxed) != 0;
        if is_asleep {
            word.store(0, Ordering::Relaxed);
        }
        is_asleep
    }
}

impl Reader {
    /// Whether there is a record.
    #[inline]
    pub fn has_next(&self) -> bool {
        let first = self.memory.head(self.direction, self.cells)[0].load(Ordering::Acquire);
        (first >> 32) as u32 == tag(self.cells)
    }

    /// The next record, if there is one.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator's items outlive its next step"
    )]
    #[inline]
    pub fn next(&mut self) -> Result<Option<(Head, SharedBody<'_>)>, Violation> {
        let cell = self.memory.head(self.direction, self.cells);
        let first = cell[0].load(Ordering::Acquire);
        if (first >> 32) as u32 != tag(self.cells) {
            return Ok(None);
        }
        let second = cell[1].load(Ordering::Relaxed);
        let offset = cell[2].load(Ordering::Relaxed);
        let last = cell[3].load(Ordering::Relaxed);
        let head = Head::from_words(Words {
            kind: (first >> 24) as u8,
            channel_kind: (first >> 16) as u8,
            channel: first as u16,
            ticket: (second >> 32) as u32,
            value: second as u32,
            offset,
        });
        let (len, start) = ((last >> 32) as usize, u64::from(last as u32));
        let head = head.filter(|head| len <= PIECE_MAX && (len == 0 || head.has_body()));
        let head = head.ok_or(Violation)?;
        let body = self.memory.body(self.direction, self.cells, start, len);
        let at = body.ok_or(Violation)?;
        if len > CELL_BODY {
            let skipped = (start + BYTES - self.bytes % BYTES) % BYTES;
            self.bytes += skipped + len as u64;
        }
        self.cells += 1;
        let body = SharedBody {
            at,
            len,
            _memory: &self.memory,
        };
        Ok(Some((head, body)))
    }

    /// Tells the peer how far it was read: always, or when that is worth it. Whether it was told.
    #[inline]
    pub fn tell(&mut self, always: bool) -> bool {
        let news = self.cells - self.cells_told;
        if news == 0 || (!always && news < TELL_EVERY) {
            return false;
        }
        let progress = self.memory.progress(self.direction);
        progress.bytes.store(self.bytes, Ordering::Release);
        progress.cells.store(self.cells, Ordering::Release);
        self.cells_told = self.cells;
        true
    }

    /// Asks the peer to wake us from now on, or not to. A full fence has to follow before the rings
    /// are looked at for the last time.
    pub fn set_asleep(&self, is_asleep: bool) {
        let word = &self.memory.progress(self.direction).is_asleep;
        word.store(u32::from(is_asleep), Ordering::Relaxed);
    }
}

/// The peer's hand in a pair's memory, for tests: writes a word anywhere in it.
#[doc(hidden)]
pub fn scribble(file: BorrowedFd<'_>, words: impl Iterator<Item = (usize, u64)>) -> io::Result<()> {
    let memory = Mapping::new(file)?;
    for (at, word) in words {
        let at = (at % (LEN - 8)) & !7;
        // SAFETY: inside the mapping and aligned; an atomic word.
        let to: &AtomicU64 = unsafe { &*memory.at(at, 8).cast() };
        to.store(word, Ordering::Relaxed);
    }
    Ok(())
}
