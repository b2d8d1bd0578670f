//! How much may be in flight: the congestion window, and the algorithms that move it.
//!
//! A program may bring one of its own: a type that is a [`Controller`], and a [`Custom`] that names it and makes one for each connection.
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
//! // The first of those that the configuration brings.
//! let settings = Settings { congestion: Some(Algorithm::Custom(0)), ..Settings::UNSET };
//! ```

mod bbr;
mod cubic;
mod dctcp;
mod hystart;
mod newreno;

use std::fmt;

use millrace_wire::tcp::Seq;

use crate::time::{Duration, Instant, Ticks};
use millrace_sockopt::Algorithm;

use bbr::Bbr;
pub(crate) use bbr::{Delivery, unit_size};
use cubic::Cubic;
use dctcp::Dctcp;
use newreno::NewReno;

/// What an algorithm is told about an acknowledgement of new data, outside of fast recovery.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// Bytes that this acknowledgement delivered, cumulatively or selectively.
    pub bytes: u32,
    /// Payload of a full segment.
    pub mss: u32,
    /// The round trip that it measured, in microseconds, or 0 if it measured none; while a loss is not forgotten yet, the smoothed one.
    pub rtt_us: u32,
    /// Retransmission time-out without back-off, in microseconds.
    pub rto_us: u32,
    /// SND.UNA as a stream offset: all before it is acknowledged.
    pub una: u64,
    /// SND.NXT as a stream offset: where the next byte is that was not sent yet.
    pub nxt: u64,
}

/// The window in bytes, which the algorithm moves.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Congestion window.
    pub cwnd: u32,
    /// Slow-start threshold; `u32::MAX` before the first loss.
    pub ssthresh: u32,
}

impl Window {
    /// Whether the window is below the threshold (RFC 5681 3.1).
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// let window = millrace::congestion::Window { cwnd: 14_600, ssthresh: u32::MAX };
    /// assert!(window.in_slow_start());
    /// ```
    pub fn in_slow_start(&self) -> bool {
        self.cwnd < self.ssthresh
    }

    /// Grows by what was acknowledged, up to the threshold; returns what is left of it (RFC 5681 3.1, counted in bytes as
    /// RFC 3465 has it, so that many small acknowledgements are worth no more than a large one). RFC 3465's bound of two segments per
    /// acknowledgement is not kept: receivers of aggregates, ours and Linux's, acknowledge up to 64 KB at once, and the
    /// bound would leave them in slow start for dozens of round trips.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// let mut window = millrace::congestion::Window { cwnd: 10_000, ssthresh: 12_000 };
    /// // Up to the threshold; the rest is the algorithm's own matter.
    /// assert_eq!(window.slow_start(3_000), 1_000);
    /// assert_eq!(window.cwnd, 12_000);
    /// ```
    pub fn slow_start(&mut self, acked: u32) -> u32 {
        let room = self.ssthresh.saturating_sub(self.cwnd);
        let taken = acked.min(room);
        self.cwnd = self.cwnd.saturating_add(taken);
        acked - taken
    }
}

/// A congestion control algorithm, with what it knows of one connection. Fast recovery itself (which bytes, how fast) is the same for all, and so is what a window
/// comes down to when it is not used (RFC 7661). A window is one segment at least, whatever an algorithm says.
///
/// These calls are made for each acknowledgement: they must not wait, and should not allocate.
pub trait Controller: fmt::Debug + Send {
    /// The connection is made: `window` is RFC 6928's, and may be changed. An algorithm that is chosen later is not told.
    fn start(&mut self, _window: &mut Window, _mss: u32) {}

    /// New data was acknowledged and the window had been in full use.
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, now: Instant);

    /// New data was acknowledged, but the program does not use the window.
    fn on_unused(&mut self) {}

    /// There is a loss, the first of a round trip: the threshold in bytes to reduce to, given the bytes in flight. The caller applies it.
    fn reduced(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32;

    /// The peer has echoed a mark with an acknowledgement of so many bytes.
    fn on_echo(&mut self, _bytes: u32) {}

    /// The network marks: the threshold to reduce to (RFC 3168 6.1.2: as for a loss).
    fn marked(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32 {
        self.reduced(window, flight, mss, now)
    }

    /// The flight was lost altogether: after a time-out.
    fn on_timeout(&mut self);

    /// There was no loss: the window is back to what it was before the last prr.
    fn on_undone(&mut self, _window: &Window) {}
}

/// An algorithm that is not one of the stack's own: a name, and how to make its state for a connection, which happens once when it is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Custom {
    name: &'static str,
    make: fn() -> Box<dyn Controller>,
}

