//! Receive offload: frames in, units out.

use millrace_wire::tcp::Flags;
use millrace_wire::vnet::{Gso, VnetHeader};

use crate::config::Config;
use crate::counters::{Cause, Counters};
use crate::filter::{Class, Segment, classify};
use crate::flow::{Flow, FlowInfo};
use crate::hold::{self, Held};
use crate::pool::{Item, NONE, Pool};
use crate::table::Table;
use crate::time::Instant;
use crate::unit::{Sink, UNIT_SEGMENTS, Unit};

/// How far ahead of what is expected a segment may be, in bytes; beyond, it is none that a hole was left for.
const FAR: u32 = 4 << 20;
/// How many segments in a row that continue each other, elsewhere than expected, move the expectation there.
const STRAYS: u8 = 3;
/// The least that a hole is waited for, in nanoseconds.
const REORDER_MIN: u64 = 20_000;

/// What joins segments into units, for one queue of frames.
///
/// A round of its owner: [`Receive::buffer`], receive into it, [`Receive::frame`], for each frame of a burst; [`Receive::end_of_burst`]; and
/// [`Receive::on_timer`] when [`Receive::deadline`] has come. What is handed on of a flow is in the order in which it came, but for
/// segments that are put back where they belong.
#[derive(Debug)]
pub struct Receive {
    config: Config,
    pool: Pool,
    table: Table,
    /// Flows that hold something.
    held: Vec<u32>,
    /// Flows of which a segment was held in this burst.
    touched: Vec<u32>,
    /// No flow's deadline is before this.
    deadline: Instant,
    counters: Counters,
}

impl Receive {
    /// Makes all buffers and descriptors that it will ever have.
    ///
    /// # Panics
    /// Without a buffer or without a flow.
    pub fn new(config: Config) -> Receive {
        assert!(
            config.buffers > 0 && config.flows > 0,
            "nothing to hold frames in"
        );
        Receive {
            pool: Pool::new(config.buffers, config.buffer_len),
            table: Table::new(config.flows, config.hash_key),
            held: Vec::with_capacity(config.flows),
            touched: Vec::with_capacity(config.flows),
            deadline: Instant(u64::MAX),
            counters: Counters::default(),
            config,
        }
    }

    /// The buffer for the next frame.
    pub fn buffer(&mut self) -> &mut [u8] {
        // `frame` leaves one free.
        self.pool.buffer_mut(self.pool.next())
    }

    /// Takes the frame that was received into [`Receive::buffer`]: `len` bytes from `start` on, and those in `rest` that the buffer had no room for.
    ///
    /// # Panics
    /// When the buffer has not so many bytes.
    pub fn frame(
        &mut self,
        start: usize,
        len: usize,
        rest: &[u8],
        vnet: VnetHeader,
        now: Instant,
        sink: &mut impl Sink,
    ) {
        self.counters.frames += 1;
        if self.config.aggregate == 0 {
            return self.pass(start, len, rest, vnet, sink);
        }
        let bytes = &self.pool.buffer(self.pool.next())[start..start + len];
        match classify(bytes, len + rest.len(), &vnet) {
            Class::Other => {}
            Class::SomeFlow => self.flush_all(Cause::Order, sink),
            Class::BadIp => {
                self.counters.bad_ip_checksum += 1;
                return;
            }
            Class::BadTcp => {
                self.counters.bad_tcp_checksum += 1;
                return;
            }
            Class::Segment(mut segment) => {
                // What was joined already is a unit of its own.
                segment.plain &= vnet.gso == Gso::NONE;
                if self.segment(start, &segment, now, sink) {
                    return;
                }
            }
        }
        self.pass(start, len, rest, vnet, sink);
    }

