//! The groups that this host listens to, told to who asks (RFC 3810): a switch that snoops lets nobody else hear the questions for our addresses.

use std::net::Ipv6Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ipv6::{self, solicited_node};
use millrace_wire::mld::{self, Query, emit_report, report_len};

use super::dad::State;
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;

/// Reports at the start: one may be lost (RFC 3810 9.1), and the first is before the link-local address is known to be ours (RFC 3590 4).
const REPORTS: u8 = 2;
/// Time between them.
const INTERVAL: Duration = Duration::from_secs(1);

/// When to report.
pub struct Reports {
    left: u8,
    at: Option<Instant>,
}

impl Reports {
    /// The first at `first`, if the link has IPv6.
    pub fn new(first: Option<Instant>) -> Reports {
        Reports {
            left: REPORTS,
            at: first,
        }
    }

    /// Something has changed: twice more, from now on.
    fn again(&mut self, now: Instant) {
        self.left = REPORTS;
        self.at = Some(now);
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.at
    }
}

impl super::Ipv6 {
    /// A group has been joined: if the link has IPv6 it is told now.
    pub fn report_now(&mut self, now: Instant) {
        if self.is_on() {
            self.reports.again(now);
        }
    }
}

impl<M: Memory> Shard<M> {
    /// Says that a group is left (RFC 3810 6.1).
    pub(crate) fn report_left(&mut self, group: Ipv6Addr) {
        if self.v6.is_on() {
            self.say_of_groups(&[group], mld::Mode::Leave);
        }
    }

    /// A query came. However many come, one report answers them.
    pub(super) fn query_input(&mut self, header: &ipv6::Header, bytes: &[u8], now: Instant) {
        let Ok(query) = Query::parse(header, bytes) else {
            self.counters.icmp_dropped += 1;
            return;
        };
        let concerns_us = query.group.is_unspecified() || self.groups().contains(&query.group);
        if !concerns_us {
            return;
        }
        let delay_ms = self.secrets.random() % (u64::from(query.within_ms) + 1);
        let at = now + Duration::from_millis(delay_ms);
        let reports = &mut self.v6.reports;
        reports.left = reports.left.max(1);
        reports.at = Some(reports.at.map_or(at, |before| before.min(at)));
    }

    /// Reports, if it is time.
    pub(super) fn report_groups(&mut self, now: Instant) {
        let reports = &mut self.v6.reports;
        if reports.at.is_none_or(|at| at > now) {
            return;
        }
        reports.left -= 1;
        reports.at = (reports.left > 0).then(|| now + INTERVAL);
        let groups = self.groups();
        if groups.is_empty() {
            return;
        }
        self.say_of_groups(&groups, mld::Mode::Listen);
    }

    fn say_of_groups(&mut self, groups: &[Ipv6Addr], mode: mld::Mode) {
        let src = self.v6.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        let mut buffer = self.replies.buffer();
        buffer.resize(ipv6::HEADER_LEN + report_len(groups.len()), 0);
        let len = emit_report(src, groups, mode, &mut buffer[ipv6::HEADER_LEN..]);
        ipv6::Header {
            src,
            dst: mld::REPORT_GROUP,
            next_header: ipv6::HOP_BY_HOP,
            hop_limit: mld::HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
        }
        .emit(&mut buffer);
        self.counters.mld_reports_out += 1;
        self.reply(Reply::Packet(buffer));
    }

    /// Those in which the addresses of this host are asked for; of all nodes nothing is said (RFC 3810 6).
    fn groups(&self) -> Vec<Ipv6Addr> {
        let used = self.v6.own.iter();
        let mut groups: Vec<Ipv6Addr> = used
            .filter(|own| own.state != State::Duplicate)
            .map(|own| solicited_node(own.address))
            .collect();
        groups.extend(self.joined_v6().filter(|group| *group != ipv6::ALL_NODES));
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}