impl Custom {
    /// Names an algorithm.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// # use millrace::congestion::{Acked, Controller, Custom, Window};
    /// # #[derive(Debug)]
    /// # struct Constant;
    /// # impl Controller for Constant {
    /// #     fn on_ack(&mut self, _: &mut Window, _: &Acked, _: millrace::Instant) {}
    /// #     fn reduced(&mut self, window: &Window, _: u32, _: u32, _: millrace::Instant) -> u32 {
    /// #         window.cwnd
    /// #     }
    /// #     fn on_timeout(&mut self) {}
    /// # }
    /// let custom = Custom::new("constant", || Box::new(Constant));
    /// ```
    pub const fn new(name: &'static str, make: fn() -> Box<dyn Controller>) -> Custom {
        Custom { name, make }
    }

    /// Its name.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// # use millrace::congestion::{Acked, Controller, Custom, Window};
    /// # #[derive(Debug)]
    /// # struct Constant;
    /// # impl Controller for Constant {
    /// #     fn on_ack(&mut self, _: &mut Window, _: &Acked, _: millrace::Instant) {}
    /// #     fn reduced(&mut self, window: &Window, _: u32, _: u32, _: millrace::Instant) -> u32 {
    /// #         window.cwnd
    /// #     }
    /// #     fn on_timeout(&mut self) {}
    /// # }
    /// assert_eq!(Custom::new("constant", || Box::new(Constant)).name(), "constant");
    /// ```
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// The algorithms, in two words: most connections never fill a window, and what they know is nothing.
#[derive(Debug)]
enum Any {
    /// From when the window was first in use, or came down.
    Cubic(Option<Box<Cubic>>),
    NewReno(NewReno),
    Dctcp(Box<Dctcp>),
    Bbr(Box<Bbr>),
    /// A program's own.
    Custom(Box<Own>),
}

/// An algorithm behind one word.
#[derive(Debug)]
struct Own(Box<dyn Controller>);

/// Congestion state of a connection.
#[derive(Debug)]
pub(crate) struct Congestion {
    pub(crate) window: Window,
    /// Most bytes in flight since `usage_end` was sent: whether the window is in use (RFC 7661, and Linux's way of it).
    peak: u32,
    /// Low half of a stream offset.
    usage_end: u32,
    /// When the window was last in use, or was last lowered because it was not.
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
            peak: 0,
            usage_end: 0,
            validated: Ticks::default(),
            algorithm: any(custom, algorithm),
        }
    }

    /// Sets the initial window, once the segment size is known.
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

    /// The most that was in flight within the last round trip, as far as the window allows it now; in bytes.
    pub(crate) fn recent_flight(&self) -> u32 {
        self.peak.min(self.window.cwnd)
    }

    /// Whether the algorithm has no memory of its own yet.
    #[cfg(test)]
    pub(crate) fn is_new(&self) -> bool {
        matches!(self.algorithm, Any::Cubic(None) | Any::NewReno(_))
    }

    /// Whether it wants to know how much was marked, not only whether something was: DCTCP.
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

    /// The program has not used the window for a time-out: nobody knows whether the path still has room for it (RFC 7661 4.4.3, in the way of RFC 2861 and Linux: half of what
    /// is not used goes, each time).
    #[cold]
    fn lower_unused(&mut self, initial: u8, mss: u32, now: Instant) {
        let used = self.peak.max(initial_window(initial, mss));
        let window = &mut self.window;
        if used < window.cwnd {
            window.ssthresh = window.ssthresh.max(window.cwnd / 4 * 3);
            window.cwnd = window.cwnd / 2 + used / 2;
        }
        self.peak = 0;
        self.validated = now.ticks();
    }

    /// The peer has echoed a mark with an acknowledgement of so many bytes.
    pub(crate) fn on_echo(&mut self, bytes: u32) {
        match &mut self.algorithm {
            Any::Dctcp(it) => it.on_echo(bytes),
            Any::Custom(it) => it.0.on_echo(bytes),
            _ => {}
        }
    }

    /// The threshold after a mark of the network's; see [`Controller::marked`].
    pub(crate) fn marked(&mut self, flight: u32, mss: u32, now: Instant) -> u32 {
        match &mut self.algorithm {
            Any::Cubic(it) => it
                .get_or_insert_default()
                .marked(&self.window, flight, mss, now),
            Any::NewReno(it) => it.marked(&self.window, flight, mss, now),
            Any::Dctcp(it) => it.marked(&self.window, flight, mss, now),
            Any::Custom(it) => it.0.marked(&self.window, flight, mss, now).max(mss),
            // The model has no place for marks.
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

    /// The last reduction was for nothing: back to the window before it (RFC 4015 3.2).
    pub(crate) fn undo(&mut self, before: Window) {
        self.window.cwnd = self.window.cwnd.max(before.cwnd);
        self.window.ssthresh = before.ssthresh;
        match &mut self.algorithm {
            Any::Cubic(it) => it.get_or_insert_default().on_undone(&self.window),
            Any::Custom(it) => it.0.on_undone(&self.window),
            _ => {}
        }
    }

    /// Whether the algorithm has a rate of its own, and a model that says what is in flight, whatever is lost.
    pub(crate) fn is_paced(&self) -> bool {
        matches!(self.algorithm, Any::Bbr(_))
    }

    /// Fast recovery begins with `pipe` bytes in the network: for an algorithm that has the window to itself meanwhile.
    pub(crate) fn conserve(&mut self, pipe: u32) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.conserve(&mut self.window, pipe);
        }
    }

    /// So many bytes more are lost: for an algorithm with a model.
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

    /// New data up to `nxt` leaves a connection that is paced; `pipe` bytes were in the network before. `drained`: no more is queued.
    pub(crate) fn on_paced(&mut self, nxt: u64, pipe: u32, drained: bool, now: Instant) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.on_sent(nxt, pipe, self.window.cwnd, drained, now);
        }
    }

    /// An acknowledgement that is not plain delivered something: for an algorithm with a model.
    pub(crate) fn on_delivered(&mut self, delivery: &Delivery, now: Instant) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.on_delivered(&mut self.window, delivery, now);
        }
    }

    /// Fast recovery is over: the window is what it was to come down to.
    pub(crate) fn leave_recovery(&mut self) {
        match &mut self.algorithm {
            Any::Bbr(it) => it.restore(&mut self.window),
            _ => self.window.cwnd = self.window.ssthresh,
        }
    }

    /// A repair after a time-out is over.
    pub(crate) fn leave_loss(&mut self) {
        if let Any::Bbr(it) = &mut self.algorithm {
            it.restore(&mut self.window);
        }
    }

    /// RFC 5681 3.1: one segment after a time-out.
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

    /// New data up to `nxt` was sent and `flight` bytes are out; all before `una` is acknowledged.
    #[inline]
    pub(crate) fn on_sent(&mut self, una: u64, nxt: u64, flight: u32) {
        if Seq(una as u32).at_or_after(Seq(self.usage_end)) || flight > self.peak {
            self.peak = flight;
            self.usage_end = nxt as u32;
        }
    }

    /// Nothing was in flight for `timeouts` retransmission time-outs: what was learnt of the path is old (RFC 5681 4.1). As in
    /// Linux the window halves with each of them, down to the initial one.
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
        self.peak = 0;
    }

    /// Whether the window, and not the program, bounds what is in flight. Only then is an acknowledgement evidence that more
    /// would fit. In slow start half of it will do, for it may be acknowledged before the other half is sent.
    fn is_limiting(&self, mss: u32) -> bool {
        if self.window.in_slow_start() {
            self.window.cwnd < self.peak.saturating_mul(2)
        } else {
            self.peak.saturating_add(mss) > self.window.cwnd
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
            // Who chooses one that is not there is refused before it comes to this.
            None => Any::Cubic(None),
        },
    }
}

/// RFC 6928 2: min(10 MSS, max(2 MSS, 14,600 bytes)), with the configured number for 10.
fn initial_window(segments: u8, mss: u32) -> u32 {
    let segments = u32::from(segments.max(1));
    (segments * mss).min((2 * mss).max(segments * 1_460))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The initial window, in segments.
    const INITIAL: u8 = 10;

    fn acked(bytes: u32, mss: u32) -> Acked {
        Acked {
            bytes,
            mss,
            rtt_us: 1_000,
            rto_us: 200_000,
            una: 0,
            nxt: 0,
        }
    }

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
        congestion.on_ack(INITIAL, &acked(4_000, 1_000), Instant::from_micros(0));
        assert_eq!(congestion.window.cwnd, 10_000);
        congestion.on_sent(4_000, 14_000, 10_000);
        congestion.on_ack(INITIAL, &acked(10_000, 1_000), Instant::from_micros(0));
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
            congestion.on_ack(INITIAL, &acked(2_000, 1_000), Instant::from_millis(at_ms));
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
