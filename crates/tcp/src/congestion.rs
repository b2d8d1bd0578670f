//! Congestion control: the window that bounds what is in flight, and the algorithms that move it.
//!
//! A program may bring an algorithm of its own: a type that implements [`Controller`], and a
//! [`Custom`] that names it and makes one for each connection.
//!
//! ```
//! use millrace_tcp::congestion::{Acked, Controller, Custom, Window};
//! use millrace_tcp::{Algorithm, Config, Instant, Settings};
//!
//! /// Ten segments in flight, whatever happens.
//! #[derive(Debug, Default)]
//! struct Ten;
//!
//! impl Controller for Ten {
//!     fn on_ack(&mut self, window: &mut Window, acked: &Acked, _now: Instant) {
//!         window.cwnd = 10 * acked.mss;
//!     }
//!     fn reduced(&mut self, _: &Window, _flight: u32, mss: u32, _now: Instant) -> u32 {
//!         10 * mss
//!     }
//!     fn on_timeout(&mut self) {}
//! }
//!
//! let ten = Custom::new("ten", || Box::<Ten>::default());
//! let config = Config { custom: vec![ten], ..Config::default() };
//! // The first of the algorithms that the configuration brings.
//! let settings = Settings { congestion: Some(Algorithm::Custom(0)), ..Settings::UNSET };
//! ```

mod bbr;
mod controller;
mod cubic;
mod dctcp;
mod hystart;
mod newreno;

use millrace_wire::tcp::Seq;

use crate::time::{Duration, Instant, Ticks};
use millrace_sockopt::Algorithm;

use bbr::Bbr;
pub(crate) use bbr::{Delivery, unit_size};
pub use controller::{Acked, Controller, Custom, Window};
use cubic::Cubic;
use dctcp::Dctcp;
use newreno::NewReno;

/// The algorithms, in two words: most connections never fill a window, and need no state.
#[derive(Debug)]
enum Any {
    /// The state exists from when the window was first in use, or came down.
    Cubic(Option<Box<Cubic>>),
    NewReno(NewReno),
    Dctcp(Box<Dctcp>),
    Bbr(Box<Bbr>),
    /// The algorithm of a program.
    Custom(Box<Own>),
}

/// A program's algorithm behind one word.
#[derive(Debug)]
struct Own(Box<dyn Controller>);

/// The congestion control of a connection.
#[derive(Debug)]
pub(crate) struct Congestion {
    pub(crate) window: Window,
    /// Most bytes in flight since `usage_end` was sent: tells whether the window is in use (RFC
    /// 7661, as Linux does it).
    max_in_flight: u32,
    /// Low half of a stream offset.
    usage_end: u32,
    /// When the window was last in use, or last lowered because it was not.
    validated: Ticks,
    algorithm: Any,
}

impl Congestion {
    pub(crate) fn new(custom: &[Custom], algorithm: Algorithm) -> Congestion {
        Congestion {
            window: Window {
                cwnd: 0,
                ssthresh: u32::MAX,
            },
            max_in_flight: 0,
            usage_end: 0,
            validated: Ticks::default(),
            algorithm: any(custom, algorithm),
        }
    }

    /// Sets the initial window of `initial` segments, once the segment size is known.
    pub(crate) fn start(&mut self, initial: u8, mss: u32, srtt_us: u32, now: Instant) {
        self.window.cwnd = initial_window(initial, mss);
        match &mut self.algorithm {
            Any::Bbr(it) => it.start(self.window.cwnd, srtt_us, now),
            Any::Custom(it) => {
                it.0.start(&mut self.window, mss);
                self.window.cwnd = self.window.cwnd.max(mss);
            }
            _ => {}
        }
        self.validated = now.ticks();
    }

    /// Most bytes in flight within the last round trip, bounded by the window.
    pub(crate) fn recent_flight(&self) -> u32 {
        self.max_in_flight.min(self.window.cwnd)
    }

