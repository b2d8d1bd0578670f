//! The meaning of each descriptor number: one word per number, read without a lock.
//!
//! The word of a number that does not concern the shim is 0, so such a number costs one load.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use millrace_context::SlotRef;

/// The kernel alone has the descriptor numbers from here on.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

static TABLE: [AtomicU64; DESCRIPTORS_MAX] = [const { AtomicU64::new(0) }; DESCRIPTORS_MAX];
/// The highest number that was ever set.
static HIGHEST: AtomicI32 = AtomicI32::new(-1);

/// What a descriptor number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A descriptor of the kernel, as far as the shim knows.
    Kernel,
    /// A millrace socket.
    Socket(SlotRef),
    /// An epoll set, by its index in the process's list.
    Epoll(u32),
    /// A kernel TCP or UDP socket that may yet become a millrace socket.
    Undecided(Undecided),
    /// The shim's own descriptor. To the program it is not open.
    Internal,
    /// A netlink socket of the kernel that can be asked for addresses.
    Netlink(Asked),
}

/// The last request on a netlink socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// It asked for all addresses, and the end of the answer has not been received.
    pub dump: bool,
    /// The address family; 0 for any.
    pub family: u8,
    /// The sequence number of the request.
    pub sequence: u32,
}

/// What is known of a socket whose stack is not chosen yet. The kernel socket holds its options;
/// each option that was set has a bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undecided {
    /// The family is AF_INET6.
    pub v6: bool,
    /// Other descriptors may mean the same socket.
    pub shared: bool,
    /// The socket is UDP, not TCP.
    pub datagrams: bool,
    /// The options that were set: see [`crate::socket::option_rows::bit`].
    pub options: u64,
}

const KIND: u64 = 7;
const SOCKET: u64 = 1;
const EPOLL: u64 = 2;
const UNDECIDED: u64 = 3;
const INTERNAL: u64 = 4;
const NETLINK: u64 = 5;
/// The first bit of the options, behind the kind, the family, sharing and the type.
const OPTIONS_AT: u32 = 6;
/// Slot indices fit in this many bits of an entry.
const INDEX_BITS: u32 = 29;

impl Entry {
    /// The entry as a word of the table.
    pub fn to_word(self) -> u64 {
        match self {
            Entry::Kernel => 0,
            Entry::Socket(slot) => {
                u64::from(slot.generation) << 32 | u64::from(slot.index) << 3 | SOCKET
            }
            Entry::Epoll(index) => u64::from(index) << 3 | EPOLL,
            Entry::Undecided(undecided) => {
                undecided.options << OPTIONS_AT
                    | u64::from(undecided.v6) << 3
                    | u64::from(undecided.shared) << 4
                    | u64::from(undecided.datagrams) << 5
                    | UNDECIDED
            }
            Entry::Internal => INTERNAL,
            Entry::Netlink(asked) => {
                u64::from(asked.sequence) << 32
                    | u64::from(asked.family) << 8
                    | u64::from(asked.dump) << 3
                    | NETLINK
            }
        }
    }

    /// The entry from its word.
    pub fn from_word(word: u64) -> Entry {
        match word & KIND {
            SOCKET => Entry::Socket(SlotRef {
                index: (word as u32) >> 3,
                generation: (word >> 32) as u32,
            }),
            EPOLL => Entry::Epoll((word >> 3) as u32),
            UNDECIDED => Entry::Undecided(Undecided {
                v6: word & 8 != 0,
                shared: word & 16 != 0,
                datagrams: word & 32 != 0,
                options: word >> OPTIONS_AT,
            }),
            INTERNAL => Entry::Internal,
            NETLINK => Entry::Netlink(Asked {
                dump: word & 8 != 0,
                family: (word >> 8) as u8,
                sequence: (word >> 32) as u32,
            }),
            _ => Entry::Kernel,
        }
    }
}

fn cell(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(fd as usize)
}

