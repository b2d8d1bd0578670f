//! Segments that arrive (RFC 9293 3.10.7).

mod ack;
mod data;
mod reset;
mod syn_sent;
mod synchronized;

use millrace_wire::tcp::{PlainSegment, Segment};

use crate::config::Config;
use crate::connection::{Connection, ReceiveBuffer};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Processes a segment of this connection (RFC 9293 3.10.7.3 and .4). Answers wait for
    /// [`Connection::poll_transmit`], so that what the program says to the same batch of segments can carry them.
    pub fn on_segment(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        if let Some(simple) = PlainSegment::of(segment)
            && (self.on_predicted_segment(config, &simple, buffer, now)
                || self.on_predicted_closing_segment(config, &simple, buffer, now))
        {
            return;
        }
        self.counters.segments_in = self.counters.segments_in.wrapping_add(1);
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.on_segment_syn_sent(config, segment, buffer, now),
            _ => self.on_segment_synchronized(config, segment, buffer, now),
        }
    }
}
