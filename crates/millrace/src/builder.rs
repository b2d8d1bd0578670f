//! From what is wanted to a stack.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use millrace_shard::{Buffers, Claim, Config, HeapMemory, Ipv6, Limits, Shard, Via};
use millrace_tcp::congestion::Custom;
use millrace_tcp::{Algorithm, Ecn, Instant, MtuProbing};

use crate::core::Clock;
use crate::link::Link;
use crate::peers::Peers;
use crate::stack::Stack;
use crate::tasks::Remote;

/// What a stack is to be. Every setting has a default that works; without a link and an address it serves loopback.
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
    pub(crate) link: Link,
    addresses: Vec<(IpAddr, u8)>,
    routes: Vec<(IpAddr, u8, IpAddr)>,
    loopback: bool,
    mtu: Option<u16>,
    claim: Claim,
    limits: Limits,
    buffers: Buffers,
    tcp: millrace_tcp::Config,
    any_address: bool,
    receive_memory: u64,
    secret: Option<[u8; 32]>,
    manual_clock: bool,
}

/// Why there is no stack.
///
/// ```
/// let builder = millrace::Builder::new().address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24);
/// let error = builder.build().err().expect("there is no link to have it on");
/// assert!(matches!(error, millrace::BuildError::NoLink(_)));
/// println!("{error}");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A link and no address.
    #[error("the link has no address; give it one with `address`")]
    NoAddress,
    /// An address without a link.
    #[error("the address {0} is on no link; give one with `link`")]
    NoLink(IpAddr),
    /// More bits than an address has.
    #[error("a prefix of {bits} bits: {address} has {most}")]
    Prefix {
        /// The address.
        address: IpAddr,
        /// What was asked for.
        bits: u8,
        /// What there is.
        most: u8,
    },
    /// A congestion control that another builder was given.
    #[error("the congestion control {0:?} is not this stack's; add it with `add_congestion`")]
    Congestion(Algorithm),
    /// A gateway of the other family.
    #[error("{gateway} is no way to {prefix}: they are of different families")]
    Route {
        /// Where to.
        prefix: IpAddr,
        /// By whom.
        gateway: IpAddr,
    },
    /// The MTU is none.
    #[error("an MTU of {mtu} bytes: {least} to {most} are possible on this link")]
    Mtu {
        /// What was asked for.
        mtu: u16,
        /// Smallest: IPv6 needs more than IPv4 (RFC 8200 5).
        least: u16,
        /// Largest.
        most: u16,
    },
    /// Shards without a queue each.
    #[error("{shards} shards, and a link of {queues} queues: each shard needs its own")]
    Queues {
        /// Shards.
        shards: u16,
        /// Queues of the link.
        queues: usize,
    },
    /// The machine refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

