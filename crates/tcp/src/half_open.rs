//! SYN-RECEIVED after a passive open. It is small, so that a SYN flood makes nothing larger.

use millrace_wire::tcp::{Flags, Segment, Seq};

use crate::config::{Config, Ecn};
use crate::ecn;
use crate::open::Open;
use crate::options::{self, Features, Recent};
use crate::outgoing::{Outgoing, refuse};
use crate::settings::Settings;
use crate::time::{Duration, Instant, Ticks};

/// A connection that has answered a SYN and waits for the acknowledgement.
#[derive(Clone, Debug)]
pub struct HalfOpen {
    pub(crate) iss: Seq,
    pub(crate) irs: Seq,
    pub(crate) recent: Recent,
    pub(crate) receive_limit: u32,
    created: Instant,
    deadline: Instant,
    answered: Ticks,
    pub(crate) peer_window: u16,
    /// The MSS that we announce.
    pub(crate) mss: u16,
    /// The MSS that the peer announced.
    pub(crate) peer_mss: u16,
    pub(crate) peer_scale: u8,
    pub(crate) scale: u8,
    pub(crate) features: Features,
    retries: u8,
    /// TCP_DEFER_ACCEPT: for so many time-outs an acknowledgement without payload does not complete
    /// the handshake.
    defer: u8,
    /// Such an acknowledgement has come.
    deferred: bool,
    /// The round trip that it measured, in microseconds; 0 if none.
    measured_us: u32,
}

/// What to do with a half-open connection after a segment or a timer.
#[derive(Clone, Debug, PartialEq)]
pub enum HalfOpenVerdict {
    /// Do nothing.
    Ignore,
    /// Send this segment, and wait on.
    Reply(Outgoing),
    /// Forget it; nothing is sent.
    Drop,
    /// The handshake is complete: call [`HalfOpen::establish`], and pass the connection this same
    /// segment. Without room for a connection do nothing; the peer sends again.
    Establish,
}

impl HalfOpen {
    /// Enters SYN-RECEIVED. The caller has checked that `syn` has SYN and neither ACK, RST nor FIN.
    /// Payload on the SYN is not taken: the peer sends it again (RFC 9293 3.10.7.2).
    ///
    /// The answer is [`HalfOpen::reply`]; its retransmission is timed from now.
    pub fn new(
        config: &Config,
        settings: &Settings,
        open: Open,
        syn: &Segment<'_>,
        now: Instant,
    ) -> HalfOpen {
        let mut features = Features::offered(config, settings).agreed(&syn.options);
        let may_mark = config.ecn != Ecn::Off || features.contains(Features::ECN);
        features.set(Features::ECN, may_mark && ecn::is_asked(syn.flags));
        HalfOpen {
            iss: open.iss,
            irs: syn.seq,
            recent: Recent::new(
                open.timestamp_offset,
                syn.options.timestamps.map_or(0, |t| t.value),
                now,
            ),
            receive_limit: open.receive_limit,
            created: now,
            deadline: now + config.rto_initial,
            answered: now.ticks(),
            peer_window: syn.window,
            mss: open.mss,
            peer_mss: options::peer_mss(&syn.options, open.default_mss),
            peer_scale: syn.options.window_scale.unwrap_or(0),
            scale: options::scale_for(config.receive_limit_max.max(open.receive_limit)),
            features,
            retries: 0,
            defer: settings.defer_accept,
            deferred: false,
            measured_us: 0,
        }
    }

    /// The SYN-ACK.
    pub fn reply(&self, now: Instant) -> Outgoing {
        let mut reply = Outgoing::control(
            self.iss,
            self.irs + 1,
            Flags::SYN | Flags::ACK,
            self.syn_window(),
        );
        reply
            .flags
            .set(Flags::ECE, self.features.contains(Features::ECN));
        reply.options = self
            .features
            .syn_options(self.mss, self.scale, self.recent.stamp(now));
        reply
    }

    /// The SYN is answered now, later than it came: times count from now.
    pub fn answer_late(&mut self, config: &Config, now: Instant) {
        self.created = now;
        self.answered = now.ticks();
        self.deadline = now + config.rto_initial;
    }

    /// Whether a segment withdraws a SYN that has not been answered: a RST with the number after it
    /// (RFC 5961 3.2).
    pub fn is_taken_back(&self, segment: &Segment<'_>) -> bool {
        segment.flags.contains(Flags::RST) && segment.seq == self.irs + 1
    }

    /// The RST that refuses the SYN (RFC 9293 3.10.7.2).
    pub fn refusal(&self) -> Outgoing {
        Outgoing::control(Seq(0), self.irs + 1, Flags::RST | Flags::ACK, 0)
    }

