//! What comes from the crates below, as a program meets it here.

/// Counts of everything that a stack has taken, sent, refused and dropped.
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// for (name, count) in stack.counters().iter().filter(|&(_, count)| count > 0) {
///     println!("{name} {count}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Counters;

/// What a stack has in use now: [`crate::Stack::usage`].
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// assert_eq!(stack.usage(), millrace::Usage::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Usage;

/// Upper bounds of everything that a stack keeps: [`crate::Builder::limits`].
///
/// ```
/// let limits = millrace::Limits { time_wait: 1000, ..Default::default() };
/// let stack = millrace::Builder::new().limits(limits).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Limits;

/// Sizes of a connection's buffers: [`crate::Builder::buffers`].
///
/// ```
/// let buffers = millrace::Buffers { receive_max: 1 << 20, ..Default::default() };
/// let stack = millrace::Builder::new().buffers(buffers).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Buffers;

/// How a host comes by its addresses: [`crate::Builder::claim`].
///
/// ```
/// let stack = millrace::Builder::new()
///     .link(millrace::Link::pair(1500).0)
///     .address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24)
///     .claim(millrace::ConflictDetection::Probe)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::ConflictDetection;

/// A socket option with its value, for bindings: [`crate::Sockets::set_option`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// use millrace::Opt;
/// stack.with_sockets(|sockets| {
///     let id = sockets.stream(&Default::default())?;
///     sockets.set_option(id, Opt::KeepIdle(60))
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Opt;

/// The name of a socket option: [`crate::Sockets::option`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let ttl = stack.with_sockets(|sockets| {
///     let id = sockets.stream(&Default::default())?;
///     sockets.option(id, millrace::OptName::Ttl)
/// })?;
/// assert_eq!(ttl, millrace::Opt::Ttl(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::OptName;

/// What becomes of packets that a path does not take whole: [`crate::TcpStream::set_mtu_discover`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// client.set_mtu_discover(millrace::Discovery::Always)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Discovery;

/// Keys of a listener's cookies for TCP Fast Open: [`crate::TcpListener::set_fast_open_keys`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// let keys = millrace::FastOpenKeys { primary: [7; 16], backup: None };
/// listener.set_fast_open(16)?;
/// listener.set_fast_open_keys(keys)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::FastOpenKeys;

/// What a socket begins with: [`crate::TcpOptions::options`], [`crate::UdpSocket::bind_with`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let options = millrace::Options { tos: 0x10, ..Default::default() };
/// let socket = millrace::UdpSocket::bind_with(&stack, "127.0.0.1:53".parse()?, &options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Options;

/// Whether a local address is shared: [`Options::reuse`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let reuse = millrace::Reuse { address: true, port: true };
/// let options = millrace::Options { reuse, ..Default::default() };
/// let one = millrace::UdpSocket::bind_with(&stack, "127.0.0.1:53".parse()?, &options)?;
/// let two = millrace::UdpSocket::bind_with(&stack, "127.0.0.1:53".parse()?, &options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Reuse;

/// What is said of a datagram that is sent: [`crate::UdpSocket::send_as`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
/// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
/// let what = millrace::SendTo { to: Some(server.local_addr()?), hops: Some(1),
///     ..Default::default() };
/// assert_eq!(client.send_as(b"near", &what)?, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::SendTo;

/// A socket as a stranger sees it: [`crate::Stack::for_each_socket`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// stack.for_each_socket(|socket| println!("{:?} {} {}", socket.state, socket.local,
///     socket.remote));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::SocketInfo;

/// Where a socket is in its life: [`SocketInfo::state`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// let mut listening = 0;
/// stack.for_each_socket(|socket| listening += usize::from(
///     socket.state == millrace::SocketState::Listen));
/// assert_eq!(listening, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::SocketState;

/// A way out of the program's own, for [`crate::Stack::transmit`].
///
/// ```
/// use millrace::{Capabilities, Egress, Offload};
///
/// /// Keeps what leaves.
/// struct Tray(Vec<Vec<u8>>, Capabilities);
///
/// impl Egress for Tray {
///     fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
///         self.0.push([head, payload[0], payload[1]].concat());
///         true
///     }
///     fn capabilities(&self) -> Capabilities {
///         self.1
///     }
/// }
/// ```
#[doc(inline)]
pub use millrace_shard::Egress;

/// The name of a socket of [`crate::Stack::with_sockets`]'s.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let make = || stack.with_sockets(|sockets| sockets.stream(&Default::default()));
/// assert_ne!(make()?, make()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::SocketId;

/// What the calls of [`crate::Sockets`] return; sockets return [`std::io::Error`] with the same
/// number.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let outcome = stack.with_sockets(|sockets| {
///     let id = sockets.stream(&Default::default())?;
///     sockets.close(id)?;
///     sockets.accept(id)
/// });
/// assert_eq!(outcome.map_err(|error| error.errno()), Err(9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Error;

/// Which direction is shut by [`crate::Sockets::shutdown`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let outcome = stack.with_sockets(|sockets| {
///     let id = sockets.stream(&Default::default())?;
///     sockets.shutdown(id, millrace::How::Write)
/// });
/// assert_eq!(outcome, Err(millrace::Error::NotConnected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::How;

