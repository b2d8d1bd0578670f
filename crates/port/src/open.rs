//! Opens a link by its description: the one place that knows how each kind of port is made.

use std::io;
use std::net::IpAddr;
#[cfg(feature = "xdp")]
use std::sync::Arc;

use millrace_wire::ethernet::Mac;
use millrace_wire::vlan::Tag;

#[cfg(feature = "macvtap")]
use crate::macvtap;
use crate::packet::Station;
use crate::spec::{self, Spec};
#[cfg(feature = "xdp")]
use crate::xdp;
use crate::{Port, Relay, packet, tap, tun};

/// What is asked of a link beside its description.
///
/// ```
/// use millrace_port::open::Options;
/// let options = Options::new().queues(2).host([10, 77, 0, 1], 24).mtu(9000);
/// assert_eq!(options.hosts.len(), 1);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How many ports there are to be, each with queues of its own: one for each thread that owns
    /// one.
    pub queues: u16,
    /// The kernel's addresses at the other end, where that is the kernel, with the bits of their
    /// prefixes.
    pub hosts: Vec<(IpAddr, u8)>,
    /// Largest IP packet in bytes of a device that is made here.
    pub mtu: u16,
    /// The virtual LAN (IEEE 802.1Q) whose tag the frames have, 1 to 4094; without it they have
    /// none.
    pub vlan: Option<u16>,
    /// The link-layer address; a random, locally administered one when there is none.
    pub mac: Option<Mac>,
    /// The kernel's addresses that are shared, where the description says `address=shared`.
    pub shared: Vec<IpAddr>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: 1,
            hosts: Vec::new(),
            mtu: 1500,
            vlan: None,
            mac: None,
            shared: Vec::new(),
        }
    }
}

impl Options {
    /// One queue, an MTU of 1500 bytes, no addresses.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// assert_eq!((Options::new().queues, Options::new().mtu), (1, 1500));
    /// ```
    pub fn new() -> Options {
        Options::default()
    }

    /// Asks for `queues` ports.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// assert_eq!(Options::new().queues(4).queues, 4);
    /// ```
    #[must_use]
    pub fn queues(mut self, queues: u16) -> Options {
        self.queues = queues;
        self
    }

    /// Gives the kernel an address at its end of the link; may be called again.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// let options = Options::new().host([10, 77, 0, 1], 24).host([10, 78, 0, 1], 24);
    /// assert_eq!(options.hosts.len(), 2);
    /// ```
    #[must_use]
    pub fn host(mut self, address: impl Into<IpAddr>, prefix_len: u8) -> Options {
        self.hosts.push((address.into(), prefix_len));
        self
    }

    /// Sets the largest IP packet, in bytes.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// assert_eq!(Options::new().mtu(9000).mtu, 9000);
    /// ```
    #[must_use]
    pub fn mtu(mut self, mtu: u16) -> Options {
        self.mtu = mtu;
        self
    }

    /// Puts the link onto a virtual LAN.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// assert_eq!(Options::new().vlan(7).vlan, Some(7));
    /// ```
    #[must_use]
    pub fn vlan(mut self, id: u16) -> Options {
        self.vlan = Some(id);
        self
    }

    /// Sets the link-layer address.
    ///
    /// ```
    /// use millrace_port::open::Options;
    /// let mac = millrace_wire::ethernet::Mac([2, 0, 0, 0, 0, 7]);
    /// assert_eq!(Options::new().mac(mac).mac, Some(mac));
    /// ```
    #[must_use]
    pub fn mac(mut self, mac: Mac) -> Options {
        self.mac = Some(mac);
        self
    }

    fn tap(&self, name: Option<&str>, vlan: Option<Tag>) -> tap::Config {
        tap::Config {
            name: name.map(str::to_owned),
            up: true,
            hosts: self.hosts.clone(),
            vlan,
            mtu: self.mtu,
            queues: self.queues,
            mac: self.mac,
            ..tap::Config::default()
        }
    }

    fn packet(&self, name: &str, vlan: Option<Tag>) -> packet::Config {
        packet::Config {
            device: name.to_owned(),
            queues: self.queues,
            mac: self.mac,
            vlan,
        }
    }