    /// The burst has ended, and with `drained` there is no further frame now: what waiting would only delay is handed on.
    pub fn end_of_burst(&mut self, drained: bool, now: Instant, sink: &mut impl Sink) {
        while let Some(index) = self.touched.pop() {
            let flow = self.table.flow_mut(index);
            let gap = now.since(flow.last) / u64::from(flow.in_burst.max(1));
            // A pause says nothing about how fast a flow is when it goes on.
            let gap = gap.min(2 * self.config.hold_max);
            flow.average = u64::midpoint(flow.average, gap);
            flow.last = now;
            flow.in_burst = 0;
            if flow.count == 0 {
                continue;
            }
            let wait = flow.average.saturating_mul(self.config.patience);
            if !flow.has_hole() {
                let too_slow = drained && wait > self.config.idle_hold_max
                    || flow.average > self.config.hold_max;
                if too_slow {
                    self.flush(index, Cause::Burst, sink);
                    continue;
                }
                flow.deadline = now.after(wait).min(flow.oldest.after(self.config.hold_max));
            } else {
                let wait = wait.max(REORDER_MIN);
                flow.deadline = now
                    .after(wait)
                    .min(flow.hole_since.after(self.config.reorder_max))
                    .min(flow.oldest.after(self.config.hold_max));
            }
            self.deadline = self.deadline.min(flow.deadline);
        }
        self.age(now, sink);
        self.on_timer(now, sink);
    }

    /// When [`Receive::on_timer`] wants to be called; `None` when nothing is held.
    pub fn deadline(&self) -> Option<Instant> {
        (!self.held.is_empty()).then_some(self.deadline)
    }

    /// Hands on what was held for long enough.
    pub fn on_timer(&mut self, now: Instant, sink: &mut impl Sink) {
        if self.held.is_empty() || now < self.deadline {
            return;
        }
        self.deadline = Instant(u64::MAX);
        let mut at = 0;
        while let Some(&index) = self.held.get(at) {
            let flow = self.table.flow(index);
            if flow.deadline <= now {
                let cause = if flow.has_hole() {
                    Cause::Hole
                } else {
                    Cause::Timeout
                };
                // Another one takes its place in the list.
                self.flush(index, cause, sink);
            } else {
                self.deadline = self.deadline.min(flow.deadline);
                at += 1;
            }
        }
    }

    /// Hands on everything.
    pub fn flush_everything(&mut self, sink: &mut impl Sink) {
        self.flush_all(Cause::Order, sink);
    }

    /// What happened.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How many buffers are free.
    pub fn free_buffers(&self) -> usize {
        self.pool.free_count()
    }

    /// Every flow that is known.
    pub fn flows(&self, now: Instant) -> impl Iterator<Item = FlowInfo> {
        self.table.iter().map(move |flow| FlowInfo {
            key: flow.key,
            segments: flow.segments,
            units: flow.units,
            bytes: flow.total_bytes,
            reordered: flow.reordered,
            held: flow.bytes,
            interval: flow.average,
            idle: now.since(flow.last),
        })
    }

    /// Hands on the frame in the next buffer as it is.
    fn pass(
        &mut self,
        start: usize,
        len: usize,
        rest: &[u8],
        vnet: VnetHeader,
        sink: &mut impl Sink,
    ) {
        self.counters.passed += 1;
        let buffer = self.pool.buffer(self.pool.next());
        sink.unit(Unit {
            head: &buffer[start..start + len],
            payload: &[rest],
            vnet,
            segments: 0,
        });
    }

    /// Takes a segment; `false` when it is to be handed on as it is, now that everything before it was.
    fn segment(
        &mut self,
        start: usize,
        segment: &Segment,
        now: Instant,
        sink: &mut impl Sink,
    ) -> bool {
        let hash = self.table.hash(&segment.key);
        let known = self.table.find(&segment.key, hash);
        let flags = segment.flags;
        if flags.intersects(Flags::FIN | Flags::RST) {
            if let Some(index) = known {
                self.flush(index, Cause::Order, sink);
                self.forget(index);
            }
            return false;
        }
        let index = match known {
            Some(index) => index,
            None if flags.contains(Flags::SYN) || segment.plain => {
                self.take_up(segment, hash, now, sink)
            }
            None => return false,
        };
        if flags.contains(Flags::SYN) {
            self.flush(index, Cause::Order, sink);
            let flow = self.table.flow_mut(index);
            flow.next_seq = Some(segment.seq + 1 + segment.payload_len);
            return false;
        }
        if !segment.plain {
            self.flush(index, Cause::Order, sink);
            self.passed_by(index, segment);
            return false;
        }
        self.data(index, start, segment, now, sink)
    }