pub(crate) fn refused(what: &'static str) -> impl Fn(io::Error) -> BuildError {
    move |error| BuildError::System { what, error }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            link: Link::none(),
            addresses: Vec::new(),
            routes: Vec::new(),
            loopback: true,
            mtu: None,
            claim: Claim::Announce,
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

    /// The link: one, and the last that is said. A program on several networks builds a stack for each.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let stack = millrace::Builder::new()
    ///     .link(millrace::Link::packets(1500))
    ///     .address(Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn link(mut self, link: Link) -> Builder {
        self.link = link;
        self
    }

    /// An address of the host, one at least on a link. What is in its prefix of so many bits is on the link. May be said again.
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
        self.addresses.push((address.into(), prefix_len));
        self
    }

    /// What begins with these bits is behind that neighbour. May be said again; the longest prefix counts.
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
        self.routes
            .push((prefix.into(), prefix_len, gateway.into()));
        self
    }

    /// Everything that is not on the link and has no route is behind that neighbour.
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

    /// The largest IP packet in bytes, if it is to be smaller than the link's.
    ///
    /// ```
    /// # use std::net::Ipv4Addr;
    /// # let builder = millrace::Builder::new().link(millrace::Link::packets(1500));
    /// let builder = builder.address(Ipv4Addr::new(10, 0, 0, 2), 24);
    /// assert!(matches!(builder.mtu(9000).build(), Err(millrace::BuildError::Mtu { most: 1500, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mtu(mut self, bytes: u16) -> Builder {
        self.mtu = Some(bytes);
        self
    }

    /// Whether packets to any address are for this host: on a link where everything that leaves somebody else arrives here, such as a TUN device that a namespace has
    /// as its default route. [`crate::TcpListener::anywhere`] and [`crate::UdpSocket::anywhere`] then hear all of it.
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
    ///     .claim(millrace::Claim::Nothing)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn claim(mut self, how: Claim) -> Builder {
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

    /// Adds a congestion control of your own: what is returned stands for it on this builder's stacks ([`Builder::congestion`], [`crate::TcpOptions::congestion`],
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

    /// Whether the largest segment that a path carries is looked for without the help of routers (RFC 4821).
    ///
    /// ```
    /// let stack = millrace::Builder::new().mtu_probing(millrace::MtuProbing::Always).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mtu_probing(mut self, when: MtuProbing) -> Builder {
        self.tcp.mtu_probing = when;
        self
    }

    /// The limits of every table and pool; those of an engine are shared out among its shards.
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

    /// Timers, retries and all else that holds for every connection; [`Builder::congestion`] and the like change single things of it.
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

    /// Bytes that received data may take; 1 GiB by default. Those of an engine are shared out among its shards. What does not fit is not acknowledged.
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

    /// Keys for hashes, initial sequence numbers and ports. By default they are drawn anew; say them only for runs that must repeat.
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
        let config = self.config()?;
        let clock = self.clock();
        let remote = Remote::new().map_err(refused("cannot make a doorbell"))?;
        let epoll = waiting(&remote)?;
        let memory = self.receive_memory;
        Ok(stack(config, memory, self.link, clock, remote, None, epoll))
    }

    /// What each shard is told.
    pub(crate) fn config(&self) -> Result<Config, BuildError> {
        if !self.tcp.has(self.tcp.congestion) {
            return Err(BuildError::Congestion(self.tcp.congestion));
        }
        let secret = match self.secret {
            Some(secret) => secret,
            None => random().map_err(refused("cannot get random bytes"))?,
        };
        let mut config = Config::new(Ipv4Addr::LOCALHOST, 8, self.link.mac(), secret);
        config.loopback = self.loopback;
        config.limits = self.limits.clone();
        config.buffers = self.buffers;
        config.tcp = self.tcp.clone();
        config.mtu = u16::MAX;
        let Some(capabilities) = self.link.capabilities() else {
            return match self.addresses.first() {
                Some(&(address, _)) => Err(BuildError::NoLink(address)),
                None => Ok(config),
            };
        };
        if self.addresses.is_empty() {
            return Err(BuildError::NoAddress);
        }
        // Where all others are behind one station there is nobody to tell, or to ask.
        let alone = self.link.only_station().is_some();
        config.claim = if alone { Claim::Nothing } else { self.claim };
        config.any_address = self.any_address;
        config.only_station = self.link.only_station();
        config.addresses.clear();
        let mut ipv6 = Ipv6::default();
        if alone {
            ipv6.probes = 0;
        }
        for &(address, bits) in &self.addresses {
            let most = if address.is_ipv4() { 32 } else { 128 };
            if bits > most {
                return Err(BuildError::Prefix {
                    address,
                    bits,
                    most,
                });
            }
            match address {
                IpAddr::V4(address) => config.addresses.push((address, bits)),
                IpAddr::V6(address) => ipv6.addresses.push((address, bits)),
            }
        }
        for &(prefix, prefix_len, gateway) in &self.routes {
            match (prefix, gateway) {
                (IpAddr::V4(prefix), IpAddr::V4(gateway)) => config.routes.push(Via {
                    prefix,
                    prefix_len,
                    gateway,
                }),
                (IpAddr::V6(prefix), IpAddr::V6(gateway)) => ipv6.routes.push(Via {
                    prefix,
                    prefix_len,
                    gateway,
                }),
                _ => return Err(BuildError::Route { prefix, gateway }),
            }
        }
        let least = if ipv6.addresses.is_empty() { 576 } else { 1280 };
        let mtu = self.mtu.unwrap_or(capabilities.mtu);
        if !(least..=capabilities.mtu).contains(&mtu) {
            return Err(BuildError::Mtu {
                mtu,
                least,
                most: capabilities.mtu,
            });
        }
        config.mtu = mtu;
        config.ipv6 = (!ipv6.addresses.is_empty()).then_some(ipv6);
        Ok(config)
    }

    pub(crate) fn clock(&self) -> Clock {
        match self.manual_clock {
            true => Clock::Callers,
            false => Clock::Real(std::time::Instant::now()),
        }
    }

    pub(crate) fn receive_memory_bytes(&self) -> u64 {
        self.receive_memory
    }
}

/// A stack of one shard.
pub(crate) fn stack(
    config: Config,
    receive_memory: u64,
    link: Link,
    clock: Clock,
    remote: Arc<Remote>,
    peers: Option<Peers>,
    epoll: OwnedFd,
) -> Stack {
    let memory = HeapMemory::new(receive_memory);
    let shard = Shard::new(config, memory, Instant::from_micros(0));
    Stack::new(shard, link, clock, remote, peers, epoll)
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
