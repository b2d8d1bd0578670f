//! How a link is named on the command line, in configuration and in programs; addresses and routes
//! on it.

mod device_name;
mod error;
mod fabric;
mod prefix;
mod route;
mod xdp;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

pub use device_name::check_device_name;
pub use error::Error;
pub use prefix::Prefix;
pub use route::{Route, parse_prefix};
pub use xdp::{BusyPoll, Mode, Xdp};

/// A link to be opened. Those above `port` ask what a link is by the methods, and need not know its
/// kind.
///
/// ```
/// use millrace_port::spec::Spec;
/// assert_eq!("tap:mr7".parse(), Ok(Spec::Tap { name: Some("mr7".into()) }));
/// assert_eq!("tap".parse(), Ok(Spec::Tap { name: None }));
/// assert_eq!("packet:eth0".parse(), Ok(Spec::Packet { name: "eth0".into() }));
/// let xdp = "xdp:eth0,queues=4,mode=copy".parse::<Spec>().unwrap();
/// assert_eq!(xdp.to_string(), "xdp:eth0,queues=4,mode=copy");
/// assert!("ring".parse::<Spec>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "String", into = "String"))]
#[non_exhaustive]
pub enum Spec {
    /// `tap` or `tap:NAME`.
    Tap {
        /// Name of the device to be created; a free one when there is none.
        name: Option<String>,
    },
    /// `tun` or `tun:NAME`: as a TAP device, with IP packets instead of frames.
    Tun {
        /// Name of the device to be created; a free one when there is none.
        name: Option<String>,
    },
    /// `tun:NAME,attach`: a TUN device that was made for this user.
    AttachedTun {
        /// Name of the device, which is there already.
        name: String,
    },
    /// `packet:NAME`.
    Packet {
        /// Name of the device, which is there already.
        name: String,
    },
    /// `macvtap:NAME`.
    Macvtap {
        /// Name of the device, which is there already.
        name: String,
    },
    /// `xdp:NAME`, with options after commas.
    Xdp(Xdp),
    /// `fabric:NODE`, with options after commas: messages between nodes. Whoever knows messages
    /// opens it (`millrace fabric ip` does); [`crate::open`] does not.
    Fabric(Fabric),
    /// `pair`: two ends in memory, of which the program has both.
    Pair,
    /// `packets`: IP packets that the program passes in and takes out itself.
    Packets,
}

/// Messages between nodes: through memory of this host, or over another link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fabric {
    /// The node of this end: a number that no other node has.
    pub node: u16,
    /// `mtu=N`: the largest packet in bytes.
    pub mtu: Option<u16>,
    /// `inline=off`: small packets go from a buffer, as others do.
    pub inline: bool,
    /// `elide=off`: checksums are finished before packets are sent.
    pub elide_checksums: bool,
    /// `batch=off`: each packet has a wake-up of its own.
    pub batch: bool,
    /// `dir=PATH`: the directory where ports of this host find each other.
    pub directory: Option<String>,
    /// `peer=ADDRESS@NODE`, any number of times: which node has an address.
    pub table: Vec<(IpAddr, u16)>,
    /// `over=LINK`, the last option: the link that messages go over, in place of memory.
    pub over: Option<Box<Spec>>,
}

impl Fabric {
    /// The node `node`, with nothing else said.
    pub fn new(node: u16) -> Fabric {
        Fabric {
            node,
            mtu: None,
            inline: true,
            elide_checksums: true,
            batch: true,
            directory: None,
            table: Vec::new(),
            over: None,
        }
    }
}

