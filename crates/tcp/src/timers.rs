//! Timers: what is due when, and what then.

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::events::{Error, Events};
use crate::info::Phase;
use crate::state::State;
use crate::time::{Duration, Instant};

/// The least wait before a tail loss probe. Shorter ones would race with acknowledgements that are merely batched.
const LOSS_PROBE_MIN_US: u64 = 10_000;

/// Retransmissions before a connection is given up, unless the program has said how long to wait.
const RETRIES_MIN: u8 = 3;

/// What the transmit timer is for. One runs at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transmit {
    /// Retransmission time-out (RFC 6298).
    Timeout,
    /// TailLossProbe loss probe (RFC 8985 7).
    LossProbe,
    /// Bytes that may be merely reordered will then be lost (RFC 8985 6.2).
    Reorder,
    /// The peer's window is shut, nothing is in flight: probe (RFC 9293 3.8.6.1).
    Persist,
    /// A short segment is held back; nothing is in flight (RFC 9293 3.8.6.2.1).
    Hold,
}

/// The timers of a connection; [`Instant::NEVER`] for one that does not run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timers {
    pub(crate) transmit: Instant,
    /// Delayed acknowledgement.
    pub(crate) acknowledge: Instant,
    /// Keepalive; or, in FIN-WAIT-2 without a program, the end.
    pub(crate) idle: Instant,
    /// When the present lack of progress began: [`Instant::NEVER`] if there is none.
    pub(crate) stalled_since: Instant,
    pub(crate) purpose: Transmit,
    /// Time-outs, or window probes, since there was progress.
    pub(crate) backoff: u8,
    /// How often the time-out has doubled since a round trip was measured: progress alone does not take that back (Karn's rule, RFC 6298 5).
    pub(crate) doubled: u8,
    /// Keepalive probes since the peer was last heard.
    pub(crate) keepalive_probes: u8,
    /// The tail of the flight has been probed since a round trip was measured: next comes the time-out (RFC 8985 7.3).
    pub(crate) probed: bool,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            transmit: Instant::NEVER,
            acknowledge: Instant::NEVER,
            idle: Instant::NEVER,
            stalled_since: Instant::NEVER,
            purpose: Transmit::Timeout,
            backoff: 0,
            doubled: 0,
            keepalive_probes: 0,
            probed: false,
        }
    }
}

impl Timers {
    /// The earliest.
    pub(crate) fn earliest(&self) -> Instant {
        self.transmit.min(self.acknowledge).min(self.idle)
    }

    /// Stops them all.
    pub(crate) fn stop(&mut self) {
        *self = Timers::default();
    }

    /// Something was acknowledged.
    pub(crate) fn progress(&mut self) {
        self.backoff = 0;
        self.stalled_since = Instant::NEVER;
    }

    /// A round trip was measured.
    #[inline]
    pub(crate) fn measured(&mut self) {
        self.doubled = 0;
        self.probed = false;
    }
}

