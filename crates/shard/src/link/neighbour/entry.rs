//! An entry of the neighbour table.

use std::collections::VecDeque;
use std::net::IpAddr;

use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;

use crate::memory::Owner;
use crate::network::reply_queue::Reply;

/// A host on the link.
pub struct Neighbour {
    pub address: IpAddr,
    pub mac: Mac,
    pub state: State,
    /// Requests sent since the last answer.
    pub tries: u8,
    pub confirmed: Instant,
    /// When its present hardware address was learnt.
    pub learnt: Instant,
    pub used: Instant,
    /// Whether a connection ever sent there, or wanted to.
    pub wanted: bool,
    /// When the delay is over, in that state.
    pub due: Instant,
    /// When the last request was sent.
    pub asked: Option<Instant>,
    /// The owner whose socket wanted it first.
    pub maker: Option<Owner>,
    pub sockets: Vec<u32>,
    pub replies: VecDeque<Reply>,
}

/// How much is known of a neighbour.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Asked for, not known.
    Incomplete,
    /// Known.
    Reachable,
    /// IPv6: known, but perhaps no longer there; to be asked for when used.
    Stale,
    /// IPv6: as stale, and used; to be asked for soon.
    Delay,
    /// Known, and being asked for again.
    Probe,
    /// Did not answer; asked again when somebody wants it.
    Failed,
    /// Known for ever: the only station that there is.
    Fixed,
}

impl Neighbour {
    /// It has this hardware address, now at the latest.
    pub fn take_mac(&mut self, mac: Mac, now: Instant) {
        if self.mac != mac || !self.state.is_known() {
            self.mac = mac;
            self.learnt = now;
        }
    }

    /// Whether anybody on the link could have caused it, and no socket waits for it.
    pub fn is_doubtful(&self) -> bool {
        self.sockets.is_empty() && !(self.wanted && self.state.is_known())
    }
}

impl State {
    /// Whether the hardware address is known.
    pub fn is_known(self) -> bool {
        !matches!(self, State::Incomplete | State::Failed)
    }
}
