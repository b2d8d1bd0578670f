//! Options that only sockets for datagrams have.

use std::net::SocketAddr;

use super::Datagram;
use crate::socket::Options;

/// An option with its value: see [`crate::Opt::Datagram`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramOpt {
    /// `SO_BROADCAST`: datagrams may be sent to all hosts of the link.
    Broadcast(bool),
    /// `IP_RECVERR`: errors are kept with their particulars.
    ErrorsV4(bool),
    /// `IPV6_RECVERR`.
    ErrorsV6(bool),
    /// `IP_MULTICAST_TTL`.
    GroupHopsV4(u8),
    /// `IPV6_MULTICAST_HOPS`.
    GroupHopsV6(u8),
    /// `IP_MULTICAST_LOOP`: what is sent to a group is heard by members on this host.
    GroupLoopV4(bool),
    /// `IPV6_MULTICAST_LOOP`.
    GroupLoopV6(bool),
    /// `IP_MULTICAST_ALL`: whether datagrams to groups that others have joined are heard too.
    AllGroupsV4(bool),
    /// `IPV6_MULTICAST_ALL`.
    AllGroupsV6(bool),
    /// `IP_MTU_DISCOVER`.
    DiscoveryV4(Discovery),
    /// `IPV6_MTU_DISCOVER`.
    DiscoveryV6(Discovery),
    /// `IPV6_DONTFRAG`: what does not fit into one packet is refused.
    WholeV6(bool),
    /// `IPV6_MTU`, in bytes: no larger packets; 0 for what the path takes.
    MtuV6(u16),
    /// `UDP_CORK`: off sends what was held back.
    Cork(bool),
    /// `UDP_GRO`: several datagrams of one flow may come as one record.
    Join(bool),
}

/// What becomes of a datagram that is larger than a packet on its path, by Linux's numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discovery {
    /// It is fragmented, here and by routers.
    Never = 0,
    /// Routers may not fragment it; it is fragmented here once they have said how small.
    #[default]
    Want = 1,
    /// It is refused.
    Always = 2,
    /// As `Always`, but what routers say is not believed.
    Probe = 3,
    /// Fragmented by what the link takes, whatever routers say.
    Link = 4,
    /// The same; where others would be refused it is fragmented.
    Omit = 5,
}

impl Discovery {
    /// From Linux's number.
    ///
    /// ```
    /// # use millrace_shard as millrace;
    /// // `IP_PMTUDISC_DO`.
    /// assert_eq!(millrace::Discovery::from_number(2), Some(millrace::Discovery::Always));
    /// assert_eq!(millrace::Discovery::from_number(6), None);
    /// ```
    pub fn from_number(number: u8) -> Option<Discovery> {
        use Discovery::*;
        [Never, Want, Always, Probe, Link, Omit]
            .into_iter()
            .find(|discovery| *discovery as u8 == number)
    }

    /// Whether a datagram that does not fit is refused.
    pub(super) fn refuses(self) -> bool {
        matches!(self, Discovery::Always | Discovery::Probe)
    }

    /// Whether what routers say counts.
    pub(super) fn listens(self) -> bool {
        matches!(self, Discovery::Never | Discovery::Want | Discovery::Always)
    }

    /// Whether routers are forbidden to fragment a packet that left in one piece.
    pub(super) fn forbids(self) -> bool {
        matches!(self, Discovery::Want | Discovery::Always | Discovery::Probe)
    }
}

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
    /// What becomes of large datagrams to `remote`.
    pub fn discovery(&self, remote: SocketAddr) -> Discovery {
        match remote {
            SocketAddr::V4(_) => self.discovery_v4,
            SocketAddr::V6(_) if self.whole_v6 => Discovery::Always,
            SocketAddr::V6(_) => self.discovery_v6,
        }
    }

    pub fn set(&mut self, option: DatagramOpt) {
        match option {
            DatagramOpt::Broadcast(on) => self.broadcast = on,
            DatagramOpt::ErrorsV4(on) => self.errors_v4 = on,
            DatagramOpt::ErrorsV6(on) => self.errors_v6 = on,
            DatagramOpt::GroupHopsV4(hops) => self.group_hops_v4 = hops,
            DatagramOpt::GroupHopsV6(hops) => self.group_hops_v6 = hops,
            DatagramOpt::GroupLoopV4(on) => self.group_loop_v4 = on,
            DatagramOpt::GroupLoopV6(on) => self.group_loop_v6 = on,
            DatagramOpt::AllGroupsV4(on) => self.all_groups_v4 = on,
            DatagramOpt::AllGroupsV6(on) => self.all_groups_v6 = on,
            DatagramOpt::DiscoveryV4(discovery) => self.discovery_v4 = discovery,
            DatagramOpt::DiscoveryV6(discovery) => self.discovery_v6 = discovery,
            DatagramOpt::WholeV6(on) => self.whole_v6 = on,
            DatagramOpt::MtuV6(bytes) => self.mtu_v6 = bytes,
            DatagramOpt::Join(on) => self.join = on,
            // An act, not a state.
            DatagramOpt::Cork(_) => {}
        }
    }
}

impl Datagram {
    /// Takes over the buffers that options name. As on Linux they are twice what was asked for.
    pub fn resize(&mut self, options: &Options) {
        if let Some(bytes) = options.receive_buffer {
            self.receive_limit = bytes.get() * 2;
        }
        if let Some(bytes) = options.send_buffer {
            self.send_limit = bytes.get() * 2;
        }
    }
}
