//! From what is wanted to a stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;

use millrace_shard::{Buffers, Config, ConflictDetection, Limits};
use millrace_tcp::congestion::Custom;
use millrace_tcp::{Algorithm, Ecn, MtuProbing};

use crate::build_error::{BuildError, refused};
use crate::core::Clock;
use crate::link::Link;
use crate::plan::{LINKS_MAX, Plan, Ready, unlike};
use crate::stack::Stack;
use crate::tasks::Remote;

/// What a stack is to be. Every setting has a default that works; without a link and an address it
/// serves loopback.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// let stack = millrace::Builder::new()
///     .link(millrace::Link::packets(1500))
///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
///     .gateway(Ipv4Addr::new(10, 0, 0, 1))
///     .receive_memory(64 << 20)
///     .build()?;
/// assert!(millrace::TcpListener::bind(&stack, "10.0.0.2:80").is_ok());
/// # Ok::<(), millrace::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder {
    /// One at least; without a link there is nothing but loopback.
    pub(crate) plans: Vec<Plan>,
    loopback: bool,
    claim: ConflictDetection,
    limits: Limits,
    buffers: Buffers,
    tcp: millrace_tcp::Config,
    any_address: bool,
    receive_memory: u64,
    secret: Option<[u8; 32]>,
    manual_clock: bool,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            plans: vec![Plan::default()],
            loopback: true,
            claim: ConflictDetection::Announce,
            limits: Limits::default(),
            buffers: Buffers::default(),
            tcp: millrace_tcp::Config::default(),
            any_address: false,
            receive_memory: 1 << 30,
            secret: None,
            manual_clock: false,
        }
    }
}

