//! Datagrams from programs: checked, copied once, and queued.

use std::net::{IpAddr, SocketAddr};

use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::record::SEND_OVERHEAD;

use super::bind::Towards;
use super::cross_shard::Crossing;
use super::errors::Failure;
use super::options::Settings;
use super::packet::{OutgoingDatagram, To};
use super::receive::DatagramInfo;
use super::socket::Datagram;
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::Tuple;
use crate::error::{Error, errno};
use crate::link::neighbour::Handle;
use crate::memory::Memory;
use crate::memory::pool::LOG2_MIN;
use crate::socket::{Kind, Marks, Socket, SocketId};
use crate::tcp::segment::HOPS;

/// ICMP's type and code for a closed port.
const UNREACHABLE_V4: (u8, u8) = (3, 3);
const UNREACHABLE_V6: (u8, u8) = (1, 4);

/// The particulars of a datagram to send, without its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendTo {
    /// Where to; none: to the peer.
    pub to: Option<SocketAddr>,
    /// The source address (`IP_PKTINFO`); none, or unspecified: as the socket has it.
    pub from: Option<IpAddr>,
    /// Time to live or hop limit, instead of the socket's.
    pub hops: Option<u8>,
    /// Type of service or traffic class, instead of the socket's.
    pub class: Option<u8>,
    /// Cut into datagrams of so many bytes (`UDP_SEGMENT`); 0: not cut.
    pub segment: u16,
    /// More of the same datagram follows (`MSG_MORE`).
    pub more: bool,
}

