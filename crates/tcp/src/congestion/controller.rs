//! The interface of a congestion control algorithm: its events, and the window that it moves.

use std::fmt;

use crate::time::Instant;

/// An acknowledgement of new data outside of fast recovery, as an algorithm sees it.
#[derive(Clone, Copy, Debug)]
pub struct Acked {
    /// Bytes that this acknowledgement delivered, cumulatively or selectively.
    pub bytes: u32,
    /// Payload of a full segment, in bytes.
    pub mss: u32,
    /// The round trip that it measured, in microseconds; 0 if it measured none. After a loss the
    /// smoothed round trip takes its place, until the flight has no more marks.
    pub rtt_us: u32,
    /// Retransmission time-out without back-off, in microseconds.
    pub rto_us: u32,
    /// SND.UNA as a stream offset: everything before it is acknowledged.
    pub una: u64,
    /// SND.NXT as a stream offset: the next byte to send for the first time.
    pub nxt: u64,
}

#[cfg(test)]
impl Acked {
    /// `bytes` are acknowledged, over a path with a round trip of a millisecond.
    pub(crate) fn of(bytes: u32, mss: u32) -> Acked {
        Acked {
            bytes,
            mss,
            rtt_us: 1_000,
            rto_us: 200_000,
            una: 0,
            nxt: 0,
        }
    }
}

/// The window that an algorithm moves, in bytes.
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

    /// Grows by the acknowledged bytes, up to the threshold, and returns the rest (RFC 5681 3.1).
    /// It counts bytes as RFC 3465 does, so that many small acknowledgements are worth no more than
    /// a large one. The bound of RFC 3465 of two segments per acknowledgement is not kept:
    /// receivers of aggregates, ours and Linux's, acknowledge up to 64 KB at once, and would stay
    /// in slow start for dozens of round trips.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// let mut window = millrace::congestion::Window { cwnd: 10_000, ssthresh: 12_000 };
    /// // Up to the threshold; the algorithm decides about the rest.
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

/// A congestion control algorithm, with its state for one connection.
///
/// All algorithms share fast recovery (which bytes are sent, and how fast) and the decay of a
/// window that is not used (RFC 7661). A window has one segment at least, whatever an algorithm
/// sets.
///
/// These calls are made for each acknowledgement: they must not block, and should not allocate.
pub trait Controller: fmt::Debug + Send {
    /// The connection is established. `window` is that of RFC 6928, and may be changed. An
    /// algorithm that is chosen later gets no such call.
    fn start(&mut self, _window: &mut Window, _mss: u32) {}

    /// New data was acknowledged, and the window was in full use.
    fn on_ack(&mut self, window: &mut Window, acked: &Acked, now: Instant);

    /// New data was acknowledged, and the program does not use the window.
    fn on_unused(&mut self) {}

    /// Something is lost, for the first time in a round trip, with `flight` bytes in flight.
    /// Returns the threshold to reduce to, in bytes; the caller applies it.
    fn reduced(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32;

    /// The peer echoes a mark, with an acknowledgement of so many bytes.
    fn on_echo(&mut self, _bytes: u32) {}

    /// The network marks. Returns the threshold to reduce to, in bytes; RFC 3168 6.1.2 reduces as
    /// for a loss.
    fn marked(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32 {
        self.reduced(window, flight, mss, now)
    }

    /// A time-out came: the whole flight is lost.
    fn on_timeout(&mut self);

    /// The last reduction was spurious: the window has returned to its former size.
    fn on_undone(&mut self, _window: &Window) {}
}

/// An algorithm that a program brings: its name, and a function that makes its state when a
/// connection chooses it.
#[derive(Clone, Copy, Debug)]
pub struct Custom {
    name: &'static str,
    pub(super) make: fn() -> Box<dyn Controller>,
}

impl Custom {
    /// An algorithm with this name, for `TCP_CONGESTION`, and this constructor.
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

    /// The name of the algorithm.
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
