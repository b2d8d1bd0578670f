//! How a port is named on the command line and in configuration, and which IPv4 prefix is on its link.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use crate::xdp::{BusyPoll, Mode};

/// A port to be opened.
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
pub enum Spec {
    /// `tap` or `tap:NAME`.
    Tap {
        /// Name of the device to be created; a free one when there is none.
        name: Option<String>,
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
    Xdp {
        /// Name of the device, which is there already.
        name: String,
        /// `queues=N`: how many of its queues are used.
        queues: Option<u16>,
        /// `mode=MODE`.
        mode: Mode,
        /// `busy-poll=HOW`.
        busy_poll: BusyPoll,
        /// `address=shared`: with the addresses that the kernel has there.
        shared: bool,
    },
}

/// Why the text does not name a port or a prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The part before the colon is no kind of port.
    #[error(
        "there is no port kind `{0}`; the kinds are: tap (a TAP device with a free name), tap:NAME (one of this name), \
         packet:NAME (a network device that is there already, by packet sockets), macvtap:NAME (likewise, by a device on top of it), xdp:NAME (likewise, by AF_XDP sockets)"
    )]
    Kind(String),
    /// An option that there is not.
    #[error(
        "`{0}` is no option of an AF_XDP link; there are queues=N (1 to 256), mode=auto, zerocopy, copy or generic, busy-poll=auto, on or off, and address=own or shared, as in xdp:eth0,queues=4,mode=copy"
    )]
    Option(String),
    /// No name that Linux gives to a network device.
    #[error("`{0}` cannot name a network device; take 1 to 15 letters, digits, `.`, `_` or `-`")]
    Name(String),
    /// Not an address and a prefix length.
    #[error("`{0}` is not an IPv4 address with a prefix length; write it as 10.77.0.1/24")]
    Prefix(String),
    /// The address is that of the network or its broadcast.
    #[error(
        "{0} is the address of the whole network or its broadcast address; take another one in that prefix"
    )]
    NotAHost(Prefix),
}

impl FromStr for Spec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Spec, Error> {
        match text.split_once(':') {
            None if text == "tap" => Ok(Spec::Tap { name: None }),
            Some(("tap", name)) => {
                check_device_name(name)?;
                Ok(Spec::Tap {
                    name: Some(name.to_owned()),
                })
            }
            Some(("packet", name)) => {
                check_device_name(name)?;
                Ok(Spec::Packet {
                    name: name.to_owned(),
                })
            }
            Some(("macvtap", name)) => {
                check_device_name(name)?;
                Ok(Spec::Macvtap {
                    name: name.to_owned(),
                })
            }
            Some(("xdp", rest)) => {
                let mut words = rest.split(',');
                let name = words.next().unwrap_or(rest).to_owned();
                check_device_name(&name)?;
                let (mut queues, mut mode, mut shared) = (None, Mode::Auto, false);
                let mut busy_poll = BusyPoll::Auto;
                for word in words {
                    let unknown = || Error::Option(word.to_owned());
                    match word.split_once('=').ok_or_else(unknown)? {
                        ("queues", count) => {
                            let count = count.parse().ok();
                            queues = count.filter(|count| (1..=256).contains(count));
                            queues.ok_or_else(unknown)?;
                        }
                        ("mode", word) => mode = word.parse().map_err(|()| unknown())?,
                        ("busy-poll", word) => {
                            busy_poll = word.parse().map_err(|()| unknown())?;
                        }
                        ("address", "own") => shared = false,
                        ("address", "shared") => shared = true,
                        _ => return Err(unknown()),
                    }
                }
                Ok(Spec::Xdp {
                    name,
                    queues,
                    mode,
                    busy_poll,
                    shared,
                })
            }
            _ => Err(Error::Kind(
                text.split(':').next().unwrap_or(text).to_owned(),
            )),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Spec::Tap { name: None } => f.write_str("tap"),
            Spec::Tap { name: Some(name) } => write!(f, "tap:{name}"),
            Spec::Packet { name } => write!(f, "packet:{name}"),
            Spec::Macvtap { name } => write!(f, "macvtap:{name}"),
            Spec::Xdp {
                name,
                queues,
                mode,
                busy_poll,
                shared,
            } => {
                write!(f, "xdp:{name}")?;
                if let Some(queues) = queues {
                    write!(f, ",queues={queues}")?;
                }
                if *mode != Mode::Auto {
                    write!(f, ",mode={mode}")?;
                }
                if *busy_poll != BusyPoll::Auto {
                    write!(f, ",busy-poll={busy_poll}")?;
                }
                f.write_str(if *shared { ",address=shared" } else { "" })
            }
        }
    }
}

/// Whether Linux takes `name` for a device; narrower than Linux, so that the name needs no quoting anywhere.
///
/// # Errors
/// [`Error::Name`].
pub fn check_device_name(name: &str) -> Result<(), Error> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=15).contains(&name.len())
        && name.bytes().all(sound)
        && name != "."
        && name != ".."
        && !name.starts_with('-')
    {
        Ok(())
    } else {
        Err(Error::Name(name.to_owned()))
    }
}

/// An IPv4 host address, and how many of its leading bits it shares with all others on its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The address of the host.
    pub address: Ipv4Addr,
    /// Length of the prefix in bits, 0 to 32.
    pub len: u8,
}

impl Prefix {
    /// The address of a host on a link.
    ///
    /// # Errors
    /// [`Error::Prefix`] when `len` is not within 1 and 30, so that there is room for two hosts; [`Error::NotAHost`] for the first or last address, or one that no
    /// host can have.
    pub fn of_host(address: Ipv4Addr, len: u8) -> Result<Prefix, Error> {
        let prefix = Prefix { address, len };
        if !(1..=30).contains(&len) {
            return Err(Error::Prefix(prefix.to_string()));
        }
        let host_bits = u32::from(address) & !prefix.mask_bits();
        let special = address.is_unspecified() || address.is_multicast() || address.is_broadcast();
        if host_bits == 0 || host_bits == !prefix.mask_bits() || special {
            return Err(Error::NotAHost(prefix));
        }
        Ok(prefix)
    }

    /// The netmask.
    pub fn mask(&self) -> Ipv4Addr {
        self.mask_bits().into()
    }

    /// Whether `address` is on the link.
    pub fn contains(&self, address: Ipv4Addr) -> bool {
        (u32::from(self.address) ^ u32::from(address)) & self.mask_bits() == 0
    }

    /// Whether an address is in both.
    pub fn overlaps(&self, other: &Prefix) -> bool {
        if self.len < other.len {
            self.contains(other.address)
        } else {
            other.contains(self.address)
        }
    }

    fn mask_bits(&self) -> u32 {
        u32::MAX.checked_shl(32 - u32::from(self.len)).unwrap_or(0)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Prefix, Error> {
        let parts = text
            .split_once('/')
            .and_then(|(address, len)| Some((address.parse().ok()?, len.parse().ok()?)));
        let (address, len) = parts.ok_or_else(|| Error::Prefix(text.to_owned()))?;
        Prefix::of_host(address, len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_kind_is_told_which_there_are() {
        for text in ["wire:eth0", "", "tap2", "TAP", ":x"] {
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
        for text in ["tap", "tap:mr0", "tap:fifteen-letters", "macvtap:eth0"] {
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