    /// Whether the algorithm has no memory of its own yet.
    #[cfg(test)]
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.algorithm, Any::Cubic(None) | Any::NewReno(_))
    }

    /// Whether the algorithm counts marks (DCTCP), instead of reacting to the first.
    pub(crate) fn counts_marks(&self) -> bool {
        matches!(self.algorithm, Any::Dctcp(_))
    }

    /// Changes the algorithm; the window stays as it is.
    pub(crate) fn choose(&mut self, custom: &[Custom], algorithm: Algorithm) {
        self.algorithm = any(custom, algorithm);
    }

    #[inline(always)]
    pub(crate) fn on_ack(&mut self, initial: u8, acked: &Acked, now: Instant) {
        match &mut self.algorithm {
            Any::Dctcp(it) => it.progress(acked.una, acked.nxt),
            Any::Bbr(it) => {
                let delivery = Delivery {
                    bytes: acked.bytes,
                    end: None,
                    una: acked.una,
                    pipe: (acked.nxt - acked.una) as u32,
                    mss: acked.mss,
                    repairing: false,
                };
                return it.on_delivered(&mut self.window, &delivery, now);
            }
            _ => {}
        }
        if self.is_limiting(acked.mss) {
            self.validated = now.ticks();
            match &mut self.algorithm {
                Any::Cubic(it) => it
                    .get_or_insert_default()
                    .on_ack(&mut self.window, acked, now),
                Any::NewReno(it) => it.on_ack(&mut self.window, acked, now),
                Any::Dctcp(it) => it.on_ack(&mut self.window, acked, now),
                Any::Bbr(_) => {}
                Any::Custom(it) => {
                    it.0.on_ack(&mut self.window, acked, now);
                    self.window.cwnd = self.window.cwnd.max(acked.mss);
                }
            }
        } else {
            match &mut self.algorithm {
                Any::Cubic(Some(it)) => it.on_unused(),
                Any::Custom(it) => it.0.on_unused(),
                _ => {}
            }
            let unused = self.validated.elapsed(now);
            if unused > Duration::from_micros(u64::from(acked.rto_us)) {
                self.lower_unused(initial, acked.mss, now);
            }
        }
    }

    /// The program has not used the window for a time-out, so that the path may no longer have room
    /// for it (RFC 7661 4.4.3). As in RFC 2861 and Linux, half of the unused part goes each time.
    #[cold]
    fn lower_unused(&mut self, initial: u8, mss: u32, now: Instant) {
        let used = self.max_in_flight.max(initial_window(initial, mss));
        let window = &mut self.window;
        if used < window.cwnd {
            window.ssthresh = window.ssthresh.max(window.cwnd / 4 * 3);
            window.cwnd = window.cwnd / 2 + used / 2;
        }
        self.max_in_flight = 0;
        self.validated = now.ticks();
    }

    /// The peer echoes a mark, with an acknowledgement of so many bytes.
    pub(crate) fn on_echo(&mut self, bytes: u32) {
        match &mut self.algorithm {
            Any::Dctcp(it) => it.on_echo(bytes),
            Any::Custom(it) => it.0.on_echo(bytes),
            _ => {}
        }
    }

    /// The threshold after a mark; see [`Controller::marked`].
    pub(crate) fn marked(&mut self, flight: u32, mss: u32, now: Instant) -> u32 {
        match &mut self.algorithm {
            Any::Cubic(it) => it
                .get_or_insert_default()
                .marked(&self.window, flight, mss, now),
            Any::NewReno(it) => it.marked(&self.window, flight, mss, now),
            Any::Dctcp(it) => it.marked(&self.window, flight, mss, now),
            Any::Custom(it) => it.0.marked(&self.window, flight, mss, now).max(mss),
            // The model ignores marks.
            Any::Bbr(_) => self.window.ssthresh,
        }
    }

    /// The threshold after a loss; see [`Controller::reduced`].
    pub(crate) fn reduced(&mut self, flight: u32, mss: u32, now: Instant) -> u32 {
        match &mut self.algorithm {
            Any::Cubic(it) => it
                .get_or_insert_default()
                .reduced(&self.window, flight, mss, now),
            Any::NewReno(it) => it.reduced(&self.window, flight, mss, now),
            Any::Dctcp(it) => it.reduced(&self.window, flight, mss, now),
            Any::Custom(it) => it.0.reduced(&self.window, flight, mss, now).max(mss),
            Any::Bbr(it) => {
                it.save(&self.window);
                self.window.ssthresh
            }
        }
    }

    /// The last reduction was spurious: the window returns to its former size (RFC 4015 3.2).
    pub(crate) fn undo(&mut self, before: Window) {
        self.window.cwnd = self.window.cwnd.max(before.cwnd);
        self.window.ssthresh = before.ssthresh;
        match &mut self.algorithm {
            Any::Cubic(it) => it.get_or_insert_default().on_undone(&self.window),
            Any::Custom(it) => it.0.on_undone(&self.window),
            _ => {}
        }
    }

    /// Whether the algorithm has a rate of its own, and a model of what the path holds.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.algorithm, Any::Bbr(_))
    }

    /// Fast recovery begins with `pipe` bytes in the network. Tells an algorithm that sets its own
    /// window then.
    pub(crate) fn conserve(&mut self, pipe: u32) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.conserve(&mut self.window, pipe);
        }
    }

    /// `lost` more bytes are lost. Tells an algorithm with a model.
    pub(crate) fn on_lost(&mut self, lost: u32, mss: u32) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.lose(&mut self.window, lost, mss);
        }
    }

    /// The rate at which to send, in bytes per second; 0 if the algorithm has none.
    pub(crate) fn pacing_rate(&self) -> u64 {
        match &self.algorithm {
            Any::Bbr(it) => it.pacing_rate(),
            _ => 0,
        }
    }

    /// New data up to `nxt` leaves a paced connection, with `pipe` bytes in the network before.
    /// `drained`: no more is queued.
    pub(crate) fn on_paced(&mut self, nxt: u64, pipe: u32, drained: bool, now: Instant) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.on_sent(nxt, pipe, self.window.cwnd, drained, now);
        }
    }

    /// An acknowledgement that header prediction did not take delivered something. Tells an
    /// algorithm with a model.
    pub(crate) fn on_delivered(&mut self, delivery: &Delivery, now: Instant) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.on_delivered(&mut self.window, delivery, now);
        }
    }

    /// Fast recovery is over: the window becomes the threshold.
    pub(crate) fn leave_recovery(&mut self) {
        match &mut self.algorithm {
            Any::Bbr(it) => it.restore(&mut self.window),
            _ => self.window.cwnd = self.window.ssthresh,
        }
    }

    /// The repair after a time-out is over.
    pub(crate) fn leave_loss(&mut self) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.restore(&mut self.window);
        }
    }

    /// RFC 5681 3.1: "upon a timeout [...] cwnd MUST be set to no more than the loss window, LW,
    /// which equals 1 full-sized segment".
    pub(crate) fn on_timeout(&mut self, mss: u32) {
        self.window.cwnd = mss;
        match &mut self.algorithm {
            Any::Cubic(Some(it)) => it.on_timeout(),
            Any::Cubic(None) | Any::Bbr(_) => {}
            Any::NewReno(it) => it.on_timeout(),
            Any::Dctcp(it) => it.on_timeout(),
            Any::Custom(it) => it.0.on_timeout(),
        }
    }

    /// New data up to `nxt` was sent, and `flight` bytes are in flight; everything before `una` is
    /// acknowledged.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: u64, nxt: u64, flight: u32) {
        if Seq(una as u32).at_or_after(Seq(self.usage_end)) || flight > self.max_in_flight {
            self.max_in_flight = flight;
            self.usage_end = nxt as u32;
        }
    }

    /// Nothing was in flight for `timeouts` retransmission time-outs, so that the state of the path
    /// is unknown (RFC 5681 4.1). As in Linux the window halves for each, down to the initial
    /// window.
    pub(crate) fn restart_after_idle(&mut self, initial: u8, timeouts: u64, mss: u32) {
        if self.is_paced() {
            return;
        }
        let restart = initial_window(initial, mss).min(self.window.cwnd);
        self.window.ssthresh = self.window.ssthresh.max(self.window.cwnd / 4 * 3);
        let shifted = if timeouts < 32 {
            self.window.cwnd >> timeouts
        } else {
            0
        };
        self.window.cwnd = shifted.max(restart);
        self.max_in_flight = 0;
    }

    /// Whether the window, and not the program, bounds the flight. Only then does an
    /// acknowledgement show that more would fit. In slow start half of the window suffices: it may
    /// be acknowledged before the other half is sent.
    fn is_limiting(&self, mss: u32) -> bool {
        if self.window.in_slow_start() {
            self.window.cwnd < self.max_in_flight.saturating_mul(2)
        } else {
            self.max_in_flight.saturating_add(mss) > self.window.cwnd
        }
    }
}

