//! Packets that come in fragments (RFC 791 3.2, RFC 8200 4.5), put together under bounds of number,
//! memory and time.
//!
//! Parts are kept as they come and joined when all are there, so that a packet takes no more memory
//! than its parts. A part that overlaps another without being the same again condemns its packet
//! (RFC 5722): nobody sends such parts but to have two readers read two things.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_steer::{Pair, Tuple};
use millrace_tcp::{Duration, Instant};

/// How long the parts of a packet wait for each other (RFC 8200 4.5; RFC 1122 3.3.2 has the same).
const PATIENCE: Duration = Duration::from_secs(60);
/// Parts of one packet: more are needed only when they are smaller than any link makes them.
const PARTS_MAX: usize = 128;
/// Of all packets, those of one source may be one in so many.
const SOURCE_SHARE: usize = 4;
/// Bytes of bookkeeping for each part.
const PART_OVERHEAD: u64 = 64;
/// The longest that a packet can be, without its header.
pub const LEN_MAX: usize = 65_535;

/// Names a packet that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// RFC 791: source, destination, protocol and identification.
    V4(Ipv4Addr, Ipv4Addr, u8, u16),
    /// RFC 8200: source, destination and identification.
    V6(Ipv6Addr, Ipv6Addr, u32),
}

/// A part.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// Where it belongs, in bytes.
    pub offset: u16,
    /// Whether more parts follow it.
    pub more: bool,
    /// The payload; that of every part but the last is a multiple of eight bytes.
    pub bytes: &'a [u8],
    /// The protocol of the packet, from its first part.
    pub protocol: u8,
    /// Whether it met congestion (RFC 3168 5.3).
    pub marked: bool,
    /// The start of the packet that it came in: what an error about the whole would quote.
    pub packet: &'a [u8],
}

/// The outcome of adding a part.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Others are missing, or it was there already.
    Waiting,
    /// It was the last that was missing.
    Whole(Whole),
    /// There is no room for it.
    Full,
    /// Its packet is condemned, by this part or an earlier one.
    Condemned,
}

/// A packet put together.
#[derive(Debug, PartialEq, Eq)]
pub struct Whole {
    /// The payload.
    pub protocol: u8,
    /// The payload.
    pub bytes: Vec<u8>,
    /// Whether a part met congestion.
    pub marked: bool,
    /// The start of the packet that the first part came in.
    pub packet: Vec<u8>,
}

/// The packets of which parts are missing, oldest first.
pub struct Reassembly {
    packets: VecDeque<Packet>,
    packets_max: usize,
    memory: u64,
    memory_max: u64,
}

/// A packet of which parts are missing.
pub struct Packet {
    name: Name,
    until: Instant,
    /// In the order of their offsets, none overlapping another.
    parts: Vec<(u16, Vec<u8>)>,
    /// How long it is, once the last part is there.
    len: Option<usize>,
    protocol: u8,
    marked: bool,
    first: Vec<u8>,
    condemned: bool,
}

impl Name {
    /// The flow that a packet's parts are of, as `millrace_steer::flow_of` has it: the one between
    /// its addresses.
    pub fn flow(&self) -> Tuple {
        match *self {
            Name::V4(remote, local, ..) => Tuple::V4(Pair {
                local,
                remote,
                local_port: 0,
                remote_port: 0,
            }),
            Name::V6(remote, local, _) => Tuple::V6(Pair {
                local,
                remote,
                local_port: 0,
                remote_port: 0,
            }),
        }
    }

    fn has_source_of(&self, other: &Name) -> bool {
        match (self, other) {
            (Name::V4(a, ..), Name::V4(b, ..)) => a == b,
            (Name::V6(a, ..), Name::V6(b, ..)) => a == b,
            _ => false,
        }
    }
}

impl Reassembly {
    /// For at most so many packets, with parts of so many bytes altogether.
    pub fn new(packets_max: u32, memory_max: u64) -> Reassembly {
        Reassembly {
            packets: VecDeque::new(),
            packets_max: packets_max as usize,
            memory: 0,
            memory_max,
        }
    }

    /// Packets of which parts are missing.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Takes a part in.
    pub fn add(&mut self, name: Name, part: &Part<'_>, now: Instant) -> Outcome {
        let size = part.bytes.len() as u64 + PART_OVERHEAD + part.packet.len() as u64;
        let crowded = self.memory + size > self.memory_max;
        let index = match self.packets.iter().position(|packet| packet.name == name) {
            Some(index) => index,
            None => {
                let of_source = |packet: &&Packet| packet.name.has_source_of(&name);
                if crowded
                    || self.packets.len() >= self.packets_max
                    || self.packets.iter().filter(of_source).count()
                        >= self.packets_max.div_ceil(SOURCE_SHARE)
                {
                    return Outcome::Full;
                }
                self.packets.push_back(Packet::new(name, now));
                self.packets.len() - 1
            }
        };
        let packet = &mut self.packets[index];
        if packet.condemned {
            return Outcome::Condemned;
        }
        if crowded {
            return Outcome::Full;
        }
        let before = packet.size();
        let sound = packet.add(part);
        if !sound {
            packet.condemn();
        }
        let whole = packet.is_whole();
        self.memory = self.memory + packet.size() - before;
        if !sound {
            return Outcome::Condemned;
        }
        if !whole {
            return Outcome::Waiting;
        }
        match self.packets.remove(index) {
            Some(packet) => {
                self.memory -= packet.size();
                Outcome::Whole(packet.join())
            }
            None => Outcome::Waiting,
        }
    }