/// What can be known of a socket of [`crate::Stack::with_sockets`]'s: [`crate::Sockets::view`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
/// let view = stack.with_sockets(|sockets| sockets.view(id)).expect("it is there");
/// assert_eq!((view.received, view.local.port()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::View;

/// Facts of a socket: [`View::flags`].
///
/// ```
/// use millrace::ViewFlags;
///
/// /// What a person would say of a socket.
/// fn describe(flags: ViewFlags) -> String {
///     let words = [
///         (ViewFlags::LISTENING, "listens"),
///         (ViewFlags::DATAGRAM, "for datagrams"),
///         (ViewFlags::CONNECTING, "connecting"),
///         (ViewFlags::CONNECTED, "was connected"),
///         (ViewFlags::WRITABLE, "has room"),
///         (ViewFlags::END_OF_STREAM, "nothing more comes"),
///         (ViewFlags::WRITE_SHUT, "nothing more can be sent"),
///         (ViewFlags::HUNG_UP, "over"),
///         (ViewFlags::ERROR, "has an error"),
///         (ViewFlags::REPORTS, "has a report of an error"),
///     ];
///     let said = words.iter().filter(|(flag, _)| flags.contains(*flag));
///     said.map(|(_, word)| *word).collect::<Vec<_>>().join(", ")
/// }
///
/// assert_eq!(describe(ViewFlags::CONNECTED | ViewFlags::WRITABLE), "was connected, has room");
/// ```
#[doc(inline)]
pub use millrace_shard::ViewFlags;

/// Readiness, by Linux's numbers: [`View::poll`].
///
/// ```
/// use millrace::Poll;
/// let all = Poll::IN | Poll::OUT | Poll::ERR | Poll::HUP | Poll::RDHUP;
/// // As `epoll_wait` has them.
/// assert_eq!(all.bits(), 0x215d);
/// // What is new of one readiness beside another.
/// assert_eq!(all.difference(Poll::OUT | Poll::HUP), Poll::IN | Poll::ERR | Poll::RDHUP);
/// assert!(all.contains(Poll::OUT) && !Poll::empty().intersects(all));
/// ```
#[doc(inline)]
pub use millrace_shard::Poll;

/// How long Linux's `struct tcp_info` is, which [`crate::Sockets::tcp_info`] fills.
///
/// ```
/// assert_eq!(millrace::TCP_INFO_LEN, 104);
/// ```
#[doc(inline)]
pub use millrace_shard::TCP_INFO_LEN;

/// A congestion control: [`crate::Builder::congestion`], [`crate::TcpOptions::congestion`],
/// [`crate::TcpStream::set_congestion`].
///
/// ```
/// let stack = millrace::Builder::new().congestion(millrace::Algorithm::NewReno).build()?;
/// assert_eq!(stack.congestion("reno"), Some(millrace::Algorithm::NewReno));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::Algorithm;

/// What holds for every connection of a stack: [`crate::Builder::tcp`].
///
/// ```
/// let config = millrace::TcpConfig { initial_window: 4, ..Default::default() };
/// let stack = millrace::Builder::new().tcp(config).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::Config as TcpConfig;

/// When explicit congestion notification is used: [`crate::Builder::ecn`].
///
/// ```
/// let stack = millrace::Builder::new().ecn(millrace::Ecn::Off).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::Ecn;

/// When a path's size is looked for: [`crate::Builder::mtu_probing`].
///
/// ```
/// let stack = millrace::Builder::new().mtu_probing(millrace::MtuProbing::BlackHole).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::MtuProbing;

/// The times of keepalive: [`Options::keepalive`].
///
/// ```
/// let keepalive = millrace::Keepalive { idle_s: 60, ..Default::default() };
/// let mut options = millrace::Options { keepalive, ..Default::default() };
/// options.tcp.keepalive = Some(keepalive);
/// ```
#[doc(inline)]
pub use millrace_tcp::Keepalive;

/// What a connection knows of itself: [`crate::TcpStream::info`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// let info = client.info().expect("it is connected");
/// println!("{} us, {} bytes in flight at most", info.srtt_us, info.cwnd);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::Info;

/// Where a connection is in its life: [`Info::state`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// client.shutdown(std::net::Shutdown::Write)?;
/// let state = client.info().expect("it is connected").state;
/// assert!(state >= millrace::State::FinWait1 && state.can_receive());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_tcp::State;

/// A point in the stack's time: [`crate::Stack::now`], [`crate::Stack::poll_at`].
///
/// ```
/// use millrace::{Duration, Instant};
/// let later = Instant::from_millis(5) + Duration::from_micros(7);
/// assert_eq!((later - Instant::from_millis(5)).as_micros(), 7);
/// ```
#[doc(inline)]
pub use millrace_tcp::Instant;

/// A span of the stack's time.
///
/// ```
/// assert_eq!(millrace::Duration::from_secs(1), millrace::Duration::from_millis(1_000));
/// ```
#[doc(inline)]
pub use millrace_tcp::Duration;