impl Connection {
    /// The earliest of the timers, `None` if none runs.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers
            .earliest()
            .min(self.paced_until())
            .reached_ever()
    }

    /// Runs the timers that are due. To be called at [`Connection::deadline`] or after; [`Connection::poll_transmit`] then
    /// has what is to be sent.
    pub fn on_timer(&mut self, config: &Config, now: Instant) {
        if self.timers.acknowledge <= now {
            self.acknowledge_late();
        }
        if self.timers.transmit <= now {
            self.timers.transmit = Instant::NEVER;
            match self.timers.purpose {
                Transmit::Timeout => self.on_timeout(config, now),
                Transmit::LossProbe => {
                    self.pending |= Pending::LOSS_PROBE;
                    self.timers.probed = true;
                    self.arm_timeout(config, now);
                }
                Transmit::Reorder => self.on_reorder_timer(config, now),
                Transmit::Persist => self.on_persist(config, now),
                Transmit::Hold => self.send.forced = true,
            }
        }
        if self.paced_until() <= now {
            self.must_wait(now);
        }
        if self.timers.idle <= now {
            self.timers.idle = Instant::NEVER;
            self.on_idle(config, now);
        }
    }

    /// Something is in flight: starts the timer for it anew, as a probe of the tail where that comes first.
    #[inline]
    pub(crate) fn arm_transmit(&mut self, config: &Config, now: Instant) {
        let probe = self.loss_probe_wait();
        if probe < self.rtt.rto() {
            self.timers.transmit = now + probe;
            self.timers.purpose = Transmit::LossProbe;
        } else {
            self.arm_timeout(config, now);
        }
    }

    /// More is in flight, which may mean that the tail is worth a probe; what is due for the segments before stands.
    #[inline]
    pub(crate) fn extend_transmit(&mut self, config: &Config, now: Instant) {
        match self.timers.purpose {
            _ if self.timers.transmit == Instant::NEVER => self.arm_transmit(config, now),
            Transmit::Timeout | Transmit::LossProbe => {
                let probe = now + self.loss_probe_wait();
                if probe < self.timers.transmit {
                    self.timers.transmit = probe;
                    self.timers.purpose = Transmit::LossProbe;
                }
            }
            _ => {}
        }
    }

    /// RFC 8985 7.2: how long to wait before the tail is probed; for ever if it is not to be. A single segment is not, for its
    /// acknowledgement may be delayed about as long as a time-out takes.
    #[inline]
    fn loss_probe_wait(&self) -> Duration {
        let srtt = u64::from(self.rtt.srtt_us());
        let wanted = srtt > 0
            && self.phase == Phase::Open
            && self.send.in_flight() > u32::from(self.send.mss)
            && !self.timers.probed
            && self.timers.backoff == 0;
        Duration::from_micros(if wanted {
            (2 * srtt).max(LOSS_PROBE_MIN_US)
        } else {
            u64::MAX
        })
    }

    /// Starts the retransmission timer, backed off as far as it is; never beyond the end of the user's patience.
    pub(crate) fn arm_timeout(&mut self, config: &Config, now: Instant) {
        let rto = if self.timers.doubled == 0 {
            self.rtt.rto()
        } else {
            self.rtt
                .rto()
                .backed_off(u32::from(self.timers.doubled), config.rto_max)
        };
        self.timers.transmit = now + rto;
        self.timers.purpose = Transmit::Timeout;
        if self.timers.backoff > 0 && self.settings.user_timeout_ms.is_some() {
            let end = self.timers.stalled_since + self.patience(config);
            self.timers.transmit = self.timers.transmit.min(end.max(now));
        }
    }

    /// Runs what waits while a closed connection waits for the peer: FIN-WAIT-2 must not last (`on_idle` reckons how long).
    pub(crate) fn wait_for_orphan(&mut self, now: Instant) {
        if self.orphan && self.state == State::FinWait2 {
            if self.settings.fin_wait_s == Some(0) {
                return self.abort();
            }
            self.timers.stalled_since = now;
            self.timers.idle = now;
        }
    }

    /// Starts the keepalive timer, from when the peer was last heard.
    pub(crate) fn arm_keepalive(&mut self, now: Instant) {
        if let Some(keepalive) = self.settings.keepalive {
            // It is not set again for every segment: when it is due, `on_idle` looks how long the peer has been silent.
            self.timers.idle =
                self.heard_at(now) + Duration::from_secs(u64::from(keepalive.idle_s));
        }
    }

    /// When the peer was last heard.
    fn heard_at(&self, now: Instant) -> Instant {
        let silent = self.counters.last_received.elapsed(now).as_micros();
        Instant::from_micros(now.as_micros().saturating_sub(silent))
    }

    fn on_timeout(&mut self, config: &Config, now: Instant) {
        match self.state {
            State::SynSent | State::SynReceived => return self.on_syn_timeout(config, now),
            State::TimeWait | State::Closed => return,
            _ => {}
        }
        if self.send.in_flight() == 0 {
            return;
        }
        if self.timers.stalled_since == Instant::NEVER {
            let rto_us = self.rtt.rto().as_micros();
            self.timers.stalled_since =
                Instant::from_micros(now.as_micros().saturating_sub(rto_us));
        }
        // However long a time-out is, a few come before the end (R1 of RFC 9293 3.8.3).
        let tried = self.timers.backoff >= RETRIES_MIN || self.settings.user_timeout_ms.is_some();
        let mut since = self.timers.stalled_since;
        if self.send.window == 0 && !self.orphan && self.settings.user_timeout_ms.is_none() {
            // The peer has taken back the window that this was sent into. It may, as long as it answers (RFC 9293 3.8.6, SHLD-17).
            since = since.max(self.heard_at(now));
        }
        if tried && now - since >= self.patience(config) {
            return self.time_out();
        }
        self.loss_state.get_or_insert().timeouts += 1;
        self.suspect_black_hole(config, now);
        self.lose_flight(config, now);
        self.timers.backoff = self.timers.backoff.saturating_add(1);
        self.timers.doubled = self.timers.doubled.saturating_add(1);
        self.arm_timeout(config, now);
    }

    fn on_syn_timeout(&mut self, config: &Config, now: Instant) {
        let retries = match self.state {
            State::SynSent => self.settings.syn_retries.unwrap_or(config.syn_retries),
            _ => config.syn_ack_retries,
        };
        if self.timers.backoff >= retries {
            return self.time_out();
        }
        if self.timers.stalled_since == Instant::NEVER {
            let rto_us = self.rtt.rto().as_micros();
            self.timers.stalled_since =
                Instant::from_micros(now.as_micros().saturating_sub(rto_us));
        }
        if self.settings.user_timeout_ms.is_some()
            && now - self.timers.stalled_since >= self.patience(config)
        {
            return self.time_out();
        }
        self.on_syn_lost();
        self.timers.backoff += 1;
        self.timers.doubled = self.timers.backoff;
        self.pending |= Pending::SYN;
        self.loss_state.get_or_insert().segments_retransmitted += 1;
        self.arm_timeout(config, now);
    }

    /// RFC 9293 3.8.6.1: the window may stay shut for as long as the peer answers probes, but not for ever if nobody is
    /// here to wait for it, or the program has said how long.
    fn on_persist(&mut self, config: &Config, now: Instant) {
        if self.send.usable() > 0 {
            // The window has opened, if not by much; what there is has waited long enough.
            self.send.forced = true;
            return;
        }
        if self.timers.stalled_since == Instant::NEVER {
            self.timers.stalled_since = now;
        }
        let shut = now - self.timers.stalled_since;
        let unanswered = now - self.heard_at(now).max(self.timers.stalled_since);
        let over = match self.settings.user_timeout_ms {
            Some(_) => shut >= self.patience(config),
            None => {
                // Nobody is here to wait for the window: as long as the time between probes grows (Linux's `tcp_probe_timer`).
                let wait = self.backed_off(config);
                unanswered >= self.patience(config) || (self.orphan && wait >= config.rto_max)
            }
        };
        if over {
            return self.time_out();
        }
        self.pending |= Pending::PROBE;
        self.timers.backoff = self.timers.backoff.saturating_add(1);
        self.arm_persist(config, now);
    }

    /// Starts the timer of window probes.
    pub(crate) fn arm_persist(&mut self, config: &Config, now: Instant) {
        self.timers.transmit = now + self.backed_off(config);
        self.timers.purpose = Transmit::Persist;
    }

    /// The time-out, backed off as far as it is.
    fn backed_off(&self, config: &Config) -> Duration {
        self.rtt
            .rto()
            .backed_off(u32::from(self.timers.backoff), config.rto_max)
    }

    fn on_idle(&mut self, config: &Config, now: Instant) {
        if self.orphan && self.state == State::FinWait2 {
            let chosen = self.settings.fin_wait_s;
            let wait = chosen.map_or(config.fin_wait_timeout, |s| {
                Duration::from_secs(u64::from(s))
            });
            // A FIN that was lost has time to come again (Linux's `tcp_fin_time`: three and a half time-outs).
            let least = self.rtt.rto().as_micros() * 7 / 2;
            let wait = wait.max(Duration::from_micros(least));
            let end = self.timers.stalled_since + wait;
            if now >= end {
                return self.finish(None, now);
            }
            self.timers.idle = end;
            return;
        }
        let Some(keepalive) = self.settings.keepalive else {
            return;
        };
        if !self.state.is_synchronized() {
            return;
        }
        let heard = self.heard_at(now);
        let wait_s = u64::from(keepalive.idle_s)
            + u64::from(keepalive.interval_s) * u64::from(self.timers.keepalive_probes);
        let due = heard + Duration::from_secs(wait_s);
        if now < due {
            self.timers.idle = due;
            return;
        }
        // While data is in flight its own time-out finds out.
        if self.send.in_flight() > 0 || self.timers.transmit != Instant::NEVER {
            self.timers.idle = now + Duration::from_secs(u64::from(keepalive.idle_s.max(1)));
            return;
        }
        let enough = match self.settings.user_timeout_ms {
            Some(ms) => {
                self.timers.keepalive_probes > 0 && (now - heard).as_millis() >= u64::from(ms)
            }
            None => self.timers.keepalive_probes >= keepalive.probes,
        };
        if enough {
            self.pending |= Pending::RESET;
            return self.time_out();
        }
        self.timers.keepalive_probes = self.timers.keepalive_probes.saturating_add(1);
        self.pending |= Pending::PROBE;
        self.timers.idle = now + Duration::from_secs(u64::from(keepalive.interval_s.max(1)));
    }

    /// How long to go on without progress.
    fn patience(&self, config: &Config) -> Duration {
        match self.settings.user_timeout_ms {
            Some(ms) => Duration::from_millis(u64::from(ms)),
            None if self.orphan => config.orphan_timeout,
            None => config.retransmit_timeout,
        }
    }

    /// Gives up. What ICMP reported meanwhile is the better reason (RFC 1122 4.2.3.9).
    fn time_out(&mut self) {
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        self.fail(error, Events::TIMED_OUT);
    }
}
