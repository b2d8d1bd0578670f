//! BBR, version 1 (draft-cardwell-iccrg-bbr-congestion-control-00, as in Linux).
//!
//! Instead of filling the queue until something is lost, it keeps a model of the path: the greatest
//! delivery rate and the least round trip. It sends at that rate. Unlike Linux's it does not sample
//! policers, and allows for aggregated acknowledgements by a few units of sending only.

use std::collections::VecDeque;

use super::controller::Window;
use crate::time::{Duration, Instant};

/// The unit of gains.
const UNIT: u64 = 256;
/// 2 / ln 2: doubles the rate in each round trip.
const HIGH_GAIN: u64 = UNIT * 2885 / 1000 + 1;
const DRAIN_GAIN: u64 = UNIT * 1000 / 2885;
const WINDOW_GAIN: u64 = UNIT * 2;
/// BBR.pacing_gain_cycle: probe for more, drain the queue that came of it, cruise.
const CYCLE: [u64; 8] = [
    UNIT * 5 / 4,
    UNIT * 3 / 4,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
    UNIT,
];
/// Rounds for which a rate counts (BBR.BtlBwFilterLen).
const RATE_ROUNDS: usize = 10;
/// How long a least round trip counts (BBR.RTpropFilterLen), and how long the window is small to
/// measure it again.
const ROUND_TRIP_LIFETIME: Duration = Duration::from_secs(10);
const PROBE_TIME: Duration = Duration::from_millis(200);
/// Least segments in flight (BBR.MinPipeCwnd).
const LEAST_SEGMENTS: u32 = 4;
/// Rounds without growth by a quarter after which the pipe counts as full.
const FULL_ROUNDS: u8 = 3;
/// Transmissions that the log keeps; further ones are joined to the last.
const LOG_MAX: usize = 512;
/// The round trip to assume before the first sample.
const ROUND_TRIP_UNKNOWN_US: u64 = 1_000;

/// What the log keeps of a transmission (draft-cheng-iccrg-delivery-rate-estimation-00, 3.1).
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Stream offset of its end.
    end: u64,
    at: Instant,
    /// Bytes delivered by then, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    /// When the first transmission of the flight left.
    first_at: Instant,
    /// The program, and not the path, bounded the rate.
    limited: bool,
}

/// What an acknowledgement delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    /// Bytes, cumulatively or selectively.
    pub(crate) bytes: u32,
    /// End of the delivered run that was sent last, if that was sent once.
    pub(crate) end: Option<u64>,
    /// SND.UNA.
    pub(crate) una: u64,
    /// Bytes in the network now.
    pub(crate) pipe: u32,
    /// Payload of a full segment.
    pub(crate) mss: u32,
    /// Fast recovery is in progress and sets the window.
    pub(crate) repairing: bool,
}

/// BBR.state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Startup,
    Drain,
    ProbeRate { phase: usize, since: Instant },
    ProbeRoundTrip { until: Option<Instant> },
}

/// The model, and the rate and the window that follow from it.
#[derive(Clone, Debug)]
pub(crate) struct Bbr {
    mode: Mode,
    /// Bytes delivered in all, and when the last of them was.
    delivered: u64,
    delivered_at: Instant,
    first_at: Instant,
    log: VecDeque<Sent>,
    /// Rates are bounded by the program, or by a probe of the round trip, until so many bytes are
    /// delivered.
    limited_until: u64,
    /// The greatest rate of each of the last rounds, in bytes per second.
    rates: [u64; RATE_ROUNDS],
    round: usize,
    /// The next rate belongs to another round.
    round_is_over: bool,
    /// The round ends when something is delivered that was sent after so many bytes were.
    round_end: u64,
    round_trip_us: u64,
    round_trip_at: Instant,
    full_rate: u64,
    full_rounds: u8,
    /// The window before a probe or a loss made it small.
    prior_window: u32,
    /// The window in the round trip after a loss.
    conserved: Option<u32>,
    /// Bytes delivered when something was last sent.
    delivered_when_sent: u64,
    /// The pacing rate, in bytes per second.
    pacing_rate: u64,
    initial_window: u32,
}

impl Bbr {
    pub(crate) fn new() -> Bbr {
        Bbr {
            mode: Mode::Startup,
            delivered: 0,
            delivered_at: Instant::default(),
            first_at: Instant::default(),
            log: VecDeque::new(),
            limited_until: 0,
            rates: [0; RATE_ROUNDS],
            round: 0,
            round_is_over: false,
            round_end: 0,
            round_trip_us: 0,
            round_trip_at: Instant::default(),
            full_rate: 0,
            full_rounds: 0,
            prior_window: 0,
            conserved: None,
            delivered_when_sent: 0,
            pacing_rate: 0,
            initial_window: 0,
        }
    }

