//! The MTUs of paths that are smaller than the link's. All sockets that send to a host share them
//! (RFC 1191 6.2, RFC 8201 5.2).
//!
//! Only what a socket has believed comes here: a report that quotes a segment in flight of a
//! connection, or a datagram of a socket that is there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use millrace_tcp::{Duration, Instant};

/// How long a report is believed (RFC 1191 6.3, RFC 8201 4; Linux's `mtu_expires`).
const LIFETIME: Duration = Duration::from_secs(600);

/// Destinations with a small path, each for ten minutes.
pub struct PathMtuCache {
    known: BTreeMap<IpAddr, Known>,
    limit: usize,
}

/// A path.
#[derive(Clone, Copy)]
struct Known {
    /// The largest packet that passes, in bytes.
    mtu: u16,
    until: Instant,
}

impl PathMtuCache {
    /// No more than `limit` destinations.
    pub fn new(limit: u32) -> PathMtuCache {
        PathMtuCache {
            known: BTreeMap::new(),
            limit: limit as usize,
        }
    }

    /// The largest packet that passes to `remote`, in bytes, if it is less than the link would
    /// carry.
    pub fn get(&self, remote: IpAddr, now: Instant) -> Option<u16> {
        let known = self.known.get(&remote)?;
        (known.until > now).then_some(known.mtu)
    }

    /// A router says that packets of `mtu` bytes pass to `remote`. False when there is no room for
    /// it: those known before are kept.
    pub fn learn(&mut self, remote: IpAddr, mtu: u16, now: Instant) -> bool {
        if !self.known.contains_key(&remote) && self.known.len() >= self.limit {
            // Rare enough to look at all of them.
            self.known.retain(|_, known| known.until > now);
            if self.known.len() >= self.limit {
                return false;
            }
        }
        let until = now + LIFETIME;
        self.known.insert(remote, Known { mtu, until });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc1191_6_3_a_report_is_forgotten_in_time_and_there_is_room_for_so_many() {
        let at = |seconds: u64| Instant::from_micros(seconds * 1_000_000);
        let host = |n: u8| IpAddr::from([10, 0, 0, n]);
        let mut path_mtus = PathMtuCache::new(2);
        assert!(path_mtus.learn(host(1), 1_000, at(0)));
        assert!(path_mtus.learn(host(2), 1_100, at(300)));
        assert!(!path_mtus.learn(host(3), 1_200, at(301)));
        assert!(
            path_mtus.learn(host(2), 900, at(302)),
            "what is known changes"
        );
        assert_eq!(path_mtus.get(host(1), at(599)), Some(1_000));
        assert_eq!(path_mtus.get(host(1), at(600)), None);
        assert_eq!(path_mtus.get(host(2), at(900)), Some(900));
        assert!(path_mtus.learn(host(3), 1_200, at(601)));
        assert_eq!(path_mtus.get(host(3), at(602)), Some(1_200));
    }
}
