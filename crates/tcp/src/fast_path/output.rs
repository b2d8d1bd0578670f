//! The short way out: what nearly every segment of an undisturbed connection is. It decides as `output` does, of which it is a part that was written out, and takes
//! nothing on that it does not finish.

use std::ops::Range;

use millrace_wire::tcp::{Flags, Options, Seq, Timestamps};

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::info::Phase;
use crate::options::Features;
use crate::outgoing::Outgoing;
use crate::state::State;
use crate::time::Instant;
use crate::timers::Transmit;

/// A segment with all that there is to send, timestamps if they are in use, and no other option: an [`Outgoing`] without what it nearly never has.
#[derive(Clone, Debug, PartialEq)]
pub struct FastOutgoing {
    /// Sequence number of the first payload byte.
    pub seq: Seq,
    /// Acknowledgement.
    pub ack: Seq,
    /// Control bits: ACK, and PSH and FIN as may be.
    pub flags: Flags,
    /// Window as on the wire, scaled down.
    pub window: u16,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Stream offsets of the payload, no more of it than a segment takes; empty for none.
    pub payload: Range<u64>,
    /// Payload of a full segment.
    pub segment_size: u16,
}

impl From<FastOutgoing> for Outgoing {
    fn from(fast: FastOutgoing) -> Outgoing {
        Outgoing {
            seq: fast.seq,
            ack: fast.ack,
            flags: fast.flags,
            window: fast.window,
            urgent: 0,
            may_mark: false,
            options: Options {
                timestamps: fast.timestamps,
                ..Options::default()
            },
            payload: fast.payload,
            segment_size: fast.segment_size,
        }
    }
}

impl Connection {
    /// As [`Connection::poll_transmit`], if a single plain segment is all that there is to send; then there is nothing more to ask for. `None` says nothing: the
    /// other is to be asked.
    #[inline(always)]
    pub fn poll_transmit_fast(&mut self, config: &Config, now: Instant) -> Option<FastOutgoing> {
        if !self.is_fast_path() {
            return None;
        }
        let send = &self.send;
        if !send.has_unsent() {
            return (self.pending == Pending::ACK && self.delayed_ack.duplicates <= 1)
                .then(|| self.fast_ack(now));
        }
        if !self.state.can_send() {
            return None;
        }
        let (len, flight) = (send.end - send.nxt, send.nxt - send.una);
        let fits = len <= u64::from(send.mss)
            && flight + len + u64::from(send.fin) <= u64::from(send.window)
            && flight + len <= u64::from(self.congestion.window.cwnd);
        if !fits || (len < u64::from(send.mss) && self.holds_short()) {
            return None;
        }
        if flight == 0 && self.counters.last_sent.elapsed(now) > self.rtt.rto() {
            return None;
        }
        Some(self.fast_data(config, len, now))
    }

    /// Whether nothing asks for more than the next bytes of the stream, in a segment of its own, or an acknowledgement.
    #[inline(always)]
    fn is_fast_path(&self) -> bool {
        (self.pending - Pending::ACK).is_empty()
            && (self.state.is_synchronized() || self.state == State::TimeWait)
            && self.phase == Phase::Open
            && self.cold_state.is_none()
            && self.pacing.is_none()
            && self.loss_state.is_calm()
            && !self.features.contains(Features::ECN)
    }

    /// Whether a last segment that is not full waits (`may_send_short`).
    #[inline(always)]
    fn holds_short(&self) -> bool {
        let send = &self.send;
        let waits = send.more
            || self.settings.cork
            || (send.small_end > send.una && !self.settings.nodelay);
        waits && !send.fin && !send.forced
    }

    #[inline(always)]
    fn fast_ack(&mut self, now: Instant) -> FastOutgoing {
        self.delayed_ack.duplicates = 0;
        self.fast_segment(self.send.nxt..self.send.nxt, 0, Flags::ACK, now)
    }

    /// Sends the last `len` bytes, and the FIN if there is one (`send_fresh`).
    #[inline(always)]
    fn fast_data(&mut self, config: &Config, len: u64, now: Instant) -> FastOutgoing {
        let send = &mut self.send;
        let payload = send.nxt..send.end;
        let mut flags = Flags::ACK;
        if len > 0 {
            flags |= Flags::PSH;
        }
        if send.fin {
            flags |= Flags::FIN;
        }
        send.nxt = payload.end + u64::from(send.fin);
        if len < u64::from(send.mss) {
            send.small_end = payload.end;
        }
        send.forced = false;
        let (una, nxt) = (send.una, send.nxt);
        self.sent_log.sent(nxt, now);
        let flight = send.in_flight();
        self.congestion.on_sent(una, nxt, flight);
        self.counters.last_sent = now.ticks();
        if len > 0 {
            self.note_answer(config, now);
        }
        if una != payload.start {
            self.extend_transmit(config, now);
        } else {
            self.timers.progress();
            if flight <= u32::from(self.send.mss) && self.timers.doubled == 0 {
                // `arm_transmit`: a single segment is not probed, and nothing is backed off.
                self.timers.transmit = now + self.rtt.rto();
                self.timers.purpose = Transmit::Timeout;
            } else {
                self.arm_transmit(config, now);
            }
        }
        self.fast_segment(payload, len, flags, now)
    }

    #[inline(always)]
    fn fast_segment(
        &mut self,
        payload: Range<u64>,
        len: u64,
        flags: Flags,
        now: Instant,
    ) -> FastOutgoing {
        self.pending.remove(Pending::ACK);
        self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        self.timers.acknowledge = Instant::NEVER;
        let stamped = self.features.contains(Features::TIMESTAMPS);
        FastOutgoing {
            seq: self.send.seq(payload.start),
            window: self.receive.announce(self.receive.scale),
            ack: self.receive.seq(self.receive.nxt),
            flags,
            timestamps: stamped.then(|| self.recent.stamp(now)),
            payload: payload.start..payload.start + len,
            segment_size: self.send.mss,
        }
    }
}