    /// The pacing rate, in bytes per second; 0 before the first transmission.
    pub(crate) fn pacing_rate(&self) -> u64 {
        self.pacing_rate
    }

    /// The connection is established, with this window, and this round trip in microseconds (0 if
    /// it is unknown).
    pub(crate) fn start(&mut self, cwnd: u32, srtt_us: u32, now: Instant) {
        self.initial_window = cwnd;
        self.round_trip_us = u64::from(srtt_us);
        self.round_trip_at = now;
        self.set_initial_rate();
    }

    /// New data up to `nxt` leaves. `pipe` bytes were in the network before, and the window is
    /// `cwnd`. `drained`: the program has queued no more.
    pub(crate) fn on_sent(&mut self, nxt: u64, pipe: u32, cwnd: u32, drained: bool, now: Instant) {
        if pipe == 0 {
            self.first_at = now;
            self.delivered_at = now;
        }
        if self.pacing_rate == 0 {
            // The algorithm was chosen while the connection existed.
            self.initial_window = cwnd;
            self.set_initial_rate();
        }
        self.delivered_when_sent = self.delivered;
        let sent = Sent {
            end: nxt,
            at: now,
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_at: self.first_at,
            limited: self.delivered < self.limited_until,
        };
        let full = self.log.len() >= LOG_MAX;
        match self.log.back_mut() {
            Some(last) if last.at == now || full => last.end = nxt,
            _ => self.log.push_back(sent),
        }
        if drained && pipe < cwnd {
            self.limited_until = self.delivered + u64::from(pipe) + 1;
        }
    }

    /// The initial rate: the initial window in a round trip.
    fn set_initial_rate(&mut self) {
        let round_trip = match self.round_trip_us {
            0 => ROUND_TRIP_UNKNOWN_US,
            us => us,
        };
        let rate = u64::from(self.initial_window) * 1_000_000 / round_trip;
        self.pacing_rate = (rate * HIGH_GAIN / UNIT).max(1);
    }

    /// BBRUpdateOnACK: an acknowledgement delivered something.
    pub(crate) fn on_delivered(&mut self, window: &mut Window, delivery: &Delivery, now: Instant) {
        let latest = self.take_delivered(delivery, now);
        let rate = latest.and_then(|sent| self.sample(&sent, now));
        let round_ended = rate.is_some_and(|rate| rate.ends_round);
        if let Some(rate) = rate {
            self.take_rate(&rate);
        }
        self.advance_cycle(delivery, now);
        if let Some(rate) = rate
            && round_ended
            && !rate.limited
        {
            self.check_full();
        }
        self.check_drain(delivery, now);
        let round_trip_us = latest.map_or(0, |sent| (now - sent.at).as_micros());
        self.take_round_trip(window, delivery, round_trip_us, now);
        self.set_pacing_rate();
        self.conserved = self
            .conserved
            .filter(|_| delivery.repairing && !round_ended);
        match self.conserved {
            None => self.set_window(window, delivery),
            Some(conserved) => {
                window.cwnd = conserved.min(self.target(delivery.mss)).max(delivery.mss);
            }
        }
    }

    /// Something is lost: for a round trip the sender replaces only what leaves the network
    /// (BBR.packet_conservation). `pipe` bytes are in the network. Bytes that have left it since
    /// the last transmission is added, since many acknowledgements come at a time. Afterwards the
    /// model sets the window again, even in recovery: on a path with regular losses recoveries
    /// overlap.
    pub(crate) fn conserve(&mut self, window: &mut Window, pipe: u32) {
        let left = self.delivered - self.delivered_when_sent;
        let conserved = pipe.saturating_add(left.min(u64::from(u32::MAX)) as u32);
        window.cwnd = conserved.min(window.cwnd);
        self.conserved = Some(window.cwnd);
        self.round_end = self.delivered;
    }

    /// The latest transmission that was delivered.
    fn take_delivered(&mut self, delivery: &Delivery, now: Instant) -> Option<Sent> {
        self.delivered += u64::from(delivery.bytes);
        self.delivered_at = now;
        let mut latest = None;
        while let Some(sent) = self.log.front().filter(|sent| sent.end <= delivery.una) {
            latest = Some(*sent);
            self.log.pop_front();
        }
        if let Some(end) = delivery.end.filter(|&end| end > delivery.una) {
            let at = self.log.partition_point(|sent| sent.end < end);
            latest = self.log.get(at).copied().or(latest);
        }
        latest
    }

