//! What a stack is connected to.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::str::FromStr;

use millrace_port::{Capabilities, Port, macvtap, packet, pair, spec, tap, tun, xdp};
use millrace_wire::ethernet::Mac;

/// A link, opened: a source and sink of frames, or none.
///
/// ```
/// use std::io::{Read, Write};
/// use std::net::Ipv4Addr;
///
/// // Two hosts of one program, on a wire in memory.
/// let (one, other) = millrace::Link::pair(1500);
/// let host = |link, last| {
///     let address = Ipv4Addr::new(10, 0, 0, last);
///     millrace::Builder::new().link(link).address(address, 24).build()
/// };
/// let (client, server) = (host(one, 1)?, host(other, 2)?);
/// let listener = millrace::TcpListener::bind(&server, "10.0.0.2:7")?;
/// listener.set_nonblocking(true);
/// let options = millrace::TcpOptions::new();
/// let connection = millrace::TcpStream::begin(&client, "10.0.0.2:7".parse()?, options)?;
/// let accepted = loop {
///     client.poll();
///     server.poll();
///     if let Ok((stream, _)) = listener.accept() {
///         break stream;
///     }
/// };
/// assert_eq!(accepted.peer_addr()?, connection.local_addr()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Link {
    ports: Vec<Box<dyn Port + Send>>,
    name: Option<String>,
    notes: Vec<String>,
    /// The station that all others are behind, if there is only one.
    only_station: Option<Mac>,
    /// What it can do, if its frames are the caller's.
    callers: Option<Capabilities>,
}

/// Why a link does not open.
///
/// ```
/// let error = "cable:7".parse::<millrace::Link>().expect_err("there is no such kind");
/// assert!(matches!(error, millrace::LinkError::Spec(_)));
/// println!("{error}");
/// ```
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A TAP device.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// A packet socket.
    #[error(transparent)]
    Packet(#[from] packet::Error),
    /// macvtap.
    #[error(transparent)]
    Macvtap(#[from] macvtap::Error),
    /// AF_XDP.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// The kernel's address is shared by an engine only, which keeps the ports of both apart.
    #[error(
        "address=shared is for `millrace run` and `millrace up`; leave it out, and give an address that nobody else has"
    )]
    Shared,
    /// Text that names no link.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// The machine.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

/// A TAP device to be made.
///
/// ```no_run
/// let device = millrace::Tap {
///     name: Some("web0".to_owned()),
///     hosts: vec![("10.77.0.1".parse()?, 24)],
///     queues: 2,
///     ..millrace::Tap::default()
/// };
/// // Takes CAP_NET_ADMIN.
/// let link = millrace::Link::tap(&device)?;
/// assert_eq!(link.name(), Some("web0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tap {
    /// Its name; a free one (`mr0`, `mr1`, ...) if none.
    pub name: Option<String>,
    /// The kernel's addresses at its other end, with the bits of their prefixes. Without one the device is set up, and has no address.
    pub hosts: Vec<(IpAddr, u8)>,
    /// Largest IP packet in bytes.
    pub mtu: u16,
    /// Queues: one for each shard.
    pub queues: u16,
}

impl Default for Tap {
    fn default() -> Tap {
        Tap {
            name: None,
            hosts: Vec::new(),
            mtu: 1500,
            queues: 1,
        }
    }
}

