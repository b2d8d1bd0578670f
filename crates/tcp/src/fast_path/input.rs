//! Header prediction: the fast path of a segment in, which nearly all segments take.

use millrace_wire::tcp::PlainSegment;

use crate::config::Config;
use crate::congestion::Acked;
use crate::connection::{Connection, Pending};
use crate::events::Events;
use crate::options::{Features, Recent, timestamp_delta};
use crate::reassembly::ReceiveBuffer;
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Processes the next segment of an undisturbed flow: in order, with payload or a new
    /// acknowledgement, and nothing unusual. Almost all segments are such. Returns `false`, with
    /// nothing changed, for any other segment: [`Connection::on_segment`] takes it.
    #[inline(always)]
    pub fn on_predicted_segment(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        self.state == State::Established
            && !segment.fin
            && self.predict::<false>(config, segment, buffer, now)
    }

    /// As [`Connection::on_predicted_segment`], for a segment that brings the FIN or comes after
    /// one.
    #[inline]
    pub fn on_predicted_closing_segment(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        // Payload or a FIN needs a reader that has not read the end of the stream.
        let fin_known = self.receive.fin != u64::MAX;
        let may_predict = match self.state {
            State::Established => segment.fin,
            State::FinWait1 | State::FinWait2 => segment.payload.is_empty() && !fin_known,
            State::CloseWait | State::LastAck | State::Closing => {
                segment.payload.is_empty() && fin_known && !segment.fin
            }
            _ => false,
        };
        may_predict && self.predict::<true>(config, segment, buffer, now)
    }

    /// Checks the prediction and processes the segment. `CLOSING`: a state after ESTABLISHED is
    /// possible.
    #[inline(always)]
    fn predict<const CLOSING: bool>(
        &mut self,
        config: &Config,
        segment: &PlainSegment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        let acked = segment.ack - self.send.seq(self.send.una);
        let is_predicted = (CLOSING && self.state != State::Established
            || self.receive.fin == u64::MAX)
            && segment.seq == self.receive.seq(self.receive.nxt)
            && self.recovery.is_open()
            && !self.reassembly.has_gaps()
            && self.ecn.is_predicted(segment.marked)
            && acked >= 0
            && acked as u32 <= self.send.in_flight()
            && (acked > 0 || !segment.payload.is_empty() || (CLOSING && segment.fin))
            && segment.payload.len() as u64 <= u64::from(self.receive.window());
        if !is_predicted {
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
        self.timers.on_heard();
        self.send
            .update_window(segment.seq, segment.ack, segment.window);
        if acked > 0 {
            self.on_predicted_ack(config, acked as u32, now);
            if CLOSING && self.send.fin_acked() {
                self.after_fin_acked(now);
            }
        }
        if !segment.payload.is_empty() {
            self.on_data_in_order(config, segment.payload, buffer, now);
        }
        if CLOSING && segment.fin {
            self.on_predicted_fin(segment);
        }
        true
    }

    /// `acked` bytes in flight are acknowledged, and the flight has no mark.
    #[inline(always)]
    pub(crate) fn on_predicted_ack(&mut self, config: &Config, acked: u32, now: Instant) {
        self.send.una += u64::from(acked);
        let mut rtt_us = 0;
        if let Some(sent) = self.recovery.on_acked(self.send.una) {
            rtt_us = (now.as_micros() as u32).wrapping_sub(sent);
            self.rtt.sample(config, rtt_us, now);
            self.timers.on_measured();
        }
        let acked = Acked {
            bytes: acked,
            mss: u32::from(self.send.mss),
            rtt_us,
            rto_us: self.rtt.rto_us(),
            una: self.send.una,
            nxt: self.send.nxt,
        };
        self.congestion.on_ack(config.initial_window, &acked, now);
        self.after_progress(config, now);
    }

    /// Stores the next payload in order: within the window, with nothing stored beyond it.
    #[inline(always)]
    pub(crate) fn on_data_in_order(
        &mut self,
        config: &Config,
        payload: &[u8],
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        if !buffer.store(self.receive.nxt, payload) {
            return;
        }
        self.receive.nxt += payload.len() as u64;
        self.events |= Events::READABLE;
        self.acknowledge_in_order(config, payload.len(), now);
    }

    /// Processes the FIN of a segment in order, after its payload.
    #[inline(always)]
    fn on_predicted_fin(&mut self, segment: &PlainSegment<'_>) {
        let end = self.receive.offset(segment.seq) + segment.payload.len() as i64;
        self.receive.fin = end as u64;
        if self.receive.nxt == self.receive.fin {
            self.on_fin();
        } else {
            // There was no memory for the payload.
            self.pending |= Pending::ACK;
        }
    }
}
