//! Pacing: the segments of one unit leave over a part of the time in which their flow makes such a
//! unit, not in one burst.
//!
//! How fast a flow is shows in how far apart its units are. Nothing of a flow is overtaken: when
//! something of it comes while a unit is still leaving, what is left of that leaves first, at once.
//! So pacing makes no flow slower than its sender is.

use millrace_wire::bytes::{get16, get32};
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::tcp;
use millrace_wire::vlan;
use millrace_wire::vnet::{self, VnetHeader};
use millrace_wire::{ipv4, ipv6};

use crate::time::Instant;
use crate::transmit::{self, Cut, Unsound};

/// Segments that leave together at least.
const TOGETHER: u64 = 4;
/// They are at least so far apart, in nanoseconds: a clock that is looked at more often would cost
/// more than it gains.
const STEP_MIN: u64 = 20_000;
/// For how long, in nanoseconds, a unit leaves at most.
const SPREAD_MAX: u64 = 1_000_000;
/// Units that leave at a time. What is more leaves at once.
const UNITS: usize = 32;
/// Flows whose pace is remembered, a power of two. Of two that share a place the later one is.
const PLACES: usize = 1024;
/// The largest unit: 64 KB of IP, an Ethernet header and a tag.
const UNIT_MAX: usize = 0xffff + ethernet::HEADER_LEN + vlan::LEN;

/// What happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PaceCounters {
    /// Units that left in several steps.
    pub paced: u64,
    /// Those of them that ended early, because something of the same flow came.
    pub hurried: u64,
    /// Units that left at once: their flows are too fast or not known yet, or too many were
    /// leaving.
    pub at_once: u64,
}

impl PaceCounters {
    /// Adds what another counted.
    pub fn add(&mut self, other: &PaceCounters) {
        self.paced += other.paced;
        self.hurried += other.hurried;
        self.at_once += other.at_once;
    }
}

/// A unit that leaves.
#[derive(Debug)]
struct Leaving {
    bytes: Box<[u8]>,
    start: usize,
    len: usize,
    cut: Option<Cut>,
    /// When more of it leaves, how long after that again, and how many segments each time.
    at: Instant,
    step: u64,
    together: usize,
    /// The place of its flow.
    place: usize,
}

/// What is known of a flow.
#[derive(Clone, Copy, Debug)]
struct Place {
    tag: u64,
    /// When its last unit came, and how far apart they are on average, in nanoseconds; 0: not
    /// known.
    last: Instant,
    average: u64,
    /// Its unit that leaves.
    leaving: Option<usize>,
}

/// Units of many flows, each at the pace of its own.
#[derive(Debug)]
pub struct Pacer {
    units: Vec<Leaving>,
    /// The one that the next frame is received into.
    next: usize,
    places: Vec<Place>,
    counters: PaceCounters,
}

impl Default for Pacer {
    fn default() -> Self {
        let unit = || Leaving {
            bytes: vec![0; UNIT_MAX].into_boxed_slice(),
            start: 0,
            len: 0,
            cut: None,
            at: Instant(0),
            step: 0,
            together: 0,
            place: 0,
        };
        let place = Place {
            tag: 0,
            last: Instant(0),
            average: 0,
            leaving: None,
        };
        Pacer {
            units: (0..=UNITS).map(|_| unit()).collect(),
            next: 0,
            places: vec![place; PLACES],
            counters: PaceCounters::default(),
        }
    }
}

impl Pacer {
    /// The buffer for the next frame: room for the largest unit with a tag.
    pub fn buffer(&mut self) -> &mut [u8] {
        &mut self.units[self.next].bytes
    }

    /// Takes the frame of `len` bytes from `start` on in [`Pacer::buffer`]. `each` is given headers
    /// and payload of what leaves now, ready for a wire.
    ///
    /// # Errors
    /// [`Unsound`] when the frame is not what `vnet` says; nothing of it leaves.
    ///
    /// # Panics
    /// When the buffer has not so many bytes.
    pub fn frame(
        &mut self,
        start: usize,
        len: usize,
        vnet: &VnetHeader,
        now: Instant,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), Unsound> {
        let frame = &mut self.units[self.next].bytes[start..start + len];
        let tag = tag(frame);
        let place = place(tag);
        let is_unit = vnet.gso != vnet::Gso::NONE;
        let cut = match is_unit {
            true => Some(Cut::new(frame, vnet)?),
            false => transmit::complete(frame, vnet).map(|()| None)?,
        };
        let known = &mut self.places[place];
        if (known.tag == tag || is_unit)
            && let Some(before) = known.leaving
        {
            self.counters.hurried += 1;
            self.leave(before, usize::MAX, &mut each);
        }
        let own = self.next;
        let Some(cut) = cut else {
            each(&self.units[own].bytes[start..start + len], &[]);
            return Ok(());
        };
        let spread = self.pace(place, tag, now);
        let steps = (spread / STEP_MIN).min(cut.count as u64 / TOGETHER);
        let unit = &mut self.units[own];
        (unit.start, unit.len, unit.cut, unit.place) = (start, len, Some(cut), place);
        let next = match steps {
            0 | 1 => None,
            _ => self.units.iter().position(|unit| unit.cut.is_none()),
        };
        let Some(next) = next else {
            self.counters.at_once += 1;
            self.leave(own, usize::MAX, &mut each);
            return Ok(());
        };
        self.counters.paced += 1;
        let unit = &mut self.units[own];
        unit.step = spread / steps;
        unit.together = cut.count.div_ceil(steps as usize);
        unit.at = now.after(unit.step);
        let together = unit.together;
        self.places[place].leaving = Some(own);
        self.next = next;
        self.leave(own, together, &mut each);
        Ok(())
    }

