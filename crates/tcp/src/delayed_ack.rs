//! When received data is acknowledged (RFC 9293 3.8.6.3, RFC 5681 4.2).

use crate::config::Config;
use crate::time::{Duration, Instant, Ticks};

/// How long the acknowledgement of a SYN-ACK may wait for payload (Linux's `TCP_DELACK_MAX`).
const HANDSHAKE_DELAY: Duration = Duration::from_millis(200);

/// The state of delayed acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DelayedAck {
    /// Full segments that are still acknowledged one by one, while the peer is in slow start.
    quick: u8,
    /// The program answers what it receives: acknowledgements wait for its answers.
    interactive: bool,
    /// Duplicate acknowledgements to send: a peer without selective acknowledgement counts them.
    duplicates: u8,
    /// When a challenge ACK was last sent.
    challenged: Ticks,
    /// When payload last arrived.
    data_at: Ticks,
}

/// When an acknowledgement is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AckDue {
    /// At once.
    Now,
    /// After this time, unless the timer runs already.
    After(Duration),
}

impl DelayedAck {
    pub(crate) fn new(config: &Config, interactive: bool, now: Instant) -> DelayedAck {
        DelayedAck {
            quick: config.quick_ack_segments,
            interactive,
            duplicates: 0,
            challenged: Ticks::before(now, config.challenge_interval),
            data_at: now.ticks(),
        }
    }

    /// At least so many segments are acknowledged one by one.
    pub(crate) fn enter_quickack(&mut self, segments: u8) {
        self.quick = self.quick.max(segments);
    }

    /// Whether acknowledgements wait for the program's answers.
    pub(crate) fn is_interactive(&self) -> bool {
        self.interactive
    }

    /// TCP_QUICKACK off or on; or the delay is over and no answer came.
    pub(crate) fn set_interactive(&mut self, interactive: bool) {
        self.interactive = interactive;
    }

    /// The acknowledgement of a SYN-ACK. It waits if the program has announced payload. `deferred`:
    /// TCP_DEFER_ACCEPT is set.
    pub(crate) fn on_handshake(&self, deferred: bool) -> AckDue {
        if self.interactive || deferred {
            AckDue::After(HANDSHAKE_DELAY)
        } else {
            AckDue::Now
        }
    }

    /// Payload arrived in order. `unacked` bytes have arrived since the last acknowledgement, `mss`
    /// is the size of the peer's full segments, and `full` says that this is one.
    #[inline(always)]
    pub(crate) fn on_data(
        &mut self,
        config: &Config,
        unacked: u32,
        mss: u16,
        full: bool,
    ) -> AckDue {
        // RFC 5681 4.2: "an ACK SHOULD be generated for at least every second full-sized segment".
        if unacked >= 2 * u32::from(mss) {
            return AckDue::Now;
        }
        if self.quick == 0 || self.interactive {
            return AckDue::After(config.delayed_ack);
        }
        if full {
            self.quick -= 1;
            return AckDue::Now;
        }
        AckDue::After(config.quick_ack)
    }

    /// Payload arrives now. After a pause longer than `rto` the peer is in slow start again (RFC
    /// 5681 4.1).
    #[inline(always)]
    pub(crate) fn on_arrival(&mut self, config: &Config, rto: Duration, now: Instant) {
        let idle = self.data_at.elapsed(now);
        self.data_at = now.ticks();
        if idle > rto {
            self.quick = config.quick_ack_segments;
        }
    }

    /// Payload leaves. If it leaves soon after payload arrived, the program is answering.
    /// `received`: payload has ever arrived.
    #[inline(always)]
    pub(crate) fn on_answer(&mut self, config: &Config, received: bool, now: Instant) {
        let soon = self.data_at.elapsed(now) < config.delayed_ack;
        self.interactive |= soon && received;
    }

    /// Whether a challenge ACK may be sent now: at most one in each interval (RFC 5961 7 and 10).
    /// This bounds what a blind attacker can cause, per connection, so that it reveals nothing
    /// about others (CVE-2016-5696). It also damps exchanges of acknowledgements between two ends
    /// that disagree.
    pub(crate) fn may_challenge(&mut self, config: &Config, now: Instant) -> bool {
        let may = self.challenged.elapsed(now) >= config.challenge_interval;
        if may {
            self.challenged = now.ticks();
        }
        may
    }

    /// A segment arrived out of order, from a peer that counts duplicate acknowledgements.
    pub(crate) fn add_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1);
    }

    /// Whether more than one duplicate acknowledgement is due.
    #[inline(always)]
    pub(crate) fn has_duplicates(&self) -> bool {
        self.duplicates > 1
    }

    /// An acknowledgement leaves. Returns whether another duplicate is due after it.
    #[inline(always)]
    pub(crate) fn on_ack_sent(&mut self) -> bool {
        if self.duplicates > 1 {
            self.duplicates -= 1;
            return true;
        }
        self.duplicates = 0;
        false
    }
}
