//! The claim to IPv4 addresses (RFC 5227): asked for before they are used where others may have them, announced, and defended.

use std::net::Ipv4Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::arp::{self, Operation};
use millrace_wire::ethernet::Mac;

use crate::config::{Config, ConflictDetection};
use crate::memory::Memory;
use crate::shard::Shard;

/// RFC 5227 1.1, which has these for wired links: `PROBE_WAIT`, the longest time before the first probe.
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// `PROBE_NUM`.
const PROBES: u8 = 3;
/// `PROBE_MIN`, the least time between two probes, and how much more `PROBE_MAX` is.
const PROBE_MIN: Duration = Duration::from_secs(1);
const PROBE_SPREAD: Duration = Duration::from_secs(1);
/// `ANNOUNCE_WAIT`, after the last probe.
const ANNOUNCE_WAIT: Duration = Duration::from_secs(2);
/// `ANNOUNCE_NUM` and `ANNOUNCE_INTERVAL`.
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);
/// `DEFEND_INTERVAL`: no more than one defence in this time.
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// What has become of the claims.
#[derive(Default)]
pub struct ConflictDetector(Vec<Own>);

struct Own {
    address: Ipv4Addr,
    state: State,
    defended: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At `at` one more of the `left` probes is sent, or, when none is left, the address is ours.
    Probing { left: u8, at: Instant },
    /// Ours; at `at` one more of the `left` announcements is sent.
    Announcing { left: u8, at: Instant },
    /// Ours.
    Settled,
    /// This station has it.
    Lost(Mac),
}

impl ConflictDetector {
    /// The claims of a configuration, from `now` on; `random` is for the times between probes.
    pub fn new(config: &Config, mut random: impl FnMut() -> u64, now: Instant) -> ConflictDetector {
        let mut conflict_detection = |&(address, _): &(Ipv4Addr, u8)| Own {
            address,
            state: match config.conflict_detection {
                ConflictDetection::Nothing | ConflictDetection::Kernel => State::Settled,
                ConflictDetection::Announce => State::Announcing {
                    left: ANNOUNCEMENTS,
                    at: now,
                },
                ConflictDetection::Probe => State::Probing {
                    left: PROBES,
                    at: now + up_to(PROBE_WAIT, random()),
                },
            },
            defended: None,
        };
        match config.conflict_detection {
            ConflictDetection::Nothing | ConflictDetection::Kernel => ConflictDetector::default(),
            _ => ConflictDetector(
                config
                    .addresses
                    .iter()
                    .map(&mut conflict_detection)
                    .collect(),
            ),
        }
    }

    /// Whether an address is still being asked for.
    pub fn is_tentative(&self) -> bool {
        let is_probing = |own: &Own| matches!(own.state, State::Probing { .. });
        self.0.iter().any(is_probing)
    }

    /// An address that another station has, and which.
    pub fn conflict(&self) -> Option<(Ipv4Addr, Mac)> {
        self.0.iter().find_map(|own| match own.state {
            State::Lost(station) => Some((own.address, station)),
            _ => None,
        })
    }

    /// When there is something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = self.0.iter().filter_map(|own| match own.state {
            State::Probing { at, .. } | State::Announcing { at, .. } => Some(at),
            State::Settled | State::Lost(_) => None,
        });
        deadlines.min()
    }

    /// Whether `address` is one that this host may speak for, as far as the claims know.
    pub fn may_use(&self, address: Ipv4Addr) -> bool {
        let is_not_ours = |own: &Own| {
            own.address == address && matches!(own.state, State::Probing { .. } | State::Lost(_))
        };
        !self.0.iter().any(is_not_ours)
    }
}

impl<M: Memory> Shard<M> {
    /// An address of this host that another station had when the shard started, and that station if it is known: the address cannot be used.
    pub fn conflict(&self) -> Option<(std::net::IpAddr, Option<Mac>)> {
        let v4 = self.acd.conflict();
        v4.map(|(address, station)| (address.into(), Some(station)))
            .or_else(|| Some((self.v6.duplicate()?.into(), None)))
    }

    /// Probes and announces, as far as it is time (RFC 5227 2.1.1, 2.3).
    pub(crate) fn advance_acd(&mut self, now: Instant) {
        for index in 0..self.acd.0.len() {
            let own = &self.acd.0[index];
            let address = own.address;
            let next = match own.state {
                State::Probing { left, at } if at <= now => match left.checked_sub(1) {
                    Some(left) => {
                        self.queue_arp_request(Ipv4Addr::UNSPECIFIED, address);
                        let wait = match left {
                            0 => ANNOUNCE_WAIT,
                            _ => PROBE_MIN + up_to(PROBE_SPREAD, self.secrets.random()),
                        };
                        State::Probing {
                            left,
                            at: now + wait,
                        }
                    }
                    None => State::Announcing {
                        left: ANNOUNCEMENTS,
                        at: now,
                    },
                },
                state => state,
            };
            let next = match next {
                State::Announcing { left, at } if at <= now => {
                    self.announce(address);
                    match left - 1 {
                        0 => State::Settled,
                        left => State::Announcing {
                            left,
                            at: now + ANNOUNCE_INTERVAL,
                        },
                    }
                }
                state => state,
            };
            self.acd.0[index].state = next;
        }
    }

    /// Another station says that it has `address`, or, with `probes`, asks whether it may. Whether it is for us to go on with the packet.
    pub(crate) fn on_conflict(
        &mut self,
        address: Ipv4Addr,
        station: Mac,
        probes: bool,
        now: Instant,
    ) {
        let Some(own) = self.acd.0.iter_mut().find(|own| own.address == address) else {
            return;
        };
        match own.state {
            // Also who probes for it at the same time is in our way (RFC 5227 2.1.1).
            State::Probing { .. } => own.state = State::Lost(station),
            State::Lost(_) => {}
            // Who asks is answered, which is enough.
            State::Announcing { .. } | State::Settled if probes => {}
            // We go on using it, and say so, but not for every claim: two hosts like this one would never cease (RFC 5227 2.4 (c)).
            State::Announcing { .. } | State::Settled => {
                let lately = own.defended.is_some_and(|at| now - at < DEFEND_INTERVAL);
                if !lately {
                    own.defended = Some(now);
                    self.announce(address);
                }
            }
        }
    }

    fn announce(&mut self, address: Ipv4Addr) {
        self.counters.arp_announcements_out += 1;
        self.queue_arp_request(address, address);
    }

    /// Queues a request that is for everybody: a probe or an announcement.
    fn queue_arp_request(&mut self, sender: Ipv4Addr, target: Ipv4Addr) {
        self.arp_replies.push_back(arp::Packet {
            operation: Operation::REQUEST,
            sender_mac: self.config.mac,
            sender_ip: sender,
            target_mac: Mac([0; 6]),
            target_ip: target,
        });
    }
}

/// A time of at most `limit`, drawn with `random`.
fn up_to(limit: Duration, random: u64) -> Duration {
    Duration::from_micros(random % (limit.as_micros() + 1))
}