    /// Forgets a packet whose parts have waited long enough. Returns the start of the packet that
    /// its first part came in, empty when that is missing, too, or was condemned.
    pub fn pop_expired(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.packets.front()?.until > now {
            return None;
        }
        let packet = self.packets.pop_front()?;
        self.memory -= packet.size();
        Some(packet.first)
    }

    /// Takes out the packets of some flows: their other parts come to another shard.
    pub fn take(&mut self, chosen: impl Fn(&Tuple) -> bool) -> Vec<Packet> {
        let mut taken = Vec::new();
        for packet in std::mem::take(&mut self.packets) {
            if chosen(&packet.name.flow()) {
                self.memory -= packet.size();
                taken.push(packet);
            } else {
                self.packets.push_back(packet);
            }
        }
        taken
    }

    /// Puts packets in that another shard has begun, as far as there is room for them; those that
    /// have begun here, too, stay as they are.
    pub fn put(&mut self, packets: Vec<Packet>) {
        for packet in packets {
            let known = self.packets.iter().any(|other| other.name == packet.name);
            let size = packet.size();
            if known
                || self.packets.len() >= self.packets_max
                || self.memory + size > self.memory_max
            {
                continue;
            }
            self.memory += size;
            let older = |other: &Packet| other.until <= packet.until;
            let at = self.packets.partition_point(older);
            self.packets.insert(at, packet);
        }
    }

    /// When the oldest has waited long enough.
    pub fn deadline(&self) -> Option<Instant> {
        self.packets.front().map(|packet| packet.until)
    }
}

impl Packet {
    fn new(name: Name, now: Instant) -> Packet {
        Packet {
            name,
            until: now + PATIENCE,
            parts: Vec::new(),
            len: None,
            protocol: 0,
            marked: false,
            first: Vec::new(),
            condemned: false,
        }
    }

    /// False when the part contradicts what is there.
    fn add(&mut self, part: &Part<'_>) -> bool {
        let (start, len) = (usize::from(part.offset), part.bytes.len());
        let end = start + len;
        let at = self
            .parts
            .partition_point(|(offset, _)| *offset < part.offset);
        let next = self.parts.get(at);
        // The same again: the network has doubled it.
        if next.is_some_and(|(offset, bytes)| *offset == part.offset && bytes.len() == len) {
            return true;
        }
        let begins_late = at == 0
            || self
                .parts
                .get(at - 1)
                .is_none_or(|(offset, bytes)| usize::from(*offset) + bytes.len() <= start);
        let ends_early = next.is_none_or(|(offset, _)| end <= usize::from(*offset));
        // The end is where the last part says, and there is only one.
        let fits = match self.len {
            Some(len) => end <= len && part.more,
            None => part.more || next.is_none(),
        };
        let sound = len > 0 && begins_late && ends_early && fits && end <= LEN_MAX;
        if !sound || self.parts.len() >= PARTS_MAX {
            return false;
        }
        if !part.more {
            self.len = Some(end);
        }
        if start == 0 {
            self.protocol = part.protocol;
            self.first = part.packet.to_vec();
        }
        self.marked |= part.marked;
        self.parts.insert(at, (part.offset, part.bytes.to_vec()));
        true
    }

    /// Keeps the name, so that what else comes of it goes the same way, and nothing more.
    fn condemn(&mut self) {
        self.parts = Vec::new();
        self.first = Vec::new();
        self.condemned = true;
    }

    fn size(&self) -> u64 {
        let parts = self.parts.iter();
        parts
            .map(|(_, bytes)| bytes.len() as u64 + PART_OVERHEAD)
            .sum::<u64>()
            + self.first.len() as u64
    }

    /// Since no part overlaps another, as many bytes as the packet has are all of it.
    fn is_whole(&self) -> bool {
        let have: usize = self.parts.iter().map(|(_, bytes)| bytes.len()).sum();
        self.len == Some(have)
    }

    fn join(self) -> Whole {
        Whole {
            protocol: self.protocol,
            bytes: self
                .parts
                .into_iter()
                .flat_map(|(_, bytes)| bytes)
                .collect(),
            marked: self.marked,
            packet: self.first,
        }
    }
}

/// How many bytes of a payload every fragment but the last carries.
pub fn piece_size(mtu: u16, heads_len: usize) -> usize {
    (usize::from(mtu) - heads_len) / 8 * 8
}

#[cfg(test)]
mod tests;