impl Link {
    /// No link: a host of its own, with loopback at most.
    ///
    /// ```
    /// let stack = millrace::Builder::new().link(millrace::Link::none()).build()?;
    /// assert!(millrace::TcpListener::bind(&stack, "[::1]:80").is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn none() -> Link {
        Link {
            ports: Vec::new(),
            name: None,
            notes: Vec::new(),
            only_station: None,
            callers: None,
        }
    }

    /// The caller's own: frames come by [`crate::Stack::input`] and leave by [`crate::Stack::transmit`], whose [`crate::Egress`] can do this.
    ///
    /// ```
    /// use millrace::{Capabilities, Mac};
    /// let link = millrace::Link::callers(Capabilities {
    ///     mac: Mac([2, 0, 0, 0, 0, 7]),
    ///     mtu: 1500,
    ///     tx_checksum: false,
    ///     tx_segmentation_max: 0,
    ///     rx_aggregated: false,
    ///     trusted_checksum: false,
    ///     queues: 1,
    /// });
    /// let stack = millrace::Builder::new()
    ///     .link(link)
    ///     .address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .manual_clock()
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn callers(capabilities: Capabilities) -> Link {
        Link {
            callers: Some(capabilities),
            ..Link::none()
        }
    }

    /// The caller's own, for IP packets of up to `mtu` bytes without frames. They come and leave as with [`Link::callers`], behind an Ethernet header whose addresses
    /// mean nothing and whose type (the last two of its 14 bytes) is that of the packet. Nobody is asked where anybody is.
    ///
    /// ```
    /// let stack = millrace::Builder::new()
    ///     .link(millrace::Link::packets(1500))
    ///     .address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24)
    ///     .manual_clock()
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn packets(mtu: u16) -> Link {
        Link {
            only_station: Some(tun::PEER),
            ..Link::callers(Capabilities {
                mac: Mac([2, 0, 0, 0, 0, 1]),
                mtu,
                tx_checksum: false,
                tx_segmentation_max: 0,
                rx_aggregated: false,
                trusted_checksum: false,
                queues: 1,
            })
        }
    }

    /// A TAP device, at whose other end is the kernel. Needs CAP_NET_ADMIN.
    ///
    /// ```no_run
    /// let link = millrace::Link::tap(&millrace::Tap {
    ///     hosts: vec![("10.77.0.1".parse()?, 24)],
    ///     ..millrace::Tap::default()
    /// })?;
    /// println!("on {}", link.name().expect("it has one"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Tap`].
    pub fn tap(device: &Tap) -> Result<Link, LinkError> {
        let taps = tap::open(&tap::Config {
            name: device.name.clone(),
            up: true,
            hosts: device.hosts.clone(),
            mtu: device.mtu,
            queues: device.queues,
            ..tap::Config::default()
        })?;
        let name = taps.first().map(|tap| tap.name().to_owned());
        Ok(Link::of(name, taps))
    }

    /// A TUN device, which carries IP packets and no frames: for [`crate::Builder::any_address`]. Needs CAP_NET_ADMIN, in the user namespace of the network namespace.
    ///
    /// ```no_run
    /// let link = millrace::Link::tun(&millrace::Tap {
    ///     name: Some("out0".to_owned()),
    ///     mtu: 9000,
    ///     ..millrace::Tap::default()
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Tap`].
    pub fn tun(device: &Tap) -> Result<Link, LinkError> {
        let tuns = tun::open(&tap::Config {
            name: device.name.clone(),
            up: true,
            hosts: device.hosts.clone(),
            mtu: device.mtu,
            queues: device.queues,
            ..tap::Config::default()
        })?;
        let name = tuns.first().map(|tun| tun.name().to_owned());
        Ok(Link {
            only_station: Some(tun::PEER),
            ..Link::of(name, tuns)
        })
    }

    /// A TUN device that somebody has made for this user, and set up with this MTU (`ip tuntap add dev NAME mode tun user USER`). Takes no privilege.
    ///
    /// ```no_run
    /// let link = millrace::Link::attach_tun("out0", 1500)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Tap`].
    pub fn attach_tun(name: &str, mtu: u16) -> Result<Link, LinkError> {
        let port = tun::attach(name, mtu)?;
        Ok(Link {
            only_station: Some(tun::PEER),
            ..Link::of(Some(name.to_owned()), vec![port])
        })
    }

    /// A network device that is there already, beside the kernel, under a link-layer address of our own. Needs CAP_NET_RAW.
    ///
    /// ```no_run
    /// let link = millrace::Link::packet("eth0", 1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Packet`].
    pub fn packet(device: &str, queues: u16) -> Result<Link, LinkError> {
        let sockets = packet::open(&packet::Config {
            device: device.to_owned(),
            queues,
            mac: None,
            vlan: None,
        })?;
        Ok(Link::of(Some(device.to_owned()), sockets))
    }

    /// A network device by a macvtap device on top of it, under a link-layer address of our own. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
    ///
    /// ```no_run
    /// let link = millrace::Link::macvtap("eth0", 1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Macvtap`].
    pub fn macvtap(device: &str, queues: u16) -> Result<Link, LinkError> {
        let ports = macvtap::open(&macvtap::Config {
            device: device.to_owned(),
            queues,
            mac: None,
        })?;
        Ok(Link::of(Some(device.to_owned()), ports))
    }

    /// A network device by AF_XDP: past the kernel's stack, under a link-layer address of our own. Needs CAP_NET_RAW and CAP_BPF. What a person should know of it
    /// is in [`Link::notes`].
    ///
    /// ```no_run
    /// use millrace::xdp;
    /// let link = millrace::Link::xdp(&xdp::Config {
    ///     device: "eth0".to_owned(),
    ///     queues: None,
    ///     mode: xdp::Mode::Auto,
    ///     busy_poll: xdp::BusyPoll::Auto,
    ///     ports: 1,
    ///     mac: None,
    ///     shared: Vec::new(),
    /// })?;
    /// for note in link.notes() {
    ///     eprintln!("{note}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`LinkError::Xdp`], [`LinkError::Shared`].
    pub fn xdp(config: &xdp::Config) -> Result<Link, LinkError> {
        if !config.shared.is_empty() {
            return Err(LinkError::Shared);
        }
        let opened = xdp::open(config)?;
        Ok(Link {
            notes: opened.notes,
            ..Link::of(Some(config.device.clone()), opened.ports)
        })
    }

    /// Two links that lead to each other in memory, for packets of up to `mtu` bytes. They cannot be waited for: poll both ends in turn.
    ///
    /// ```
    /// let (one, other) = millrace::Link::pair(1500);
    /// let stack = millrace::Builder::new()
    ///     .link(one)
    ///     .address(std::net::Ipv4Addr::new(10, 0, 0, 1), 24)
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pair(mtu: u16) -> (Link, Link) {
        let (one, two) = pair::pair(pair::Config {
            mtu,
            offload: true,
            ..pair::Config::default()
        });
        let link = |end| Link::of(None, vec![end]);
        (link(one), link(two))
    }

    /// A port of your own making; one for each shard.
    ///
    /// ```
    /// use std::{io, os::fd::BorrowedFd};
    /// use millrace::{Capabilities, Mac, Offload, Port, PortCounters, RxMeta};
    ///
    /// /// A cable that nobody has plugged in.
    /// struct Unplugged;
    ///
    /// impl Port for Unplugged {
    ///     fn receive(&mut self, _: &mut [u8]) -> io::Result<Option<RxMeta>> {
    ///         Ok(None)
    ///     }
    ///     fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> io::Result<bool> {
    ///         Ok(false)
    ///     }
    ///     fn descriptor(&self) -> Option<BorrowedFd<'_>> {
    ///         None
    ///     }
    ///     fn capabilities(&self) -> Capabilities {
    ///         Capabilities {
    ///             mac: Mac([2, 0, 0, 0, 0, 7]),
    ///             mtu: 1500,
    ///             tx_checksum: false,
    ///             tx_segmentation_max: 0,
    ///             rx_aggregated: false,
    ///             trusted_checksum: false,
    ///             queues: 1,
    ///         }
    ///     }
    ///     fn counters(&self) -> PortCounters {
    ///         PortCounters::default()
    ///     }
    /// }
    ///
    /// let link = millrace::Link::custom(vec![Box::new(Unplugged)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn custom(ports: Vec<Box<dyn Port + Send>>) -> Link {
        Link {
            ports,
            ..Link::none()
        }
    }

    fn of<P: Port + Send + 'static>(name: Option<String>, ports: Vec<P>) -> Link {
        Link {
            ports: boxed(ports),
            name,
            ..Link::none()
        }
    }

    pub(crate) fn only_station(&self) -> Option<Mac> {
        self.only_station
    }

    /// The name of its device, if it has one.
    ///
    /// ```
    /// assert_eq!(millrace::Link::none().name(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Why it is not the fastest that there is, if it is not.
    ///
    /// ```
    /// assert!(millrace::Link::none().notes().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    pub(crate) fn capabilities(&self) -> Option<Capabilities> {
        let port = self.ports.first().map(|port| port.capabilities());
        port.or(self.callers)
    }

    /// Whether its frames are the caller's.
    pub(crate) fn is_callers(&self) -> bool {
        self.callers.is_some()
    }

    /// How many shards it has ports for; none if it has none at all.
    pub(crate) fn queues(&self) -> usize {
        self.ports.len()
    }

    /// One link for each port.
    pub(crate) fn split(self) -> impl Iterator<Item = Link> {
        let name = self.name;
        self.ports.into_iter().map(move |port| Link {
            ports: vec![port],
            name: name.clone(),
            ..Link::none()
        })
    }

    pub(crate) fn into_port(self) -> Option<Box<dyn Port + Send>> {
        self.ports.into_iter().next()
    }

    /// The link-layer address that frames leave under.
    pub(crate) fn mac(&self) -> Mac {
        self.capabilities()
            .map_or(Mac([2, 0, 0, 0, 0, 1]), |capabilities| capabilities.mac)
    }
}