    #[cfg(feature = "xdp")]
    fn xdp(&self, spec: &spec::Xdp) -> xdp::Config {
        xdp::Config {
            device: spec.name.clone(),
            queues: spec.queues,
            mode: spec.mode,
            busy_poll: spec.busy_poll,
            ports: self.queues,
            mac: self.mac,
            shared: self.shared.clone(),
        }
    }
}

/// A link does not open: the reason, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A TAP or TUN device.
    #[error(transparent)]
    Tap(#[from] tap::Error),
    /// A packet socket.
    #[error(transparent)]
    Packet(#[from] packet::Error),
    /// macvtap.
    #[cfg(feature = "macvtap")]
    #[error(transparent)]
    Macvtap(#[from] macvtap::Error),
    /// AF_XDP.
    #[cfg(feature = "xdp")]
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// Text that names no link, or an address that no host can have.
    #[error(transparent)]
    Spec(#[from] spec::Error),
    /// The link has no kernel at its other end.
    #[error("{0} has no other end whose addresses could be chosen; only a TAP or TUN device has")]
    Hosts(Spec),
    /// The link has a fixed number of ports.
    #[error("{spec} has one queue, and {queues} were asked for")]
    Queues {
        /// The link.
        spec: Spec,
        /// The number.
        queues: u16,
    },
    /// No number of a virtual LAN.
    #[error("there is no virtual LAN {0}; they are numbered 1 to 4094")]
    Vlan(u16),
    /// The port sees no tags: AF_XDP sockets and TUN devices do not, and a macvtap device is on one
    /// LAN.
    #[error(
        "this link sees no tags of virtual LANs; give packet:{0} with --vlan, or a device of that LAN (`ip link add link {0} name {0}.7 type vlan id 7`)"
    )]
    NoTags(String),
    /// The kernel's address is shared by an engine only, which keeps the ports of both apart.
    #[error(
        "address=shared is for `millrace run` and `millrace up`; leave it out, and give an address that nobody else has"
    )]
    Shared,
    /// The program was built without this kind of link.
    #[error("{spec} needs the feature `{feature}`, without which this program was built")]
    NotBuilt {
        /// The link.
        spec: Spec,
        /// The feature of the crate `millrace`.
        feature: &'static str,
    },
    /// No device that could be opened.
    #[error("{0} is no device; give tap, packet:NAME, macvtap:NAME or xdp:NAME")]
    NoDevice(Spec),
    /// The port receives only what is for its own address.
    #[error("{0} does not give all that its device receives; give packet:NAME or xdp:NAME")]
    NoRelay(Spec),
    /// The kernel refuses.
    #[error("cannot share the sockets of {spec}: {source}")]
    Station {
        /// The link.
        spec: Spec,
        /// What the kernel says.
        source: io::Error,
    },
}

/// A link that is open.
pub struct Opened {
    /// The ports, as many as were asked for.
    pub ports: Vec<Box<dyn Port + Send>>,
    /// The name of its device.
    pub name: String,
    /// Why it is not the fastest that there is, for a person.
    pub notes: Vec<String>,
    /// The station that all others are behind, if there is only one.
    pub only_station: Option<Mac>,
    /// The ports of shared addresses that are the stack's; none when it has addresses of its own.
    #[cfg(feature = "xdp")]
    pub held: Option<Arc<xdp::Held>>,
}

impl Opened {
    fn new<P: Port + Send + 'static>(name: &str, ports: Vec<P>) -> Opened {
        let boxed = |port| Box::new(port) as Box<dyn Port + Send>;
        Opened {
            ports: ports.into_iter().map(boxed).collect(),
            name: name.to_owned(),
            notes: Vec::new(),
            only_station: None,
            #[cfg(feature = "xdp")]
            held: None,
        }
    }
}

