//! The host's own addresses, and duplicate address detection (RFC 4862 5.4): an address is used when nobody on the link has answered to it.

use std::net::Ipv6Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ipv6::{self, solicited_node};
use millrace_wire::ndp::Message;

use crate::config::ConflictDetection;
use crate::ip::route::Address as _;
use crate::memory::Memory;
use crate::shard::Shard;

/// Time between two probes, and after the last (RFC 4861 10: `RETRANS_TIMER`).
const RETRY: Duration = Duration::from_secs(1);
/// How often an address is announced; up to three times are allowed (RFC 4861 10: `MAX_NEIGHBOR_ADVERTISEMENT`).
const ANNOUNCEMENTS: u8 = 2;

/// An address of this host.
pub struct Own {
    pub address: Ipv6Addr,
    pub prefix_len: u8,
    pub state: State,
    /// Announcements that are still to be sent, and when the next.
    pub announce: (u8, Instant),
}

/// Whether an address may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet: at `at` one more of the `left` probes is sent, or, when none is left, the address is ours.
    Tentative { left: u8, at: Instant },
    /// Yes.
    Preferred,
    /// Never: another host has it.
    Duplicate,
}

impl State {
    pub fn is_tentative(self) -> bool {
        matches!(self, State::Tentative { .. })
    }

    pub fn deadline(self) -> Option<Instant> {
        match self {
            State::Tentative { at, .. } => Some(at),
            _ => None,
        }
    }
}

impl Own {
    pub fn new(address: Ipv6Addr, prefix_len: u8, probes: u8, now: Instant) -> Own {
        Own {
            address,
            prefix_len: prefix_len.min(128),
            announce: (0, now),
            state: match probes {
                0 => State::Preferred,
                left => State::Tentative { left, at: now },
            },
        }
    }

    /// When it is announced next.
    pub fn announcement(&self) -> Option<Instant> {
        (self.announce.0 > 0).then_some(self.announce.1)
    }

    pub fn has_prefix_of(&self, other: Ipv6Addr) -> bool {
        self.address.is_same(other, Ipv6Addr::mask(self.prefix_len))
    }
}

impl<M: Memory> Shard<M> {
    /// Whether an address of this host is still being looked for on the link. Until it is known to be nobody else's, no packet is sent from it or taken for it.
    pub fn is_tentative(&self) -> bool {
        self.v6.is_tentative() || self.acd.is_tentative()
    }

    /// Probes, and makes use of what has stood the probes.
    pub(super) fn detect_duplicates(&mut self, now: Instant) {
        for index in 0..self.v6.own.len() {
            let own = &mut self.v6.own[index];
            let State::Tentative { left, at } = own.state else {
                continue;
            };
            if at > now {
                continue;
            }
            let target = own.address;
            let Some(left) = left.checked_sub(1) else {
                own.state = State::Preferred;
                if !matches!(
                    self.config.conflict_detection,
                    ConflictDetection::Nothing | ConflictDetection::Kernel
                ) {
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
            self.send_ndp(Ipv6Addr::UNSPECIFIED, solicited_node(target), &probe);
        }
    }

    /// Tells the neighbours whose an address is from now on (RFC 4861 7.2.6): they may remember another station.
    pub(super) fn announce_addresses(&mut self, now: Instant) {
        for index in 0..self.v6.own.len() {
            let own = &mut self.v6.own[index];
            let (left, at) = own.announce;
            if left == 0 || at > now {
                continue;
            }
            own.announce = (left - 1, now + RETRY);
            let target = own.address;
            let announcement = Message::NeighbourAdvertisement {
                target,
                link: Some(self.config.mac),
                router: false,
                solicited: false,
                replaces: true,
            };
            self.send_ndp(target, ipv6::ALL_NODES, &announcement);
        }
    }

    /// Another host has, or wants, an address of ours. Returns whether the address is ours to speak for.
    pub(super) fn on_address_conflict(&mut self, address: Ipv6Addr, is_in_use: bool) -> bool {
        let Some(own) = self.v6.own.iter_mut().find(|own| own.address == address) else {
            return false;
        };
        match own.state {
            State::Tentative { .. } if is_in_use => {
                own.state = State::Duplicate;
                self.counters.duplicate_addresses += 1;
                false
            }
            State::Tentative { .. } | State::Duplicate => false,
            State::Preferred => true,
        }
    }
}
