//! What ICMP reports about our segments, and how far it is believed (RFC 5927, RFC 1122 4.2.3.9, RFC 1191).

use millrace_wire::tcp::Seq;

use crate::config::Config;
use crate::connection::Connection;
use crate::events::{Events, IcmpError};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// An ICMP message about a segment of ours with sequence number `quoted`. One that quotes what is not in flight is ignored
    /// (RFC 5927 4.1). Returns whether it was believed.
    pub fn on_icmp(
        &mut self,
        config: &Config,
        error: IcmpError,
        quoted: Seq,
        now: Instant,
    ) -> bool {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        let offset = self.send.offset(quoted);
        let believed = if opening {
            quoted == self.send.iss()
        } else {
            offset >= self.send.una as i64 && offset < self.send.nxt as i64
        };
        if !believed || matches!(self.state, State::TimeWait | State::Closed) {
            return false;
        }
        match error {
            IcmpError::FragmentationNeeded { max_segment } => {
                self.on_path_limit(config, max_segment, now);
            }
            IcmpError::Unreachable(error) if self.state == State::SynSent => {
                self.fail(error, Events::REFUSED);
            }
            // Once there is a connection, no such report ends it (RFC 5927 5.2): the network may heal.
            IcmpError::Unreachable(error) => self.soft_error = Some(error),
        }
        true
    }
}
