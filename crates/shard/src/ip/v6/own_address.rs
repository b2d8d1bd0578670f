//! An address of this host, and whether it may be used (RFC 4862 5.4).

use std::net::Ipv6Addr;

use millrace_tcp::Instant;

use crate::ip::route::Address as _;

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
    /// Not yet: at `at` one more of the `left` probes is sent, or, when none is left, the address
    /// is ours.
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
