//! Address conflict detection for IPv4 (RFC 5227): probes for an address, announces it, defends it.

use std::net::Ipv4Addr;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

use crate::config::{Config, ConflictDetection};
use crate::env::Env;
use crate::link::arp_queue::ArpQueue;

/// RFC 5227 1.1, which has these for wired links: `PROBE_WAIT`, the longest time before the first
/// probe.
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

/// The state of this host's IPv4 addresses, as far as other hosts may use them too.
#[derive(Default)]
pub struct ConflictDetector(Vec<Own>);

struct Own {
    address: Ipv4Addr,
    state: State,
    /// When it was defended last.
    defended: Option<Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At `at` the next of the `left` probes is sent; with none left, the address is ours.
    Probing { left: u8, at: Instant },
    /// The address is ours. At `at` the next of the `left` announcements is sent.
    Announcing { left: u8, at: Instant },
    /// The address is ours.
    Assigned,
    /// This station uses it.
    Conflict(Mac),
}

impl ConflictDetector {
    /// Detection of conflicts for the addresses of a configuration, from `now` on. `random` spreads
    /// the probes of hosts that start together.
    pub fn new(config: &Config, mut random: impl FnMut() -> u64, now: Instant) -> ConflictDetector {
        let first = |random: &mut dyn FnMut() -> u64| match config.conflict_detection {
            ConflictDetection::Nothing | ConflictDetection::Kernel => None,
            ConflictDetection::Announce => Some(State::Announcing {
                left: ANNOUNCEMENTS,
                at: now,
            }),
            ConflictDetection::Probe => Some(State::Probing {
                left: PROBES,
                at: now + up_to(PROBE_WAIT, random()),
            }),
        };
        let own = |&(address, _): &(Ipv4Addr, u8)| {
            Some(Own {
                address,
                state: first(&mut random)?,
                defended: None,
            })
        };
        ConflictDetector(config.addresses.iter().filter_map(own).collect())
    }

    /// Whether an address is still being probed for.
    pub fn is_tentative(&self) -> bool {
        let is_probing = |own: &Own| matches!(own.state, State::Probing { .. });
        self.0.iter().any(is_probing)
    }

    /// An address that another station uses, and that station.
    pub fn conflict(&self) -> Option<(Ipv4Addr, Mac)> {
        self.0.iter().find_map(|own| match own.state {
            State::Conflict(station) => Some((own.address, station)),
            _ => None,
        })
    }

    /// When [`ConflictDetector::advance`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = self.0.iter().filter_map(|own| match own.state {
            State::Probing { at, .. } | State::Announcing { at, .. } => Some(at),
            State::Assigned | State::Conflict(_) => None,
        });
        deadlines.min()
    }

    /// Whether this host may answer for `address`.
    pub fn may_use(&self, address: Ipv4Addr) -> bool {
        let is_not_ours = |own: &Own| {
            let unusable = matches!(own.state, State::Probing { .. } | State::Conflict(_));
            own.address == address && unusable
        };
        !self.0.iter().any(is_not_ours)
    }

    /// Queues the probes and announcements that are due (RFC 5227 2.1.1, 2.3).
    pub fn advance(&mut self, env: &mut Env, queue: &mut ArpQueue, now: Instant) {
        for own in &mut self.0 {
            if let State::Probing { left, at } = own.state
                && at <= now
            {
                own.state = probe(own.address, left, env, queue, now);
            }
            if let State::Announcing { left, at } = own.state
                && at <= now
            {
                queue.announce(env, own.address);
                own.state = match left - 1 {
                    0 => State::Assigned,
                    left => State::Announcing {
                        left,
                        at: now + ANNOUNCE_INTERVAL,
                    },
                };
            }
        }
    }

    /// Another station uses `address`, or probes for it. Returns whether to defend the address with
    /// an announcement.
    pub fn on_conflict(
        &mut self,
        address: Ipv4Addr,
        station: Mac,
        is_probe: bool,
        now: Instant,
    ) -> bool {
        let Some(own) = self.0.iter_mut().find(|own| own.address == address) else {
            return false;
        };
        match own.state {
            // RFC 5227 2.1.1: "In addition, if during this period the host receives any ARP Probe
            // where the packet's 'target IP address' is the address being probed for, and the
            // packet's 'sender hardware address' is not the hardware address of any of the host's
            // interfaces, then the host SHOULD similarly treat this as an address conflict".
            State::Probing { .. } => {
                own.state = State::Conflict(station);
                false
            }
            State::Conflict(_) => false,
            // The reply to the probe is enough.
            State::Announcing { .. } | State::Assigned if is_probe => false,
            // RFC 5227 2.4 (c): "if this is not the first conflicting ARP packet the host has seen,
            // and the time recorded for the previous conflicting ARP packet is within
            // DEFEND_INTERVAL seconds, then the host MUST NOT send another defensive ARP
            // Announcement." Two hosts with one address would never stop.
            State::Announcing { .. } | State::Assigned => {
                let lately = own.defended.is_some_and(|at| now - at < DEFEND_INTERVAL);
                if !lately {
                    own.defended = Some(now);
                }
                !lately
            }
        }
    }
}

/// Sends one of the `left` probes for `address`; returns the next state.
fn probe(address: Ipv4Addr, left: u8, env: &mut Env, queue: &mut ArpQueue, now: Instant) -> State {
    let Some(left) = left.checked_sub(1) else {
        return State::Announcing {
            left: ANNOUNCEMENTS,
            at: now,
        };
    };
    queue.probe(env, address);
    let wait = match left {
        0 => ANNOUNCE_WAIT,
        _ => PROBE_MIN + up_to(PROBE_SPREAD, env.secrets.random()),
    };
    State::Probing {
        left,
        at: now + wait,
    }
}

/// A time of at most `limit`, drawn with `random`.
fn up_to(limit: Duration, random: u64) -> Duration {
    Duration::from_micros(random % (limit.as_micros() + 1))
}
