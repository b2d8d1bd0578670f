//! Paths that take less than the link, as routers have said (RFC 1191, RFC 8201).

use std::net::IpAddr;

use millrace_tcp::{Duration, Instant};

/// Paths remembered; the oldest gives way.
const PATHS_MAX: usize = 64;
/// How long what a router said is believed (RFC 1191 6.3: ten minutes).
const BELIEVED: Duration = Duration::from_secs(600);
/// Less than this nobody is believed (Linux's `min_pmtu`; RFC 8200 5).
const LEAST_V4: u16 = 552;
const LEAST_V6: u16 = 1280;

/// A few destinations, seldom any.
#[derive(Default)]
pub struct Paths {
    known: Vec<(IpAddr, u16, Instant)>,
}

impl Paths {
    /// A router says that packets to `destination` may have `mtu` bytes at most.
    pub fn learn(&mut self, destination: IpAddr, mtu: u16, now: Instant) {
        let least = if destination.is_ipv4() {
            LEAST_V4
        } else {
            LEAST_V6
        };
        self.known
            .retain(|(other, _, since)| *other != destination && now - *since < BELIEVED);
        if self.known.len() == PATHS_MAX {
            self.known.remove(0);
        }
        self.known.push((destination, mtu.max(least), now));
    }

    /// The largest packet to `destination`, where the link takes `mtu` bytes.
    #[inline]
    pub fn mtu(&self, destination: IpAddr, mtu: u16, now: Instant) -> u16 {
        let known = self
            .known
            .iter()
            .find(|(other, _, since)| *other == destination && now - *since < BELIEVED);
        known.map_or(mtu, |(_, least, _)| mtu.min(*least))
    }
}
