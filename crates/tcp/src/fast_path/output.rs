//! The fast path of a segment out: the last of what an undisturbed connection has queued.
//!
//! It decides as `output` does for the general case, with the steps of one segment written out.

use std::ops::Range;

use millrace_wire::tcp::{Flags, Options, Seq, Timestamps};

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::options::Features;
use crate::outgoing::Outgoing;
use crate::state::State;
use crate::time::Instant;
use crate::timers::Transmit;

/// A segment with all that there is to send, and no option but timestamps: an [`Outgoing`] without
/// the fields that are rarely used.
#[derive(Clone, Debug, PartialEq)]
pub struct FastOutgoing {
    /// Sequence number of the first payload byte.
    pub seq: Seq,
    /// Acknowledgement number.
    pub ack: Seq,
    /// Control bits: ACK, and PSH and FIN where they apply.
    pub flags: Flags,
    /// Window as on the wire, scaled down.
    pub window: u16,
    /// Timestamps option, if it was agreed on.
    pub timestamps: Option<Timestamps>,
    /// Stream offsets of the payload: one segment at most, empty for none.
    pub payload: Range<u64>,
    /// Payload of a full segment, in bytes.
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
    /// As [`Connection::poll_transmit`], if one ordinary segment is all that there is to send;
    /// there is nothing to ask for after it. After `None`, [`Connection::poll_transmit`] decides.
    #[inline(always)]
    pub fn poll_transmit_fast(&mut self, config: &Config, now: Instant) -> Option<FastOutgoing> {
        if !self.is_fast_path() {
            return None;
        }
        let send = &self.send;
        if !send.has_unsent() {
            return (self.pending == Pending::ACK && !self.delayed_ack.has_duplicates())
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

    /// Whether nothing needs more than the next bytes of the stream in one segment, or an
    /// acknowledgement.
    #[inline(always)]
    fn is_fast_path(&self) -> bool {
        (self.pending - Pending::ACK).is_empty()
            && (self.state.is_synchronized() || self.state == State::TimeWait)
            && self.recovery.is_idle()
            && !self.reassembly.has_reports()
            && self.cold_state.is_none()
            && !self.features.contains(Features::ECN)
    }

    /// Whether a last segment that is not full waits, as in `may_send_short`.
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
        self.delayed_ack.on_ack_sent();
        self.fast_segment(self.send.nxt..self.send.nxt, 0, Flags::ACK, now)
    }

    /// Sends the last `len` bytes, and the FIN if it is queued, as `send_fresh` does.
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
        self.recovery.on_sent(nxt, now);
        let flight = send.in_flight();
        self.congestion.on_sent(una, nxt, flight);
        self.counters.last_sent = now.ticks();
        if len > 0 {
            self.delayed_ack
                .on_answer(config, self.receive.nxt > 0, now);
        }
        if una != payload.start {
            self.extend_transmit(config, now);
        } else {
            self.timers.on_progress();
            if flight <= u32::from(self.send.mss) && self.timers.doubled() == 0 {
                // A single segment is not probed, and the time-out is not backed off.
                self.timers.start(Transmit::Timeout, now + self.rtt.rto());
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
        self.timers.stop_ack();
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
