//! The IP module: packets in and out of messages.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use millrace_wire::checksum::Sum;
use millrace_wire::vnet::{Flags, Gso, VnetHeader};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::announcements::{Announcements, LOOK_EVERY};
use super::header::{self, Message};
use super::neighbours::Neighbours;
use super::{IP_PORT, MTU_DEFAULT};
use crate::port::Port;
use crate::types::{
    BufferId, Channel, Error, Failure, INLINE_MAX, Limits, Payload, PortName, Received, SYSTEM_MAX,
    Sent,
};

/// The channel of large packets.
const LARGE: Channel = Channel::Normal(0);
/// Buffers that are posted, and as many to send from.
const BUFFERS: usize = 64;
/// The largest message: a packet and what stands before it.
const MESSAGE_MAX: usize = header::LEN + 0xffff;
/// Packets under way to one node: others get a share of the buffers.
const UNDER_WAY_MAX: usize = BUFFERS / 2;
/// Addresses of this node's that it learns from the packets that it sends.
const OWN_MAX: usize = header::ADDRESSES_MAX;
/// How long a packet waits for its receiver, in milliseconds.
const WAIT_MS: u64 = 1_000;
/// The tag of requests that use no buffer.
const NO_BUFFER: u64 = u64::MAX;

/// What an IP module does. Each of the four ways of being fast can be switched off.
#[derive(Clone, Debug)]
pub struct Config {
    /// The largest packet in bytes; joined segments may be longer.
    pub mtu: u16,
    /// Checksums that a stack has left unfinished stay so.
    pub elide_checksums: bool,
    /// Packets of up to [`INLINE_MAX`] bytes with their headers go in the request.
    pub inline: bool,
    /// One wake-up is for all packets that have come.
    pub batch: bool,
    /// The addresses of this node, which it announces. Those that it sends from are added.
    pub addresses: Vec<IpAddr>,
    /// Which nodes have other addresses; what they announce is added.
    pub table: Vec<(IpAddr, u16)>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            mtu: MTU_DEFAULT,
            elide_checksums: true,
            inline: true,
            batch: true,
            addresses: Vec::new(),
            table: Vec::new(),
        }
    }
}

/// What an IP module has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets sent, and their bytes.
    pub tx_packets: u64,
    /// Bytes of these.
    pub tx_bytes: u64,
    /// Packets received, and their bytes.
    pub rx_packets: u64,
    /// Bytes of these.
    pub rx_bytes: u64,
    /// Packets sent in the request.
    pub inline: u64,
    /// Packets sent by the normal channel.
    pub large: u64,
    /// Packets to an address that no node has, dropped.
    pub no_neighbour: u64,
    /// Packets refused because too many were under way.
    pub refused: u64,
    /// Packets that their receiver did not get.
    pub failed: u64,
    /// Messages that no IP module sends, dropped.
    pub bad: u64,
    /// Announcements of addresses that are another node's.
    pub disbelieved: u64,
}

/// An IP module: the IP port of a node.
#[derive(Debug)]
pub struct Module {
    port: Port,
    config: Config,
    neighbours: Neighbours,
    announcements: Announcements,
    /// Buffers to send from, and which of them are free.
    slots: Vec<BufferId>,
    free: Vec<usize>,
    /// What is under way from them: to whom.
    under_way: HashMap<PortName, usize>,
    counters: Counters,
}

impl Module {
    /// What the port of an IP module may hold.
    pub fn limits() -> Limits {
        Limits {
            memory: 2 * BUFFERS * (MESSAGE_MAX + SYSTEM_MAX),
            wait: millrace_tcp::Duration::from_millis(WAIT_MS),
            ..Limits::default()
        }
    }

    /// The IP module of a port, whose number is [`IP_PORT`] by rule.
    ///
    /// # Errors
    /// [`Error::Memory`] when the port has not the limits of [`Module::limits`].
    pub fn new(mut port: Port, config: Config) -> Result<Module, Error> {
        let mut slots = Vec::with_capacity(BUFFERS);
        for _ in 0..BUFFERS {
            let buffer = port.register(MESSAGE_MAX)?;
            port.post(LARGE, buffer)?;
            slots.push(port.register(MESSAGE_MAX)?);
        }
        let table = config.table.iter();
        let table = table.map(|&(address, node)| (address, PortName::new(node, IP_PORT)));
        Ok(Module {
            port,
            neighbours: Neighbours::new(table),
            announcements: Announcements::default(),
            slots,
            free: (0..BUFFERS).collect(),
            under_way: HashMap::new(),
            counters: Counters::default(),
            config,
        })
    }

    /// What it was made with, and the addresses that it has learnt to be its own.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has counted.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The port's name.
    pub fn name(&self) -> PortName {
        self.port.name()
    }