    /// Holds payload, if it is what is expected, or not far from it.
    fn data(
        &mut self,
        index: u32,
        start: usize,
        segment: &Segment,
        now: Instant,
        sink: &mut impl Sink,
    ) -> bool {
        let len = segment.payload_len;
        let limit = self.limit(segment);
        let flow = self.table.flow_mut(index);
        flow.used = true;
        let base = *flow.next_seq.get_or_insert(segment.seq);
        if (segment.seq - base) as u32 > FAR {
            self.counters.strays += 1;
            self.flush(index, Cause::Order, sink);
            self.passed_by(index, segment);
            return false;
        }
        let full = flow.count as usize >= UNIT_SEGMENTS || flow.bytes + len > limit;
        let fills = flow.has_hole() && segment.seq == base + flow.run_bytes;
        if full && flow.count > 0 && !fills {
            if flow.run_bytes > 0 {
                self.flush_run(index, Cause::Full, now, sink);
            } else {
                // What is beyond the hole is too much by itself.
                self.flush(index, Cause::Full, sink);
            }
            return self.data(index, start, segment, now, sink);
        }
        let item = Item {
            next: NONE,
            frame_at: start as u16,
            ip_at: segment.ip_at,
            tcp_at: segment.tcp_at,
            headers_len: segment.payload_at,
            payload_at: segment.payload_at,
            len: len as u16,
            window: segment.window,
            flags: segment.flags,
            timestamps_at: segment.timestamps_at,
            seq: segment.seq,
            ack: segment.ack,
            timestamps: segment.timestamps,
            sum: segment.sum,
        };
        let before = (flow.has_hole(), flow.run_bytes);
        match hold::insert(flow, &mut self.pool, item, base) {
            Held::Last => {}
            Held::Between { trimmed } => {
                self.counters.reordered += 1;
                self.counters.trimmed += u64::from(trimmed);
                flow.reordered += 1;
            }
            Held::Duplicate => {
                self.counters.duplicates += 1;
                return true;
            }
            Held::Covers => {
                self.counters.strays += 1;
                self.flush(index, Cause::Order, sink);
                self.passed_by(index, segment);
                return false;
            }
        }
        if before != (flow.has_hole(), flow.run_bytes) {
            // There was none, or the first of several was filled.
            flow.hole_since = now;
        }
        flow.strays = 0;
        flow.segments += 1;
        flow.total_bytes += u64::from(len);
        self.counters.segments += 1;
        self.counters.segment_bytes += u64::from(len);
        if flow.in_burst == 0 {
            self.touched.push(index);
        }
        flow.in_burst += 1;
        if flow.held_at == NONE {
            flow.held_at = self.held.len() as u32;
            flow.oldest = now;
            // Until the burst has ended there is no other.
            flow.deadline = now.after(self.config.reorder_max);
            self.deadline = self.deadline.min(flow.deadline);
            self.held.push(index);
        }
        if flow.pushed {
            self.flush_run(index, Cause::Push, now, sink);
        } else if flow.run_bytes + len > limit || flow.count as usize >= UNIT_SEGMENTS {
            // No further one like this has room.
            self.flush_run(index, Cause::Full, now, sink);
        }
        if self.pool.free_count() == 0 {
            self.relieve(sink);
        }
        true
    }

