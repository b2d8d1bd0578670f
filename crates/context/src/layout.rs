//! Where things are in a region.
//!
//! ```text
//! header      one page: magic, geometry, addresses the engine serves, one line per shard that says whether it sleeps
//! slots       256 bytes each
//! contexts    CONTEXT_STRIDE each: head page, submission ring, staging ring
//! pollers     head lines, and a ring of hints for each shard
//! arena       receive rings, given out by the engine in powers of two
//! ```
//! The file is sparse: only what is touched takes memory.

use crate::sync::{AtomicU32, Ordering, fence};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::bypass::Bypasses;
pub use crate::routes::{OWN_MAX, ROUTES_MAX, Route, Routes, mapped};

/// For the checker of interleavings everything is as small as it can be.
const CHECKED: bool = cfg!(millrace_loom);
/// First word of every region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"millrace");
/// Unit of alignment of every part.
pub const PAGE: usize = 4096;
/// Shards that one region can speak to.
pub const SHARDS_MAX: usize = if CHECKED { 1 } else { 64 };
/// Bytes of one slot.
pub const SLOT_STRIDE: usize = 256;
/// Entries of a submission ring (64 bytes each).
pub const SUBMISSIONS: u32 = if CHECKED { 2 } else { 1024 };
/// Bytes of a staging ring: what a program may hand over between two looks of its shard.
pub const STAGING: u64 = 256 * 1024;
/// Bytes of one context: head page, submissions, staging.
pub const CONTEXT_STRIDE: usize = PAGE + SUBMISSIONS as usize * 64 + STAGING as usize;
/// Hints that each of a poller's rings holds; more set its overflow count, upon which the shim
/// looks at every socket it watches.
pub const HINTS: u32 = if CHECKED { 2 } else { 4096 };
/// Bytes of a poller's head lines; only those of shards that exist are touched.
pub const POLLER_HEAD: usize = 3 * PAGE;

/// How many of each part a region has. Sent to the program when it attaches; the engine works with
/// its own copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Sockets, at most.
    pub slots: u32,
    /// Contexts, at most.
    pub contexts: u32,
    /// Pollers, at most.
    pub pollers: u32,
    /// Shards that serve this region.
    pub shards: u32,
    /// Bytes of the arena.
    pub arena: u64,
}

impl Geometry {
    /// Offset of the slots.
    pub const fn slots_at(&self) -> usize {
        2 * PAGE
    }
    /// Offset of the contexts.
    pub const fn contexts_at(&self) -> usize {
        self.slots_at() + (self.slots as usize * SLOT_STRIDE).next_multiple_of(PAGE)
    }
    /// Offset of the pollers.
    pub const fn pollers_at(&self) -> usize {
        self.contexts_at() + self.contexts as usize * CONTEXT_STRIDE
    }
    /// Bytes of one poller.
    pub const fn poller_stride(&self) -> usize {
        POLLER_HEAD + self.shards as usize * HINTS as usize * 4
    }
    /// Offset of the arena.
    pub const fn arena_at(&self) -> usize {
        self.pollers_at() + self.pollers as usize * self.poller_stride()
    }
    /// Bytes in all.
    pub const fn total(&self) -> usize {
        self.arena_at() + self.arena as usize
    }
}

/// A shard at work: it will see a submission by itself.
pub const AWAKE: u32 = 0;
/// A shard that sleeps until its doorbell is rung: ring it after a submission.
pub const ASLEEP: u32 = 1;
/// A shard that looks again within a millisecond, as it does while a program is in a batch and
/// after it has woken one of its threads: who will ring soon anyway (see `Context::set_batching`)
/// leaves it until then; who will not rings now.
pub const NAPPING: u32 = 2;

/// In [`Header::life`]: the kernel wakes a sleeper when the engine ends (FUTEX_WAITERS). That one
/// wakes the others.
pub const LIFE_SLEEPERS: u32 = 1 << 31;
/// In [`Header::life`]: the engine has ended (FUTEX_OWNER_DIED).
pub const LIFE_OVER: u32 = 1 << 30;

/// One word alone on its cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub AtomicU32);

impl Line {
    /// Says how a shard sleeps. Whoever says that it does so calls [`announced`] next, and looks
    /// once more for what it would sleep through.
    pub fn announce(&self, wakefulness: u32) {
        self.0.store(wakefulness, Ordering::Relaxed);
    }