impl Spec {
    /// The word before the colon.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert_eq!("xdp:eth0,queues=4".parse::<Spec>()?.kind(), "xdp");
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn kind(&self) -> &'static str {
        match self {
            Spec::Tap { .. } => "tap",
            Spec::Tun { .. } | Spec::AttachedTun { .. } => "tun",
            Spec::Packet { .. } => "packet",
            Spec::Macvtap { .. } => "macvtap",
            Spec::Xdp(_) => "xdp",
            Spec::Fabric(_) => "fabric",
            Spec::Pair => "pair",
            Spec::Packets => "packets",
        }
    }

    /// The name of its device; none for one that gets a free name, or a link without a device.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert_eq!("tap:web0".parse::<Spec>()?.name(), Some("web0"));
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn name(&self) -> Option<&str> {
        match self {
            Spec::Tap { name } | Spec::Tun { name } => name.as_deref(),
            Spec::AttachedTun { name } | Spec::Packet { name } | Spec::Macvtap { name } => {
                Some(name)
            }
            Spec::Xdp(xdp) => Some(&xdp.name),
            Spec::Fabric(_) | Spec::Pair | Spec::Packets => None,
        }
    }

    /// The name of its device, if that is a network device of this machine that other stations are
    /// behind.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert_eq!("packet:eth0".parse::<Spec>()?.wire(), Some("eth0"));
    /// assert_eq!("tap:web0".parse::<Spec>()?.wire(), None);
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn wire(&self) -> Option<&str> {
        match self {
            Spec::Packet { name } | Spec::Macvtap { name } => Some(name),
            Spec::Xdp(xdp) => Some(&xdp.name),
            _ => None,
        }
    }

    /// Whether opening it makes a device, at whose other end is the kernel of this machine: the
    /// kernel's addresses there, and the MTU, can be chosen.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("tun:vpn0".parse::<Spec>()?.has_kernel_end() && !"packet:eth0".parse::<Spec>()?
    ///     .has_kernel_end());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn has_kernel_end(&self) -> bool {
        matches!(self, Spec::Tap { .. } | Spec::Tun { .. })
    }

    /// Whether it is no device: the program has both ends, or passes packets itself.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("pair".parse::<Spec>()?.is_in_memory() && !"tap".parse::<Spec>()?.is_in_memory());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn is_in_memory(&self) -> bool {
        matches!(self, Spec::Pair | Spec::Packets)
    }

    /// Whether it carries Ethernet frames of a device, which an engine takes.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("macvtap:eth0".parse::<Spec>()?.has_frames() && !"tun".parse::<Spec>()?
    ///     .has_frames());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn has_frames(&self) -> bool {
        matches!(self, Spec::Tap { .. }) || self.wire().is_some()
    }

    /// Whether it gives all that a device receives, for frames that go on to another port.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("packet:eth0".parse::<Spec>()?.can_relay() && !"tap".parse::<Spec>()?.can_relay());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn can_relay(&self) -> bool {
        matches!(
            self,
            Spec::Packet { .. } | Spec::Xdp(Xdp { shared: false, .. })
        )
    }

    /// Whether its addresses are the kernel's as well.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("xdp:eth0,address=shared".parse::<Spec>()?.shares_addresses()
    ///     && !"xdp:eth0".parse::<Spec>()?.shares_addresses());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn shares_addresses(&self) -> bool {
        matches!(self, Spec::Xdp(Xdp { shared: true, .. }))
    }

    /// Whether it goes past the kernel's stack by AF_XDP sockets.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert!("xdp:eth0".parse::<Spec>()?.is_xdp() && !"packet:eth0".parse::<Spec>()?.is_xdp());
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn is_xdp(&self) -> bool {
        matches!(self, Spec::Xdp(_))
    }

    /// How many queues its device has; `None` when opening it makes as many as are asked for.
    ///
    /// ```
    /// use millrace_port::spec::Spec;
    /// assert_eq!("tap".parse::<Spec>()?.queues(), None);
    /// # Ok::<(), millrace_port::spec::Error>(())
    /// ```
    pub fn queues(&self) -> Option<u16> {
        match self {
            Spec::Xdp(Xdp { name, queues, .. }) => {
                let there = crate::device::queues(name);
                Some(queues.map_or(there, |queues| queues.min(there)))
            }
            Spec::AttachedTun { .. } | Spec::Fabric(_) | Spec::Pair | Spec::Packets => Some(1),
            _ => None,
        }
    }
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Spec, Error> {
        let named = |name: &str| check_device_name(name).map(|()| name.to_owned());
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (text, None),
        };
        Ok(match (kind, rest) {
            ("tap", rest) => Spec::Tap {
                name: rest.map(named).transpose()?,
            },
            ("tun", Some(rest)) if rest.ends_with(",attach") => Spec::AttachedTun {
                name: named(&rest[..rest.len() - ",attach".len()])?,
            },
            ("tun", rest) => Spec::Tun {
                name: rest.map(named).transpose()?,
            },
            ("packet", Some(rest)) => Spec::Packet { name: named(rest)? },
            ("macvtap", Some(rest)) => Spec::Macvtap { name: named(rest)? },
            ("xdp", Some(rest)) => Spec::Xdp(rest.parse()?),
            ("fabric", Some(rest)) => Spec::Fabric(rest.parse()?),
            ("pair", None) => Spec::Pair,
            ("packets", None) => Spec::Packets,
            _ => return Err(Error::Kind(kind.to_owned())),
        })
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Tap { name: None } => f.write_str("tap"),
            Spec::Tap { name: Some(name) } => write!(f, "tap:{name}"),
            Spec::Tun { name: None } => f.write_str("tun"),
            Spec::Tun { name: Some(name) } => write!(f, "tun:{name}"),
            Spec::AttachedTun { name } => write!(f, "tun:{name},attach"),
            Spec::Packet { name } => write!(f, "packet:{name}"),
            Spec::Macvtap { name } => write!(f, "macvtap:{name}"),
            Spec::Xdp(xdp) => write!(f, "xdp:{xdp}"),
            Spec::Fabric(fabric) => write!(f, "fabric:{fabric}"),
            Spec::Pair => f.write_str("pair"),
            Spec::Packets => f.write_str("packets"),
        }
    }
}