    /// The largest payload of a unit with the headers of this segment.
    fn limit(&self, segment: &Segment) -> u32 {
        u32::from(self.config.aggregate)
            .saturating_sub(u32::from(segment.payload_at - segment.ip_at))
    }

    /// Notes a segment that is handed on as it is: it counts as what came before what comes next.
    fn passed_by(&mut self, index: u32, segment: &Segment) {
        let flow = self.table.flow_mut(index);
        flow.used = true;
        if segment.payload_len == 0 {
            return;
        }
        let end = segment.seq + segment.payload_len;
        let ahead = flow.next_seq.is_none_or(|next| (end - next) as u32 <= FAR);
        flow.strays = if flow.strays > 0 && flow.stray_end == segment.seq {
            flow.strays.saturating_add(1)
        } else {
            1
        };
        flow.stray_end = end;
        if ahead || flow.strays >= STRAYS {
            flow.next_seq = Some(end);
            flow.strays = 0;
        }
    }

    /// Takes up a flow; the one that was least in use goes if there is no room.
    fn take_up(&mut self, segment: &Segment, hash: u64, now: Instant, sink: &mut impl Sink) -> u32 {
        self.counters.flows_created += 1;
        // Slow until it has shown otherwise.
        let flow = Flow::new(segment.key, hash, now, 2 * self.config.hold_max);
        if let Some(index) = self.table.insert(flow) {
            return index;
        }
        let victim = self.table.victim();
        self.flush(victim, Cause::Pressure, sink);
        self.forget(victim);
        self.counters.flows_evicted += 1;
        self.table.insert(flow).expect("a descriptor is free")
    }

    /// Drops a flow of which nothing is held.
    fn forget(&mut self, index: u32) {
        if self.table.flow(index).in_burst > 0 {
            self.touched.retain(|&other| other != index);
        }
        self.table.remove(index);
    }

    /// Hands on everything that is held of a flow.
    fn flush(&mut self, index: u32, cause: Cause, sink: &mut impl Sink) {
        self.hand_on(index, cause, true, sink);
    }

    /// Hands on what is in order; what is beyond a hole is waited for from now on.
    fn flush_run(&mut self, index: u32, cause: Cause, now: Instant, sink: &mut impl Sink) {
        self.hand_on(index, cause, false, sink);
        self.table.flow_mut(index).oldest = now;
    }

    fn hand_on(&mut self, index: u32, cause: Cause, everything: bool, sink: &mut impl Sink) {
        let flow = self.table.flow_mut(index);
        if flow.count == 0 || !everything && flow.run_bytes == 0 {
            return;
        }
        self.counters.flushed(cause);
        self.counters.units += hold::hand_on(flow, &mut self.pool, &self.config, everything, sink);
        if flow.count == 0 {
            let at = std::mem::replace(&mut flow.held_at, NONE);
            self.held.swap_remove(at as usize);
            if let Some(&moved) = self.held.get(at as usize) {
                self.table.flow_mut(moved).held_at = at;
            }
        }
    }

    fn flush_all(&mut self, cause: Cause, sink: &mut impl Sink) {
        while let Some(&index) = self.held.last() {
            self.flush(index, cause, sink);
        }
    }

    /// Frees buffers: those of the flow that has held its own for longest.
    fn relieve(&mut self, sink: &mut impl Sink) {
        let oldest = |&index: &u32| self.table.flow(index).oldest;
        if let Some(index) = self.held.iter().copied().min_by_key(oldest) {
            self.flush(index, Cause::Pressure, sink);
        }
    }

    /// Drops a flow that has been silent for long; one is looked at each time.
    fn age(&mut self, now: Instant, sink: &mut impl Sink) {
        if let Some(index) = self.table.next_in_turn()
            && now.since(self.table.flow(index).last) > self.config.age_max
        {
            self.flush(index, Cause::Timeout, sink);
            self.forget(index);
            self.counters.flows_aged += 1;
        }
    }
}
