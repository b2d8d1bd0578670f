//! Addresses with their prefixes, and routes, as text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::error::Error;

/// Reads an address of either family and the length of its prefix: `10.77.0.2/24`.
///
/// # Errors
/// [`Error::Address`].
///
/// ```
/// use millrace_port::spec::parse_prefix;
/// assert_eq!(parse_prefix("fd00::1/64").unwrap(), ("fd00::1".parse().unwrap(), 64));
/// assert!(parse_prefix("10.77.0.2/33").is_err());
/// ```
pub fn parse_prefix(text: &str) -> Result<(IpAddr, u8), Error> {
    let parts = text
        .split_once('/')
        .and_then(|(ip, bits)| Some((ip.parse::<IpAddr>().ok()?, bits.parse::<u8>().ok()?)));
    let width = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
    parts
        .filter(|&(ip, bits)| bits <= width(ip))
        .ok_or_else(|| Error::Address(text.to_owned()))
}

/// Addresses that begin like `prefix` are behind a neighbour. Of several routes that fit, the
/// longest prefix counts.
///
/// ```
/// use millrace_port::spec::Route;
/// let route: Route = "10.0.0.0/8 via 10.77.0.1".parse().unwrap();
/// assert_eq!((route.prefix_len, route.to_string().as_str()), (8, "10.0.0.0/8 via 10.77.0.1"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Route {
    /// An address of the prefix.
    pub prefix: IpAddr,
    /// Bits of the prefix; 0 for everything of its family.
    pub prefix_len: u8,
    /// The neighbour, of the same family.
    pub gateway: IpAddr,
}

impl Route {
    /// The default route of the gateway's family.
    ///
    /// ```
    /// use millrace_port::spec::Route;
    /// let route = Route::default_via("10.77.0.1".parse().unwrap());
    /// assert_eq!(route.to_string(), "0.0.0.0/0 via 10.77.0.1");
    /// ```
    pub fn default_via(gateway: IpAddr) -> Route {
        Route {
            prefix: match gateway {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            },
            prefix_len: 0,
            gateway,
        }
    }
}

impl FromStr for Route {
    type Err = Error;

    fn from_str(text: &str) -> Result<Route, Error> {
        let wrong = || Error::Route(text.to_owned());
        let (prefix, gateway) = text.split_once(" via ").ok_or_else(wrong)?;
        let (prefix, prefix_len) = parse_prefix(prefix.trim()).map_err(|_| wrong())?;
        let gateway = gateway.trim().parse().map_err(|_| wrong())?;
        Ok(Route {
            prefix,
            prefix_len,
            gateway,
        })
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Route {
            prefix,
            prefix_len,
            gateway,
        } = self;
        write!(f, "{prefix}/{prefix_len} via {gateway}")
    }
}
