//! The address of a host and the prefix of its link, as text.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use super::error::Error;

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
    /// [`Error::Prefix`] when `len` is not within 1 and 30, so that there is room for two hosts;
    /// [`Error::NotAHost`] for the first or last address, or one that no host can have.
    pub fn of_host(address: Ipv4Addr, len: u8) -> Result<Prefix, Error> {
        let prefix = Prefix { address, len };
        if !(1..=30).contains(&len) {
            return Err(Error::Prefix(prefix.to_string()));
        }
        let host_bits = u32::from(address) & !prefix.mask_bits();
        let special = address.is_unspecified() || address.is_multicast() || address.is_broadcast();
        if host_bits == 0 || host_bits == !prefix.mask_bits() || special {
            return Err(Error::NotAHost(prefix.to_string()));
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
