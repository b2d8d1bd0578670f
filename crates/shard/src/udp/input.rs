//! Datagrams in: to their socket, to every member of a group, or to the shard that owns the socket.

use std::net::{IpAddr, SocketAddr};

use millrace_wire::offload::ChecksumState;
use millrace_wire::udp;

use super::receive::DatagramInfo;
use super::socket::Datagram;
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::{Pair, Place, Tuple};
use crate::ip::family::Family;
use crate::memory::Memory;
use crate::socket::{Device, Kind, Socket};
use crate::steering::Arrival;

/// An IP packet with a datagram in it.
pub(crate) struct Packet<'a, A> {
    pub src: A,
    pub dst: A,
    pub hops: u8,
    pub class: u8,
    pub bytes: &'a [u8],
    pub checksum: ChecksumState,
    /// As in [`millrace_wire::offload::Frame`].
    pub segment_size: u16,
    /// Whether it was sent to several hosts.
    pub is_multicast_or_broadcast: bool,
}

/// The receiver of a datagram to one host.
enum Receiver {
    /// A socket.
    Here(u32),
    /// Another shard.
    Elsewhere,
    Nobody,
}

impl Udp {
    /// Takes in a datagram; false if nobody here wants it, so that its sender is to be told.
    pub(crate) fn udp_input<M: Memory, A: Family + Into<IpAddr>>(
        &mut self,
        base: &mut Base<M>,
        packet: &Packet<'_, A>,
    ) -> bool {
        let Ok(datagram) = udp::Datagram::parse(packet.bytes) else {
            base.env.counters.udp_malformed += 1;
            return true;
        };
        // RFC 768: 0 is no checksum. RFC 8200 8.1: over IPv6 there must be one.
        let verified = match (packet.checksum, datagram.checksum) {
            (ChecksumState::Partial | ChecksumState::Valid, _) => true,
            (_, 0) => packet.src.into().is_ipv4(),
            _ => A::verify(packet.src, packet.dst, udp::PROTOCOL, datagram.bytes),
        };
        if !verified {
            base.env.counters.udp_checksum += 1;
            return true;
        }
        let tuple = A::tuple(Pair {
            local: packet.dst,
            remote: packet.src,
            local_port: datagram.dst_port,
            remote_port: datagram.src_port,
        });
        let arrived = DatagramInfo {
            from: tuple.remote(),
            to: tuple.local(),
            hops: packet.hops,
            class: packet.class,
            segment_size: packet.segment_size,
        };
        if packet.is_multicast_or_broadcast {
            let steer = base.env.config.steer.as_ref();
            base.steering.copy_to_all_shards(steer);
            self.deliver_multicast_or_broadcast(base, &arrived, datagram.payload());
            return true;
        }
        match self.receiver(base, &tuple) {
            Receiver::Here(index) => self.store_datagram(base, index, &arrived, datagram.payload()),
            Receiver::Elsewhere => {}
            Receiver::Nobody => {
                base.env.counters.udp_no_port += 1;
                return false;
            }
        }
        true
    }

    /// The most specific of the sockets that a datagram may be for: connected to its sender, bound
    /// to its destination, bound to all.
    fn receiver<M: Memory>(&mut self, base: &mut Base<M>, tuple: &Tuple) -> Receiver {
        let found = self.find_datagram(base, tuple);
        let home = self.shard_of_datagram(base, found);
        match (found, home) {
            (Some(index), None) => Receiver::Here(index),
            _ if base.is_datagram_misrouted(home, tuple) => Receiver::Elsewhere,
            _ => self.any.map_or(Receiver::Nobody, Receiver::Here),
        }
    }

    /// The socket at this end of a flow. Of several that share an address (`SO_REUSEPORT`) every
    /// shard finds the same one; but what was handed over for a socket of this shard is not for one
    /// of another.
    pub(super) fn find_datagram<M: Memory>(&self, base: &Base<M>, tuple: &Tuple) -> Option<u32> {
        let local = tuple.local();
        let listener = |hash| self.ports.listener(local, hash);
        let found = match (self.table.get(tuple), &base.env.config.steer) {
            (Some(Place::Stream(index)), _) => Some(index),
            (_, Some(steer)) => listener(steer.hash.tag(tuple).into()),
            (_, None) => listener(self.table.hash(tuple)),
        };
        let handed = matches!(base.steering.arrival(), Arrival::ByPin | Arrival::Local);
        if !handed || self.shard_of_datagram(base, found).is_none() {
            return found;
        }
        let mut others = self.ports.bound(local.port()).iter();
        let own = others.find(|bound| {
            bound.listening
                && bound.includes(local.ip())
                && bound.hears(Device::of(local.ip()))
                && self.shard_of_datagram(base, Some(bound.socket)).is_none()
        });
        own.map(|bound| bound.socket)
    }

    /// Gives a datagram to every socket of this shard that hears its group, or all hosts of the
    /// link.
    pub(super) fn deliver_multicast_or_broadcast<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        arrived: &DatagramInfo,
        payload: &[u8],
    ) {
        if arrived.to.ip().is_multicast() && !base.network.is_member(arrived.to.ip()) {
            base.env.counters.ip_not_ours += 1;
            return;
        }
        let mut found = std::mem::take(&mut self.found);
        // A group's datagrams of this host's loopback come from there.
        let device = Device::of(arrived.from.ip());
        let all = self.ports.bound(arrived.to.port()).iter();
        for bound in all.filter(|bound| bound.hears(device)) {
            let Some(Socket {
                options,
                kind: Kind::Datagram(datagram),
                ..
            }) = base.sockets.get(bound.socket)
            else {
                continue;
            };
            if datagram.home.is_none()
                && datagram.hears(arrived.from)
                && datagram.is_bound_for_multicast(arrived.to, options.v6_only)
            {
                found.push(bound.socket);
            }
        }
        if found.is_empty() {
            base.env.counters.udp_no_port += 1;
        }
        for index in found.drain(..) {
            self.store_datagram(base, index, arrived, payload);
        }
        self.found = found;
    }
}

impl Datagram {
    /// Whether datagrams to a group are for this socket: it has joined it, or hears what others
    /// have joined (`IP_MULTICAST_ALL`).
    fn hears_group(&self, group: IpAddr) -> bool {
        let all = match group {
            IpAddr::V4(_) => self.settings.all_groups_v4,
            IpAddr::V6(_) => self.settings.all_groups_v6,
        };
        !group.is_multicast() || all || self.groups.contains(&group)
    }

    /// Whether a datagram to all hosts of the link, or to a group, is for this socket.
    fn is_bound_for_multicast(&self, to: SocketAddr, v6_only: bool) -> bool {
        // A connected socket is at the address of one host, but was bound to all.
        let at_all = self.bound.is_unspecified()
            && match (self.bound, to.ip()) {
                (IpAddr::V4(_), IpAddr::V4(_)) | (IpAddr::V6(_), IpAddr::V6(_)) => true,
                (IpAddr::V6(_), IpAddr::V4(_)) => !v6_only,
                (IpAddr::V4(_), IpAddr::V6(_)) => false,
            };
        (at_all || self.bound == to.ip()) && self.hears_group(to.ip())
    }
}
