//! The cookies of TCP Fast Open that other hosts have given us (RFC 7413 4.1.3).

use std::collections::BTreeMap;
use std::net::IpAddr;

use millrace_tcp::{Duration, FastOpenNews, Instant};
use millrace_wire::tcp::Cookie;

/// Options of a SYN, at most: they count against what a peer takes in one segment when payload
/// comes with them.
const OPTIONS_MAX: u16 = 40;
/// After a SYN with payload was lost no other is sent to that host for this long, twice as long
/// after the next, and so on (Linux's `tcp_fastopen_cookie_check`).
const PAUSE: Duration = Duration::from_secs(60);
/// How often that doubles.
const DOUBLINGS: u32 = 10;

/// Cookies that other hosts have given us.
pub(crate) struct FastOpenCookies {
    known: BTreeMap<IpAddr, Known>,
    limit: usize,
}

/// A host.
#[derive(Clone, Copy, Default)]
struct Known {
    cookie: Option<Cookie>,
    /// The largest segment that it accepts.
    mss: u16,
    /// SYNs with payload that were lost one after the other, and until when none is sent.
    losses: u32,
    until: Instant,
}

impl FastOpenCookies {
    /// Those of `limit` hosts at most.
    pub fn new(limit: u32) -> FastOpenCookies {
        FastOpenCookies {
            known: BTreeMap::new(),
            limit: limit as usize,
        }
    }

    fn entry(&mut self, host: IpAddr) -> Option<&mut Known> {
        if !self.known.contains_key(&host) && self.known.len() >= self.limit {
            return None;
        }
        Some(self.known.entry(host).or_default())
    }

    /// The cookie option of a SYN to `host`, and how much payload may come with it, for a host that
    /// takes segments of `send_mss` bytes. `without`: the program wants none to be asked for.
    pub fn terms(
        &self,
        host: IpAddr,
        send_mss: u16,
        without: bool,
        now: Instant,
    ) -> (Option<Cookie>, u16) {
        let known = self.known.get(&host).copied().unwrap_or_default();
        // Of a host that has not said what it takes the least is assumed (RFC 7413 4.1.3).
        let assumed = if host.is_ipv4() { 536 } else { 1_220 };
        let mss = if known.mss > 0 { known.mss } else { assumed };
        let room = mss.min(send_mss).saturating_sub(OPTIONS_MAX);
        match known.cookie {
            _ if known.until > now => (None, 0),
            _ if without => (None, room),
            Some(cookie) => (Some(cookie), room),
            None => (Some(Cookie::REQUEST), 0),
        }
    }

    /// Takes note of how a SYN to `host` fared, whose segments are `mss` bytes long; false when
    /// there is no room for another host.
    pub fn note(&mut self, host: IpAddr, news: &FastOpenNews, mss: u16, now: Instant) -> bool {
        let Some(known) = self.entry(host) else {
            return false;
        };
        if let Some(cookie) = news.cookie {
            (known.cookie, known.mss) = (Some(cookie), mss);
        }
        if news.lost {
            let pause = PAUSE.as_micros() << known.losses.min(DOUBLINGS);
            known.until = now + Duration::from_micros(pause);
            known.losses += 1;
        } else {
            known.losses = 0;
        }
        true
    }
}