impl Udp {
    /// Queues a datagram of `len` bytes, which `fill` writes.
    pub(crate) fn send_to<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        what: &SendTo,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
        now: Instant,
    ) -> Result<(), Error> {
        let index = base.check(id)?;
        let (socket, datagram) = base.datagram_of(index)?;
        if socket.marks.contains(Marks::WRITE_SHUT) {
            return Err(Error::BrokenPipe);
        }
        if datagram.local.port() == 0 {
            return Err(Error::Invalid);
        }
        if datagram.queued - datagram.left >= u64::from(datagram.send_limit) {
            return Err(Error::WouldBlock);
        }
        if datagram.corked.is_some() {
            return self.add_to_corked(base, index, len, what.more, fill, now);
        }
        let mut outgoing = self.prepare(base, index, what, len, now)?;
        let log2 = log2_of(len.max(1));
        let Some(block) = base.send_memory.allocate(outgoing.owner, log2) else {
            base.env.counters.send_memory_exhausted += 1;
            return Err(Error::NoMemory);
        };
        outgoing.block = block;
        fill(&mut outgoing.block[..len]);
        outgoing.len = len as u32;
        outgoing.charge = charge_of(len);
        if let Some(datagram) = base.datagram_mut(index) {
            datagram.queued += outgoing.charge;
            if what.more {
                datagram.corked = Some(Box::new(outgoing));
                return Ok(());
            }
        }
        self.dispatch(base, outgoing, now);
        Ok(())
    }

    /// A datagram of `len` bytes that the program believes to be sent was refused.
    pub(crate) fn lose_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        len: usize,
    ) {
        let datagram = base
            .check(id)
            .ok()
            .and_then(|index| base.datagram_mut(index));
        if let Some(datagram) = datagram {
            datagram.queued += charge_of(len);
            datagram.left += charge_of(len);
            base.env.counters.udp_refused += 1;
        }
    }

    /// Everything that is known of a datagram before its bytes are.
    fn prepare<M: Memory>(
        &self,
        base: &Base<M>,
        index: u32,
        what: &SendTo,
        len: usize,
        now: Instant,
    ) -> Result<OutgoingDatagram, Error> {
        let (socket, datagram) = base.datagram_of(index)?;
        let owner = socket.owner;
        let remote = what.to.or(datagram.remote);
        let remote = remote.ok_or(Error::DestinationRequired)?;
        let (local, remote, towards) = self.datagram_endpoints(base, index, remote, what.from)?;
        let to_peer = datagram.remote == Some(remote);
        let (to, next) = match towards {
            Towards::Here => (To::Here, remote.ip()),
            Towards::Neighbour(next) if to_peer => (To::Hop(datagram.hop), next),
            Towards::Neighbour(next) => (To::Hop(Handle::NONE), next),
            Towards::Group => (To::Station(station_of(remote.ip())), remote.ip()),
            Towards::All => (To::Station(Mac::BROADCAST), remote.ip()),
        };
        let settings = &datagram.settings;
        let (hops, class, group_hops) = match remote {
            SocketAddr::V4(_) => (
                socket.options.ttl.map(std::num::NonZeroU8::get),
                socket.options.tos,
                settings.group_hops_v4,
            ),
            SocketAddr::V6(_) => (
                socket.options.hop_limit,
                socket.options.traffic_class,
                settings.group_hops_v6,
            ),
        };
        let hops = if towards == Towards::Group {
            group_hops
        } else {
            hops.unwrap_or(HOPS)
        };
        let discovery = settings.discovery(remote);
        let mtu = match towards {
            Towards::Here => u16::MAX,
            _ => self.mtu_towards(base, remote, settings, now),
        };
        let outgoing = OutgoingDatagram {
            socket: index,
            generation: base.sockets.generation(index),
            owner,
            block: Box::default(),
            len: 0,
            sent: 0,
            segment: what.segment,
            mtu,
            to,
            next,
            local,
            remote,
            hops: what.hops.unwrap_or(hops),
            class: what.class.unwrap_or(class),
            whole: discovery.forbids(),
            refuses: discovery.refuses(),
            id: 0,
            charge: 0,
        };
        outgoing.check(len)?;
        Ok(outgoing)
    }

    /// The largest packet to `remote`, by what is known and believed.
    fn mtu_towards<M: Memory>(
        &self,
        base: &Base<M>,
        remote: SocketAddr,
        settings: &Settings,
        now: Instant,
    ) -> u16 {
        let mtu = match (remote, settings.mtu_v6) {
            (SocketAddr::V4(_), _) => base.env.config.mtu,
            (SocketAddr::V6(_), 0) => base.network.v6.mtu(),
            (SocketAddr::V6(_), most) => base.network.v6.mtu().min(most),
        };
        let known = base.network.path_mtus.get(remote.ip(), now);
        match known.filter(|_| settings.discovery(remote).listens()) {
            Some(known) => mtu.min(known),
            None => mtu,
        }
    }

    /// The largest packet to the peer of a socket, as it is shown: what has been learned may be
    /// outdated.
    pub(crate) fn datagram_mtu<M: Memory>(&self, base: &Base<M>, datagram: &Datagram) -> u16 {
        match datagram.remote {
            Some(remote) if base.network.is_local(remote.ip()) => u16::MAX,
            Some(remote) => {
                self.mtu_towards(base, remote, &datagram.settings, Instant::from_micros(0))
            }
            None => 0,
        }
    }

    /// Adds to what a socket holds back.
    fn add_to_corked<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        len: usize,
        more: bool,
        fill: impl FnOnce(&mut [u8]),
        now: Instant,
    ) -> Result<(), Error> {
        let Some(Kind::Datagram(datagram)) =
            base.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return Err(Error::NoSocket);
        };
        let mut outgoing = datagram.corked.take().ok_or(Error::Invalid)?;
        let before = outgoing.len as usize;
        let outcome = outgoing.check(before + len).and_then(|()| {
            if before + len > outgoing.block.len() {
                let log2 = log2_of(before + len);
                let mut larger = base
                    .send_memory
                    .allocate(outgoing.owner, log2)
                    .ok_or(Error::NoMemory)?;
                larger[..before].copy_from_slice(&outgoing.block[..before]);
                base.send_memory.free(
                    outgoing.owner,
                    std::mem::replace(&mut outgoing.block, larger),
                );
            }
            fill(&mut outgoing.block[before..before + len]);
            outgoing.len = (before + len) as u32;
            outgoing.charge += charge_of(len);
            datagram.queued += charge_of(len);
            Ok(())
        });
        if outcome.is_err() {
            // Linux drops all of it (`ip_flush_pending_frames`).
            datagram.left += outgoing.charge;
            base.send_memory.free(outgoing.owner, outgoing.block);
            base.mark_changed(index);
            return outcome;
        }
        if more {
            datagram.corked = Some(outgoing);
        } else {
            self.dispatch(base, *outgoing, now);
        }
        Ok(())
    }

    /// Sends what a socket holds back.
    pub(crate) fn uncork<M: Memory>(&mut self, base: &mut Base<M>, index: u32, now: Instant) {
        let corked = base.datagram_mut(index);
        if let Some(outgoing) = corked.and_then(|datagram| datagram.corked.take()) {
            self.dispatch(base, *outgoing, now);
        }
    }

    /// Queues a datagram, or delivers it here; what is for a group both.
    fn dispatch<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        mut outgoing: OutgoingDatagram,
        now: Instant,
    ) {
        base.env.counters.udp_out += 1;
        let settings = base
            .datagram_of(outgoing.socket)
            .map(|(_, datagram)| datagram.settings);
        let heard_here = match (outgoing.to, outgoing.remote.ip()) {
            (To::Hop(_), _) => false,
            (To::Here, _) => true,
            (To::Station(Mac::BROADCAST), _) => true,
            (To::Station(_), IpAddr::V4(_)) => settings.is_ok_and(|set| set.group_loop_v4),
            (To::Station(_), IpAddr::V6(_)) => settings.is_ok_and(|set| set.group_loop_v6),
        };
        if heard_here {
            self.deliver_here(base, &outgoing, now);
        }
        // A group's packet without a hop to go stays on this host, as does one from loopback.
        let stays = outgoing.hops == 0 || outgoing.local.ip().is_loopback();
        if outgoing.to == To::Here || stays {
            self.release_sent(base, outgoing);
            return;
        }
        outgoing.id = base.env.secrets.random() as u32;
        self.outbox.push_back(outgoing);
    }

    /// Delivers a datagram on this host.
    fn deliver_here<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        outgoing: &OutgoingDatagram,
        _now: Instant,
    ) {
        let arrived = DatagramInfo {
            from: outgoing.local,
            to: outgoing.remote,
            hops: outgoing.hops,
            class: outgoing.class,
            segment_size: outgoing.segment,
        };
        base.env.counters.udp_local += 1;
        let payload = &outgoing.block[..outgoing.len as usize];
        if outgoing.to != To::Here {
            self.deliver_multicast_or_broadcast(base, &arrived, payload);
            self.cross(base, Crossing::Datagram, None, &arrived, payload);
            return;
        }
        let Some(sent) = Tuple::new(outgoing.local, outgoing.remote) else {
            return;
        };
        let receiver = sent.reversed();
        let found = self.find_datagram(base, &receiver);
        let elsewhere = match found {
            Some(_) => self.shard_of_datagram(base, found),
            None => self.other_shard_for(base, &receiver),
        };
        match (elsewhere, found) {
            (Some(shard), _) => {
                self.cross(base, Crossing::Datagram, Some(shard), &arrived, payload);
            }
            (None, Some(index)) => self.store_datagram(base, index, &arrived, payload),
            (None, None) => {
                base.env.counters.udp_no_port += 1;
                self.refuse_here(base, outgoing.socket, &sent, payload);
            }
        }
    }

    /// Tells the socket at `index` that on this host nobody is where it sent to.
    pub(super) fn refuse_here<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        sent: &Tuple,
        payload: &[u8],
    ) {
        let (kind, code) = match sent {
            Tuple::V4(_) => UNREACHABLE_V4,
            Tuple::V6(_) => UNREACHABLE_V6,
        };
        let failure = Failure {
            errno: errno::ECONNREFUSED,
            hard: true,
            kind,
            code,
            info: 0,
            offender: sent.remote_ip(),
            payload,
        };
        self.fail_datagram(base, index, sent, &failure);
    }

    /// A datagram has left, or is lost: its block and its place in the send buffer are free.
    pub(super) fn release_sent<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        outgoing: OutgoingDatagram,
    ) {
        if let Some((socket, generation)) = base.sockets.get_mut_with_generation(outgoing.socket)
            && generation == outgoing.generation
            && let Socket {
                kind: Kind::Datagram(datagram),
                ..
            } = socket
        {
            datagram.left += outgoing.charge;
            base.mark_changed(outgoing.socket);
        }
        base.send_memory.free(outgoing.owner, outgoing.block);
    }
}

/// The station that packets to a group go to.
fn station_of(group: IpAddr) -> Mac {
    match group {
        IpAddr::V4(group) => Mac::of_group_v4(group),
        IpAddr::V6(group) => Mac::of_group(group),
    }
}

/// The room in the send buffer that a call with `len` bytes takes.
fn charge_of(len: usize) -> u64 {
    len as u64 + SEND_OVERHEAD
}

fn log2_of(len: usize) -> u8 {
    (len.next_power_of_two().trailing_zeros() as u8).max(LOG2_MIN)
}