/// What a [`crate::Link`] is made of; a program may bring its own: [`crate::Link::custom`].
///
/// ```
/// use millrace::{Capabilities, Mac, Offload, Port, PortCounters, RxMeta};
/// use std::{io, os::fd::BorrowedFd};
///
/// /// A plug whose ends are connected: what is sent comes back, a frame at a time.
/// #[derive(Default)]
/// struct Plug {
///     frame: Vec<u8>,
///     counters: PortCounters,
/// }
///
/// impl Port for Plug {
///     fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
///         let frame = std::mem::take(&mut self.frame);
///         buffer[..frame.len()].copy_from_slice(&frame);
///         let meta = RxMeta { len: frame.len(), checksum: Default::default(), segment_size: 0 };
///         Ok(Some(meta).filter(|meta| meta.len > 0))
///     }
///     fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> io::Result<bool> {
///         if !self.frame.is_empty() {
///             self.counters.tx_refused += 1;
///             return Ok(false);
///         }
///         self.frame = [head, payload[0], payload[1]].concat();
///         self.counters.tx_frames += 1;
///         Ok(true)
///     }
///     fn descriptor(&self) -> Option<BorrowedFd<'_>> {
///         // Polling is the only way.
///         None
///     }
///     fn capabilities(&self) -> Capabilities {
///         # let mac = Mac([2, 0, 0, 0, 0, 7]);
///         Capabilities { mac, mtu: 1500, ..wire() }
///     }
///     fn counters(&self) -> PortCounters {
///         self.counters
///     }
/// }
/// # fn wire() -> Capabilities {
/// #     Capabilities::plain(Mac([0; 6]), 0)
/// # }
///
/// let mut plug = Plug::default();
/// assert!(plug.send(&[0; 60], [&[], &[]], Offload::None)?);
/// // It collects none, its frames may be segments, and the kernel counts nothing at it.
/// assert!(plug.flush()? && plug.gives_segments() && plug.gauges().is_empty());
/// assert_eq!(plug.receive(&mut [0; 2048])?.map(|meta| meta.len), Some(60));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::Port;

/// What a [`Port`] says of a frame that it received.
///
/// ```
/// let meta = millrace::RxMeta { len: 60, checksum: millrace::ChecksumState::Valid,
///     segment_size: 0 };
/// ```
#[doc(inline)]
pub use millrace_port::RxMeta;

/// What went through a [`Port`].
///
/// ```
/// assert_eq!(millrace::PortCounters::default().rx_frames, 0);
/// ```
#[doc(inline)]
pub use millrace_port::Counters as PortCounters;

/// A link-layer address.
///
/// ```
/// let mac = millrace::Mac([2, 0, 0, 0, 0, 7]);
/// assert_eq!(mac.to_string(), "02:00:00:00:00:07");
/// assert!(mac.is_unicast());
/// ```
#[doc(inline)]
pub use millrace_wire::ethernet::Mac;

/// What a [`Port`] or an [`Egress`] can do.
///
/// ```
/// use millrace::{Capabilities, Mac};
/// // A plain wire: nothing is done for the stack.
/// let wire = Capabilities {
///     mac: Mac([2, 0, 0, 0, 0, 7]),
///     mtu: 1500,
///     tx_checksum: false,
///     tx_segmentation_max: 0,
///     rx_aggregated: false,
///     trusted_checksum: false,
///     queues: 1,
/// };
/// ```
#[doc(inline)]
pub use millrace_wire::offload::Capabilities;

/// What is known of a received frame's checksum: [`Frame::checksum`].
///
/// ```
/// assert_eq!(millrace::ChecksumState::default(), millrace::ChecksumState::Unchecked);
/// ```
#[doc(inline)]
pub use millrace_wire::offload::ChecksumState;

/// A frame that has come: [`crate::Stack::input`].
///
/// ```
/// let stack = millrace::Builder::new()
///     .link(millrace::Link::packets(1500))
///     .address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24)
///     .build()?;
/// let bytes = [0; 60];
/// stack.input(&millrace::Frame { bytes: &bytes, checksum: Default::default(), segment_size: 0 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_wire::offload::Frame;

/// What a [`Port`] or an [`Egress`] is to finish in a frame.
///
/// ```
/// // The TCP checksum of an IPv4 packet in an Ethernet frame is left to the port.
/// let offload = millrace::Offload::Checksum { start: 34, offset: 16 };
/// assert_ne!(offload, millrace::Offload::None);
/// ```
#[doc(inline)]
pub use millrace_wire::offload::Offload;

/// What a socket is bound to beside its address: [`Options::device`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let options = millrace::Options { device: millrace::Device::Loopback, ..Default::default() };
/// let socket = millrace::UdpSocket::bind_with(&stack, "127.0.0.1:53".parse()?, &options)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Device;

/// What is known of a datagram that has come to a socket of [`crate::Stack::with_sockets`]'s.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let outcome = stack.with_sockets(|sockets| {
///     let id = sockets.datagrams(&Default::default())?;
///     sockets.recv_from(id, &mut [0; 512], false).map(|record: millrace::Record| record.from)
/// });
/// assert_eq!(outcome, Err(millrace::Error::WouldBlock));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_wire::record::Record;
