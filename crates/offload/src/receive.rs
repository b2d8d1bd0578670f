//! Receive offload: frames in, units out.

mod ahead;

use millrace_wire::tcp::Flags;
use millrace_wire::vnet::{Gso, VnetHeader};

use crate::ack_proxy::AckProxy;
use crate::active_ack::ActiveAck;
use crate::config::Config;
use crate::counters::{Cause, Counters};
use crate::filter::{Class, Segment, classify};
use crate::flow::{Flow, FlowInfo};
use crate::hold::{self, Held};
use crate::key::Key;
use crate::pool::{Item, NONE, Pool};
use crate::table::Table;
use crate::time::Instant;
use crate::turns::Turns;
use crate::unit::{Sink, UNIT_SEGMENTS, Unit};

/// How far ahead of what is expected a segment may be, in bytes; beyond, it is none that a hole was
/// left for.
const FAR: u32 = 4 << 20;
/// How many segments in a row that continue each other, elsewhere than expected, move the
/// expectation there.
const UNEXPECTED: u8 = 3;
/// The least that a hole is waited for, in nanoseconds.
const REORDER_MIN: u64 = 20_000;

/// What joins segments into units, for one queue of frames.
///
/// A round of its owner: [`Receive::buffer`], receive into it, [`Receive::frame`], for each frame
/// of a burst; [`Receive::end_of_burst`], or [`Receive::on_timer`] when there was none and
/// [`Receive::deadline`] has come; and [`Receive::serve`]. What passes is handed on at once, units
/// when their flow's turn comes: one unit of each flow after the other, so that nobody waits for
/// all that others have. What is handed on of a flow is in the order in which it came, but for
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
    /// Flows with a unit to be handed on.
    turns: Turns,
    /// What is known of the hosts' ends of flows, by their index; empty unless they are
    /// acknowledged for.
    ack_proxies: Vec<AckProxy>,
    /// Flows whose senders are owed an acknowledgement.
    owing: Vec<u32>,
    /// Nothing is to be given again before this.
    again_at: Instant,
    /// No flow's deadline is before this.
    deadline: Instant,
    /// Whether somebody has asked for a connection.
    newcomer: bool,
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
            turns: Turns::new(config.flows),
            ack_proxies: match config.active_ack {
                ActiveAck::Off => Vec::new(),
                _ => vec![AckProxy::NEW; config.flows],
            },
            owing: Vec::new(),
            again_at: Instant(u64::MAX),
            deadline: Instant(u64::MAX),
            newcomer: false,
            counters: Counters::default(),
            config,
        }
    }

    /// The buffer for the next frame.
    pub fn buffer(&mut self) -> &mut [u8] {
        // `frame` leaves one free.
        self.pool.buffer_mut(self.pool.next())
    }

    /// Takes the frame that was received into [`Receive::buffer`]: `len` bytes from `start` on, and
    /// those in `rest` that the buffer had no room for.
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

    /// Whether a SYN was handed on since this was asked last. Its sender waits for no more than an
    /// answer; whoever looks for that first lets him not wait for others' bulk.
    pub fn take_newcomer(&mut self) -> bool {
        std::mem::take(&mut self.newcomer)
    }

    /// The burst has ended, and with `drained` there is no further frame now: what waiting would
    /// only delay is handed on.
    pub fn end_of_burst(&mut self, drained: bool, now: Instant, sink: &mut impl Sink) {
        while let Some(index) = self.touched.pop() {
            let flow = self.table.flow_mut(index);
            let gap = now.since(flow.last) / u64::from(flow.in_burst.max(1));
            // A pause says nothing about how fast a flow is when it goes on.
            let gap = gap.min(2 * self.config.hold_max);
            flow.average = u64::midpoint(flow.average, gap);
            flow.last = now;
            flow.in_burst = 0;
            let segment_len = flow.total_bytes.checked_div(flow.segments).unwrap_or(0);
            if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize)
                && ack_proxy.is_worth_telling(flow, segment_len as u32)
                && !std::mem::replace(&mut ack_proxy.owed, true)
            {
                self.owing.push(index);
            }
            if flow.count == 0 {
                continue;
            }
            let wait = flow.average.saturating_mul(self.config.patience);
            if !flow.has_hole() {
                let too_slow = drained && wait > self.config.idle_hold_max
                    || flow.average > self.config.hold_max;
                if too_slow {
                    let all = flow.bytes;
                    self.owe(index, all, Cause::Burst);
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
        self.on_timer(now);
    }

    /// When [`Receive::on_timer`] or [`Receive::serve`] wants to be called; `None` when nothing is
    /// held.
    pub fn deadline(&self) -> Option<Instant> {
        if !self.turns.is_empty() {
            return Some(Instant(0));
        }
        let held = (!self.held.is_empty()).then_some(self.deadline);
        if self.ack_proxies.is_empty() {
            return held;
        }
        let owing = self.owing.iter();
        let owing = owing.map(|&index| self.ack_proxies[index as usize].may_tell_at());
        let again = Some(self.again_at).filter(|at| *at != Instant(u64::MAX));
        owing.chain(held).chain(again).min()
    }

    /// What was held for long enough gets its turn.
    pub fn on_timer(&mut self, now: Instant) {
        if self.held.is_empty() || now < self.deadline {
            return;
        }
        self.deadline = Instant(u64::MAX);
        for at in 0..self.held.len() {
            let index = self.held[at];
            let flow = self.table.flow(index);
            if flow.owed == flow.bytes {
                continue;
            }
            if flow.deadline <= now {
                let cause = if flow.has_hole() {
                    Cause::Hole
                } else if flow.deadline == flow.oldest.after(self.config.hold_max) {
                    Cause::Held
                } else {
                    Cause::Timeout
                };
                let all = flow.bytes;
                self.owe(index, all, cause);
            } else {
                self.deadline = self.deadline.min(flow.deadline);
            }
        }
    }

    /// Hands on up to so many units, of each flow that has some one in turn. Says how many there
    /// were.
    pub fn serve(&mut self, units: usize, sink: &mut impl Sink) -> usize {
        let mut served = 0;
        while served < units
            && let Some(index) = self.turns.next()
        {
            let flow = self.table.flow_mut(index);
            flow.in_turn = false;
            if flow.owed == 0 {
                // What it had was handed on before its turn, with something that passed.
                continue;
            }
            let (left, cause) = (flow.owed, flow.cause);
            self.one(index, cause, sink);
            served += 1;
            let flow = self.table.flow(index);
            debug_assert!(flow.owed < left, "a unit has bytes");
            if flow.owed > 0 {
                let owed = flow.owed;
                self.owe(index, owed, cause);
            }
        }
        served
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
        self.table.iter().map(move |(index, flow)| FlowInfo {
            key: flow.key,
            segments: flow.segments,
            units: flow.units,
            bytes: flow.total_bytes,
            reordered: flow.reordered,
            held: flow.bytes,
            ahead: self.ack_proxies.get(index).map_or(0, AckProxy::promised),
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

    /// Takes a segment; `false` when it is to be handed on as it is, now that everything before it
    /// was.
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
                self.end(index);
            }
            return false;
        }
        let index = match known {
            Some(index) => index,
            None if flags.contains(Flags::SYN) || segment.plain => {
                match self.take_up(segment.key, hash, now, sink) {
                    Some(index) => index,
                    None => return false,
                }
            }
            None => return false,
        };
        if flags.contains(Flags::SYN) {
            self.newcomer = true;
            self.flush(index, Cause::Order, sink);
            let flow = self.table.flow_mut(index);
            flow.next_seq = Some(segment.seq + 1 + segment.payload_len);
            let taken = self.config.active_ack.takes(&segment.key);
            if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize).filter(|_| taken) {
                let buffer = &self.pool.buffer(self.pool.next())[start..];
                let header = usize::from(segment.tcp_at)..usize::from(segment.payload_at);
                ack_proxy.on_sender_syn(segment, &buffer[header]);
            }
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
            self.counters.unexpected += 1;
            self.flush(index, Cause::Order, sink);
            self.passed_by(index, segment);
            return false;
        }
        let fills = segment.seq == base + flow.run_bytes;
        if flow.has_hole() && !fills && flow.bytes - flow.run_bytes + len > limit {
            // What is beyond the hole is too much by itself.
            self.flush(index, Cause::Full, sink);
            return self.data(index, start, segment, now, sink);
        }
        if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize) {
            ack_proxy.on_held(segment);
        }
        let item = item_of(start, segment);
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
                self.repeated(index, segment);
                return true;
            }
            Held::Covers => {
                self.counters.unexpected += 1;
                self.flush(index, Cause::Order, sink);
                self.passed_by(index, segment);
                return false;
            }
        }
        if before != (flow.has_hole(), flow.run_bytes) {
            // There was none, or the first of several was filled.
            flow.hole_since = now;
        }
        flow.unexpected = 0;
        flow.segments += 1;
        flow.total_bytes += u64::from(len);
        self.counters.segments += 1;
        self.counters.segment_bytes += u64::from(len);
        self.note_held(index, len, limit, now);
        while self.pool.free_count() == 0 {
            self.relieve(sink);
        }
        true
    }

    /// A flow holds `len` bytes more: when it is due, and whether that is at once.
    #[inline]
    fn note_held(&mut self, index: u32, len: u32, limit: u32, now: Instant) {
        let flow = self.table.flow_mut(index);
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
        let in_order = flow.run_bytes;
        if std::mem::take(&mut flow.pushed) {
            self.owe(index, in_order, Cause::Push);
        } else if in_order + len > limit + flow.owed
            || flow.count as usize >= UNIT_SEGMENTS && flow.owed == 0
        {
            // No further one like this has room.
            self.owe(index, in_order, Cause::Full);
        }
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
        if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize) {
            ack_proxy.whole &= flow.next_seq.is_some_and(|next| end.at_or_before(next));
        }
        self.repeated(index, segment);
        let flow = self.table.flow_mut(index);
        let ahead = flow.next_seq.is_none_or(|next| (end - next) as u32 <= FAR);
        flow.unexpected = if flow.unexpected > 0 && flow.unexpected_end == segment.seq {
            flow.unexpected.saturating_add(1)
        } else {
            1
        };
        flow.unexpected_end = end;
        // What was promised is not taken for new when it comes again.
        let steady = self
            .ack_proxies
            .get(index as usize)
            .is_some_and(AckProxy::is_known);
        if ahead || flow.unexpected >= UNEXPECTED && !steady {
            flow.next_seq = Some(end);
            flow.unexpected = 0;
        }
    }

    /// Takes up a flow; the one that was least in use goes if there is no room. `None` when none
    /// may go.
    fn take_up(&mut self, key: Key, hash: u64, now: Instant, sink: &mut impl Sink) -> Option<u32> {
        // Slow until it has shown otherwise.
        let flow = Flow::new(key, hash, now, 2 * self.config.hold_max);
        self.counters.flows_created += 1;
        if let Some(index) = self.table.insert(flow) {
            return Some(index);
        }
        let ack_proxies = &self.ack_proxies;
        let may_go = |index: u32| {
            let ack_proxy = ack_proxies.get(index as usize);
            ack_proxy.is_none_or(|ack_proxy| ack_proxy.kept.head == NONE)
        };
        let victim = self.table.victim(may_go)?;
        self.flush(victim, Cause::Pressure, sink);
        self.forget(victim);
        self.counters.flows_evicted += 1;
        self.table.insert(flow)
    }

    /// Drops a flow of which nothing is held.
    fn forget(&mut self, index: u32) {
        let flow = self.table.flow(index);
        if flow.in_turn {
            self.turns.forget(index);
        }
        if flow.in_burst > 0 {
            self.touched.retain(|&other| other != index);
        }
        if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize) {
            ack_proxy.release_all(&mut self.pool);
            self.owing.retain(|&other| other != index);
        }
        self.table.remove(index);
    }

    /// So many bytes of a flow are to be handed on when its turn comes.
    fn owe(&mut self, index: u32, bytes: u32, cause: Cause) {
        let flow = self.table.flow_mut(index);
        flow.owed = flow.owed.max(bytes);
        if bytes > 0 && !flow.in_turn {
            flow.in_turn = true;
            flow.cause = cause;
            self.turns.add(index, flow.owed);
        }
    }

    /// Hands on everything that is held of a flow.
    fn flush(&mut self, index: u32, cause: Cause, sink: &mut impl Sink) {
        while self.table.flow(index).count > 0 {
            self.one(index, cause, sink);
        }
    }

    /// Hands on one unit of a flow that holds something.
    fn one(&mut self, index: u32, cause: Cause, sink: &mut impl Sink) {
        let flow = self.table.flow_mut(index);
        let mut kept = None;
        if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize) {
            let seq = self.pool.item(flow.head).seq;
            // Beyond a hole nothing is kept.
            ack_proxy.whole &= flow.next_seq == Some(seq);
            let may = ack_proxy.is_open() && self.pool.free_count() > self.config.buffers / 4;
            if ack_proxy.has_promised(seq) || ack_proxy.whole && may {
                kept = Some(&mut ack_proxy.kept);
            } else {
                ack_proxy.whole = false;
            }
        }
        hold::hand_on(flow, &mut self.pool, &self.config, kept, sink);
        self.counters.flushed(cause);
        self.counters.units += 1;
        // What is left is younger than what has gone; for how long it was held is not known for
        // each segment.
        flow.oldest = flow.oldest.max(flow.last);
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

    /// Frees buffers: those of a flow whose turn it is, or those of the one that has held its own
    /// for longest.
    fn relieve(&mut self, sink: &mut impl Sink) {
        if self.serve(1, sink) > 0 {
            return;
        }
        let oldest = |&index: &u32| self.table.flow(index).oldest;
        if let Some(index) = self.held.iter().copied().min_by_key(oldest) {
            self.flush(index, Cause::Pressure, sink);
        }
        if self.pool.free_count() == 0 {
            for ack_proxy in &mut self.ack_proxies {
                ack_proxy.release_unpromised(&mut self.pool);
            }
        }
    }

    /// Drops a flow that has been silent for long; one is looked at each time.
    fn age(&mut self, now: Instant, sink: &mut impl Sink) {
        if let Some(index) = self.table.next_in_turn()
            && now.since(self.table.flow(index).last) > self.config.age_max
            && self
                .ack_proxies
                .get(index as usize)
                .is_none_or(|ack_proxy| ack_proxy.kept.head == NONE)
        {
            self.flush(index, Cause::Timeout, sink);
            self.forget(index);
            self.counters.flows_aged += 1;
        }
    }
}

/// What is kept of a segment whose frame begins at `start`.
#[inline]
fn item_of(start: usize, segment: &Segment) -> Item {
    Item {
        next: NONE,
        frame_at: start as u16,
        ip_at: segment.ip_at,
        tcp_at: segment.tcp_at,
        headers_len: segment.payload_at,
        payload_at: segment.payload_at,
        len: segment.payload_len as u16,
        window: segment.window,
        flags: segment.flags,
        timestamps_at: segment.timestamps_at,
        follows: false,
        seq: segment.seq,
        ack: segment.ack,
        timestamps: segment.timestamps,
        sum: segment.sum,
    }
}
