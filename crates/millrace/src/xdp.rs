//! Links by AF_XDP, past the kernel's stack: how they are described, and how they fail.
//!
//! The device is the kernel's as well: frames to another link-layer address than ours go on to it.
//! [`crate::Link::notes`] says what a device can do, and why it does no better than it does;
//! `docs/links.md` of the project has it by driver.

/// Which device, and how: in [`crate::LinkSpec::Xdp`].
///
/// ```
/// use millrace::xdp::{Mode, Xdp};
/// let xdp = Xdp { name: "eth0".to_owned(), mode: Mode::Copy, ..Xdp::default() };
/// assert_eq!(millrace::LinkSpec::Xdp(xdp), "xdp:eth0,mode=copy".parse()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::spec::Xdp;

/// How frames get from the driver to us.
///
/// ```
/// assert_eq!("copy".parse(), Ok(millrace::xdp::Mode::Copy));
/// ```
#[doc(inline)]
pub use millrace_port::spec::Mode;

/// Whether the one who looks for frames runs the driver's poller.
///
/// ```
/// assert_eq!("on".parse(), Ok(millrace::xdp::BusyPoll::On));
/// ```
#[doc(inline)]
pub use millrace_port::spec::BusyPoll;

/// (Takes the feature `xdp`.) A device cannot be opened by AF_XDP: in [`crate::LinkError::Xdp`].
///
/// ```no_run
/// use millrace::{Link, LinkError, LinkOptions, xdp};
/// match Link::open(&"xdp:eth0,queues=64".parse()?, &LinkOptions::new()) {
///     Err(LinkError::Xdp(error @ xdp::Error::Queues { .. })) => eprintln!(
///         "other queues, then: {error}"),
///     other => drop(other?),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[cfg(feature = "xdp")]
#[doc(inline)]
pub use millrace_port::xdp::Error;