    /// How the shard sleeps, as far as it has to be known by who has just asked it for something.
    pub fn wakefulness(&self) -> u32 {
        // The request must be visible before we look, as the shard says that it sleeps before it
        // looks for requests.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// All lines have been written that say how a shard sleeps.
pub fn announced() {
    fence(Ordering::SeqCst);
}

/// The first pages. Written by the engine before the program maps it, but for what it serves, and
/// the lines at its end.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`crate::VERSION`].
    pub version: u32,
    /// 1 when 127.0.0.0/8, `::1` and the own addresses are served inside the engine.
    pub loopback: u32,
    /// The engine's process.
    pub engine_pid: u32,
    /// Maximum segment size on the link.
    pub mss: u32,
    /// The largest IP packet on the link in bytes.
    pub mtu: u32,
    /// Index of the device that the link is to the kernel; 0 if there is none.
    pub device_index: u32,
    /// 1 when the shim says nothing but errors (`millrace run --quiet`).
    pub quiet: u32,
    /// How many parts.
    pub geometry: Geometry,
    /// What the engine serves of the link.
    pub routes: Routes,
    /// 1 while a router of the link that advertises itself leads to all of IPv6.
    pub default_router: Line,
    /// New sockets go to the first so many shards.
    pub serving: Line,
    /// The engine's life, which sleepers watch beside what they wait for: the id of its control
    /// thread with [`LIFE_SLEEPERS`], and [`LIFE_OVER`] in it once that has ended, set by the
    /// kernel. 0: nobody will be told.
    pub life: Line,
    /// What the program's processes have counted that goes past the engine.
    pub bypasses: Bypasses,
    /// Whether shard *i* sleeps or is about to: [`AWAKE`], [`ASLEEP`] or [`NAPPING`]. Looked at
    /// after a full fence that follows a submission.
    pub sleeping: [Line; SHARDS_MAX],
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Header>() <= 2 * PAGE);

impl Header {
    /// Whether a connection to `ip` is the engine's to make. What is link-local is the kernel's: it
    /// means nothing without a link, of which the engine is not told.
    pub fn serves(&self, ip: IpAddr) -> bool {
        if ip.is_loopback() || self.is_own(ip) {
            return self.loopback == 1;
        }
        if let IpAddr::V6(ip) = ip {
            if ip.is_unicast_link_local() || ip.is_multicast() {
                return false;
            }
            if self.default_router.0.load(Ordering::Relaxed) == 1 && ip.to_ipv4_mapped().is_none() {
                return true;
            }
        }
        self.routes.network().routes().any(|route| route.covers(ip))
    }

    /// Whether a socket bound to `ip`, unspecified for any, is the engine's. `v6_only`: of `::`,
    /// that IPv4 is not meant.
    pub fn owns(&self, ip: IpAddr, v6_only: bool) -> bool {
        match ip {
            _ if ip.is_loopback() => self.loopback == 1,
            IpAddr::V6(any) if any.is_unspecified() && v6_only => {
                let is_v6 = |own: Ipv6Addr| own.to_ipv4_mapped().is_none();
                self.loopback == 1 || self.own().any(is_v6)
            }
            _ if ip.is_unspecified() => self.serves_anything(),
            _ => self.is_own(ip),
        }
    }

    /// Whether the engine has any address, of the link or of loopback.
    pub fn serves_anything(&self) -> bool {
        self.loopback == 1 || self.own().next().is_some()
    }

    /// Whether `ip` means all hosts of the link, or of this host's loopback.
    pub fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        let all_of = |route: Route| {
            let host_bits = 128 - route.bits.min(128);
            let host = !(u32::MAX.checked_shl(host_bits).unwrap_or(0));
            (97..=126).contains(&route.bits)
                && route.covers(ip.into())
                && (ip.to_bits() & host == host || ip.to_bits() & host == 0)
        };
        ip.is_broadcast()
            || ip == Ipv4Addr::new(127, 255, 255, 255)
            || self.routes.network().on_link().any(all_of)
    }

    /// The engine's own addresses on the link, IPv4 mapped; none if it has no link.
    pub fn own(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.routes.network().own()
    }

    /// Whether `ip` is an address of the engine.
    pub fn is_own(&self, ip: IpAddr) -> bool {
        let ip = mapped(ip);
        self.own().any(|own| own == ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        let geometry = Geometry {
            slots: 1000,
            contexts: 8,
            pollers: 8,
            shards: 1,
            arena: 1 << 20,
        };
        assert!(geometry.slots_at() >= size_of::<Header>());
        assert_eq!(geometry.contexts_at() % PAGE, 0);
        assert_eq!(geometry.arena_at() % PAGE, 0);
        assert_eq!(geometry.total(), geometry.arena_at() + (1 << 20));
    }
}
