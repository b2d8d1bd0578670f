//! The rings that a socket shares with the kernel, and the memory that frames lie in.
//!
//! Each ring has one producer and one consumer, and both keep what they last saw of the other: the
//! shared indices are read when that is used up, and written once for many entries.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Memory that goes with its owner.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: nothing about the memory is of one thread; who owns the mapping owns what is done with
// it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// New memory, its pages there already: none is faulted in by a packet.
    pub(super) fn new(len: usize) -> io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        // SAFETY: a mapping where the kernel likes harms nothing that is there.
        let start = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )
        }?;
        Mapping::of(start, len)
    }

    fn of(start: *mut c_void, len: usize) -> io::Result<Mapping> {
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    /// Memory of the kernel, `offset` telling which.
    fn shared(socket: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Mapping> {
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
        );
        // SAFETY: as above.
        let start = unsafe { mmap(std::ptr::null_mut(), len, access, flags, socket, offset) }?;
        Mapping::of(start, len)
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Copies bytes out; `false`, and nothing is done, if they are not all in the memory.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> bool {
        let Some(from) = self.find(at, out.len()) else {
            return false;
        };
        // SAFETY: the bytes lie in the mapping. The kernel has handed their chunk over, and were it
        // to write there all the same, what is read is bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies bytes in, likewise.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) -> bool {
        let Some(to) = self.find(at, bytes.len()) else {
            return false;
        };
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    fn find(&self, at: u64, len: usize) -> Option<*mut u8> {
        let at = usize::try_from(at).ok()?;
        let is_inside = at.checked_add(len)? <= self.len;
        // SAFETY: it points into the mapping, or right behind it.
        is_inside.then(|| unsafe { self.start.as_ptr().add(at) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody else knows of it. A failure would mean
        // that it is gone already.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// One ring, with the kernel at its other end. `T` is an entry, as the kernel lays it out.
#[derive(Debug)]
struct Ring<T> {
    /// Keeps what the pointers point to.
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: NonNull<AtomicU32>,
    entries: NonNull<T>,
    size: u32,
}

// SAFETY: the pointers lead into the mapping that goes with them.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T: Copy> Ring<T> {
    /// Maps the ring of `size` entries, a power of two, that the kernel has laid out as `offsets`
    /// say.
    fn map(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        which: u64,
        size: u32,
    ) -> io::Result<Ring<T>> {
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let mapping = Mapping::shared(socket, which, len)?;
        let at = |offset: u64| mapping.find(offset, size_of::<AtomicU32>());
        let pointers = (
            at(offsets.producer),
            at(offsets.consumer),
            at(offsets.flags),
            at(offsets.desc),
        );
        let (Some(producer), Some(consumer), Some(flags), Some(entries)) = pointers else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let pointer = |to: *mut u8| NonNull::new(to).ok_or(io::ErrorKind::InvalidData);
        Ok(Ring {
            producer: pointer(producer)?.cast(),
            consumer: pointer(consumer)?.cast(),
            flags: pointer(flags)?.cast(),
            entries: pointer(entries)?.cast(),
            size,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: it points into the mapping, where the kernel has put an index for all to read.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }

    fn flags(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.flags.as_ref() }
    }

    /// The entry of a running index.
    fn entry(&self, index: u32) -> *mut T {
        // SAFETY: masked, the index is below the number of entries, all of which are in the
        // mapping.
        unsafe {
            self.entries
                .as_ptr()
                .add((index & (self.size - 1)) as usize)
        }
    }
}

/// A ring that this end fills.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Ring<T>,
    /// What was written, published or not.
    written: u32,
    published: u32,
    /// What the kernel had taken when it was looked at last.
    taken: u32,
}

impl<T: Copy> Producer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        which: u64,
        size: u32,
    ) -> io::Result<Producer<T>> {
        Ok(Producer {
            ring: Ring::map(socket, offsets, which, size)?,
            written: 0,
            published: 0,
            taken: 0,
        })
    }

    /// Whether there is room for `count` entries.
    pub(super) fn has_room(&mut self, count: u32) -> bool {
        let room = |ring: &Producer<T>| ring.ring.size - ring.written.wrapping_sub(ring.taken);
        if room(self) >= count {
            return true;
        }
        self.taken = self.ring.consumer().load(Ordering::Acquire);
        room(self) >= count
    }

    /// Writes an entry; [`Producer::has_room`] was asked.
    pub(super) fn push(&mut self, entry: T) {
        // SAFETY: the entry is in the mapping, and this end's to write: there is room, so the
        // kernel has taken what was there.
        unsafe { self.ring.entry(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
    }

    /// Lets the kernel see what was written.
    pub(super) fn publish(&mut self) {
        if self.published != self.written {
            self.published = self.written;
            self.ring.producer().store(self.written, Ordering::Release);
        }
    }

    /// How many of those that it was shown the kernel has not taken.
    pub(super) fn pending(&mut self) -> u32 {
        if self.taken != self.published {
            self.taken = self.ring.consumer().load(Ordering::Acquire);
        }
        self.published.wrapping_sub(self.taken)
    }

    /// Whether the kernel takes nothing more before it is called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.flags().load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// A ring that the kernel fills.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Ring<T>,
    /// What was taken, given back or not.
    taken: u32,
    returned: u32,
    /// What there was when it was looked at last.
    seen: u32,
}

impl<T: Copy> Consumer<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        offsets: &libc::xdp_ring_offset,
        which: u64,
        size: u32,
    ) -> io::Result<Consumer<T>> {
        Ok(Consumer {
            ring: Ring::map(socket, offsets, which, size)?,
            taken: 0,
            returned: 0,
            seen: 0,
        })
    }

    /// How many entries there are; the kernel is asked when none is known of.
    pub(super) fn available(&mut self) -> u32 {
        if self.seen == self.taken {
            self.look();
        }
        self.seen.wrapping_sub(self.taken)
    }

    /// Asks the kernel how many there are.
    pub(super) fn look(&mut self) {
        self.seen = self.ring.producer().load(Ordering::Acquire);
    }

    /// The entry `ahead` of the next one, of those that are available.
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: the entry is in the mapping, and the kernel has published it.
        unsafe { self.ring.entry(self.taken.wrapping_add(ahead)).read() }
    }

    /// Takes the next `count`, which were peeked at.
    pub(super) fn take(&mut self, count: u32) {
        self.taken = self.taken.wrapping_add(count);
    }

    /// Gives the room of what was taken back to the kernel.
    pub(super) fn give_back(&mut self) {
        if self.returned != self.taken {
            self.returned = self.taken;
            self.ring.consumer().store(self.taken, Ordering::Release);
        }
    }
}

/// The rings of one socket's memory and its own, of `size` entries each.
#[derive(Debug)]
pub(super) struct Rings {
    pub(super) fill: Producer<u64>,
    pub(super) completion: Consumer<u64>,
    pub(super) receive: Consumer<libc::xdp_desc>,
    pub(super) transmit: Producer<libc::xdp_desc>,
}

impl Rings {
    pub(super) fn map(
        socket: impl AsFd,
        offsets: &libc::xdp_mmap_offsets,
        size: u32,
    ) -> io::Result<Rings> {
        let socket = socket.as_fd();
        Ok(Rings {
            fill: Producer::map(socket, &offsets.fr, libc::XDP_UMEM_PGOFF_FILL_RING, size)?,
            completion: Consumer::map(
                socket,
                &offsets.cr,
                libc::XDP_UMEM_PGOFF_COMPLETION_RING,
                size,
            )?,
            receive: Consumer::map(socket, &offsets.rx, libc::XDP_PGOFF_RX_RING as u64, size)?,
            transmit: Producer::map(socket, &offsets.tx, libc::XDP_PGOFF_TX_RING as u64, size)?,
        })
    }
}
