//! What a stack is connected to.

use std::fmt;

use millrace_port::{Capabilities, Port, open, pair, tun};
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
/// let connection = millrace::TcpStream::connect_nonblocking(&client, "10.0.0.2:7".parse()?,
///     options)?;
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
    manual: Option<Capabilities>,
}

/// The link that a stack is to be on, before it is opened: a kind and a device, as on the command
/// line.
///
/// ```
/// use millrace::LinkSpec;
/// let spec: LinkSpec = "xdp:eth0,queues=4".parse()?;
/// assert_eq!((spec.name(), spec.has_kernel_end()), (Some("eth0"), false));
/// assert!("tap:web0".parse::<LinkSpec>()?.has_kernel_end());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::spec::Spec as LinkSpec;

/// A route by a gateway, as text and as values.
///
/// ```
/// let route: millrace::Route = "10.0.0.0/8 via 10.77.0.1".parse()?;
/// assert_eq!(route.prefix_len, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::spec::Route;

/// Reads an address with the length of its prefix.
///
/// ```
/// let (address, prefix_len) = millrace::parse_prefix("fd00::1/64")?;
/// assert!(address.is_ipv6() && prefix_len == 64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::spec::parse_prefix;

/// How a link is opened: queues, MTU, the kernel's addresses at its other end.
///
/// ```
/// let options = millrace::LinkOptions::new().queues(2).mtu(9000);
/// assert_eq!((options.queues, options.mtu), (2, 9000));
/// ```
#[doc(inline)]
pub use millrace_port::open::Options as LinkOptions;

/// A link does not open: the reason, and what to do about it.
///
/// ```no_run
/// use millrace::{Link, LinkError, LinkOptions};
/// let spec = "packet:eth0".parse()?;
/// match Link::open(&spec, &LinkOptions::new()) {
///     Err(LinkError::Packet(error)) => eprintln!("another device, then: {error}"),
///     other => drop(other?),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(inline)]
pub use millrace_port::open::Error as LinkError;

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
            manual: None,
        }
    }

    /// The caller's own: frames come by [`crate::Stack::input`] and leave by
    /// [`crate::Stack::transmit`], whose [`crate::Egress`] can do this.
    ///
    /// ```
    /// use millrace::{Capabilities, Mac};
    /// let link = millrace::Link::manual(Capabilities {
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
    pub fn manual(capabilities: Capabilities) -> Link {
        Link {
            manual: Some(capabilities),
            ..Link::none()
        }
    }

    /// The caller's own, for IP packets of up to `mtu` bytes without frames. They come and leave as
    /// with [`Link::manual`], behind an Ethernet header whose addresses mean nothing and whose type
    /// (the last two of its 14 bytes) is that of the packet. Nobody is asked where anybody is.
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
            ..Link::manual(Capabilities::plain(Mac([2, 0, 0, 0, 0, 1]), mtu))
        }
    }

    /// Opens a link by its description:
    ///
    /// | text | link | needs |
    /// |---|---|---|
    /// | `tap`, `tap:NAME` | a TAP device, at whose other end is the kernel | CAP_NET_ADMIN |
    /// | `tun`, `tun:NAME` | a TUN device: IP packets without frames, as for [`crate::Builder::any_address`] | CAP_NET_ADMIN |
    /// | `tun:NAME,attach` | a TUN device that was made for this user (`ip tuntap add dev NAME mode tun user USER`) and set up with the MTU of the options | nothing |
    /// | `packet:NAME` | a network device that is there already, beside the kernel, under a link-layer address of our own | CAP_NET_RAW |
    /// | `macvtap:NAME` | such a device, by a macvtap device on top of it | CAP_NET_ADMIN, CAP_SYS_ADMIN |
    /// | `xdp:NAME` | such a device, past the kernel's stack | CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF |
    /// | `packets` | as [`Link::packets`] | nothing |
    ///
    /// ```no_run
    /// use std::net::Ipv4Addr;
    /// use millrace::{Link, LinkOptions};
    /// let options = LinkOptions::new().host(Ipv4Addr::new(10, 77, 0, 1), 24);
    /// let link = Link::open(&"tap:web0".parse()?, &options)?;
    /// assert_eq!(link.name(), Some("web0"));
    /// for note in link.notes() {
    ///     eprintln!("{note}");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`LinkError`] says. A [`LinkSpec::Pair`] has two ends: see [`Link::pair`].
    pub fn open(spec: &LinkSpec, options: &LinkOptions) -> Result<Link, LinkError> {
        if *spec == LinkSpec::Packets {
            return Ok(Link::packets(options.mtu));
        }
        if spec.shares_addresses() {
            return Err(LinkError::Shared);
        }
        let opened = open::open(spec, options)?;
        Ok(Link {
            ports: opened.ports,
            name: Some(opened.name),
            notes: opened.notes,
            only_station: opened.only_station,
            manual: None,
        })
    }

    /// Two links that lead to each other in memory, for packets of up to `mtu` bytes. They cannot
    /// be waited for: poll both ends in turn.
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
        let link = |end| Link::custom(vec![Box::new(end)]);
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
        port.or(self.manual)
    }

    /// Whether its frames are the caller's.
    pub(crate) fn is_manual(&self) -> bool {
        self.manual.is_some()
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

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("name", &self.name)
            .field("ports", &self.ports.len())
            .finish()
    }
}
