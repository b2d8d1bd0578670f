//! One link of a stack that is to be: what is said of it, and what comes of that.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use millrace_shard::{Config, ConflictDetection, Ipv6, Via};

use crate::build_error::BuildError;
use crate::link::Link;
use crate::peers::Peers;

/// Links that a stack has at most.
pub(crate) const LINKS_MAX: usize = 64;

/// What is said of a link.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) link: Link,
    pub(crate) addresses: Vec<(IpAddr, u8)>,
    pub(crate) routes: Vec<(IpAddr, u8, IpAddr)>,
    pub(crate) mtu: Option<u16>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            link: Link::none(),
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: None,
        }
    }
}

/// A link and all that its part of a stack is made of.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) config: Config,
    /// Bytes that received data may take.
    pub(crate) memory: u64,
    pub(crate) link: Link,
    /// The same link on the other shards.
    pub(crate) peers: Option<Peers>,
}

impl Plan {
    /// Adds to a configuration what is said of this link.
    pub(crate) fn complete(&self, mut config: Config) -> Result<Config, BuildError> {
        config.mtu = u16::MAX;
        let Some(capabilities) = self.link.capabilities() else {
            config.any_address = false;
            config.conflict_detection = ConflictDetection::Nothing;
            return match self.addresses.first() {
                Some(&(address, _)) => Err(BuildError::NoLink(address)),
                None => Ok(config),
            };
        };
        if self.addresses.is_empty() {
            return Err(BuildError::NoAddress);
        }
        config.only_station = self.link.only_station();
        config.addresses.clear();
        let mut ipv6 = Ipv6::default();
        // Where all others are behind one station there is nobody to tell, or to ask.
        if config.only_station.is_some() {
            config.conflict_detection = ConflictDetection::Nothing;
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
}

/// Whether each address is said once, and each prefix is on one link.
pub(crate) fn unlike(plans: &[Plan]) -> Result<(), BuildError> {
    let mut addresses = BTreeSet::new();
    let mut prefixes = BTreeMap::new();
    for (link, plan) in plans.iter().enumerate() {
        for &(address, bits) in &plan.addresses {
            if !addresses.insert(address) {
                return Err(BuildError::SameAddress(address));
            }
            // Every link has one of its own.
            if matches!(address, IpAddr::V6(address) if address.is_unicast_link_local()) {
                continue;
            }
            let prefix = (prefix_of(address, bits), bits);
            let &mut (before, other) = prefixes.entry(prefix).or_insert((link, address));
            if before != link {
                return Err(BuildError::SamePrefix {
                    address: other,
                    other: address,
                    bits,
                });
            }
        }
    }
    Ok(())
}

fn prefix_of(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}
