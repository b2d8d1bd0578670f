//! The multicast groups that sockets of this host have joined.

use std::net::{IpAddr, Ipv6Addr};

use millrace_tcp::{Duration, Instant};
use millrace_wire::igmp;

/// Reports of a new membership: one may be lost (RFC 2236 3).
const REPORTS: u8 = 2;
/// Time between them (RFC 2236 8.10).
const INTERVAL: Duration = Duration::from_secs(10);

/// Groups with members on this host, and the IGMP reports that are due for them.
#[derive(Default)]
pub struct Groups(Vec<Group>);

struct Group {
    address: IpAddr,
    /// Sockets that have joined it.
    members: u32,
    /// Reports that are still to be sent (IPv4), and when the next.
    reports: u8,
    at: Option<Instant>,
}

impl Groups {
    /// A socket joins a group. Returns whether it is the first one.
    pub fn join(&mut self, address: IpAddr, now: Instant) -> bool {
        if let Some(group) = self.0.iter_mut().find(|group| group.address == address) {
            group.members += 1;
            return false;
        }
        // RFC 2236 6: "The all-systems group (address 224.0.0.1) is handled as a special case."
        let is_silent = address == IpAddr::V4(igmp::ALL_HOSTS) || address.is_ipv6();
        self.0.push(Group {
            address,
            members: 1,
            reports: REPORTS,
            at: (!is_silent).then_some(now),
        });
        true
    }

    /// A socket leaves a group. Returns whether it was the last one.
    pub fn leave(&mut self, address: IpAddr) -> bool {
        let Some(at) = self.0.iter().position(|group| group.address == address) else {
            return false;
        };
        self.0[at].members -= 1;
        let is_last = self.0[at].members == 0;
        if is_last {
            self.0.swap_remove(at);
        }
        is_last
    }

    /// Whether a socket of this host has joined a group. Every host is in the group of all hosts.
    pub fn contains(&self, address: IpAddr) -> bool {
        let has_joined = |group: &Group| group.address == address;
        address == IpAddr::V4(igmp::ALL_HOSTS) || self.0.iter().any(has_joined)
    }

    /// The IPv6 groups that sockets have joined.
    pub fn joined_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.0.iter().filter_map(|group| match group.address {
            IpAddr::V6(address) => Some(address),
            IpAddr::V4(_) => None,
        })
    }

    /// A query for `asked`, or for all groups when it is unspecified. `delay` says how long to wait
    /// with a report.
    pub fn on_query(&mut self, asked: IpAddr, mut delay: impl FnMut() -> Duration, now: Instant) {
        for group in &mut self.0 {
            let is_meant = asked.is_unspecified() || asked == group.address;
            if group.address.is_ipv4() && is_meant && group.address != IpAddr::V4(igmp::ALL_HOSTS) {
                let at = now + delay();
                group.reports = group.reports.max(1);
                group.at = Some(group.at.map_or(at, |before| before.min(at)));
            }
        }
    }

    /// Another host has reported its membership. RFC 2236 3: "If the host receives another host's
    /// Report (version 1 or 2) while it has a timer running, it stops its timer for the specified
    /// group and does not send a Report, in order to suppress duplicate Reports."
    pub fn on_report(&mut self, address: IpAddr) {
        if let Some(group) = self.0.iter_mut().find(|group| group.address == address) {
            group.reports = 0;
            group.at = None;
        }
    }

    /// When the next report is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(|group| group.at).min()
    }

    /// Takes the next group whose report is due.
    pub fn pop_due(&mut self, now: Instant) -> Option<IpAddr> {
        let is_due = |group: &&mut Group| group.at.is_some_and(|at| at <= now);
        let group = self.0.iter_mut().find(is_due)?;
        group.reports = group.reports.saturating_sub(1);
        group.at = (group.reports > 0).then(|| now + INTERVAL);
        Some(group.address)
    }
}