    /// When [`Pacer::on_timer`] wants to be called; `None` when nothing is leaving.
    pub fn deadline(&self) -> Option<Instant> {
        let leaving = self.units.iter().filter(|unit| unit.cut.is_some());
        leaving.map(|unit| unit.at).min()
    }

    /// What is due leaves. Says whether there was something.
    pub fn on_timer(&mut self, now: Instant, mut each: impl FnMut(&[u8], &[u8])) -> bool {
        let mut some = false;
        for index in 0..self.units.len() {
            let unit = &mut self.units[index];
            if unit.cut.is_none() || unit.at > now {
                continue;
            }
            let steps = now.since(unit.at) / unit.step + 1;
            unit.at = unit.at.after(steps * unit.step);
            let count = (steps as usize).saturating_mul(unit.together);
            self.leave(index, count, &mut each);
            some = true;
        }
        some
    }

    /// What happened.
    pub fn counters(&self) -> PaceCounters {
        self.counters
    }

    /// Notes a unit of a flow, and says over how long it is to leave, in nanoseconds: half of the
    /// time in which the flow makes one.
    fn pace(&mut self, place: usize, tag: u64, now: Instant) -> u64 {
        let known = &mut self.places[place];
        if known.tag != tag {
            *known = Place {
                tag,
                last: now,
                average: 0,
                leaving: None,
            };
            return 0;
        }
        // A pause says nothing about how fast a flow is when it goes on.
        let gap = now.since(known.last).clamp(1, 2 * SPREAD_MAX);
        known.last = now;
        known.average = match known.average {
            0 => gap,
            average => u64::midpoint(average, gap),
        };
        known.average / 2
    }

    /// So many segments of a unit leave.
    fn leave(&mut self, index: usize, count: usize, each: &mut impl FnMut(&[u8], &[u8])) {
        let unit = &mut self.units[index];
        let Some(cut) = &mut unit.cut else { return };
        let bytes = &unit.bytes[unit.start..unit.start + unit.len];
        for _ in 0..count.min(cut.count) {
            let Some((head, payload)) = cut.next(bytes) else {
                break;
            };
            each(head, payload);
        }
        if cut.made == cut.count {
            unit.cut = None;
            let leaving = &mut self.places[unit.place].leaving;
            if *leaving == Some(index) {
                *leaving = None;
            }
        }
    }
}

/// Where a flow is remembered.
fn place(tag: u64) -> usize {
    let mixed = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - PLACES.ilog2())) as usize
}

/// What tells flows apart well enough: ports, and parts of the addresses. 0 for what is no TCP over
/// IP.
fn tag(frame: &[u8]) -> u64 {
    let tagged = frame.get(12..14) == Some(&EtherType::VLAN.0.to_be_bytes()[..]);
    let ip_at = ethernet::HEADER_LEN + if tagged { vlan::LEN } else { 0 };
    let Some(ip) = frame.get(ip_at..).filter(|ip| ip.len() >= ipv4::HEADER_LEN) else {
        return 0;
    };
    let (protocol, len, addresses) = match get16(frame, ip_at - 2) {
        kind if kind == EtherType::IPV4.0 => {
            let addresses = get32(ip, 12).wrapping_add(get32(ip, 16).rotate_left(16));
            (ip[9], usize::from(ip[0] & 0xf) * 4, addresses)
        }
        kind if kind == EtherType::IPV6.0 && ip.len() >= ipv6::HEADER_LEN => {
            let addresses = get32(ip, 20).wrapping_add(get32(ip, 36).rotate_left(16));
            (ip[6], ipv6::HEADER_LEN, addresses)
        }
        _ => return 0,
    };
    match ip.get(len..).filter(|tcp| tcp.len() >= 4) {
        Some(segment) if protocol == tcp::PROTOCOL => {
            u64::from(get32(segment, 0)) << 32 | u64::from(addresses)
        }
        _ => 0,
    }
}
