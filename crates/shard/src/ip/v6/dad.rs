//! Duplicate address detection (RFC 4862 5.4): an address is used
//! when nobody on the link has answered to it.

use std::net::Ipv6Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ipv6::{self, solicited_node};
use millrace_wire::ndp::Message;

use crate::counters::Counters;
use crate::env::Env;
use crate::ip::v6::interface::Ipv6;
use crate::ip::v6::ndp;
use crate::ip::v6::own_address::State;
use crate::network::reply_queue::ReplyQueue;

/// Time between two probes, and after the last (RFC 4861 10: `RETRANS_TIMER`).
const RETRY: Duration = Duration::from_secs(1);
/// How often an address is announced; up to three times are allowed (RFC 4861 10:
/// `MAX_NEIGHBOR_ADVERTISEMENT`).
const ANNOUNCEMENTS: u8 = 2;

impl Ipv6 {
    /// Probes for tentative addresses, and starts to use those that no host has answered for
    /// (RFC 4862 5.4).
    pub fn detect_duplicates(&mut self, env: &mut Env, replies: &mut ReplyQueue, now: Instant) {
        for own in &mut self.own {
            let State::Tentative { left, at } = own.state else {
                continue;
            };
            if at > now {
                continue;
            }
            let target = own.address;
            let Some(left) = left.checked_sub(1) else {
                own.state = State::Preferred;
                if env.config.conflict_detection.is_on() {
                    own.announce = (ANNOUNCEMENTS, now);
                }
                continue;
            };
            own.state = State::Tentative {
                left,
                at: now + RETRY,
            };
            let probe = Message::NeighbourSolicitation {
                target,
                source: None,
            };
            let group = solicited_node(target);
            ndp::send(
                &mut env.counters,
                replies,
                Ipv6Addr::UNSPECIFIED,
                group,
                &probe,
            );
        }
    }

    /// Sends unsolicited advertisements of new addresses. RFC 4861 7.2.6: "In some cases, a node
    /// may be able to determine that its link-layer address has changed [...] and may wish to
    /// inform its neighbors of the new link-layer address quickly."
    pub fn announce_addresses(&mut self, env: &mut Env, replies: &mut ReplyQueue, now: Instant) {
        for own in &mut self.own {
            let (left, at) = own.announce;
            if left == 0 || at > now {
                continue;
            }
            own.announce = (left - 1, now + RETRY);
            let target = own.address;
            let announcement = Message::NeighbourAdvertisement {
                target,
                link: Some(env.config.mac),
                router: false,
                solicited: false,
                replaces: true,
            };
            ndp::send(
                &mut env.counters,
                replies,
                target,
                ipv6::ALL_NODES,
                &announcement,
            );
        }
    }

    /// Another host has asked for `target`; with `in_use` it says that it uses the address, or
    /// probes for it. Returns whether this host may answer for the address.
    pub fn on_address_conflict(
        &mut self,
        counters: &mut Counters,
        target: Ipv6Addr,
        in_use: bool,
    ) -> bool {
        let Some(own) = self.own.iter_mut().find(|own| own.address == target) else {
            return false;
        };
        match own.state {
            // RFC 4862 5.4.5: "A tentative address that is determined to be a duplicate as
            // described above MUST NOT be assigned to an interface".
            State::Tentative { .. } if in_use => {
                own.state = State::Duplicate;
                counters.duplicate_addresses += 1;
                false
            }
            State::Tentative { .. } | State::Duplicate => false,
            State::Preferred => true,
        }
    }
}
