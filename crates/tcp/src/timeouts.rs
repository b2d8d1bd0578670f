//! What happens when a timer is due (RFC 6298, RFC 8985 7, RFC 9293 3.8.3, 3.8.4, 3.8.6.1).

use crate::config::{Config, MtuProbing};
use crate::connection::{Connection, Pending};
use crate::events::{Error, Events};
use crate::pmtud;
use crate::state::State;
use crate::time::{Duration, Instant};
use crate::timers::Transmit;

/// The least wait before a tail loss probe, in microseconds. A shorter one would race with
/// batched acknowledgements.
const LOSS_PROBE_MIN_US: u64 = 10_000;

/// Retransmissions before a connection is given up, unless the program has set a time.
const RETRIES_MIN: u8 = 3;

impl Connection {
    /// When [`Connection::on_timer`] is due next; `None` if no timer runs.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.timers
            .earliest()
            .min(self.paced_until())
            .reached_ever()
    }

    /// When a paced transmission that waits may leave: [`Instant::NEVER`] if none waits.
    #[inline]
    fn paced_until(&self) -> Instant {
        self.pacing()
            .map_or(Instant::NEVER, |pacing| pacing.deadline())
    }

    /// Runs the timers that are due. The owner calls it at [`Connection::deadline`] or later;
    /// [`Connection::poll_transmit`] then has what is to be sent.
    pub fn on_timer(&mut self, config: &Config, now: Instant) {
        if self.timers.take_ack_due(now) {
            // The program did not answer in time.
            self.delayed_ack.set_interactive(false);
            self.pending |= Pending::ACK;
        }
        match self.timers.take_due(now) {
            None => {}
            Some(Transmit::Timeout) => self.on_timeout(config, now),
            Some(Transmit::LossProbe) => {
                self.pending |= Pending::LOSS_PROBE;
                self.timers.on_loss_probe();
                self.arm_timeout(config, now);
            }
            Some(Transmit::Reorder) => self.on_reorder_timer(config, now),
            Some(Transmit::Persist) => self.on_persist(config, now),
            Some(Transmit::Hold) => self.send.forced = true,
        }
        if self.paced_until() <= now
            && let Some(pacing) = self.pacing_mut()
        {
            pacing.must_wait(now);
        }
        if self.timers.take_idle_due(now) {
            self.on_idle(config, now);
        }
    }

    /// Something is in flight: restarts its timer, as a tail loss probe where that comes first.
    #[inline]
    pub(crate) fn arm_transmit(&mut self, config: &Config, now: Instant) {
        let probe = self.loss_probe_wait();
        if probe < self.rtt.rto() {
            self.timers.start(Transmit::LossProbe, now + probe);
        } else {
            self.arm_timeout(config, now);
        }
    }

    /// More is in flight, which may make the tail worth a probe. The timer of the segments before
    /// it stands.
    #[inline]
    pub(crate) fn extend_transmit(&mut self, config: &Config, now: Instant) {
        if !self.timers.runs() {
            return self.arm_transmit(config, now);
        }
        self.timers.advance_to_probe(now + self.loss_probe_wait());
    }

    /// How long to wait before the tail is probed (RFC 8985 7.2); for ever if it is not probed. A
    /// single segment is not: its acknowledgement may be delayed about as long as a time-out takes.
    #[inline]
    fn loss_probe_wait(&self) -> Duration {
        let srtt = u64::from(self.rtt.srtt_us());
        let wanted = srtt > 0
            && self.recovery.is_open()
            && self.send.in_flight() > u32::from(self.send.mss)
            && self.timers.may_probe();
        Duration::from_micros(if wanted {
            (2 * srtt).max(LOSS_PROBE_MIN_US)
        } else {
            u64::MAX
        })
    }

    /// Starts the retransmission timer, backed off as far as it is, and not beyond the user
    /// time-out.
    pub(crate) fn arm_timeout(&mut self, config: &Config, now: Instant) {
        let doubled = self.timers.doubled();
        let rto = if doubled == 0 {
            self.rtt.rto()
        } else {
            self.rtt
                .rto()
                .backed_off(u32::from(doubled), config.rto_max)
        };
        self.timers.start(Transmit::Timeout, now + rto);
        if self.timers.backoff() > 0 && self.settings.user_timeout_ms.is_some() {
            let end = self.timers.stalled_since() + self.patience(config);
            self.timers.bound(end.max(now));
        }
    }

    /// Starts the wait for the peer's FIN once the program has closed: FIN-WAIT-2 must end.
    /// `on_idle` computes how long it lasts.
    pub(crate) fn wait_for_orphan(&mut self, now: Instant) {
        if self.orphan && self.state == State::FinWait2 {
            if self.settings.fin_wait_s == Some(0) {
                return self.abort();
            }
            self.timers.restart_stall(now);
            self.timers.start_idle(now);
        }
    }

    /// Starts the keepalive timer, from when the peer was last heard.
    pub(crate) fn arm_keepalive(&mut self, now: Instant) {
        if let Some(keepalive) = self.settings.keepalive {
            // It is not restarted for each segment: when it is due, `on_idle` computes how long the
            // peer has been silent.
            let idle = Duration::from_secs(u64::from(keepalive.idle_s));
            self.timers.start_idle(self.heard_at(now) + idle);
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
        self.timers.note_stall(now, self.rtt.rto());
        // R1 of RFC 9293 3.8.3: however long a time-out is, a few come before the end.
        let tried = self.timers.backoff() >= RETRIES_MIN || self.settings.user_timeout_ms.is_some();
        let mut since = self.timers.stalled_since();
        if self.send.window == 0 && !self.orphan && self.settings.user_timeout_ms.is_none() {
            // The peer has taken back the window that this was sent into. It may, as long as it
            // answers (RFC 9293 3.8.6, SHLD-17).
            since = since.max(self.heard_at(now));
        }
        if tried && now - since >= self.patience(config) {
            return self.time_out();
        }
        self.suspect_black_hole(config, now);
        let backoff = self.timers.backoff();
        let (recovery, congestion, view) = self.recovery_parts(config, now);
        recovery.on_timeout(&view, congestion, backoff);
        self.on_window_reduced();
        self.timers.on_timeout();
        self.arm_timeout(config, now);
    }

    fn on_syn_timeout(&mut self, config: &Config, now: Instant) {
        let retries = match self.state {
            State::SynSent => self.settings.syn_retries.unwrap_or(config.syn_retries),
            _ => config.syn_ack_retries,
        };
        if self.timers.backoff() >= retries {
            return self.time_out();
        }
        self.timers.note_stall(now, self.rtt.rto());
        if self.settings.user_timeout_ms.is_some()
            && now - self.timers.stalled_since() >= self.patience(config)
        {
            return self.time_out();
        }
        self.on_syn_lost();
        self.timers.on_syn_timeout();
        self.pending |= Pending::SYN;
        self.recovery.on_syn_retransmitted();
        self.arm_timeout(config, now);
    }

    /// What may have been reordered has not come: it is lost.
    fn on_reorder_timer(&mut self, config: &Config, now: Instant) {
        let (recovery, congestion, view) = self.recovery_parts(config, now);
        let decision = recovery.on_reorder_timer(&view, congestion);
        self.carry_out(config, &decision, None, now);
        if !self.timers.runs() && self.send.in_flight() > 0 {
            self.arm_timeout(config, now);
        }
    }

    /// The flight timed out. After many times in a row the size of its segments may be the cause: a
    /// black hole. Called before the flight is marked lost.
    fn suspect_black_hole(&mut self, config: &Config, now: Instant) {
        let (una, size) = (self.send.una, self.send.segment_limit);
        let options = self.features.option_len();
        let mut proven = false;
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.on_timeout(una, options);
            proven = pmtud.is_proven(una + u64::from(options), size);
        }
        if config.mtu_probing == MtuProbing::Off {
            return;
        }
        let backoff = self.timers.backoff();
        let Some(smaller) = pmtud::black_hole_size(size, self.default_mss, backoff, proven) else {
            return;
        };
        // Small segments pass any path, and a peer that has taken back its window takes none.
        if self.send.window > 0 && self.send.in_flight() > u32::from(smaller - options) {
            self.search_from(smaller, now);
        }
    }

    /// The persist timer: probes a window that is shut. RFC 9293 3.8.6.1: the window may stay shut
    /// for as long as the peer acknowledges probes (MAY-8, MUST-37). A program that has closed, or
    /// has set a time, bounds that.
    fn on_persist(&mut self, config: &Config, now: Instant) {
        if self.send.usable() > 0 {
            // The window has opened, if not by much. The data has waited long enough.
            self.send.forced = true;
            return;
        }
        self.timers.note_stall(now, Duration::ZERO);
        let shut = now - self.timers.stalled_since();
        let unanswered = now - self.heard_at(now).max(self.timers.stalled_since());
        let over = match self.settings.user_timeout_ms {
            Some(_) => shut >= self.patience(config),
            None => {
                // Without a program the wait ends when the time between probes stops growing
                // (Linux's `tcp_probe_timer`).
                let wait = self.backed_off(config);
                unanswered >= self.patience(config) || (self.orphan && wait >= config.rto_max)
            }
        };
        if over {
            return self.time_out();
        }
        self.pending |= Pending::PROBE;
        self.timers.on_window_probe();
        self.arm_persist(config, now);
    }

    /// Starts the persist timer.
    pub(crate) fn arm_persist(&mut self, config: &Config, now: Instant) {
        self.timers
            .start(Transmit::Persist, now + self.backed_off(config));
    }

    /// The time-out, backed off as far as it is.
    fn backed_off(&self, config: &Config) -> Duration {
        self.rtt
            .rto()
            .backed_off(u32::from(self.timers.backoff()), config.rto_max)
    }

    fn on_idle(&mut self, config: &Config, now: Instant) {
        if self.orphan && self.state == State::FinWait2 {
            return self.on_fin_wait_timer(config, now);
        }
        if self.settings.keepalive.is_some() && self.state.is_synchronized() {
            self.on_keepalive_timer(now);
        }
    }

    /// Ends FIN-WAIT-2 without a program once the peer had its time.
    fn on_fin_wait_timer(&mut self, config: &Config, now: Instant) {
        let chosen = self.settings.fin_wait_s;
        let wait = chosen.map_or(config.fin_wait_timeout, |s| {
            Duration::from_secs(u64::from(s))
        });
        // A FIN that was lost has time to come again (Linux's `tcp_fin_time`: 3.5 time-outs).
        let least = self.rtt.rto().as_micros() * 7 / 2;
        let wait = wait.max(Duration::from_micros(least));
        let end = self.timers.stalled_since() + wait;
        if now >= end {
            return self.finish(None, now);
        }
        self.timers.start_idle(end);
    }

    /// Probes a silent peer (RFC 9293 3.8.4), or gives up after too many probes.
    fn on_keepalive_timer(&mut self, now: Instant) {
        let Some(keepalive) = self.settings.keepalive else {
            return;
        };
        let heard = self.heard_at(now);
        let probes = self.timers.keepalive_probes();
        let wait_s =
            u64::from(keepalive.idle_s) + u64::from(keepalive.interval_s) * u64::from(probes);
        let due = heard + Duration::from_secs(wait_s);
        if now < due {
            return self.timers.start_idle(due);
        }
        // While data is in flight its own time-out finds out.
        if self.send.in_flight() > 0 || self.timers.runs() {
            let idle = Duration::from_secs(u64::from(keepalive.idle_s.max(1)));
            return self.timers.start_idle(now + idle);
        }
        let enough = match self.settings.user_timeout_ms {
            Some(ms) => probes > 0 && (now - heard).as_millis() >= u64::from(ms),
            None => probes >= keepalive.probes,
        };
        if enough {
            self.pending |= Pending::RESET;
            return self.time_out();
        }
        self.timers.on_keepalive_probe();
        self.pending |= Pending::PROBE;
        let interval = Duration::from_secs(u64::from(keepalive.interval_s.max(1)));
        self.timers.start_idle(now + interval);
    }

    /// How long to go on without progress.
    fn patience(&self, config: &Config) -> Duration {
        match self.settings.user_timeout_ms {
            Some(ms) => Duration::from_millis(u64::from(ms)),
            None if self.orphan => config.orphan_timeout,
            None => config.retransmit_timeout,
        }
    }

    /// Gives up. An ICMP report that came meanwhile is the better reason (RFC 1122 4.2.3.9).
    fn time_out(&mut self) {
        let error = self.soft_error.unwrap_or(Error::TimedOut);
        self.fail(error, Events::TIMED_OUT);
    }
}