    /// Whether a packet can be sent now.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Sends a packet, which is `parts` in a row; offsets of `vnet` count from its first byte.
    /// False when there is no room now: it is refused and counted. A packet to an address that no
    /// node has is dropped and counted.
    pub fn send(&mut self, vnet: &VnetHeader, parts: &[&[u8]]) -> bool {
        let head = parts.first().copied().unwrap_or_default();
        let Some((to, from)) = header::addresses(head) else {
            return true;
        };
        self.learn_own(from);
        let Some(to) = self.neighbours.find(to).filter(|to| *to != self.name()) else {
            self.counters.no_neighbour += 1;
            return true;
        };
        let is_sent = self.send_to(to, vnet, parts);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        match is_sent {
            true => {
                self.counters.tx_packets += 1;
                self.counters.tx_bytes += len as u64;
            }
            false => self.counters.refused += 1,
        }
        is_sent
    }

    fn send_to(&mut self, to: PortName, vnet: &VnetHeader, parts: &[&[u8]]) -> bool {
        let elide = self.config.elide_checksums;
        let finish = !elide && vnet.flags.contains(Flags::NEEDS_CSUM) && vnet.gso == Gso::NONE;
        let said = match elide || vnet.gso != Gso::NONE {
            true => *vnet,
            false => VnetHeader::default(),
        };
        let len = header::LEN + parts.iter().map(|part| part.len()).sum::<usize>();
        let under_way = self.under_way.get(&to).copied().unwrap_or(0);
        if len > MESSAGE_MAX || under_way >= UNDER_WAY_MAX {
            return false;
        }
        if len <= INLINE_MAX && under_way == 0 && self.config.inline {
            let mut bytes = [0; INLINE_MAX];
            write(&mut bytes, &said, parts);
            if finish {
                finish_checksum(&mut bytes[header::LEN..len], vnet);
            }
            let payload = Payload::Inline(&bytes[..len]);
            let sent = self.port.send(to, Channel::System, 0, payload, NO_BUFFER);
            self.counters.inline += u64::from(sent.is_ok());
            return sent.is_ok();
        }
        let Some(slot) = self.free.pop() else {
            return false;
        };
        let buffer = self.slots[slot];
        if let Ok(bytes) = self.port.bytes_mut(buffer) {
            write(bytes, &said, parts);
            if finish {
                finish_checksum(&mut bytes[header::LEN..len], vnet);
            }
        }
        // What follows a large packet must not overtake it.
        let channel = match len <= SYSTEM_MAX && under_way == 0 {
            true => Channel::System,
            false => LARGE,
        };
        let payload = Payload::Buffer(buffer, len);
        let tag = slot as u64 | u64::from(channel == LARGE) << 32;
        let sent = self.port.send(to, channel, 0, payload, tag);
        match sent {
            Ok(()) if channel == LARGE => {
                *self.under_way.entry(to).or_default() += 1;
                self.counters.large += 1;
            }
            Ok(()) => {}
            Err(_) => self.free.push(slot),
        }
        sent.is_ok()
    }

    /// A packet leaves with this address: the node has it.
    fn learn_own(&mut self, address: IpAddr) {
        let own = &mut self.config.addresses;
        if own.contains(&address)
            || own.len() >= OWN_MAX
            || address.is_unspecified()
            || self.neighbours.find(address).is_some()
        {
            return;
        }
        own.push(address);
        self.announcements.tell_all();
    }

    /// The next packet that has come: `take` is given it, and returns what is made of it.
    pub fn receive<R>(&mut self, take: impl FnOnce(&VnetHeader, &[u8]) -> R) -> Option<R> {
        loop {
            let message = self.port.poll_received()?;
            if !self.config.batch {
                self.look_at_descriptor();
            }
            let parsed = self.port.message(&message).ok().and_then(header::parse);
            let taken = match parsed {
                Some(Message::Packet(vnet, packet)) => {
                    self.counters.rx_packets += 1;
                    self.counters.rx_bytes += packet.len() as u64;
                    Some(take(&vnet, packet))
                }
                Some(Message::Announcement(addresses)) => {
                    self.on_announcement(message.from, &addresses);
                    self.give_back(&message);
                    continue;
                }
                None => {
                    self.counters.bad += 1;
                    self.give_back(&message);
                    continue;
                }
            };
            self.give_back(&message);
            return taken;
        }
    }

    /// What a wake-up costs, where each packet is to have one.
    fn look_at_descriptor(&self) {
        let descriptor = self.port.descriptor();
        let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
        // Whatever it says: the packet is here.
        let _ = poll(&mut watched, Some(&Timespec::default()));
    }