/// Whether a descriptor does not concern the shim.
#[inline]
pub fn is_kernel(fd: c_int) -> bool {
    cell(fd).is_none_or(|cell| cell.load(Ordering::Relaxed) == 0)
}

/// A descriptor's entry.
pub fn get(fd: c_int) -> Entry {
    cell(fd).map_or(Entry::Kernel, |cell| {
        Entry::from_word(cell.load(Ordering::Acquire))
    })
}

/// Sets a descriptor's entry. A number beyond the table has none, so callers check [`holds`] first.
pub fn set(fd: c_int, entry: Entry) {
    replace(fd, entry);
}

/// Sets a descriptor's entry and returns the one before.
pub fn replace(fd: c_int, entry: Entry) -> Entry {
    let Some(cell) = cell(fd) else {
        return Entry::Kernel;
    };
    if entry != Entry::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    Entry::from_word(cell.swap(entry.to_word(), Ordering::AcqRel))
}

/// Sets a descriptor's entry if it still is `from`.
pub fn exchange(fd: c_int, from: Entry, to: Entry) -> bool {
    if to != Entry::Kernel {
        HIGHEST.fetch_max(fd, Ordering::Relaxed);
    }
    cell(fd).is_some_and(|cell| {
        cell.compare_exchange(
            from.to_word(),
            to.to_word(),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .is_ok()
    })
}

/// Whether the table has room for this number.
pub fn holds(fd: c_int) -> bool {
    cell(fd).is_some()
}

/// The most options that an entry has room for.
pub const OPTIONS_MAX: usize = 64 - OPTIONS_AT as usize;

/// Whether all slot indices below `slots` fit in an entry.
pub fn fits(slots: u32) -> bool {
    slots <= 1 << INDEX_BITS
}

/// The descriptors of `first..=last` that concern the shim, in order.
pub fn entries(first: u32, last: u32) -> impl Iterator<Item = (c_int, Entry)> {
    let end = (HIGHEST.load(Ordering::Acquire) + 1) as u32;
    let last = last.saturating_add(1).min(end);
    (first..last).filter_map(|fd| match get(fd as c_int) {
        Entry::Kernel => None,
        entry => Some((fd as c_int, entry)),
    })
}

/// All descriptors that concern the shim.
pub fn all() -> impl Iterator<Item = (c_int, Entry)> {
    entries(0, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_survive_their_word() {
        for entry in [
            Entry::Kernel,
            Entry::Socket(SlotRef {
                index: (1 << INDEX_BITS) - 1,
                generation: u32::MAX,
            }),
            Entry::Socket(SlotRef {
                index: 0,
                generation: 1,
            }),
            Entry::Epoll(77),
            Entry::Undecided(Undecided {
                v6: true,
                shared: false,
                datagrams: true,
                options: 0x8000_0000_0001,
            }),
            Entry::Undecided(Undecided::default()),
            Entry::Internal,
            Entry::Netlink(Asked::default()),
            Entry::Netlink(Asked {
                dump: true,
                family: 10,
                sequence: u32::MAX,
            }),
        ] {
            assert_eq!(Entry::from_word(entry.to_word()), entry);
        }
        assert!(is_kernel(-1) && is_kernel(c_int::MAX));
    }

    #[test]
    fn the_table_is_walked_in_order() {
        let base = DESCRIPTORS_MAX as c_int - 10;
        set(base + 5, Entry::Epoll(5));
        set(base + 2, Entry::Epoll(2));
        let found: Vec<_> = entries(base as u32, u32::MAX).collect();
        assert_eq!(
            found,
            [(base + 2, Entry::Epoll(2)), (base + 5, Entry::Epoll(5))]
        );
        assert!(exchange(base + 5, Entry::Epoll(5), Entry::Kernel));
        assert!(!exchange(base + 5, Entry::Epoll(5), Entry::Internal));
        assert_eq!(replace(base + 2, Entry::Kernel), Entry::Epoll(2));
    }
}
