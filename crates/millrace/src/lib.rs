//! A TCP/IP stack inside your program.
//!
//! A [`Stack`] is a host: it has addresses on a [`Link`] or several, and sockets that read like
//! those of [`std::net`]. It runs on the thread that made it, makes no system calls but those of
//! its links, and shares nothing with anybody.
//!
//! ```no_run
//! use std::io::Write;
//!
//! // A TAP device; the kernel is 10.77.0.1 at its other end, and we are 10.77.0.2.
//! let options = millrace::LinkOptions::new().host(std::net::Ipv4Addr::new(10, 77, 0, 1), 24);
//! let link = millrace::Link::open(&"tap".parse()?, &options)?;
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
//! This page is the book in short; each chapter names the types that have the rest. Every item has
//! an example, and all of them run: what looks like a network in them is the stack's own loopback,
//! or two stacks in one program.
//!
//! 1. [The stack](#the-stack): a host, its link, and who makes it work
//! 2. [Several links](#several-links): a host on several networks
//! 3. [The engine](#the-engine): many cores, and sockets for any thread
//! 4. [TCP](#tcp): listening, connecting, reading and writing
//! 5. [UDP](#udp): datagrams
//! 6. [Tasks](#tasks): many connections on one thread
//! 7. [Zero-copy](#zero-copy): bytes where they are
//! 8. [Options](#options): of a socket, a listener, a host
//! 9. [Any address](#any-address): standing for everybody
//! 10. [Limits](#limits): what is bounded, and what happens there
//! 11. [Errors](#errors): what fails, and how it is told
//! 12. [Time and frames of one's own](#time-and-frames-of-ones-own): tests, simulation, bindings
//!
//! # The stack
//!
//! [`Builder`] says what a host has: a [`Link`] (TAP, TUN, a network device by packet socket,
//! macvtap or AF_XDP, a pair in memory, one of the caller's), addresses, routes. [`Builder::build`]
//! makes a [`Stack`] of it, which does nothing by itself. One of three things makes it work:
//! - **a call that blocks**: one thing at a time; while the call waits, the stack works;
//! - **tasks**, in [`Stack::block_on`] or [`Stack::run`];
//! - **a loop of your own**: [`Stack::poll`] does what there is to do, [`Stack::wait`] (or
//!   [`Stack::descriptor`] and [`Stack::deadline`]) says when there is more, and the `try_` calls
//!   never wait.
//!
//! ```
//! let stack = millrace::Builder::new().build()?;
//! let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
//! // A loop around the kernel's `poll` or `epoll` would wait for `stack.descriptor()` until
//! // `stack.deadline()`.
//! while stack.poll() > 0 {}
//! assert_eq!(stack.deadline(), None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Several links
//!
//! [`Builder::link`] may be said again; addresses, routes and an MTU are of the link that was said
//! before them. Links of every kind go together, and each keeps its own neighbours, MTU and
//! offloads.
//! - **Listening** ([`TcpListener::bind`], [`UdpSocket::bind`]) at the unspecified address hears
//!   all links, and takes from each in turn; at an address, the link that has it. Port 0 is one
//!   that is free on all of them. A multicast group is heard on all links that the socket is on.
//! - **Connecting and sending** goes to the host itself if the address is its own; or else by the
//!   link with the longest prefix, of its networks or its routes, and among equals the one that was
//!   said first. No way is `ENETUNREACH`. A source that is bound chooses its link, and then that
//!   link's routes count alone: an address is of one link and is heard nowhere else (the strong
//!   model of RFC 1122 3.3.4.2), so there is nothing between two links' addresses in one host
//!   (`ENETUNREACH`). Loopback is with the first link. A connection stays on its link, and is
//!   answered by it: give each link a way to whoever may come by it.
//! - **One link alone** is what [`Stack::on_link`] gives: a handle whose sockets are on that link,
//!   whatever other ways there are. [`Received::link`] says by which link a datagram came; a
//!   link-local address of IPv6 says it, too, by its scope, which counts links from 1.
//! - **Limits** and receive memory are shared out among the links in equal parts, so that a stack
//!   never holds more than it was given. [`Stack::counters`], [`Stack::usage`] and
//!   [`Stack::link_errors`] are of all links, or on a handle of one link of that one.
//!   [`Stack::poll`], [`Stack::wait`], [`Stack::deadline`] and [`Stack::descriptor`] are of all.
//!
//! ```
//! use std::net::Ipv4Addr;
//!
//! let (inside, one) = millrace::Link::pair(1500);
//! let (outside, other) = millrace::Link::pair(9000);
//! let stack = millrace::Builder::new()
//!     .link(inside)
//!     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
//!     .link(outside)
//!     .address(Ipv4Addr::new(192, 0, 2, 2), 24)
//!     .gateway(Ipv4Addr::new(192, 0, 2, 1))
//!     .build()?;
//! let all = millrace::TcpListener::bind(&stack, "0.0.0.0:80")?;
//! let private = millrace::TcpListener::bind(&stack, "10.0.0.2:81")?;
//! // By the gateway, from the address that is there.
//! let client = millrace::TcpStream::connect_nonblocking(&stack, "203.0.113.7:80".parse()?,
//!     Default::default())?;
//! assert_eq!(client.local_addr()?.ip(), Ipv4Addr::new(192, 0, 2, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The engine
//!
//! An [`Engine`] has a stack on each of several threads, one for each queue of each link. They
//! share the links' addresses; a connection is one shard's for as long as it lives, and a server
//! binds its listener on every shard. A program that has threads of its own takes
//! [`Builder::parts`]. The sockets of [`shared`] are for any thread, at the price of two wake-ups
//! and a copy for each call.
//!
//! ```
//! let engine = millrace::Builder::new().start(2, |stack, _shard| async move {
//!     let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80").expect("free");
//!     while let Ok((stream, _)) = listener.accept_async().await {
//!         let _ = stream.write_all_async(b"hello").await;
//!     }
//! })?;
//! # Ok::<(), millrace::BuildError>(())
//! ```
//!
//! # TCP
//!
//! [`TcpListener`] and [`TcpStream`] read like those of the standard library, and take the stack as
//! their first argument. A stream is [`Read`](std::io::Read) and [`Write`](std::io::Write).
//! Dropped, it is closed: what was written is still sent as long as the stack works.
//!
//! ```
//! use std::io::{Read, Write};
//! # let stack = millrace::Builder::new().build()?;
//! let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
//! let mut client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
//! let (mut server, _) = listener.accept()?;
//! client.write_all(b"hello")?;
//! server.read_exact(&mut [0; 5])?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # UDP
//!
//! A [`UdpSocket`] has a port of the host's ([`UdpSocket::bind`]), or a peer
//! ([`UdpSocket::connected`]). What is known of a datagram beside its bytes is a [`Received`]; what
//! can be said of one that is sent, a [`SendTo`].
//!
//! ```
//! # let stack = millrace::Builder::new().build()?;
//! let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
//! let client = millrace::UdpSocket::connected(&stack, "127.0.0.1:53".parse()?)?;
//! client.send(b"where?")?;
//! assert_eq!(server.recv_from(&mut [0; 512])?, (6, client.local_addr()?));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tasks
//!
//! [`Stack::spawn`] and [`Stack::block_on`] run plain futures on the stack's own thread; what ends
//! in `_async` is made for them, and what begins with `poll_` is for futures of your own. They need
//! not be `Send`. [`Stack::sleep`] and [`Stack::timeout`] are timers, [`Descriptor`] waits for a
//! descriptor of the kernel's. With the features `futures` and `tokio` a [`TcpStream`] has those
//! crates' I/O traits.
//!
//! ```
//! # let stack = millrace::Builder::new().build()?;
//! let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
//! let first = stack.spawn(async move { listener.accept_async().await });
//! let client = stack.block_on(millrace::TcpStream::connect_async(&stack,
//!     "127.0.0.1:80".parse()?))?;
//! let (server, _) = stack.block_on(first)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Zero-copy
//!
//! Bytes that have come lie in rings of the stack's: [`TcpStream::read_with`] shows them, and the
//! program says how many it has read. [`TcpStream::write_with`] shows where bytes will be sent
//! from, for the program to write them there. Both are two pieces, since a ring wraps.
//!
//! ```
//! # let stack = millrace::Builder::new().build()?;
//! # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
//! # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
//! # let (server, _) = listener.accept()?;
//! client.write_with(5, |[one, _]| {
//!     one.copy_from_slice(b"hello");
//!     5
//! })?;
//! stack.block_on(server.readable_async())?;
//! assert_eq!(server.read_with(|[one, two]| one.len() + two.len())?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Options
//!
//! Each option has a setter and a getter, such as [`TcpStream::set_keepalive_time`] and
//! [`TcpStream::keepalive_time`]; a value out of range is an error. For bindings, [`Opt`] has every
//! option with its value as Linux has it, and [`Sockets::set_option`] sets it. A socket can begin
//! with [`Options`] ([`TcpOptions`] for TCP), and connections inherit those of their listener. What
//! holds for all connections of a host is in [`TcpConfig`]; [`congestion`] is for algorithms of
//! your own.
//!
//! ```
//! # let stack = millrace::Builder::new().build()?;
//! let options = millrace::TcpOptions::new().nodelay(true).congestion(millrace::Algorithm::Bbr);
//! let listener = millrace::TcpListener::bind_with(&stack, "127.0.0.1:80", options)?;
//! let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
//! client.set_keepalive(true)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Any address
//!
//! With [`Builder::any_address`] packets to whatever address are for the stack, on a TUN device
//! that is somebody's default route (`tun:NAME`; `tun:NAME,attach` takes no privilege).
//! [`TcpListener::anywhere`] accepts for whoever was meant; with [`TcpListener::anywhere_asking`]
//! each SYN is an [`Incoming`] that has no answer until the program says so.
//! [`UdpSocket::anywhere`] hears the first datagram of each flow, [`UdpSocket::answering`] speaks
//! for who was meant.
//!
//! ```
//! # let link = millrace::Link::packets(1500);
//! # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
//! let stack = builder.any_address(true).build()?;
//! let listener = millrace::TcpListener::anywhere_asking(&stack, millrace::TcpOptions::new())?;
//! stack.spawn(async move {
//!     while let Ok(request) = listener.request_async().await {
//!         request.refuse();
//!     }
//! });
//! # stack.cancel_tasks();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//!
//! Everything that a stack keeps is bounded: [`Limits`] (sockets, half-open connections, TIME-WAIT,
//! memory to send from, ...), [`Builder::receive_memory`], and [`Buffers`] of one connection. At a
//! limit the new is refused and the old is kept, and it is counted: [`Stack::counters`];
//! [`Stack::usage`] says what is in use. A connection that is idle holds no buffer. Reading is what
//! opens the peer's window: a program that does not read is not sent to.
//!
//! ```
//! let limits = millrace::Limits { sockets: 1, ..millrace::Limits::default() };
//! let stack = millrace::Builder::new().limits(limits).build()?;
//! let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
//! assert!(millrace::TcpListener::bind(&stack, "127.0.0.1:81").is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Errors
//!
//! A call on a socket fails with [`std::io::Error`], whose
//! [`raw_os_error`](std::io::Error::raw_os_error) is the number that Linux gives for the same; what
//! a connection dies of is told once, to the first who asks. A stack that cannot be made says why
//! by a [`BuildError`], a link by a [`LinkError`]. What links lose is no error of a call:
//! [`Stack::link_errors`] counts it.
//!
//! ```
//! # let stack = millrace::Builder::new().build()?;
//! let error = millrace::TcpStream::connect(&stack, "127.0.0.1:81").expect_err("nobody listens");
//! assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Time and frames of one's own
//!
//! [`Builder::manual_clock`], [`Link::manual`], [`Stack::input`] and [`Stack::transmit`] make a
//! host that does nothing but what it is told, for tests and simulation; [`Link::packets`] is the
//! same without frames, and [`Link::custom`] takes a [`Port`] of your own. A binding for another
//! language takes [`Stack::with_sockets`], which lends the socket calls that all of the above are
//! made of ([`Sockets`]), and [`Builder::parts`] for threads that somebody else has.
//!
//! ```
//! # let link = millrace::Link::packets(1500);
//! # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
//! let stack = builder.manual_clock().secret([7; 32]).build()?;
//! stack.poll_at(millrace::Instant::from_millis(20));
//! assert_eq!(stack.now(), millrace::Instant::from_millis(20));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod below;
mod build_error;
mod builder;
pub mod congestion;
mod core;
mod descriptor;
mod engine;
mod group;
mod link;
mod links;
mod listener;
mod opening;
mod options;
mod parts;
mod peers;
mod pins;
mod plan;
mod raw;
mod shards;
pub mod shared;
mod socket;
mod sockets;
mod stack;
mod stream;
mod tasks;
mod tcp_options;
#[cfg(any(feature = "futures", feature = "tokio"))]
mod traits;
mod udp;
mod watched;
pub mod xdp;
/// User-level messages: ports with queues of requests and completions, between processes of one
/// host by shared memory, or over Ethernet.
///
/// ```
/// use millrace::fabric::{Channel, Limits, Payload, PortName, shm::{Directory, Port}};
///
/// let place = std::env::temp_dir().join(format!("millrace-messages-{}", std::process::id()));
/// let directory = Directory::at(&place);
/// let mut one = Port::open_in(&directory, PortName::new(0, 1), Limits::default())?;
/// let mut two = Port::open_in(&directory, PortName::new(0, 2), Limits::default())?;
/// one.send(two.name(), Channel::System, 0, Payload::Inline(b"hello"), 7)?;
/// let message = loop {
///     one.poll();
///     two.poll();
///     if let Some(message) = two.poll_received() {
///         break message;
///     }
/// };
/// assert_eq!(two.message(&message)?, b"hello");
/// # std::fs::remove_dir_all(place)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub use millrace_fabric as fabric;

pub use below::*;
pub use build_error::BuildError;
pub use builder::Builder;
pub use core::LinkErrors;
pub use descriptor::Descriptor;
pub use engine::Engine;
pub use link::{Link, LinkError, LinkOptions, LinkSpec, Route, parse_prefix};
pub use listener::{Incoming, TcpListener};
pub use parts::Part;
pub use sockets::Sockets;
pub use stack::Stack;
pub use stream::TcpStream;
pub use tasks::JoinHandle;
pub use tcp_options::TcpOptions;
pub use udp::{Received, UdpSocket};
