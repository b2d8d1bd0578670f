//! What ICMP reports about our segments, and how far it is believed (RFC 5927, RFC 1122 4.2.3.9, RFC 1191).

use millrace_wire::tcp::Seq;

use crate::config::Config;
use crate::connection::Connection;
use crate::events::{Error, Events, IcmpError};
use crate::state::State;
use crate::time::Instant;

/// No report lowers the segment size below this: a path with an MTU below 552 is fragmented (Linux's `min_pmtu`).
const SEGMENT_FLOOR: u16 = 512;

impl Connection {
    /// An ICMP message about a segment of ours with sequence number `quoted`. One that quotes what is not in flight is ignored
    /// (RFC 5927 4.1).
    pub fn on_icmp(&mut self, config: &Config, error: IcmpError, quoted: Seq, _now: Instant) {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        let offset = self.send.offset(quoted);
        let believed = if opening {
            quoted == self.send.iss()
        } else {
            offset >= self.send.una as i64 && offset < self.send.nxt as i64
        };
        if !believed || matches!(self.state, State::TimeWait | State::Closed) {
            return;
        }
        match error {
            IcmpError::FragmentationNeeded { max_segment } => {
                self.on_smaller_path(config, max_segment, opening);
            }
            IcmpError::Unreachable(error) if self.state == State::SynSent => {
                let event = if error == Error::ConnectionRefused {
                    Events::REFUSED
                } else {
                    Events::CLOSED
                };
                self.fail(error, event);
            }
            // Once there is a connection, no such report ends it (RFC 5927 5.2): the network may heal.
            IcmpError::Unreachable(error) => self.soft_error = Some(error),
        }
    }

    fn on_smaller_path(&mut self, config: &Config, max_segment: u16, opening: bool) {
        let limit = max_segment.max(SEGMENT_FLOOR);
        if limit >= self.send.segment_limit {
            return;
        }
        self.send.segment_limit = limit;
        if !opening {
            self.send.mss = limit - self.features.option_len();
            self.lose_oversized(config);
        }
    }
}
