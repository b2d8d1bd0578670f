//! A TCP/IP stack inside your program.
//!
//! A [`Stack`] is a host: it has addresses on a [`Link`], and sockets that read like those of [`std::net`]. It runs on the thread that made it, makes no
//! system calls but those of its link, and shares nothing with anybody.
//!
//! ```no_run
//! use std::io::Write;
//!
//! // A TAP device; the kernel is 10.77.0.1 at its other end, and we are 10.77.0.2.
//! let link = millrace::Link::tap(&millrace::Tap {
//!     hosts: vec![("10.77.0.1".parse()?, 24)],
//!     ..millrace::Tap::default()
//! })?;
//! let stack = millrace::Builder::new()
//!     .link(link)
//!     .address(std::net::Ipv4Addr::new(10, 77, 0, 2), 24)
//!     .build()?;
//! let listener = millrace::TcpListener::bind(&stack, "10.77.0.2:80")?;
//! for stream in listener.incoming() {
//!     stream?.write_all(b"hello\n")?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Which way to use it
//! - **Blocking**, as above: one thing at a time. While a call waits, the stack works.
//! - **Tasks**: [`Stack::spawn`] and [`Stack::block_on`] run plain futures on the stack's own thread; what ends in `_async` is made for them. With the
//!   features `futures` and `tokio` a [`TcpStream`] has those crates' I/O traits.
//! - **A loop of your own**: [`Stack::poll`] does what there is to do, [`Stack::wait`] (or [`Stack::descriptor`] and [`Stack::deadline`]) says when there is
//!   more; the `try_` calls never wait.
//! - **Many cores**: an [`Engine`] has a stack on each of several threads, one for each queue of the link, and [`shared`] sockets for any thread.
//! - **Without a clock or a link**: [`Builder::manual_clock`], [`Link::callers`], [`Stack::input`] and [`Stack::transmit`] make a host that does nothing but what it is told,
//!   for tests and simulation; [`Link::packets`] is the same without frames.
//! - **Under a binding** for another language: [`Stack::with_shard`] lends the shard with the socket calls that all of the above are made of, and [`Builder::parts`] makes stacks for
//!   threads that somebody else has.
//!
//! # What it costs
//! Bytes that are received lie in rings of the stack's, which [`TcpStream::read_with`] shows without a copy; [`TcpStream::write_with`] writes where bytes will be
//! sent from. A connection that is idle holds no buffer.
#![forbid(unsafe_code)]

mod below;
mod builder;
mod core;
mod descriptor;
mod engine;
mod link;
mod listener;
mod parts;
mod peers;
mod pins;
mod raw;
pub mod shared;
mod socket;
mod stack;
mod stream;
mod tasks;
#[cfg(any(feature = "futures", feature = "tokio"))]
mod traits;
mod udp;
pub use below::*;
pub use builder::{BuildError, Builder};
pub use core::LinkErrors;
pub use descriptor::Descriptor;
pub use engine::Engine;
pub use link::{Link, LinkError, Tap};
pub use listener::{Incoming, TcpListener, TcpOptions};
pub use parts::Part;
pub use stack::Stack;
pub use stream::TcpStream;
pub use tasks::JoinHandle;
pub use udp::{Received, UdpSocket};
