//! The routers of the link, as they advertise themselves (RFC 4861 6.3), and the asking for them.

use std::net::Ipv6Addr;

use millrace_tcp::{Duration, Instant};

/// Routers that are remembered; a further one is refused.
const ROUTERS_MAX: usize = 4;
/// How often routers are asked for (RFC 4861 10: `MAX_RTR_SOLICITATIONS`), and how long they have
/// to answer.
const SOLICITATIONS: u8 = 3;
const SOLICITATION_INTERVAL: Duration = Duration::from_secs(4);

/// Default routers, those that were heard first before the others.
pub struct Routers {
    known: Vec<Known>,
    /// Whether anybody wants them: a configured gateway goes before all of them.
    wanted: bool,
    /// Solicitations that are still to be sent, and when the next.
    left: u8,
    at: Option<Instant>,
}

struct Known {
    address: Ipv6Addr,
    expires: Instant,
}

impl Routers {
    /// `first`: when the first solicitation may be sent; without it, when the link-local address
    /// may be used.
    pub fn new(wanted: bool, first: Option<Instant>) -> Routers {
        Routers {
            known: Vec::new(),
            wanted,
            left: if wanted { SOLICITATIONS } else { 0 },
            at: first.filter(|_| wanted),
        }
    }

    /// The router to use.
    pub fn first(&self) -> Option<Ipv6Addr> {
        self.known.first().map(|router| router.address)
    }

    /// Whether `address` is that of a known router.
    pub fn has(&self, address: Ipv6Addr) -> bool {
        self.known.iter().any(|router| router.address == address)
    }

    /// Removes a router (RFC 4861 7.2.5); returns whether it was known.
    pub fn remove(&mut self, address: Ipv6Addr) -> bool {
        let before = self.known.len();
        self.known.retain(|router| router.address != address);
        self.known.len() < before
    }

    /// It does not answer: the others go before it (RFC 4861 6.3.6). Whether there are others, and
    /// it was the one in use.
    pub fn demote(&mut self, address: Ipv6Addr) -> bool {
        let in_use = self.known.len() > 1 && self.first() == Some(address);
        if in_use {
            self.known.rotate_left(1);
        }
        in_use
    }

    /// When a router is to be asked for, or expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.known
            .iter()
            .map(|router| router.expires)
            .chain(self.at)
            .min()
    }

    /// Takes out a router whose lifetime is over.
    pub fn pop_expired(&mut self, now: Instant) -> Option<Ipv6Addr> {
        let at = self.known.iter().position(|router| router.expires <= now)?;
        Some(self.known.remove(at).address)
    }

    /// Whether to send a router solicitation now.
    pub fn take_solicitation(&mut self, now: Instant) -> bool {
        let is_due = self.left > 0 && self.at.is_none_or(|at| at <= now);
        if !is_due {
            return false;
        }
        self.left -= 1;
        self.at = (self.left > 0).then(|| now + SOLICITATION_INTERVAL);
        true
    }

    /// An advertisement came; false when there was no room to remember it.
    pub fn heard(&mut self, address: Ipv6Addr, lifetime_s: u16, now: Instant) -> bool {
        if !self.wanted {
            return true;
        }
        // No solicitation is needed after an answer (RFC 4861 6.3.7).
        (self.left, self.at) = (0, None);
        let expires = now + Duration::from_secs(u64::from(lifetime_s));
        if let Some(router) = self
            .known
            .iter_mut()
            .find(|router| router.address == address)
        {
            router.expires = expires;
        } else if self.known.len() < ROUTERS_MAX {
            self.known.push(Known { address, expires });
        } else {
            return false;
        }
        true
    }
}
