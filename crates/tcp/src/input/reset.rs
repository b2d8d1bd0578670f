//! RST and SYN on a synchronised connection (RFC 9293 3.10.7.4, second and fourth; RFC 5961 3 and 4).

use millrace_wire::tcp::Segment;

use crate::config::Config;
use crate::connection::Connection;
use crate::events::{Error, Events};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// An acceptable RST. Only one at exactly the next sequence number is believed; any other must first be asked for, so that a
    /// blind attacker has to guess 32 bits.
    pub(super) fn on_reset(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        if segment.seq != self.receive.seq(self.receive.nxt) && !self.is_reset_at_fin(segment) {
            return self.challenge(config, now);
        }
        match self.state {
            State::SynReceived if !self.is_early() => {
                self.fail(Error::ConnectionRefused, Events::REFUSED);
            }
            // Both streams are complete; only our last acknowledgement was missing.
            State::Closing | State::LastAck => self.finish(Some(Error::ConnectionReset), now),
            _ => self.fail(Error::ConnectionReset, Events::RESET),
        }
    }

    /// macOS resets with the number of its FIN, which lies before the window by then. Linux knows it as well (`tcp_reset_check`).
    pub(super) fn is_reset_at_fin(&self, segment: &Segment<'_>) -> bool {
        self.receive.nxt > self.receive.fin && segment.seq == self.receive.seq(self.receive.fin)
    }
}
