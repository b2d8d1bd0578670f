//! Options that only sockets for datagrams have.

use std::net::SocketAddr;

use millrace_sockopt::{Discovery, Opt, OptName};

use crate::error::Error;

/// The state of these options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub broadcast: bool,
    pub errors_v4: bool,
    pub errors_v6: bool,
    pub group_hops_v4: u8,
    pub group_hops_v6: u8,
    pub group_loop_v4: bool,
    pub group_loop_v6: bool,
    pub all_groups_v4: bool,
    pub all_groups_v6: bool,
    pub discovery_v4: Discovery,
    pub discovery_v6: Discovery,
    pub whole_v6: bool,
    pub mtu_v6: u16,
    pub join: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            broadcast: false,
            errors_v4: false,
            errors_v6: false,
            group_hops_v4: 1,
            group_hops_v6: 1,
            group_loop_v4: true,
            group_loop_v6: true,
            all_groups_v4: true,
            all_groups_v6: true,
            discovery_v4: Discovery::default(),
            discovery_v6: Discovery::default(),
            whole_v6: false,
            mtu_v6: 0,
            join: false,
        }
    }
}

impl Settings {
    /// How large datagrams to `remote` are sent.
    pub fn discovery(&self, remote: SocketAddr) -> Discovery {
        match remote {
            SocketAddr::V4(_) => self.discovery_v4,
            SocketAddr::V6(_) if self.whole_v6 => Discovery::Always,
            SocketAddr::V6(_) => self.discovery_v6,
        }
    }

    /// Sets one of these options.
    ///
    /// # Errors
    /// [`Error::NoOption`] for another one.
    pub fn set(&mut self, option: Opt) -> Result<(), Error> {
        match option {
            Opt::Broadcast(on) => self.broadcast = on,
            Opt::ReceiveErrors(on) => self.errors_v4 = on,
            Opt::ReceiveErrorsV6(on) => self.errors_v6 = on,
            Opt::MulticastTtl(hops) => self.group_hops_v4 = hops,
            Opt::MulticastHopsV6(hops) => self.group_hops_v6 = hops,
            Opt::MulticastLoop(on) => self.group_loop_v4 = on,
            Opt::MulticastLoopV6(on) => self.group_loop_v6 = on,
            Opt::MulticastAll(on) => self.all_groups_v4 = on,
            Opt::MulticastAllV6(on) => self.all_groups_v6 = on,
            Opt::DatagramMtuDiscover(discovery) => self.discovery_v4 = discovery,
            Opt::DatagramMtuDiscoverV6(discovery) => self.discovery_v6 = discovery,
            Opt::DontFragmentV6(on) => self.whole_v6 = on,
            Opt::MtuV6(bytes) => self.mtu_v6 = bytes,
            Opt::UdpGro(on) => self.join = on,
            _ => return Err(Error::NoOption),
        }
        Ok(())
    }

    /// Reads one of these options; `None` is another one.
    pub fn get(&self, name: OptName) -> Option<Opt> {
        Some(match name {
            OptName::Broadcast => Opt::Broadcast(self.broadcast),
            OptName::ReceiveErrors => Opt::ReceiveErrors(self.errors_v4),
            OptName::ReceiveErrorsV6 => Opt::ReceiveErrorsV6(self.errors_v6),
            OptName::MulticastTtl => Opt::MulticastTtl(self.group_hops_v4),
            OptName::MulticastHopsV6 => Opt::MulticastHopsV6(self.group_hops_v6),
            OptName::MulticastLoop => Opt::MulticastLoop(self.group_loop_v4),
            OptName::MulticastLoopV6 => Opt::MulticastLoopV6(self.group_loop_v6),
            OptName::MulticastAll => Opt::MulticastAll(self.all_groups_v4),
            OptName::MulticastAllV6 => Opt::MulticastAllV6(self.all_groups_v6),
            OptName::DatagramMtuDiscover => Opt::DatagramMtuDiscover(self.discovery_v4),
            OptName::DatagramMtuDiscoverV6 => Opt::DatagramMtuDiscoverV6(self.discovery_v6),
            OptName::DontFragmentV6 => Opt::DontFragmentV6(self.whole_v6),
            OptName::MtuV6 => Opt::MtuV6(self.mtu_v6),
            OptName::UdpGro => Opt::UdpGro(self.join),
            _ => return None,
        })
    }
}