/// Opens a link.
///
/// # Errors
/// Each says what it met and what can be done; nothing is left behind.
pub fn open(spec: &Spec, options: &Options) -> Result<Opened, Error> {
    if !options.hosts.is_empty() && !spec.has_kernel_end() {
        return Err(Error::Hosts(spec.clone()));
    }
    if spec.shares_addresses() && options.shared.is_empty() {
        return Err(Error::Shared);
    }
    let tag = |id| Tag::new(id).ok_or(Error::Vlan(id));
    let vlan = options.vlan.map(tag).transpose()?;
    if vlan.is_some() && !matches!(spec, Spec::Tap { .. } | Spec::Packet { .. }) {
        let name = spec.name().unwrap_or("eth0");
        return Err(Error::NoTags(name.to_owned()));
    }
    Ok(match spec {
        Spec::Tap { name } => {
            let taps = tap::open(&options.tap(name.as_deref(), vlan))?;
            let name = taps[0].name().to_owned();
            Opened::new(&name, taps)
        }
        Spec::Tun { name } => {
            let tuns = tun::open(&options.tap(name.as_deref(), None))?;
            let name = tuns[0].name().to_owned();
            Opened {
                only_station: Some(tun::PEER),
                ..Opened::new(&name, tuns)
            }
        }
        Spec::AttachedTun { name } => {
            if options.queues != 1 {
                let (spec, queues) = (spec.clone(), options.queues);
                return Err(Error::Queues { spec, queues });
            }
            Opened {
                only_station: Some(tun::PEER),
                ..Opened::new(name, vec![tun::attach(name, options.mtu)?])
            }
        }
        Spec::Packet { name } => Opened::new(name, packet::open(&options.packet(name, vlan))?),
        #[cfg(feature = "macvtap")]
        Spec::Macvtap { name } => {
            let ports = macvtap::open(&macvtap::Config {
                device: name.clone(),
                queues: options.queues,
                mac: options.mac,
            })?;
            Opened::new(name, ports)
        }
        #[cfg(feature = "xdp")]
        Spec::Xdp(xdp) => {
            let opened = xdp::open(&options.xdp(xdp))?;
            Opened {
                notes: opened.notes,
                held: opened.held,
                ..Opened::new(&xdp.name, opened.ports)
            }
        }
        #[cfg(not(feature = "macvtap"))]
        Spec::Macvtap { .. } => return Err(not_built(spec)),
        #[cfg(not(feature = "xdp"))]
        Spec::Xdp(_) => return Err(not_built(spec)),
        Spec::Fabric(_) | Spec::Pair | Spec::Packets => return Err(Error::NoDevice(spec.clone())),
    })
}

#[cfg(not(all(feature = "macvtap", feature = "xdp")))]
fn not_built(spec: &Spec) -> Error {
    let (spec, feature) = (spec.clone(), spec.kind());
    Error::NotBuilt { spec, feature }
}

/// A link that is open for frames that go on to another port.
pub struct OpenedRelay {
    /// The ports, as many as were asked for.
    pub ports: Vec<Box<dyn Relay + Send>>,
    /// What changes the address that they receive for; none where they receive for all.
    pub stations: Vec<Station>,
    /// Why it is not the fastest that there is, for a person.
    pub notes: Vec<String>,
}

impl OpenedRelay {
    fn new<P: Relay + Send + 'static>(ports: Vec<P>) -> OpenedRelay {
        let boxed = |port| Box::new(port) as Box<dyn Relay + Send>;
        OpenedRelay {
            ports: ports.into_iter().map(boxed).collect(),
            stations: Vec::new(),
            notes: Vec::new(),
        }
    }
}

/// Opens a link for all that its device receives, to be passed on to another port.
///
/// # Errors
/// As [`open`], and [`Error::NoRelay`].
pub fn open_relay(spec: &Spec, options: &Options) -> Result<OpenedRelay, Error> {
    match spec {
        Spec::Packet { name } => {
            let ports = packet::open_relay(&options.packet(name, None))?;
            let stations: io::Result<_> = ports.iter().map(packet::Packet::station).collect();
            let stations = stations.map_err(|source| Error::Station {
                spec: spec.clone(),
                source,
            })?;
            Ok(OpenedRelay {
                stations,
                ..OpenedRelay::new(ports)
            })
        }
        #[cfg(feature = "xdp")]
        Spec::Xdp(xdp) if spec.can_relay() => {
            let opened = xdp::open_relay(&options.xdp(xdp))?;
            Ok(OpenedRelay {
                notes: opened.notes,
                ..OpenedRelay::new(opened.ports)
            })
        }
        _ => Err(Error::NoRelay(spec.clone())),
    }
}