impl TryFrom<String> for Spec {
    type Error = Error;

    fn try_from(text: String) -> Result<Spec, Error> {
        text.parse()
    }
}

impl From<Spec> for String {
    fn from(spec: Spec) -> String {
        spec.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn an_unknown_kind_is_told_which_there_are() {
        for text in ["wire:eth0", "", "tap2", "TAP", ":x", "packet", "pair:x"] {
            let message = text.parse::<Spec>().expect_err("no kind").to_string();
            assert!(message.contains("tap:NAME"), "{message}");
        }
        assert!(
            "wire:eth0"
                .parse::<Spec>()
                .expect_err("no kind")
                .to_string()
                .contains("`wire`")
        );
    }

    #[test]
    fn names_are_those_of_devices() {
        for name in [
            "",
            "sixteen-letters-",
            "a/b",
            "a b",
            "mr%d",
            ".",
            "..",
            "-x",
            "é",
        ] {
            assert_eq!(
                format!("tap:{name}").parse::<Spec>(),
                Err(Error::Name(name.to_owned()))
            );
        }
        for text in [
            "tap",
            "tap:mr0",
            "tap:fifteen-letters",
            "macvtap:eth0",
            "tun",
            "tun:mr0",
            "tun:mr0,attach",
            "pair",
            "packets",
        ] {
            assert_eq!(text.parse::<Spec>().expect("sound").to_string(), text);
        }
    }

    #[test]
    fn options_of_af_xdp_are_checked() {
        for option in [
            "",
            "queues",
            "queues=0",
            "queues=257",
            "mode=",
            "mode=fast",
            "busy-poll=always",
            "speed=1",
        ] {
            let text = format!("xdp:eth0,{option}");
            assert_eq!(text.parse::<Spec>(), Err(Error::Option(option.to_owned())));
        }
        for text in [
            "xdp:eth0",
            "xdp:eth0,queues=2",
            "xdp:eth0,mode=generic",
            "xdp:eth0,mode=copy,busy-poll=on",
            "xdp:eth0,address=shared",
        ] {
            assert_eq!(text.parse::<Spec>().expect("sound").to_string(), text);
        }
    }

    #[test]
    fn options_of_messages_are_checked() {
        for option in [
            "",
            "mtu=67",
            "mtu=70000",
            "inline=yes",
            "elide",
            "dir=",
            "peer=10.0.0.1",
            "peer=10.0.0.1@70000",
            "speed=1",
            "over=pair",
            "over=fabric:8",
            "over=xdp:eth0,address=shared",
        ] {
            let text = format!("fabric:7,{option}");
            let error = Error::FabricOption(option.to_owned());
            assert_eq!(text.parse::<Spec>(), Err(error), "{text}");
        }
        for text in [
            "fabric:7",
            "fabric:65535,mtu=9000,inline=off,elide=off,batch=off",
            "fabric:7,dir=/run/x,peer=10.0.0.2@8,peer=fd00::9@9",
            "fabric:7,mtu=1500,over=xdp:eth0,queues=1",
        ] {
            assert_eq!(text.parse::<Spec>().expect("sound").to_string(), text);
        }
    }

    #[test]
    fn prefixes_have_room_for_two_hosts() {
        for text in [
            "10.0.0.1",
            "10.0.0.1/31",
            "10.0.0.1/0",
            "10.0.0.1/33",
            "10.0.0/8",
            "x/8",
            "10.0.0.1/",
        ] {
            assert_eq!(text.parse::<Prefix>(), Err(Error::Prefix(text.to_owned())));
        }
        for text in [
            "10.0.0.0/24",
            "10.0.0.255/24",
            "10.0.0.3/30",
            "224.0.0.1/24",
        ] {
            assert!(
                matches!(text.parse::<Prefix>(), Err(Error::NotAHost(_))),
                "{text}"
            );
        }
        let prefix: Prefix = "10.77.0.1/24".parse().expect("sound");
        assert_eq!(
            (prefix.mask(), prefix.to_string()),
            (Ipv4Addr::new(255, 255, 255, 0), "10.77.0.1/24".to_owned())
        );
    }

    #[test]
    fn overlap_is_containment_of_the_narrower() {
        let prefix = |text: &str| text.parse::<Prefix>().expect("sound");
        let ours = prefix("10.77.0.1/24");
        assert!(ours.overlaps(&prefix("10.77.0.201/30")) && prefix("10.1.1.1/8").overlaps(&ours));
        assert!(!ours.overlaps(&prefix("10.77.1.1/24")));
        assert!(ours.overlaps(&Prefix {
            address: Ipv4Addr::new(10, 77, 0, 9),
            len: 32
        }));
        assert!(ours.overlaps(&Prefix {
            address: Ipv4Addr::UNSPECIFIED,
            len: 0
        }));
    }
}