    /// The delivery rate since that transmission (draft-cheng-iccrg-delivery-rate-estimation-00,
    /// 3.3).
    fn sample(&mut self, sent: &Sent, now: Instant) -> Option<Rate> {
        self.first_at = sent.at;
        let sending = (sent.at - sent.first_at).as_micros();
        let acknowledging = (now - sent.delivered_at).as_micros();
        let interval_us = sending.max(acknowledging);
        // A delivery in less than a round trip is a burst of acknowledgements.
        if interval_us < self.round_trip_us.max(1) {
            return None;
        }
        let bytes = self.delivered - sent.delivered;
        Some(Rate {
            per_second: bytes.saturating_mul(1_000_000) / interval_us,
            limited: sent.limited,
            ends_round: sent.delivered >= self.round_end,
        })
    }

    fn take_rate(&mut self, rate: &Rate) {
        if rate.ends_round {
            self.round_end = self.delivered;
            self.round_is_over = true;
        }
        // A rate that the program bounded is a lower bound of the path's: it ages no other.
        if !rate.limited || rate.per_second >= self.rate() {
            if std::mem::take(&mut self.round_is_over) {
                self.round = (self.round + 1) % RATE_ROUNDS;
                self.rates[self.round] = 0;
            }
            let best = &mut self.rates[self.round];
            *best = (*best).max(rate.per_second);
        }
    }

    /// BBR.BtlBw.
    fn rate(&self) -> u64 {
        self.rates.into_iter().max().unwrap_or(0)
    }

    /// BBRInflight: the bytes that the path holds, times the gain.
    fn inflight(&self, gain: u64) -> u64 {
        if self.round_trip_us == 0 {
            return u64::from(self.initial_window);
        }
        let held = u128::from(self.rate()) * u128::from(self.round_trip_us) / 1_000_000;
        (held as u64).saturating_mul(gain) / UNIT
    }

    /// The window that the model wants, with room for units that are sent and acknowledged whole.
    fn target(&self, mss: u32) -> u32 {
        let gain = match self.mode {
            Mode::Startup | Mode::Drain => HIGH_GAIN,
            Mode::ProbeRate { .. } => WINDOW_GAIN,
            Mode::ProbeRoundTrip { .. } => UNIT,
        };
        let unit = u64::from(unit_size(self.pacing_rate, mss));
        let target = self.inflight(gain) + 3 * unit;
        target.clamp(u64::from(LEAST_SEGMENTS * mss), u64::from(u32::MAX)) as u32
    }

    fn is_full(&self) -> bool {
        self.full_rounds >= FULL_ROUNDS
    }

    /// BBRCheckFullPipe.
    fn check_full(&mut self) {
        if self.is_full() {
            return;
        }
        let rate = self.rate();
        if rate * 4 >= self.full_rate * 5 {
            self.full_rate = rate;
            self.full_rounds = 0;
        } else {
            self.full_rounds += 1;
        }
    }

    /// BBRCheckDrain.
    fn check_drain(&mut self, delivery: &Delivery, now: Instant) {
        if self.mode == Mode::Startup && self.is_full() {
            self.mode = Mode::Drain;
        }
        if self.mode == Mode::Drain && u64::from(delivery.pipe) <= self.inflight(UNIT) {
            self.enter_probe_rate(now);
        }
    }

    /// Starts anywhere in the cycle but where it drains, so that flows do not probe in step. The
    /// time decides where.
    fn enter_probe_rate(&mut self, now: Instant) {
        let phase = match now.as_micros() / 64 % 7 {
            0 => 0,
            other => other as usize + 1,
        };
        self.mode = Mode::ProbeRate { phase, since: now };
    }

    /// BBRCheckCyclePhase.
    fn advance_cycle(&mut self, delivery: &Delivery, now: Instant) {
        let Mode::ProbeRate { phase, since } = self.mode else {
            return;
        };
        let long = (now - since).as_micros() > self.round_trip_us;
        let pipe = u64::from(delivery.pipe) + u64::from(delivery.bytes);
        let gain = CYCLE[phase];
        let over = match gain {
            UNIT => long,
            // Lasts until as much is in flight as this gain wants, or the queue does not hold it.
            gain if gain > UNIT => long && (delivery.repairing || pipe >= self.inflight(gain)),
            _ => long || pipe <= self.inflight(UNIT),
        };
        if over {
            self.mode = Mode::ProbeRate {
                phase: (phase + 1) % CYCLE.len(),
                since: now,
            };
        }
    }

