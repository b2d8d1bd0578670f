//! Segments that arrive (RFC 9293 3.10.7).

mod ack;
mod data;
mod reset;
mod syn_sent;
mod synchronized;

use millrace_wire::tcp::{PlainSegment, Segment};

use crate::config::Config;
use crate::connection::{Connection, ReceiveBuffer};
use crate::info::Phase;
use crate::options::{Features, Recent, timestamp_delta};
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
        if let Some(plain) = PlainSegment::of(segment)
            && (self.on_plain_segment(config, &plain, buffer, now)
                || self.on_last_segment(config, &plain, buffer, now))
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

    /// The next segment of an undisturbed flow: in order, acknowledging something or carrying something, nothing unusual
    /// about it. Almost all are. Returns false, with nothing changed, for any other, which is [`Connection::on_segment`]'s.
    #[inline(always)]
    pub fn on_plain_segment(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        self.state == State::Established
            && !segment.fin
            && self.on_next::<false>(config, segment, buffer, now)
    }

    /// As [`Connection::on_plain_segment`], for a segment that brings the FIN or comes after one.
    #[inline]
    pub fn on_last_segment(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        // What takes sequence space needs a reader who has not had the end of the stream.
        let fin_known = self.receive.fin != u64::MAX;
        let plain = match self.state {
            State::Established => segment.fin,
            State::FinWait1 | State::FinWait2 => segment.payload.is_empty() && !fin_known,
            State::CloseWait | State::LastAck | State::Closing => {
                segment.payload.is_empty() && fin_known && !segment.fin
            }
            _ => false,
        };
        plain && self.on_next::<true>(config, segment, buffer, now)
    }

    /// `CLOSING`: the states after ESTABLISHED are to be thought of.
    #[inline(always)]
    fn on_next<const CLOSING: bool>(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        let acked = segment.ack - self.send.seq(self.send.una);
        let plain = (CLOSING && self.state != State::Established || self.receive.fin == u64::MAX)
            && segment.seq == self.receive.seq(self.receive.nxt)
            && self.phase == Phase::Open
            && !self.disturbed.has_gaps()
            && segment.marked == self.ecn.marked
            && acked >= 0
            && acked as u32 <= self.send.in_flight()
            && (acked > 0 || !segment.payload.is_empty() || (CLOSING && segment.fin))
            && segment.payload.len() as u64 <= u64::from(self.receive.window());
        if !plain {
            return false;
        }
        if self.features.contains(Features::TIMESTAMPS) {
            let Some(timestamps) = segment.timestamps else {
                return false;
            };
            if timestamp_delta(timestamps.value, self.recent.value) < 0 {
                return false;
            }
            if self.receive.unacked() == 0 {
                self.recent = Recent::new(self.recent.offset, timestamps.value, now);
            }
        }
        self.counters.segments_in = self.counters.segments_in.wrapping_add(1);
        self.counters.last_received = now.ticks();
        self.timers.keepalive_probes = 0;
        self.send
            .update_window(segment.seq, segment.ack, segment.window);
        if acked > 0 {
            self.on_plain_ack(config, acked as u32, now);
            if CLOSING && self.send.fin_acked() {
                self.after_fin_acked(now);
            }
        }
        if !segment.payload.is_empty() {
            self.on_plain_data(config, segment.payload, buffer, now);
        }
        if CLOSING && segment.fin {
            self.on_plain_fin(segment);
        }
        true
    }
}
