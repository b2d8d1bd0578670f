//! Links by AF_XDP, past the kernel's stack: what [`crate::Link::xdp`] is told, and how it fails.
//!
//! The device is the kernel's as well: frames to another link-layer address than ours go on to it. What a device can do, and why it does no better than it does, is in
//! [`crate::Link::notes`]; `docs/links.md` of the project has it by driver.

/// Which device, and how.
///
/// ```
/// use millrace::xdp::{BusyPoll, Config, Mode};
/// let config = Config {
///     device: "eth0".to_owned(),
///     // All that it has, shared out among two shards.
///     queues: None,
///     ports: 2,
///     mode: Mode::Auto,
///     busy_poll: BusyPoll::Auto,
///     mac: None,
///     shared: Vec::new(),
/// };
/// ```
#[doc(inline)]
pub use millrace_port::xdp::Config;

/// How frames get from the driver to us.
///
/// ```
/// assert_eq!("copy".parse(), Ok(millrace::xdp::Mode::Copy));
/// ```
#[doc(inline)]
pub use millrace_port::xdp::Mode;

/// Whether the one who looks for frames runs the driver's poller.
///
/// ```
/// assert_eq!("on".parse(), Ok(millrace::xdp::BusyPoll::On));
/// ```
#[doc(inline)]
pub use millrace_port::xdp::BusyPoll;

/// Why a device cannot be had by AF_XDP: in [`crate::LinkError::Xdp`].
///
/// ```no_run
/// use millrace::{LinkError, xdp};
/// # let (device, mode) = ("eth0".to_owned(), xdp::Mode::Auto);
/// # let config = xdp::Config { device, mode, queues: None, busy_poll: xdp::BusyPoll::Auto, ports: 1, mac: None, shared: Vec::new() };
/// match millrace::Link::xdp(&config) {
///     Err(LinkError::Xdp(error @ xdp::Error::Queues { .. })) => eprintln!("other queues, then: {error}"),
///     other => drop(other?),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::xdp::Error;
