//! The groups that this host listens to, told to who asks (RFC 3810): a switch that snoops lets
//! nobody else hear the questions for our addresses.

use std::net::Ipv6Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ipv6::{self, solicited_node};
use millrace_wire::mld::{self, Query, emit_report, report_len};

use crate::env::Env;
use crate::ip::groups::Groups;
use crate::ip::v6::interface::Ipv6;
use crate::ip::v6::own_address::State;
use crate::network::reply_queue::ReplyQueue;

impl Ipv6 {
    /// A socket has joined a group: the link is told now, if it has IPv6.
    pub fn report_now(&mut self, now: Instant) {
        if self.is_on() {
            self.reports.again(now);
        }
    }

    /// Reports that a group is left (RFC 3810 6.1).
    pub fn report_left(&self, env: &mut Env, replies: &mut ReplyQueue, group: Ipv6Addr) {
        if self.is_on() {
            self.send_report(env, replies, &[group], mld::Mode::Leave);
        }
    }

    /// Processes a query.
    pub fn on_query(
        &mut self,
        env: &mut Env,
        joined: &Groups,
        header: &ipv6::Header,
        bytes: &[u8],
        now: Instant,
    ) {
        let Ok(query) = Query::parse(header, bytes) else {
            env.counters.icmp_dropped += 1;
            return;
        };
        let is_meant = query.group.is_unspecified() || self.groups(joined).contains(&query.group);
        if !is_meant {
            return;
        }
        let delay_ms = env.secrets.random() % (u64::from(query.within_ms) + 1);
        let at = now + Duration::from_millis(delay_ms);
        self.reports.answer_at(at);
    }

    /// Sends the report that is due.
    pub fn report_groups(
        &mut self,
        env: &mut Env,
        joined: &Groups,
        replies: &mut ReplyQueue,
        now: Instant,
    ) {
        if !self.reports.take_due(now) {
            return;
        }
        let groups = self.groups(joined);
        if !groups.is_empty() {
            self.send_report(env, replies, &groups, mld::Mode::Listen);
        }
    }

    fn send_report(
        &self,
        env: &mut Env,
        replies: &mut ReplyQueue,
        groups: &[Ipv6Addr],
        mode: mld::Mode,
    ) {
        let src = self.link_local().unwrap_or(Ipv6Addr::UNSPECIFIED);
        env.counters.mld_reports_out += 1;
        replies.push_packet(&mut env.counters, |buffer| {
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
            .emit(buffer);
        });
    }

    /// The groups that this host listens to: those that sockets have joined, and those in which
    /// neighbours ask for its addresses. RFC 3810 6: the all-nodes address is never reported.
    fn groups(&self, joined: &Groups) -> Vec<Ipv6Addr> {
        let used = self.own.iter();
        let mut groups: Vec<Ipv6Addr> = used
            .filter(|own| own.state != State::Duplicate)
            .map(|own| solicited_node(own.address))
            .collect();
        groups.extend(joined.joined_v6().filter(|group| *group != ipv6::ALL_NODES));
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}