impl Builder {
    /// Nothing but loopback.
    ///
    /// ```
    /// let stack = millrace::Builder::new().build()?;
    /// assert!(millrace::TcpListener::bind(&stack, "127.0.0.1:80").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> Builder {
        Builder::default()
    }

    /// A link. May be said again, for a host on several networks: what [`Builder::address`],
    /// [`Builder::route`], [`Builder::gateway`] and [`Builder::mtu`] say is of the link that was
    /// said last, or of the first one if none was said yet. [`Link::none`] adds none. The front
    /// page has what several links mean to sockets: [Several links](crate#several-links).
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// let stack = millrace::Builder::new()
    ///     .link(millrace::Link::packets(1500))
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .link(millrace::Link::packets(9000))
    ///     .address(Ipv4Addr::new(172, 16, 0, 2), 16)
    ///     .gateway(Ipv4Addr::new(172, 16, 0, 1))
    ///     .build()?;
    /// assert_eq!(stack.links(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn link(mut self, link: Link) -> Builder {
        if link.capabilities().is_none() {
            return self;
        }
        let plan = self.last();
        match plan.link.capabilities() {
            None => plan.link = link,
            Some(_) => self.plans.push(Plan {
                link,
                ..Plan::default()
            }),
        }
        self
    }

    /// What is said of the last link.
    fn last(&mut self) -> &mut Plan {
        self.plans.last_mut().expect("there is one from the start")
    }

    /// An address of the host on the link that was said last, one at least on each. What is in its
    /// prefix of so many bits is on the link; no other link has the same prefix. May be said again.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .address("fd00::2".parse::<std::net::Ipv6Addr>()?, 64)
    ///     .build()?;
    /// assert!(millrace::TcpListener::bind(&stack, "[fd00::2]:80").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn address(mut self, address: impl Into<IpAddr>, prefix_len: u8) -> Builder {
        self.last().addresses.push((address.into(), prefix_len));
        self
    }

    /// What begins with these bits is behind that neighbour on the link that was said last. May be
    /// said again; the longest prefix of all links counts, and among equals that of the link that
    /// was said first.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .route(Ipv4Addr::new(10, 1, 0, 0), 16, Ipv4Addr::new(10, 0, 0, 1))
    ///     .build()?;
    /// assert!(millrace::UdpSocket::connected(&stack, "10.1.2.3:53".parse()?).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn route(
        mut self,
        prefix: impl Into<IpAddr>,
        prefix_len: u8,
        gateway: impl Into<IpAddr>,
    ) -> Builder {
        self.last()
            .routes
            .push((prefix.into(), prefix_len, gateway.into()));
        self
    }

    /// Everything that is on no link and has no route is behind that neighbour on the link that was
    /// said last. Each link answers by its own: a peer that is heard on one without a way back gets
    /// no answer.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .gateway(Ipv4Addr::new(10, 0, 0, 1))
    ///     .build()?;
    /// assert!(millrace::UdpSocket::connected(&stack, "192.0.2.1:53".parse()?).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gateway(self, gateway: impl Into<IpAddr>) -> Builder {
        match gateway.into() {
            IpAddr::V4(gateway) => self.route(Ipv4Addr::UNSPECIFIED, 0, gateway),
            IpAddr::V6(gateway) => self.route(Ipv6Addr::UNSPECIFIED, 0, gateway),
        }
    }

    /// Whether 127.0.0.0/8, `::1` and the own addresses are served inside; they are by default.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .loopback(false)
    ///     .build()?;
    /// assert!(millrace::TcpListener::bind(&stack, "127.0.0.1:80").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn loopback(mut self, served: bool) -> Builder {
        self.loopback = served;
        self
    }

    /// The largest IP packet in bytes on the link that was said last, if it is to be smaller than
    /// the link's.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let builder = builder.address(Ipv4Addr::new(10, 0, 0, 2), 24);
    /// assert!(matches!(builder.mtu(9000).build(), Err(millrace::BuildError::Mtu { most: 1500,
    ///     .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mtu(mut self, bytes: u16) -> Builder {
        self.last().mtu = Some(bytes);
        self
    }

    /// Whether packets to any address are for this host: on a link where everything that leaves
    /// somebody else arrives here, such as a TUN device that a namespace has as its default route.
    /// [`crate::TcpListener::anywhere`] and [`crate::UdpSocket::anywhere`] then hear all of it. It
    /// holds for all links; the answer leaves by the link by which it was asked for.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .any_address(true)
    ///     .build()?;
    /// assert!(millrace::UdpSocket::anywhere(&stack).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn any_address(mut self, on: bool) -> Builder {
        self.any_address = on;
        self
    }

    /// How the host comes by its addresses; by default it announces them.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = builder
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .claim(millrace::ConflictDetection::Nothing)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn claim(mut self, how: ConflictDetection) -> Builder {
        self.claim = how;
        self
    }

    /// Whether explicit congestion notification is asked for (RFC 3168); by default it is accepted.
    ///
    /// ```
    /// let stack = millrace::Builder::new().ecn(millrace::Ecn::Ask).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ecn(mut self, how: Ecn) -> Builder {
        self.tcp.ecn = how;
        self
    }

    /// Adds a congestion control of your own: what is returned stands for it on this builder's
    /// stacks ([`Builder::congestion`], [`crate::TcpOptions::congestion`],
    /// [`crate::TcpStream::set_congestion`]). See [`crate::congestion`] for how to write one.
    ///
    /// ```
    /// use millrace::congestion::{Acked, Controller, Custom, Window};
    ///
    /// /// A window that never grows.
    /// #[derive(Debug)]
    /// struct Constant;
    ///
    /// impl Controller for Constant {
    ///     fn on_ack(&mut self, _: &mut Window, _: &Acked, _: millrace::Instant) {}
    ///     fn reduced(&mut self, window: &Window, _: u32, _: u32, _: millrace::Instant) -> u32 {
    ///         window.cwnd
    ///     }
    ///     fn on_timeout(&mut self) {}
    /// }
    ///
    /// let mut builder = millrace::Builder::new();
    /// let constant = builder.add_congestion(Custom::new("constant", || Box::new(Constant)));
    /// let stack = builder.congestion(constant).build()?;
    /// assert_eq!(stack.congestion("constant"), Some(constant));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When there are 256 already.
    pub fn add_congestion(&mut self, custom: Custom) -> Algorithm {
        let at = u8::try_from(self.tcp.custom.len()).expect("no more than 256");
        self.tcp.custom.push(custom);
        Algorithm::Custom(at)
    }

    /// Congestion control of connections for which none is chosen; CUBIC by default.
    ///
    /// ```
    /// let stack = millrace::Builder::new().congestion(millrace::Algorithm::Bbr).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn congestion(mut self, algorithm: Algorithm) -> Builder {
        self.tcp.congestion = algorithm;
        self
    }

    /// Whether the largest segment that a path carries is looked for without the help of routers
    /// (RFC 4821).
    ///
    /// ```
    /// let stack = millrace::Builder::new().mtu_probing(millrace::MtuProbing::Always).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mtu_probing(mut self, when: MtuProbing) -> Builder {
        self.tcp.mtu_probing = when;
        self
    }

    /// The limits of every table and pool; they are shared out among the shards of an engine, and
    /// among the links of a stack.
    ///
    /// ```
    /// let limits = millrace::Limits { sockets: 16, ..millrace::Limits::default() };
    /// let stack = millrace::Builder::new().limits(limits).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn limits(mut self, limits: Limits) -> Builder {
        self.limits = limits;
        self
    }

    /// Sizes of a connection's buffers.
    ///
    /// ```
    /// let mut buffers = millrace::Buffers::default();
    /// buffers.receive_max = 1 << 20;
    /// let stack = millrace::Builder::new().buffers(buffers).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffers(mut self, buffers: Buffers) -> Builder {
        self.buffers = buffers;
        self
    }

    /// Timers, retries and all else that holds for every connection; [`Builder::congestion`] and
    /// the like change single things of it.
    ///
    /// ```
    /// let mut config = millrace::TcpConfig::default();
    /// config.time_wait = millrace::Duration::from_secs(10);
    /// let stack = millrace::Builder::new().tcp(config).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tcp(mut self, config: millrace_tcp::Config) -> Builder {
        self.tcp = config;
        self
    }

    /// Bytes that received data may take; 1 GiB by default. They are shared out among the shards of
    /// an engine, and among the links of a stack. What does not fit is not acknowledged.
    ///
    /// ```
    /// let stack = millrace::Builder::new().receive_memory(64 << 20).build()?;
    /// assert_eq!(stack.usage().send_memory, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn receive_memory(mut self, bytes: u64) -> Builder {
        self.receive_memory = bytes;
        self
    }

    /// Keys for hashes, initial sequence numbers and ports. By default they are drawn anew; say
    /// them only for runs that must repeat.
    ///
    /// ```
    /// // Twice the same run.
    /// let stack = millrace::Builder::new().secret([7; 32]).manual_clock().build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn secret(mut self, secret: [u8; 32]) -> Builder {
        self.secret = Some(secret);
        self
    }

    /// The time is the caller's: see [`Stack::poll_at`]. Calls that block make no sense then.
    ///
    /// ```
    /// let stack = millrace::Builder::new().manual_clock().build()?;
    /// stack.poll_at(millrace::Instant::from_micros(500));
    /// assert_eq!(stack.now(), millrace::Instant::from_micros(500));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn manual_clock(mut self) -> Builder {
        self.manual_clock = true;
        self
    }

    /// A stack on this thread.
    ///
    /// ```
    /// let stack = millrace::Builder::new().build()?;
    /// let port = millrace::TcpListener::bind(&stack, "127.0.0.1:0")?.local_addr()?.port();
    /// assert_ne!(port, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Each says what does not fit.
    pub fn build(self) -> Result<Stack, BuildError> {
        let configs = self.configs(1)?;
        let clock = self.clock();
        let remote = Remote::new().map_err(refused("cannot make a doorbell"))?;
        let epoll = waiting(&remote)?;
        let memory = self.receive_memory_of(1);
        let links = self.plans.into_iter().map(|plan| plan.link).zip(configs);
        let ready = |(link, config)| Ready {
            config,
            memory,
            link,
            peers: None,
        };
        Ok(Stack::new(links.map(ready).collect(), clock, remote, epoll))
    }

    /// What the links are to be, each on one of so many shards.
    pub(crate) fn configs(&self, shards: u16) -> Result<Vec<Config>, BuildError> {
        if !self.tcp.has(self.tcp.congestion) {
            return Err(BuildError::Congestion(self.tcp.congestion));
        }
        if self.plans.len() > LINKS_MAX {
            return Err(BuildError::Links {
                links: self.plans.len(),
                most: LINKS_MAX,
            });
        }
        let secret = match self.secret {
            Some(secret) => secret,
            None => random().map_err(refused("cannot get random bytes"))?,
        };
        let config = |plan: &Plan| {
            let mut config = Config::new(Ipv4Addr::LOCALHOST, 8, plan.link.mac(), secret);
            config.loopback = self.loopback;
            config.limits = match self.parts_of(shards) {
                1 => self.limits.clone(),
                parts => self.limits.shared_by(parts),
            };
            config.buffers = self.buffers;
            config.tcp = self.tcp.clone();
            config.conflict_detection = self.claim;
            config.any_address = self.any_address;
            plan.complete(config)
        };
        let configs = self.plans.iter().map(config);
        let configs = configs.collect::<Result<Vec<_>, _>>()?;
        unlike(&self.plans)?;
        Ok(configs)
    }

    /// Among how many limits and memory are shared out.
    fn parts_of(&self, shards: u16) -> u16 {
        shards * self.plans.len() as u16
    }

    pub(crate) fn clock(&self) -> Clock {
        match self.manual_clock {
            true => Clock::Callers,
            false => Clock::Real(std::time::Instant::now()),
        }
    }

    /// What each link has of it on each of so many shards, in bytes.
    pub(crate) fn receive_memory_of(&self, shards: u16) -> u64 {
        self.receive_memory / u64::from(self.parts_of(shards))
    }
}

/// What a stack waits with.
pub(crate) fn waiting(remote: &Remote) -> Result<OwnedFd, BuildError> {
    crate::stack::waiting(remote).map_err(refused("cannot set up the stack's waiting"))
}

pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut done = 0;
    while done < N {
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}
