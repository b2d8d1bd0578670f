//! Congestion control of a program's own: a type that is a [`Controller`], and a [`Custom`] that
//! names it and makes one for each connection.
//!
//! Loss recovery, pacing and the rest stay as they are for all: an algorithm sees each
//! acknowledgement of a window that is in use, each reduction and each time-out, and moves the
//! window. [`crate::Builder::add_congestion`] takes it; then it can be chosen like any:
//! [`crate::Builder::congestion`], [`crate::TcpOptions::congestion`],
//! [`crate::TcpStream::set_congestion`].
//!
//! ```
//! use millrace::congestion::{Acked, Controller, Custom, Window};
//!
//! /// Ten segments in flight, whatever happens.
//! #[derive(Debug)]
//! struct Ten;
//!
//! impl Controller for Ten {
//!     fn on_ack(&mut self, window: &mut Window, acked: &Acked, _: millrace::Instant) {
//!         window.cwnd = 10 * acked.mss;
//!     }
//!     fn reduced(&mut self, _: &Window, _flight: u32, mss: u32, _: millrace::Instant) -> u32 {
//!         10 * mss
//!     }
//!     fn on_timeout(&mut self) {}
//! }
//!
//! let mut builder = millrace::Builder::new();
//! let ten = builder.add_congestion(Custom::new("ten", || Box::new(Ten)));
//! let stack = builder.congestion(ten).build()?;
//! # Ok::<(), millrace::BuildError>(())
//! ```

/// What an algorithm is told of an acknowledgement: in [`Controller::on_ack`].
///
/// ```
/// use millrace::congestion::{Acked, Window};
/// /// Congestion avoidance: a segment more for every window (RFC 5681 3.1).
/// fn grow(window: &mut Window, acked: &Acked) {
///     let share = u64::from(acked.mss) * u64::from(acked.bytes) / u64::from(window.cwnd.max(1));
///     window.cwnd += share as u32;
/// }
/// # let mut window = Window { cwnd: 10_000, ssthresh: 5_000 };
/// # grow(&mut window, &Acked { bytes: 10_000, mss: 1_000, rtt_us: 0, rto_us: 0, una: 0, nxt: 0 });
/// # assert_eq!(window.cwnd, 11_000);
/// ```
#[doc(inline)]
pub use millrace_tcp::congestion::Acked;

/// What an algorithm is.
///
/// ```
/// use millrace::Instant;
/// use millrace::congestion::{Acked, Controller, Window};
///
/// /// Doubles until there is a loss, and stays at half of that.
/// #[derive(Debug, Default)]
/// struct Half {
///     idle: u64,
///     marks: u64,
/// }
///
/// impl Controller for Half {
///     // These have to be said ...
///     fn on_ack(&mut self, window: &mut Window, acked: &Acked, _: Instant) {
///         window.slow_start(acked.bytes);
///     }
///     fn reduced(&mut self, _: &Window, flight: u32, mss: u32, _: Instant) -> u32 {
///         (flight / 2).max(2 * mss)
///     }
///     fn on_timeout(&mut self) {}
///     // ... and these may be.
///     fn start(&mut self, window: &mut Window, mss: u32) {
///         window.cwnd = window.cwnd.max(4 * mss);
///     }
///     fn on_unused(&mut self) {
///         self.idle += 1;
///     }
///     fn on_echo(&mut self, bytes: u32) {
///         self.marks += u64::from(bytes);
///     }
///     fn marked(&mut self, window: &Window, flight: u32, mss: u32, now: Instant) -> u32 {
///         self.reduced(window, flight, mss, now)
///     }
///     fn on_undone(&mut self, window: &Window) {
///         println!("there was no loss: {} bytes again", window.cwnd);
///     }
/// }
/// ```
#[doc(inline)]
pub use millrace_tcp::congestion::Controller;

/// A name, and how to make the state of a connection.
///
/// ```
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
/// let mut builder = millrace::Builder::new();
/// let constant = builder.add_congestion(Custom::new("constant", || Box::new(Constant)));
/// # let stack = builder.congestion(constant).build()?;
/// # Ok::<(), millrace::BuildError>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::congestion::Custom;

/// What an algorithm moves.
///
/// ```
/// let mut window = millrace::congestion::Window { cwnd: 10_000, ssthresh: 12_000 };
/// // Up to the threshold; the rest is the algorithm's own matter.
/// assert_eq!(window.slow_start(3_000), 1_000);
/// assert!(!window.in_slow_start());
/// ```
#[doc(inline)]
pub use millrace_tcp::congestion::Window;
