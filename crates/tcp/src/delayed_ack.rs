//! When received data is acknowledged (RFC 9293 3.8.6.3, RFC 5681 4.2).

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::time::{Duration, Instant, Ticks};

/// How long the acknowledgement of a SYN-ACK may wait for payload (Linux's `TCP_DELACK_MAX`).
const HANDSHAKE_DELAY: Duration = Duration::from_millis(200);

/// The policy's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelayedAck {
    /// Full segments still to be acknowledged one by one, while the peer is in slow start.
    quick: u8,
    /// The program answers: acknowledgements ride on its answers.
    interactive: bool,
    /// Further duplicate acknowledgements to send: a peer without selective acknowledgement counts them.
    pub(crate) duplicates: u8,
    /// When a challenge ACK was last sent.
    challenged: Ticks,
    /// When payload last came.
    data: Ticks,
}

/// Segments that are acknowledged at once after a mark: the peer's window may be very small.
pub(crate) const MARKED_QUICK: u8 = 2;

impl DelayedAck {
    /// At least so many segments are acknowledged one by one.
    pub(crate) fn enter_quickack(&mut self, segments: u8) {
        self.quick = self.quick.max(segments);
    }

    pub(crate) fn new(config: &Config, interactive: bool, now: Instant) -> DelayedAck {
        DelayedAck {
            quick: config.quick_ack_segments,
            interactive,
            duplicates: 0,
            challenged: Ticks::before(now, config.challenge_interval),
            data: now.ticks(),
        }
    }
}

impl Connection {
    /// TCP_QUICKACK, as Linux has it: not a mode but a push. On: what waits to be acknowledged is, at once, and the program is taken for one
    /// that does not answer until it does. Off: it is taken for one that answers.
    pub fn set_quick_ack(&mut self, on: bool) {
        self.delayed_ack.interactive = !on;
        if on && self.timers.acknowledge != Instant::NEVER {
            self.timers.acknowledge = Instant::NEVER;
            self.pending |= Pending::ACK;
        }
    }

    /// What TCP_QUICKACK reads as: whether acknowledgements do not wait for the program's answers.
    pub fn quick_ack(&self) -> bool {
        !self.delayed_ack.interactive
    }

    /// The peer's SYN-ACK has come. Its acknowledgement may wait for payload if the program has said that there will be some soon.
    pub(crate) fn acknowledge_handshake(&mut self, now: Instant) {
        if self.delayed_ack.interactive || self.settings.defer_accept > 0 {
            self.timers.acknowledge = now + HANDSHAKE_DELAY;
        } else {
            self.pending |= Pending::ACK;
        }
    }

    /// `len` bytes of payload arrived in order.
    #[inline(always)]
    pub(crate) fn acknowledge_in_order(&mut self, config: &Config, len: usize, now: Instant) {
        let idle = self.delayed_ack.data.elapsed(now);
        self.delayed_ack.data = now.ticks();
        if idle > self.rtt.rto() {
            // After a pause the peer is in slow start again (RFC 5681 4.1).
            self.delayed_ack.quick = config.quick_ack_segments;
        }
        let full = len >= usize::from(self.receive.mss);
        if len > usize::from(self.receive.mss) {
            self.receive.mss = len.min(usize::from(self.greatest_received())) as u16;
        }
        let receive = &self.receive;
        if receive.unacked() >= 2 * u32::from(receive.mss) {
            // RFC 5681 4.2: at least every second full segment.
            self.pending |= Pending::ACK;
            return;
        }
        let quick = self.delayed_ack.quick > 0 && !self.delayed_ack.interactive;
        if quick && full {
            self.delayed_ack.quick -= 1;
            self.pending |= Pending::ACK;
        } else if self.timers.acknowledge == Instant::NEVER {
            self.timers.acknowledge = now
                + if quick {
                    config.quick_ack
                } else {
                    config.delayed_ack
                };
        }
    }

    /// Payload leaves: if it comes soon after payload arrived, the program is answering.
    #[inline(always)]
    pub(crate) fn note_answer(&mut self, config: &Config, now: Instant) {
        let soon = self.delayed_ack.data.elapsed(now) < config.delayed_ack;
        self.delayed_ack.interactive |= soon && self.receive.nxt > 0;
    }

    /// The delay is over: no answer came.
    pub(crate) fn acknowledge_late(&mut self) {
        self.timers.acknowledge = Instant::NEVER;
        self.delayed_ack.interactive = false;
        self.pending |= Pending::ACK;
    }

    /// Acknowledges in answer to something that cannot be, at most once in each interval (RFC 5961 7 and 10): this bounds
    /// what a blind attacker can cause, per connection so that nothing can be learnt from it about others (CVE-2016-5696), and
    /// damps exchanges of acknowledgements between two ends that disagree.
    pub(crate) fn challenge(&mut self, config: &Config, now: Instant) {
        if self.delayed_ack.challenged.elapsed(now) >= config.challenge_interval {
            self.delayed_ack.challenged = now.ticks();
            self.pending |= Pending::ACK;
        }
    }
}
