//! Which node has an IP address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::types::PortName;

/// Addresses that are learnt from announcements.
pub const NEIGHBOURS_MAX: usize = 4096;
/// An address whose node announces it no more is forgotten after this.
pub const LIFETIME: Duration = Duration::from_secs(30);

/// A table of the administrator's, and what other nodes have announced. The table goes first; an
/// address that a node has announced stays that node's until the node is gone.
#[derive(Debug, Default)]
pub struct Neighbours {
    table: HashMap<IpAddr, PortName>,
    announced: HashMap<IpAddr, (PortName, Instant)>,
}

impl Neighbours {
    /// With this table.
    pub fn new(table: impl IntoIterator<Item = (IpAddr, PortName)>) -> Neighbours {
        Neighbours {
            table: table.into_iter().collect(),
            announced: HashMap::new(),
        }
    }

    /// The port that packets to `address` go to.
    pub fn find(&self, address: IpAddr) -> Option<PortName> {
        let announced = || self.announced.get(&address).map(|(port, _)| *port);
        self.table.get(&address).copied().or_else(announced)
    }

    /// `port` announces that its node has `address`. False when that is not believed: the address
    /// is another node's, no host's, or there are too many.
    pub fn learn(&mut self, address: IpAddr, port: PortName, now: Instant) -> bool {
        if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
            return false;
        }
        if let Some(owner) = self.table.get(&address) {
            return *owner == port;
        }
        let full = self.announced.len() >= NEIGHBOURS_MAX;
        match self.announced.get_mut(&address) {
            Some((owner, _)) if *owner != port => false,
            Some((_, heard)) => {
                *heard = now;
                true
            }
            None if full => false,
            None => {
                self.announced.insert(address, (port, now));
                true
            }
        }
    }

    /// A port is gone: others may have its addresses.
    pub fn forget(&mut self, port: PortName) {
        self.announced.retain(|_, (owner, _)| *owner != port);
    }

    /// Forgets what has not been announced for `LIFETIME`.
    pub fn expire(&mut self, now: Instant) {
        self.announced
            .retain(|_, (_, heard)| now.saturating_duration_since(*heard) < LIFETIME);
    }

    /// All addresses that are known, and their ports.
    pub fn ports(&self) -> impl Iterator<Item = PortName> + '_ {
        let announced = self.announced.values().map(|(port, _)| *port);
        self.table.values().copied().chain(announced)
    }
}