fn boxed<P: Port + Send + 'static>(ports: Vec<P>) -> Vec<Box<dyn Port + Send>> {
    ports
        .into_iter()
        .map(|port| Box::new(port) as Box<dyn Port + Send>)
        .collect()
}

impl FromStr for Link {
    type Err = LinkError;

    /// Opens the link that the text names, as on the command line: `tap`, `tap:NAME`, `packet:NAME`, `macvtap:NAME`, `xdp:NAME`.
    fn from_str(text: &str) -> Result<Link, LinkError> {
        match text.parse::<spec::Spec>()? {
            spec::Spec::Tap { name } => Link::tap(&Tap {
                name,
                ..Tap::default()
            }),
            spec::Spec::Packet { name } => Link::packet(&name, 1),
            spec::Spec::Macvtap { name } => Link::macvtap(&name, 1),
            spec::Spec::Xdp { shared: true, .. } => Err(LinkError::Shared),
            spec::Spec::Xdp {
                name,
                queues,
                mode,
                busy_poll,
                ..
            } => Link::xdp(&xdp::Config {
                device: name,
                queues,
                mode,
                busy_poll,
                ports: 1,
                mac: None,
                shared: Vec::new(),
            }),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("name", &self.name)
            .field("ports", &self.ports.len())
            .finish()
    }
}
