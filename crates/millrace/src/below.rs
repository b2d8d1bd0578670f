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
///     .claim(millrace::Claim::Probe)
///     .build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Claim;

/// A socket option with its value: [`crate::TcpStream::set_option`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// client.set_option(millrace::Opt::KeepAlive(true))?;
/// client.set_option(millrace::Opt::KeepIdle(60))?;
/// assert!(client.set_option(millrace::Opt::KeepIdle(0)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Opt;

/// The name of a socket option: [`crate::TcpStream::option`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// assert_eq!(client.option(millrace::OptName::Ttl)?, millrace::Opt::Ttl(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::OptName;

/// Options that only sockets for datagrams have: [`Opt::Datagram`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let server = millrace::UdpSocket::bind(&stack, "127.0.0.1:53")?;
/// # let client = millrace::UdpSocket::bind(&stack, "127.0.0.1:0")?;
/// client.set_option(millrace::Opt::Datagram(millrace::DatagramOpt::Broadcast(true)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::DatagramOpt;

/// What becomes of packets that a path does not take whole: [`Opt::MtuDiscover`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// client.set_option(millrace::Opt::MtuDiscover(millrace::Discovery::Never))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Discovery;

/// Keys of a listener's cookies for TCP Fast Open: [`Opt::FastOpenKeys`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
/// # let (server, _) = listener.accept()?;
/// let keys = millrace::FastOpenKeys { primary: [7; 16], backup: None };
/// listener.set_option(millrace::Opt::FastOpen(16))?;
/// listener.set_option(millrace::Opt::FastOpenKeys(keys))?;
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
/// let what = millrace::SendTo { to: Some(server.local_addr()?), hops: Some(1), ..Default::default() };
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
/// stack.for_each_socket(|socket| println!("{:?} {} {}", socket.state, socket.local, socket.remote));
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
/// stack.for_each_socket(|socket| listening += usize::from(socket.state == millrace::SocketState::Listen));
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

/// What [`crate::Stack::with_shard`] lends.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_shard(|shard, _| {
///     shard.bind(millrace::Owner(0), ([127, 0, 0, 1], 80).into(), Default::default())
/// })?;
/// stack.with_shard(|shard, now| shard.close(id, now))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Shard;

/// The memory of the shard that [`crate::Stack::with_shard`] lends.
///
/// ```
/// use millrace::{HeapMemory, Shard, SocketId};
///
/// /// Whether there is something to read or to accept.
/// fn has_news(shard: &Shard<HeapMemory>, id: SocketId) -> bool {
///     shard.view(id).is_some_and(|view| view.poll().contains(millrace::Poll::IN))
/// }
/// ```
#[doc(inline)]
pub use millrace_shard::HeapMemory;

/// The name of a socket of [`crate::Stack::with_shard`]'s.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let make = || stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Default::default()));
/// assert_ne!(make()?, make()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::SocketId;

/// Of the sockets that a binding makes by [`crate::Stack::with_shard`], all have one owner: the stack's.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Default::default()))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Owner;

/// What the calls of a [`Shard`] return; sockets return [`std::io::Error`] with the same number.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let outcome = stack.with_shard(|shard, now| {
///     let id = shard.socket(millrace::Owner(0), &Default::default())?;
///     shard.close(id, now)?;
///     shard.accept(id)
/// });
/// assert_eq!(outcome.map_err(|error| error.errno()), Err(9));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Error;

/// Which direction is shut by [`Shard::shutdown`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let outcome = stack.with_shard(|shard, now| {
///     let id = shard.socket(millrace::Owner(0), &Default::default())?;
///     shard.shutdown(id, millrace::How::Write, now)
/// });
/// assert_eq!(outcome, Err(millrace::Error::NotConnected));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::How;

/// What can be known of a socket of [`crate::Stack::with_shard`]'s: [`Shard::view`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Default::default()))?;
/// let view = stack.with_shard(|shard, _| shard.view(id)).expect("it is there");
/// assert_eq!((view.received, view.local.port()), (0, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::View;

/// Facts of a socket: [`View::flags`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Default::default()))?;
/// let view = stack.with_shard(|shard, _| shard.view(id)).expect("it is there");
/// assert!(!view.flags.contains(millrace::ViewFlags::CONNECTED));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::ViewFlags;

/// Readiness, by Linux's numbers: [`View::poll`].
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// let id = stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Default::default()))?;
/// let view = stack.with_shard(|shard, _| shard.view(id)).expect("it is there");
/// // As Linux has it for a socket that was never connected.
/// assert!(view.poll().contains(millrace::Poll::HUP));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_shard::Poll;

/// How long Linux's `struct tcp_info` is, which [`Shard::linux_tcp_info`] fills.
///
/// ```
/// assert_eq!(millrace::TCP_INFO_LEN, 104);
/// ```
#[doc(inline)]
pub use millrace_shard::TCP_INFO_LEN;

/// Congestion control: the stack's algorithms, and how to bring one of your own.
///
/// ```
/// use millrace::congestion::Window;
///
/// let mut window = Window { cwnd: 10_000, ssthresh: 12_000 };
/// // Up to the threshold; the rest is the algorithm's own matter.
/// assert_eq!(window.slow_start(3_000), 1_000);
/// assert!(!window.in_slow_start());
/// ```
#[doc(inline)]
pub use millrace_tcp::congestion;

/// A congestion control: [`crate::Builder::congestion`], [`crate::TcpOptions::congestion`], [`crate::TcpStream::set_congestion`].
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

/// What a [`crate::Link`] is made of; a program may bring its own: see [`crate::Link::custom`].
///
/// ```
/// /// What went through some ports.
/// fn received(ports: &[Box<dyn millrace::Port + Send>]) -> u64 {
///     ports.iter().map(|port| port.counters().rx_frames).sum()
/// }
/// ```
#[doc(inline)]
pub use millrace_port::Port;

/// What a [`Port`] says of a frame that it received.
///
/// ```
/// let meta = millrace::RxMeta { len: 60, checksum: millrace::ChecksumState::Valid, segment_size: 0 };
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

/// Links by AF_XDP: [`crate::Link::xdp`].
///
/// ```
/// assert_eq!("copy".parse(), Ok(millrace::xdp::Mode::Copy));
/// ```
#[doc(inline)]
pub use millrace_port::xdp;

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

/// What is known of a datagram that has come to a socket of [`crate::Stack::with_shard`]'s.
///
/// ```
/// # let stack = millrace::Builder::new().build()?;
/// # let owner = millrace::Owner(0);
/// let outcome = stack.with_shard(|shard, _| {
///     let id = shard.datagram(owner, &Default::default(), u32::MAX)?;
///     shard.recv_from(id, &mut [0; 512], false).map(|record: millrace::Record| record.from)
/// });
/// assert_eq!(outcome, Err(millrace::Error::WouldBlock));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_wire::record::Record;