    /// Posts a buffer of the ring again, or gives one of the pool back.
    fn give_back(&mut self, message: &Received) {
        let _ = match message.channel {
            Channel::Normal(_) => self.port.post(LARGE, message.buffer),
            _ => self.port.free(message.buffer),
        };
    }

    fn on_announcement(&mut self, from: PortName, addresses: &[IpAddr]) {
        let now = Instant::now();
        if from.port != IP_PORT {
            self.counters.bad += 1;
            return;
        }
        for &address in addresses {
            let is_own = self.config.addresses.contains(&address);
            if is_own || !self.neighbours.learn(address, from, now) {
                self.counters.disbelieved += 1;
            }
        }
        self.tell(from, now);
    }

    /// Tells a node the addresses of this one, unless it knows them.
    fn tell(&mut self, to: PortName, now: Instant) {
        if self.config.addresses.is_empty()
            || to == self.name()
            || !self.announcements.must_tell(to, now)
        {
            return;
        }
        let bytes = header::announcement(&self.config.addresses);
        let Some(slot) = self.free.pop() else {
            self.announcements.forget(to);
            return;
        };
        let buffer = self.slots[slot];
        if let Ok(memory) = self.port.bytes_mut(buffer) {
            memory[..bytes.len()].copy_from_slice(&bytes);
        }
        let payload = Payload::Buffer(buffer, bytes.len());
        let sent = self.port.send(to, Channel::System, 0, payload, slot as u64);
        if sent.is_err() {
            self.free.push(slot);
            self.announcements.forget(to);
        }
    }

    /// Does what there is to do: messages come and go, and nodes are told of addresses. Returns 0
    /// if nothing has come.
    pub fn poll(&mut self) -> usize {
        let came = self.port.poll();
        self.take_completions();
        came
    }

    /// Looks for nodes that are new, and for those that are gone. To be called every
    /// [`Module::LOOK_EVERY`], and more often if that is easier.
    pub fn look_around(&mut self) {
        let now = Instant::now();
        if !self.announcements.is_due(now) {
            return;
        }
        self.neighbours.expire(now);
        let mut ports = self.port.present(IP_PORT);
        ports.extend(self.neighbours.ports());
        ports.sort();
        ports.dedup();
        for port in ports {
            self.tell(port, now);
        }
        self.port.poll();
    }

    /// How often [`Module::look_around`] has something to do.
    pub const LOOK_EVERY: Duration = LOOK_EVERY;

    fn take_completions(&mut self) {
        while let Some(sent) = self.port.poll_sent() {
            self.on_sent(&sent);
        }
    }

    fn on_sent(&mut self, sent: &Sent) {
        if sent.tag != NO_BUFFER {
            self.free.push(sent.tag as u32 as usize);
            if sent.tag >> 32 != 0
                && let Some(under_way) = self.under_way.get_mut(&sent.to)
            {
                *under_way -= 1;
                if *under_way == 0 {
                    self.under_way.remove(&sent.to);
                }
            }
        }
        let Err(failure) = sent.result else {
            return;
        };
        self.counters.failed += 1;
        if !matches!(failure, Failure::NoBuffer | Failure::TooLong) {
            self.neighbours.forget(sent.to);
            self.announcements.forget(sent.to);
        }
    }

    /// What becomes readable when there may be something to do, once [`Module::prepare_to_wait`]
    /// has said so.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.port.descriptor()
    }

    /// Gets the descriptor ready for somebody who waits for it. False if there is something to do
    /// already.
    pub fn prepare_to_wait(&mut self) -> bool {
        self.take_completions();
        let is_idle = self.port.prepare_to_wait();
        self.take_completions();
        is_idle
    }

    /// Does what the descriptor has become readable for.
    ///
    /// # Errors
    /// Those of the link, after which it is of no more use.
    pub fn wake(&mut self) -> io::Result<()> {
        self.port.wait(Some(Duration::ZERO))?;
        self.take_completions();
        Ok(())
    }
}

/// Writes header and packet to the beginning of `bytes`, where there is room.
fn write(bytes: &mut [u8], vnet: &VnetHeader, parts: &[&[u8]]) {
    let head = header::emit(vnet);
    let mut at = header::LEN;
    bytes[..at].copy_from_slice(&head);
    for part in parts {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

/// Finishes the checksum that a stack has left, as a device would.
fn finish_checksum(packet: &mut [u8], vnet: &VnetHeader) {
    let start = usize::from(vnet.csum_start);
    let at = start + usize::from(vnet.csum_offset);
    if start > packet.len() || at + 2 > packet.len() {
        return;
    }
    let sum = Sum::of(&packet[start..]).finish();
    // Of UDP, 0 says that there is none (RFC 768).
    let sum = if sum == 0 { 0xffff } else { sum };
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