    /// When [`HalfOpen::on_timer`] is due.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Repeats the SYN-ACK, or gives up after the configured number of times. While
    /// TCP_DEFER_ACCEPT waits for payload the SYN-ACK is not repeated, until its last time-out: the
    /// answer to that one completes the handshake.
    pub fn on_timer(&mut self, config: &Config, now: Instant) -> HalfOpenVerdict {
        if now < self.deadline {
            return HalfOpenVerdict::Ignore;
        }
        let waits = self.deferred && self.retries < self.defer;
        if self.retries >= config.syn_ack_retries && !waits {
            return HalfOpenVerdict::Drop;
        }
        let quiet = waits && self.retries + 1 < self.defer;
        self.retries += 1;
        self.deadline = now
            + config
                .rto_initial
                .backed_off(u32::from(self.retries), config.rto_max);
        if quiet {
            return HalfOpenVerdict::Ignore;
        }
        HalfOpenVerdict::Reply(self.reply(now))
    }

    /// Processes a segment in SYN-RECEIVED, in the order of RFC 9293 3.10.7.4.
    pub fn on_segment(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        now: Instant,
    ) -> HalfOpenVerdict {
        use HalfOpenVerdict::{Drop, Establish, Ignore, Reply};
        let expected = self.irs + 1;
        let window = u32::from(self.syn_window()).max(1);

        // The peer's SYN again: our answer was lost.
        let clean_syn =
            segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN) == Flags::SYN;
        if clean_syn && segment.seq == self.irs {
            if let Some(timestamps) = segment.options.timestamps {
                self.recent
                    .update(timestamps.value, segment.seq, expected, now);
            }
            return self
                .rate_limited(config, now)
                .map_or(Ignore, |()| Reply(self.reply(now)));
        }

        let rst = segment.flags.contains(Flags::RST);
        if !rst && self.features.contains(Features::TIMESTAMPS) {
            match segment.options.timestamps {
                // RFC 7323 3.2: "If a non-<RST> segment is received without a TSopt, a TCP SHOULD
                // silently drop the segment."
                None => return Ignore,
                Some(timestamps) if self.recent.rejects(timestamps.value, now) => {
                    return self.challenge(config, now);
                }
                Some(_) => {}
            }
        }

        let last = segment.seq + segment.sequence_len().saturating_sub(1);
        if !segment.seq.within(expected, window) && !last.within(expected, window) {
            return if rst {
                Ignore
            } else {
                self.challenge(config, now)
            };
        }
        if rst {
            // RFC 5961 3.2. After a passive open, back to LISTEN (RFC 9293 3.10.7.4, second).
            return if segment.seq == expected {
                Drop
            } else {
                self.challenge(config, now)
            };
        }
        if segment.flags.contains(Flags::SYN) {
            return self.challenge(config, now);
        }
        if !segment.flags.contains(Flags::ACK) {
            return Ignore;
        }
        if segment.ack != self.iss + 1 {
            return refuse(segment).map_or(Ignore, Reply);
        }
        if self.retries < self.defer && segment.sequence_len() == 0 {
            if let Some(sample) = self.round_trip(now).filter(|_| !self.deferred) {
                self.measured_us = sample.as_micros() as u32;
            }
            self.deferred = true;
            return Ignore;
        }
        Establish
    }

    /// The round trip of the handshake; `None` if the SYN-ACK was sent more than once (Karn's
    /// rule).
    pub(crate) fn round_trip(&self, now: Instant) -> Option<Duration> {
        if self.measured_us > 0 {
            return Some(Duration::from_micros(u64::from(self.measured_us)));
        }
        (self.retries == 0 && !self.deferred).then(|| now - self.created)
    }

    /// How often the SYN-ACK was sent again because no answer came.
    pub(crate) fn repeated(&self) -> u8 {
        if self.deferred { 0 } else { self.retries }
    }

    /// The window of the SYN-ACK, which is not scaled (RFC 7323 2.2).
    pub(crate) fn syn_window(&self) -> u16 {
        self.receive_limit.min(0xffff) as u16
    }

    /// A challenge ACK, at most one in each interval (RFC 5961 7, 10).
    fn challenge(&mut self, config: &Config, now: Instant) -> HalfOpenVerdict {
        if self.rate_limited(config, now).is_none() {
            return HalfOpenVerdict::Ignore;
        }
        let window = self.syn_window()
            >> if self.features.contains(Features::SCALE) {
                self.scale
            } else {
                0
            };
        let mut ack = Outgoing::control(self.iss + 1, self.irs + 1, Flags::ACK, window);
        ack.options.timestamps = self
            .features
            .contains(Features::TIMESTAMPS)
            .then(|| self.recent.stamp(now));
        HalfOpenVerdict::Reply(ack)
    }

    fn rate_limited(&mut self, config: &Config, now: Instant) -> Option<()> {
        if self.answered.elapsed(now) < config.challenge_interval {
            return None;
        }
        self.answered = now.ticks();
        Some(())
    }
}
