//! Groups that sockets have joined, and what the link is told of them (RFC 1112, RFC 2236, RFC 3810).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_tcp::{Duration, Instant};
use millrace_wire::igmp::{self, Message, Statement};

use crate::error::Error;
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;
use crate::socket::SocketId;

/// Groups that one socket may join (Linux's `igmp_max_memberships`).
const JOINED_MAX: usize = 20;
/// A report is said again, one may be lost (RFC 2236 8.10 and 3).
const REPORTS: u8 = 2;
/// Time between the two.
const INTERVAL: Duration = Duration::from_secs(10);

/// A group with members on this host.
pub(crate) struct Membership {
    pub group: IpAddr,
    /// Sockets that have joined it.
    members: u32,
    /// Reports that are to be sent (IPv4), and when the next.
    reports: u8,
    at: Option<Instant>,
}

impl<M: Memory> Shard<M> {
    /// A socket joins a group.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no group, [`Error::AddressInUse`] when it has joined it, [`Error::NoMemory`] when it has joined too many.
    pub fn join(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        if !group.is_multicast() {
            return Err(Error::Invalid);
        }
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        if datagram.groups.contains(&group) {
            return Err(Error::AddressInUse);
        }
        if datagram.groups.len() >= JOINED_MAX {
            return Err(Error::NoMemory);
        }
        datagram.groups.push(group);
        let known = &mut self.udp.memberships;
        if let Some(membership) = known.iter_mut().find(|known| known.group == group) {
            membership.members += 1;
            return Ok(());
        }
        let says_nothing = group == IpAddr::V4(igmp::ALL_HOSTS) || group.is_ipv6();
        known.push(Membership {
            group,
            members: 1,
            reports: REPORTS,
            at: (!says_nothing).then_some(now),
        });
        if group.is_ipv6() {
            self.v6.report_now(now);
        }
        self.report_memberships(now);
        Ok(())
    }

    /// A socket leaves a group.
    ///
    /// # Errors
    /// [`Error::AddressNotAvailable`] when it has not joined it.
    pub fn leave(&mut self, id: SocketId, group: IpAddr, now: Instant) -> Result<(), Error> {
        let index = self.check(id)?;
        let datagram = self.datagram_mut(index).ok_or(Error::NotSupported)?;
        let at = datagram.groups.iter().position(|joined| *joined == group);
        datagram
            .groups
            .swap_remove(at.ok_or(Error::AddressNotAvailable)?);
        self.leave_group(group, now);
        Ok(())
    }

    /// A group has a member less.
    pub(super) fn leave_group(&mut self, group: IpAddr, _now: Instant) {
        let known = &mut self.udp.memberships;
        let Some(at) = known.iter().position(|known| known.group == group) else {
            return;
        };
        known[at].members -= 1;
        if known[at].members > 0 {
            return;
        }
        known.swap_remove(at);
        match group {
            IpAddr::V4(igmp::ALL_HOSTS) => {}
            IpAddr::V4(group) => self.state_membership(group, Statement::Leave),
            IpAddr::V6(group) => self.report_left(group),
        }
    }

    /// Whether a socket of this host has joined a group.
    pub(crate) fn is_member(&self, group: IpAddr) -> bool {
        let known = &self.udp.memberships;
        group == IpAddr::V4(igmp::ALL_HOSTS) || known.iter().any(|known| known.group == group)
    }

    /// The groups of IPv6 among those that sockets have joined.
    pub(crate) fn joined_v6(&self) -> impl Iterator<Item = Ipv6Addr> {
        self.udp
            .memberships
            .iter()
            .filter_map(|known| match known.group {
                IpAddr::V6(group) => Some(group),
                IpAddr::V4(_) => None,
            })
    }

    /// A message of group management came.
    pub(crate) fn igmp_input(&mut self, bytes: &[u8], now: Instant) {
        let Ok(message) = Message::parse(bytes) else {
            self.counters.igmp_dropped += 1;
            return;
        };
        self.copy_to_all_shards();
        for known in &mut self.udp.memberships {
            let IpAddr::V4(group) = known.group else {
                continue;
            };
            match message {
                Message::Query {
                    group: asked,
                    within_ms,
                } if (asked.is_unspecified() || asked == group) && group != igmp::ALL_HOSTS => {
                    let delay_ms = self.secrets.random() % (u64::from(within_ms) + 1);
                    let at = now + Duration::from_millis(delay_ms);
                    known.reports = known.reports.max(1);
                    known.at = Some(known.at.map_or(at, |before| before.min(at)));
                }
                // RFC 2236 3: one member speaks for all.
                Message::Report(reported) if reported == group => {
                    known.reports = 0;
                    known.at = None;
                }
                _ => {}
            }
        }
    }

    /// When there is something to report.
    pub(crate) fn memberships_deadline(&self) -> Option<Instant> {
        self.udp
            .memberships
            .iter()
            .filter_map(|known| known.at)
            .min()
    }

    /// Reports, where it is time.
    pub(crate) fn report_memberships(&mut self, now: Instant) {
        for at in 0..self.udp.memberships.len() {
            let known = &mut self.udp.memberships[at];
            if known.at.is_none_or(|at| at > now) {
                continue;
            }
            known.reports = known.reports.saturating_sub(1);
            known.at = (known.reports > 0).then(|| now + INTERVAL);
            if let IpAddr::V4(group) = known.group {
                self.state_membership(group, Statement::Member);
            }
        }
    }

    fn state_membership(&mut self, group: Ipv4Addr, statement: Statement) {
        let packet = igmp::packet(self.config.address(), group, statement);
        let mut buffer = self.replies.buffer();
        buffer.extend_from_slice(&packet);
        self.counters.igmp_reports_out += 1;
        self.reply(Reply::Packet(buffer));
    }
}
