//! TIME-WAIT. It is small, answers late duplicates, and decides when a new connection may replace
//! it.

use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::config::Config;
use crate::options::{Features, Recent, timestamp_delta};
use crate::outgoing::Outgoing;
use crate::time::{Instant, Ticks};

/// A connection in TIME-WAIT.
#[derive(Clone, Debug)]
pub struct TimeWait {
    pub(crate) send_next: Seq,
    pub(crate) receive_next: Seq,
    pub(crate) recent: Recent,
    pub(crate) deadline: Instant,
    pub(crate) answered: Ticks,
    /// The window as on the wire.
    pub(crate) window: u16,
    pub(crate) features: Features,
}

/// What to do after a segment in TIME-WAIT.
#[derive(Clone, Debug, PartialEq)]
pub enum TimeWaitVerdict {
    /// Do nothing.
    Ignore,
    /// Send this segment.
    Reply(Outgoing),
    /// Forget the old connection, and treat the segment as a new SYN. Our initial sequence number
    /// must come after `after` (RFC 9293 3.10.7.4).
    Reopen {
        /// The last sequence number that the old connection used.
        after: Seq,
    },
}

impl TimeWait {
    /// When TIME-WAIT is over.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The last sequence number that the connection used. A connection that replaces it begins
    /// later.
    pub fn after(&self) -> Seq {
        self.send_next
    }

    /// Processes a segment for TIME-WAIT (RFC 9293 3.10.7.4, RFC 1337, RFC 6191).
    pub fn on_segment(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        now: Instant,
    ) -> TimeWaitVerdict {
        use TimeWaitVerdict::{Ignore, Reopen};
        // RFC 1337: a RST does not end TIME-WAIT.
        if segment.flags.contains(Flags::RST) {
            return Ignore;
        }
        if segment.flags & (Flags::SYN | Flags::ACK | Flags::FIN) == Flags::SYN {
            return if self.may_reopen(segment, now) {
                Reopen {
                    after: self.after(),
                }
            } else {
                self.answer(config, now)
            };
        }
        if segment.flags.contains(Flags::SYN) {
            return self.answer(config, now);
        }
        if self.features.contains(Features::TIMESTAMPS) {
            match segment.options.timestamps {
                None => return Ignore,
                Some(timestamps) if self.recent.rejects(timestamps.value, now) => {
                    return self.answer(config, now);
                }
                Some(timestamps) => {
                    self.recent
                        .update(timestamps.value, segment.seq, self.receive_next, now);
                }
            }
        }
        if !segment.flags.contains(Flags::ACK) {
            return Ignore;
        }
        // The peer's FIN again: our acknowledgement was lost, and the wait restarts.
        if segment.flags.contains(Flags::FIN)
            && segment.seq + segment.sequence_len() == self.receive_next
        {
            self.deadline = now + config.time_wait;
            self.answered = now.ticks();
            return TimeWaitVerdict::Reply(self.ack(now));
        }
        // A late acknowledgement of our FIN.
        if segment.payload.is_empty() && segment.seq == self.receive_next {
            return Ignore;
        }
        self.answer(config, now)
    }

    /// Whether a SYN opens a new connection and is no old duplicate. RFC 6191 2: its timestamp is
    /// greater than the last one seen. Or it begins after the last byte received (RFC 9293
    /// 3.10.7.4), and PAWS does not reject its timestamp.
    fn may_reopen(&self, syn: &Segment<'_>, now: Instant) -> bool {
        let later = syn.seq.after(self.receive_next);
        match syn.options.timestamps {
            Some(timestamps) if self.features.contains(Features::TIMESTAMPS) => {
                timestamp_delta(timestamps.value, self.recent.value) > 0
                    || (later && !self.recent.rejects(timestamps.value, now))
            }
            _ => later,
        }
    }

    /// Acknowledges at most once in each interval: two ends that reject each other's segments must
    /// not keep each other busy.
    fn answer(&mut self, config: &Config, now: Instant) -> TimeWaitVerdict {
        if self.answered.elapsed(now) < config.challenge_interval {
            return TimeWaitVerdict::Ignore;
        }
        self.answered = now.ticks();
        TimeWaitVerdict::Reply(self.ack(now))
    }

    fn ack(&self, now: Instant) -> Outgoing {
        let mut ack = Outgoing::control(self.send_next, self.receive_next, Flags::ACK, self.window);
        ack.options.timestamps = self
            .features
            .contains(Features::TIMESTAMPS)
            .then(|| self.recent.stamp(now));
        ack
    }
}
