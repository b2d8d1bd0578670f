//! Where things are in a region.
//!
//! ```text
//! header      one page: magic, geometry, addresses the engine serves, a line per shard (asleep?)
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

/// The model checker uses the smallest possible sizes.
const CHECKED: bool = cfg!(millrace_loom);
/// First word of every region.
pub const MAGIC: u64 = u64::from_le_bytes(*b"millrace");
/// Unit of alignment of every part.
pub const PAGE: usize = 4096;
/// The most shards of one region.
pub const SHARDS_MAX: usize = if CHECKED { 1 } else { 64 };
/// Bytes of one slot.
pub const SLOT_STRIDE: usize = 256;
/// Entries of a submission ring (64 bytes each).
pub const SUBMISSIONS: u32 = if CHECKED { 2 } else { 1024 };
/// The bytes of a staging ring: the most that a program can hand over between two rounds of its
/// shard.
pub const STAGING: u64 = 256 * 1024;
/// Bytes of one context: head page, submissions, staging.
pub const CONTEXT_STRIDE: usize = PAGE + SUBMISSIONS as usize * 64 + STAGING as usize;
/// The hints that each ring of a poller holds. More increment its overflow count, and the shim
/// looks at every socket that it watches.
pub const HINTS: u32 = if CHECKED { 2 } else { 4096 };
/// The bytes of a poller's head lines. Only lines of existing shards are touched.
pub const POLLER_HEAD: usize = 3 * PAGE;

/// The number of each part of a region. The engine sends it to a program that attaches, and works
/// with its own copy.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The most sockets.
    pub slots: u32,
    /// The most contexts.
    pub contexts: u32,
    /// The most pollers.
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
    /// The bytes of the whole region.
    pub const fn total(&self) -> usize {
        self.arena_at() + self.arena as usize
    }
}

/// The shard works and sees a submission by itself.
pub const AWAKE: u32 = 0;
/// The shard sleeps: ring its doorbell after a submission.
pub const ASLEEP: u32 = 1;
/// The shard looks again within a millisecond, while a program is in a batch and after it has woken
/// one of its threads. A thread that will ring soon anyway (see `Context::set_batching`) leaves it
/// asleep; any other rings now.
pub const NAPPING: u32 = 2;

/// In [`Header::life`]: the kernel wakes one sleeper when the engine ends (FUTEX_WAITERS), and that
/// one wakes the others.
pub const LIFE_SLEEPERS: u32 = 1 << 31;
/// In [`Header::life`]: the engine has ended (FUTEX_OWNER_DIED).
pub const LIFE_OVER: u32 = 1 << 30;

/// One word alone on its cache line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Line(pub AtomicU32);

impl Line {
    /// Publishes how a shard sleeps. Before it sleeps, the shard calls [`announced`] and looks once
    /// more for requests that it would miss.
    pub fn announce(&self, wakefulness: u32) {
        self.0.store(wakefulness, Ordering::Relaxed);
    }

    /// How the shard sleeps, for a thread that has just submitted a request.
    pub fn wakefulness(&self) -> u32 {
        // The request must be visible before this load, as the shard publishes its sleep before it
        // looks for requests.
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed)
    }
}

/// Orders the published sleeps before the last look for requests.
pub fn announced() {
    fence(Ordering::SeqCst);
}

/// The first pages. The engine writes them before the program maps them. Only the routes and the
/// lines at the end change later.
#[repr(C)]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: u64,
    /// [`crate::VERSION`].
    pub version: u32,
    /// 1 if the engine serves 127.0.0.0/8, `::1` and its own addresses internally.
    pub loopback: u32,
    /// The engine's process.
    pub engine_pid: u32,
    /// Maximum segment size on the link.
    pub mss: u32,
    /// The largest IP packet on the link in bytes.
    pub mtu: u32,
    /// The index of the kernel's device for the link; 0 if there is none.
    pub device_index: u32,
    /// 1 if the shim reports only errors (`millrace run --quiet`).
    pub quiet: u32,
    /// The number of each part.
    pub geometry: Geometry,
    /// The addresses and routes that the engine serves on the link.
    pub routes: Routes,
    /// 1 while a router advertises itself on the link as the default for IPv6.
    pub default_router: Line,
    /// The number of shards, from the first, that get new sockets.
    pub serving: Line,
    /// The engine's life, which a sleeping thread watches beside its own word: the id of the
    /// engine's control thread with [`LIFE_SLEEPERS`]. The kernel sets [`LIFE_OVER`] when that
    /// thread ends. 0: nobody is told of the end.
    pub life: Line,
    /// How often the program's processes have bypassed the engine.
    pub bypasses: Bypasses,
    /// How each shard sleeps or is about to: [`AWAKE`], [`ASLEEP`] or [`NAPPING`]. Read after a
    /// full fence that follows a submission.
    pub sleeping: [Line; SHARDS_MAX],
}

#[cfg(not(millrace_loom))]
const _: () = assert!(size_of::<Header>() <= 2 * PAGE);

impl Header {
    /// Whether the engine makes connections to `ip`. Link-local addresses are the kernel's, because
    /// they need a device and the engine is not told which.
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

    /// Whether a socket bound to `ip` (unspecified for any address) is the engine's. `v6_only`:
    /// `::` does not include IPv4.
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

    /// Whether `ip` is a broadcast address of the link or of loopback.
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

    /// The engine's own addresses on the link, with IPv4 mapped; none without a link.
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
