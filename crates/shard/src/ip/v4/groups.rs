//! IGMP (RFC 2236): tells the link which IPv4 groups this host listens to.

use std::net::Ipv4Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::igmp::{self, Message, Statement};

use crate::env::Env;
use crate::ip::groups::Groups;
use crate::network::reply_queue::ReplyQueue;

/// Processes an IGMP message; returns false when it is malformed.
pub fn receive(env: &mut Env, groups: &mut Groups, bytes: &[u8], now: Instant) -> bool {
    match Message::parse(bytes) {
        Ok(Message::Query { group, within_ms }) => {
            let secrets = &mut env.secrets;
            let delay = || Duration::from_millis(secrets.random() % (u64::from(within_ms) + 1));
            groups.on_query(group.into(), delay, now);
        }
        Ok(Message::Report(group)) => groups.on_report(group.into()),
        Ok(_) => {}
        Err(_) => {
            env.counters.igmp_dropped += 1;
            return false;
        }
    }
    true
}

/// Queues a report that this host is in a group, or leaves it.
pub fn report(env: &mut Env, replies: &mut ReplyQueue, group: Ipv4Addr, statement: Statement) {
    // RFC 2236 6: the group of all hosts "never sends a report".
    if group == igmp::ALL_HOSTS {
        return;
    }
    let packet = igmp::packet(env.config.address(), group, statement);
    env.counters.igmp_reports_out += 1;
    replies.push_packet(&mut env.counters, |out| out.extend_from_slice(&packet));
}