    /// BBRUpdateRTprop and BBRCheckProbeRTT: measures an old least round trip again, with little in
    /// flight.
    fn take_round_trip(
        &mut self,
        window: &mut Window,
        delivery: &Delivery,
        sample: u64,
        now: Instant,
    ) {
        let old = now - self.round_trip_at > ROUND_TRIP_LIFETIME;
        let first = self.round_trip_us == 0;
        if sample > 0 && (first || sample <= self.round_trip_us || old) {
            self.round_trip_us = sample;
            self.round_trip_at = now;
            if first && self.rate() == 0 {
                self.set_initial_rate();
            }
        }
        if old && !first && !matches!(self.mode, Mode::ProbeRoundTrip { .. }) {
            self.mode = Mode::ProbeRoundTrip { until: None };
            self.prior_window = self.prior_window.max(window.cwnd);
        }
        if let Mode::ProbeRoundTrip { until } = self.mode {
            // The rate of so little in flight says nothing about the path.
            self.limited_until = self.delivered + u64::from(delivery.pipe) + 1;
            match until {
                None if delivery.pipe <= LEAST_SEGMENTS * delivery.mss => {
                    let least = Duration::from_micros(self.round_trip_us);
                    self.mode = Mode::ProbeRoundTrip {
                        until: Some(now + PROBE_TIME.max(least)),
                    };
                }
                Some(until) if now >= until => {
                    self.round_trip_at = now;
                    if self.is_full() {
                        self.enter_probe_rate(now);
                    } else {
                        self.mode = Mode::Startup;
                    }
                    self.restore(window);
                }
                _ => {}
            }
        }
    }

    fn set_pacing_rate(&mut self) {
        let gain = match self.mode {
            Mode::Startup => HIGH_GAIN,
            Mode::Drain => DRAIN_GAIN,
            Mode::ProbeRate { phase, .. } => CYCLE[phase],
            Mode::ProbeRoundTrip { .. } => UNIT,
        };
        // A hundredth less keeps no queue up.
        let rate = self.rate().saturating_mul(gain) / UNIT * 99 / 100;
        if rate > 0 && (self.is_full() || rate > self.pacing_rate) {
            self.pacing_rate = rate;
        }
    }

    /// BBRSetCwnd.
    fn set_window(&mut self, window: &mut Window, delivery: &Delivery) {
        let target = self.target(delivery.mss);
        let grown = window.cwnd.saturating_add(delivery.bytes);
        if self.is_full() {
            window.cwnd = grown.min(target);
        } else if window.cwnd < target || self.delivered < u64::from(self.initial_window) {
            window.cwnd = grown;
        }
        window.cwnd = window.cwnd.max(LEAST_SEGMENTS * delivery.mss);
        if matches!(self.mode, Mode::ProbeRoundTrip { .. }) {
            window.cwnd = window.cwnd.min(LEAST_SEGMENTS * delivery.mss);
        }
    }

    /// `lost` more bytes are lost: the window shrinks by them until it grows again
    /// (BBRModulateCwndForRecovery). Otherwise a queue that is much too short would always
    /// overflow.
    pub(crate) fn lose(&mut self, window: &mut Window, lost: u32, mss: u32) {
        window.cwnd = window.cwnd.saturating_sub(lost).max(LEAST_SEGMENTS * mss);
        self.conserved = self
            .conserved
            .map(|conserved| conserved.saturating_sub(lost));
    }

    /// BBRSaveCwnd: a loss makes the window small for a while.
    pub(crate) fn save(&mut self, window: &Window) {
        self.prior_window = self.prior_window.max(window.cwnd);
    }

    /// BBRRestoreCwnd. If a repair ends while the round trip is measured, the window is restored
    /// after that.
    pub(crate) fn restore(&mut self, window: &mut Window) {
        self.conserved = None;
        window.cwnd = window.cwnd.max(self.prior_window);
        if !matches!(self.mode, Mode::ProbeRoundTrip { .. }) {
            self.prior_window = 0;
        }
    }
}

/// A sample of the delivery rate.
#[derive(Clone, Copy, Debug)]
struct Rate {
    per_second: u64,
    limited: bool,
    ends_round: bool,
}

/// Bytes to send at a time at this rate: those of a millisecond, and two segments at least (Linux's
/// `tcp_tso_autosize`).
pub(crate) fn unit_size(rate: u64, mss: u32) -> u32 {
    (rate / 1_000)
        .min(u64::from(u16::MAX))
        .max(u64::from(2 * mss)) as u32
}