fn any(custom: &[Custom], algorithm: Algorithm) -> Any {
    match algorithm {
        Algorithm::Cubic => Any::Cubic(None),
        Algorithm::NewReno => Any::NewReno(NewReno::default()),
        Algorithm::Dctcp => Any::Dctcp(Box::new(Dctcp::new())),
        Algorithm::Bbr => Any::Bbr(Box::new(Bbr::new())),
        Algorithm::Custom(at) => match custom.get(usize::from(at)) {
            Some(custom) => Any::Custom(Box::new(Own((custom.make)()))),
            // Choosing an algorithm that does not exist is refused before.
            None => Any::Cubic(None),
        },
    }
}

/// RFC 6928 2: min(10 MSS, max(2 MSS, 14,600 bytes)), with `segments` for 10.
fn initial_window(segments: u8, mss: u32) -> u32 {
    let segments = u32::from(segments.max(1));
    (segments * mss).min((2 * mss).max(segments * 1_460))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The initial window, in segments.
    const INITIAL: u8 = 10;

    fn congestion(mss: u32) -> Congestion {
        let mut congestion = Congestion::new(&[], Algorithm::NewReno);
        congestion.start(INITIAL, mss, 0, Instant::from_micros(0));
        congestion
    }

    #[test]
    fn rfc6928_2_initial_window() {
        for (mss, expected) in [
            (536, 5_360),
            (1_448, 14_480),
            (1_460, 14_600),
            (4_000, 14_600),
            (8_948, 17_896),
        ] {
            assert_eq!(congestion(mss).window.cwnd, expected);
        }
    }

    #[test]
    fn rfc7661_window_grows_only_when_it_is_used() {
        let mut congestion = congestion(1_000);
        congestion.on_sent(0, 4_000, 4_000);
        congestion.on_ack(INITIAL, &Acked::of(4_000, 1_000), Instant::from_micros(0));
        assert_eq!(congestion.window.cwnd, 10_000);
        congestion.on_sent(4_000, 14_000, 10_000);
        congestion.on_ack(INITIAL, &Acked::of(10_000, 1_000), Instant::from_micros(0));
        assert_eq!(congestion.window.cwnd, 20_000);
    }

    #[test]
    fn rfc7661_4_4_3_window_that_is_not_used_comes_down() {
        let mut congestion = congestion(1_000);
        congestion.window.cwnd = 80_000;
        let mut at_ms = 0;
        let mut windows = Vec::new();
        for i in 0..30u64 {
            at_ms += 50;
            congestion.on_sent(i * 2_000, (i + 1) * 2_000, 2_000);
            congestion.on_ack(
                INITIAL,
                &Acked::of(2_000, 1_000),
                Instant::from_millis(at_ms),
            );
            windows.push(congestion.window.cwnd);
        }
        assert_eq!(windows[..3], [80_000; 3], "not before a time-out is over");
        assert_eq!(windows[5], 45_000);
        assert_eq!(windows[10], 27_500);
        assert!(windows.last() > Some(&10_000));
        assert_eq!(congestion.window.ssthresh, u32::MAX);
    }

    #[test]
    fn rfc5681_4_1_restart_after_idle() {
        let mut congestion = congestion(1_000);
        congestion.window.cwnd = 80_000;
        congestion.restart_after_idle(INITIAL, 2, 1_000);
        assert_eq!(congestion.window.cwnd, 20_000);
        congestion.restart_after_idle(INITIAL, 40, 1_000);
        assert_eq!(congestion.window.cwnd, 10_000);
    }
}
