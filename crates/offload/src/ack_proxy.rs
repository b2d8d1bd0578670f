//! Acknowledging for the host: what is held is acknowledged before the host has it, and kept
//! until the host has acknowledged it itself.
//!
//! Only flows whose handshake was seen, both ways, with nothing in it that is not understood here,
//! and without ECN, whose marks only the host can answer.

use millrace_wire::bytes::{get16, get32, put16, put32};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::tcp::{self, Flags, Seq};
use millrace_wire::vnet::{self, VnetHeader};

use crate::filter::Segment;
use crate::flow::Flow;
use crate::pool::{NONE, Pool};
use crate::time::Instant;
use crate::unit::{HEAD_MAX, pseudo, replace16, set_length};

/// Two acknowledgements of a flow are at least so far apart, in nanoseconds.
pub(crate) const APART: u64 = 20_000;
/// What the host does not acknowledge is given to it again after so long, then after twice that,
/// and so on up to the second one; nanoseconds.
const AGAIN: u64 = 200_000_000;
const AGAIN_MAX: u64 = 10_000_000_000;
/// So many acknowledgements in a row that say nothing new: the host misses something.
const DUPLICATES: u8 = 3;
/// The longest TCP options here: timestamps and three blocks.
const OPTIONS_MAX: usize = 40;

/// What a SYN said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    scale: Option<u8>,
    sack: bool,
    timestamps: bool,
}

/// What is kept of a flow: segments that were handed on and that the host has not acknowledged, in
/// order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) head: u32,
    pub(crate) tail: u32,
}

/// What is known of the host's end of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AckProxy {
    /// What the SYNs of both have said; with both, and nothing against it, the flow is acknowledged
    /// here.
    sender: Option<Offer>,
    host: Option<Offer>,
    refused: bool,
    /// The sender's first number after its SYN.
    first: Seq,
    /// The host's next number, its clock, what it has acknowledged and how far its window reaches.
    seq: Seq,
    clock: u32,
    ack: Seq,
    edge: Seq,
    duplicates: u8,
    /// What the sender was told last, by whomever.
    told: Seq,
    told_edge: Seq,
    told_at: Instant,
    /// Whether it is to be told something.
    pub(crate) owed: bool,
    /// The clock that is to be echoed (RFC 7323 4.3).
    echo: Option<u32>,
    /// Whether all between what the host has acknowledged and what is handed on next is kept.
    pub(crate) whole: bool,
    pub(crate) kept: Kept,
    /// Whether the sender has ended: the flow goes when nothing is kept any more.
    pub(crate) ending: bool,
    again_at: Instant,
    again: u64,
    /// Headers below TCP, the host's to the sender.
    head: [u8; 58],
    ip_at: u8,
    tcp_at: u8,
}

impl AckProxy {
    /// Nothing is known.
    pub(crate) const NEW: AckProxy = AckProxy {
        sender: None,
        host: None,
        refused: false,
        first: Seq(0),
        seq: Seq(0),
        clock: 0,
        ack: Seq(0),
        edge: Seq(0),
        duplicates: 0,
        told: Seq(0),
        told_edge: Seq(0),
        told_at: Instant(0),
        owed: false,
        echo: None,
        whole: false,
        kept: Kept {
            head: NONE,
            tail: NONE,
        },
        ending: false,
        again_at: Instant(u64::MAX),
        again: AGAIN,
        head: [0; 58],
        ip_at: 0,
        tcp_at: 0,
    };

    /// Whether the flow is acknowledged here.
    pub(crate) fn is_open(&self) -> bool {
        self.sender.is_some() && self.host.is_some() && !self.refused
    }

    /// Whether both SYNs were seen.
    pub(crate) fn is_known(&self) -> bool {
        self.sender.is_some() && self.host.is_some()
    }

    /// Whether a byte at `seq` was acknowledged here and not by the host: it must not be dropped.
    pub(crate) fn has_promised(&self, seq: Seq) -> bool {
        self.is_known() && self.told.after(seq)
    }

    /// How many bytes were acknowledged here that the host has not acknowledged.
    pub(crate) fn promised(&self) -> u32 {
        (self.told - self.ack).max(0) as u32
    }

    /// The sender's SYN; `tcp` is its header with options.
    pub(crate) fn on_sender_syn(&mut self, segment: &Segment, tcp: &[u8]) {
        let next = segment.seq + 1;
        if self.sender.is_some() {
            // The same again, or one that nobody believes: what was promised stays promised.
            self.refused |= next != self.first;
            return;
        }
        self.refused |= segment.payload_len > 0;
        self.sender = self.offer(tcp, segment.flags);
        self.first = next;
        (self.ack, self.told) = (next, next);
        if self.host.is_none() {
            (self.edge, self.told_edge) = (next, next);
        }
        self.whole = true;
    }

    /// The host's SYN.
    pub(crate) fn on_host_syn(&mut self, segment: &Segment, frame: &[u8]) {
        if self.host.is_some() {
            self.refused |= segment.seq + 1 != self.seq;
            return;
        }
        let (ip_at, tcp_at) = (usize::from(segment.ip_at), usize::from(segment.tcp_at));
        let end = usize::from(segment.payload_at).min(frame.len());
        self.host = self.offer(&frame[tcp_at..end], segment.flags);
        match self.head.get_mut(..tcp_at) {
            Some(head) if segment.payload_len == 0 => head.copy_from_slice(&frame[..tcp_at]),
            _ => self.refused = true,
        }
        (self.ip_at, self.tcp_at) = (ip_at as u8, tcp_at as u8);
        self.seq = segment.seq + 1;
        if segment.flags.contains(Flags::ACK) {
            self.ack = segment.ack;
            self.edge = segment.ack + u32::from(segment.window);
            self.told_edge = self.edge;
        }
    }

    /// Reads the options of a SYN; the flow is refused for one that changes what an acknowledgement
    /// is, and for ECN.
    fn offer(&mut self, tcp: &[u8], flags: Flags) -> Option<Offer> {
        let mut offer = Offer {
            scale: None,
            sack: false,
            timestamps: false,
        };
        self.refused |= flags.contains(Flags::ACK | Flags::ECE);
        let mut options = tcp.get(tcp::HEADER_LEN..)?;
        while let Some(&kind) = options.first() {
            let len = match kind {
                0 => break,
                1 => 1,
                _ => usize::from(*options.get(1)?),
            };
            if len == 0 || len > options.len() {
                self.refused = true;
                return None;
            }
            match (kind, len) {
                (1, _) | (2, 4) => {}
                (3, 3) => offer.scale = Some(options[2].min(14)),
                (4, 2) => offer.sack = true,
                (8, 10) => offer.timestamps = true,
                _ => self.refused = true,
            }
            options = &options[len..];
        }
        Some(offer)
    }

    fn both(&self, has: fn(&Offer) -> bool) -> bool {
        self.sender.as_ref().is_some_and(has) && self.host.as_ref().is_some_and(has)
    }

    fn scale(&self) -> u8 {
        match (self.sender, self.host) {
            (
                Some(Offer { scale: Some(_), .. }),
                Some(Offer {
                    scale: Some(own), ..
                }),
            ) => own,
            _ => 0,
        }
    }

    /// A segment is held: its clock is echoed if it is the next that is to be acknowledged.
    pub(crate) fn on_held(&mut self, segment: &Segment) {
        if let Some(timestamps) = segment.timestamps
            && segment.seq.at_or_before(self.told)
            && (segment.seq + segment.payload_len).after(self.told)
        {
            self.echo = Some(timestamps.value);
        }
    }

    /// What can be acknowledged of a flow now: what the host has allowed, and all of which is here.
    fn reach(&self, flow: &Flow) -> Seq {
        match flow.next_seq {
            Some(next) if self.whole && self.is_open() => {
                let end = next + flow.run_bytes;
                let reach = if end.after(self.edge) { self.edge } else { end };
                if reach.after(self.told) {
                    reach
                } else {
                    self.told
                }
            }
            _ => self.told,
        }
    }

    /// Whether it is worth telling the sender: more than one segment of this length is new.
    pub(crate) fn is_worth_telling(&self, flow: &Flow, len: u32) -> bool {
        self.reach(flow) - self.told > len as i32
    }

    /// When an acknowledgement that is owed may go.
    pub(crate) fn may_tell_at(&self) -> Instant {
        self.told_at.after(APART)
    }

    /// Writes an acknowledgement, and says how long the frame is. `room`: bytes for which there are
    /// buffers; without any nothing more is promised.
    pub(crate) fn tell(
        &mut self,
        flow: &Flow,
        pool: &Pool,
        room: u32,
        now: Instant,
        frame: &mut [u8; HEAD_MAX],
    ) -> Option<usize> {
        self.owed = false;
        let timestamps = self.both(|offer| offer.timestamps);
        if !self.is_open() || timestamps && self.echo.is_none() {
            return None;
        }
        if room > 0 {
            self.told = self.reach(flow);
        }
        let allowed = (self.edge - self.told).max(0) as u32;
        let window = if room > 0 { allowed.min(room) } else { allowed } >> self.scale();
        let window = window.min(0xffff);
        self.told_edge = self.told + (window << self.scale());
        self.told_at = now;
        if self.told.after(self.ack) && self.again_at == Instant(u64::MAX) {
            self.again_at = now.after(self.again);
        }
        let (ip_at, tcp_at) = (usize::from(self.ip_at), usize::from(self.tcp_at));
        let mut options = [1; OPTIONS_MAX];
        let mut len = 0;
        if timestamps {
            options[2..4].copy_from_slice(&[8, 10]);
            put32(&mut options, 4, self.clock);
            put32(&mut options, 8, self.echo.unwrap_or(0));
            len = 12;
        }
        if self.both(|offer| offer.sack) {
            len = blocks(flow, pool, self.told, &mut options, len);
        }
        frame[..tcp_at].copy_from_slice(&self.head[..tcp_at]);
        let segment_len = tcp::HEADER_LEN + len;
        let (below, tcp) = frame[..tcp_at + segment_len].split_at_mut(tcp_at);
        let ip = &mut below[ip_at..];
        clear_marks(ip);
        set_length(ip, segment_len);
        tcp[..tcp::HEADER_LEN].fill(0);
        tcp[..4].copy_from_slice(&ports(flow));
        put32(tcp, 4, self.seq.0);
        put32(tcp, 8, self.told.0);
        tcp[12] = ((segment_len / 4) << 4) as u8;
        tcp[13] = Flags::ACK.bits();
        put16(tcp, 14, window as u16);
        tcp[tcp::HEADER_LEN..].copy_from_slice(&options[..len]);
        let sum = pseudo(ip, segment_len) + Sum::of(tcp);
        put16(tcp, tcp::CHECKSUM_OFFSET, sum.finish());
        Some(tcp_at + segment_len)
    }

    /// A segment of the host's. Whether it goes on to the sender, changed so that it does not take
    /// back what was said here; and whether something is to be given to the host again.
    pub(crate) fn on_host(
        &mut self,
        segment: &Segment,
        flow: &Flow,
        frame: &mut [u8],
        vnet: &VnetHeader,
        now: Instant,
    ) -> (bool, bool) {
        let fin = u32::from(segment.flags.contains(Flags::FIN));
        let end = segment.seq + segment.payload_len + fin;
        if end.after(self.seq) {
            self.seq = end;
        }
        if let Some(timestamps) = segment.timestamps {
            self.clock = timestamps.value;
        }
        if !segment.flags.contains(Flags::ACK) {
            return (true, false);
        }
        let bare = segment.payload_len == 0 && fin == 0;
        let edge = segment.ack + (u32::from(segment.window) << self.scale());
        let mut again = false;
        if segment.ack.after(self.ack) {
            self.ack = segment.ack;
            self.duplicates = 0;
            self.again = AGAIN;
            let promised = self.told.after(self.ack);
            self.again_at = match promised {
                true => now.after(AGAIN),
                false => Instant(u64::MAX),
            };
        } else if segment.ack == self.ack && bare && edge == self.edge {
            self.duplicates = self.duplicates.saturating_add(1);
            again = self.duplicates == DUPLICATES && self.told.after(self.ack);
        }
        if edge.after(self.edge) {
            self.edge = edge;
        }
        if flow.next_seq.is_some_and(|next| self.ack.at_or_after(next)) {
            self.whole = true;
        }
        if segment.ack.at_or_after(self.told) {
            self.told = segment.ack;
            self.told_edge = edge;
            return (true, again);
        }
        if bare && segment.flags == Flags::ACK {
            // The sender knows more already, but for the window.
            self.owed |= self.edge.after(self.told_edge);
            return (false, again);
        }
        let window = ((self.edge - self.told).max(0) as u32 >> self.scale()).min(0xffff);
        self.told_edge = self.told + (window << self.scale());
        rewrite(
            &mut frame[usize::from(segment.tcp_at)..],
            self.told,
            window as u16,
            vnet,
        );
        (true, again)
    }

    /// What was kept and the host has acknowledged goes back to the pool.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        while self.kept.head != NONE && pool.item(self.kept.head).end().at_or_before(self.ack) {
            self.kept.head = pool.put(self.kept.head);
        }
        if self.kept.head == NONE {
            self.kept.tail = NONE;
        }
    }

    /// What was kept and nobody has acknowledged goes back to the pool: it may come again.
    pub(crate) fn release_unpromised(&mut self, pool: &mut Pool) {
        let (mut last, mut index) = (NONE, self.kept.head);
        while index != NONE && pool.item(index).seq.before(self.told) {
            (last, index) = (index, pool.item(index).next);
        }
        if index == NONE {
            return;
        }
        if last == NONE {
            self.kept.head = NONE;
        } else {
            pool.item_mut(last).next = NONE;
        }
        self.kept.tail = last;
        self.whole = false;
        while index != NONE {
            index = pool.put(index);
        }
    }

    /// Everything goes back to the pool: the connection is over.
    pub(crate) fn release_all(&mut self, pool: &mut Pool) {
        while self.kept.head != NONE {
            self.kept.head = pool.put(self.kept.head);
        }
        *self = AckProxy::NEW;
    }

    /// When something is to be given to the host again.
    pub(crate) fn again_at(&self) -> Instant {
        if self.kept.head == NONE {
            Instant(u64::MAX)
        } else {
            self.again_at
        }
    }

    /// It is given again.
    pub(crate) fn note_again(&mut self, now: Instant) {
        self.again = (2 * self.again).min(AGAIN_MAX);
        self.again_at = now.after(self.again);
    }

    /// The sender repeats what it was told that it need not: tell it again.
    pub(crate) fn on_repeated(&mut self, segment: &Segment) {
        let end = segment.seq + segment.payload_len;
        self.owed |= self.is_open() && end.at_or_before(self.told) && self.told.after(self.ack);
    }
}

impl Kept {
    /// Adds a row of segments, `first` to `last`.
    pub(crate) fn add(&mut self, pool: &mut Pool, first: u32, last: u32) {
        pool.item_mut(last).next = NONE;
        if self.tail == NONE {
            self.head = first;
        } else {
            pool.item_mut(self.tail).next = first;
        }
        self.tail = last;
    }
}

/// The ports of the host's segments.
fn ports(flow: &Flow) -> [u8; 4] {
    let [a, b, c, d] = flow.key.ports;
    [c, d, a, b]
}

/// An acknowledgement is not capable of ECN (RFC 3168 6.1.4).
fn clear_marks(ip: &mut [u8]) {
    if ip[0] >> 4 == 6 {
        ip[1] &= !0x30;
    } else {
        let word = get16(ip, 0);
        replace16(ip, 0, word & !3);
    }
}

/// Writes what is held beyond the first hole and what the sender is told (RFC 2018 3) behind `len`
/// bytes of options; says how long they are then.
fn blocks(flow: &Flow, pool: &Pool, told: Seq, options: &mut [u8], len: usize) -> usize {
    let room = (OPTIONS_MAX - len - 4) / 8;
    let mut index = if flow.run_tail == NONE {
        flow.head
    } else {
        pool.item(flow.run_tail).next
    };
    let mut count = 0;
    while index != NONE && count < room {
        let start = pool.item(index).seq;
        let mut end = pool.item(index).end();
        index = pool.item(index).next;
        while index != NONE && pool.item(index).seq == end {
            end = pool.item(index).end();
            index = pool.item(index).next;
        }
        if !start.after(told) {
            continue;
        }
        let at = len + 4 + 8 * count;
        put32(options, at, start.0);
        put32(options, at + 4, end.0);
        count += 1;
    }
    if count == 0 {
        return len;
    }
    options[len..len + 4].copy_from_slice(&[1, 1, 5, (2 + 8 * count) as u8]);
    len + 4 + 8 * count
}

/// Puts acknowledgement and window into a segment, and brings its checksum up to date if it has
/// one.
fn rewrite(tcp: &mut [u8], ack: Seq, window: u16, vnet: &VnetHeader) {
    let before = Sum::of(&tcp[8..12]) + Sum::word(get16(tcp, 14));
    put32(tcp, 8, ack.0);
    put16(tcp, 14, window);
    if !vnet.flags.contains(vnet::Flags::NEEDS_CSUM) {
        let after = Sum::word((get32(tcp, 8) >> 16) as u16)
            + Sum::word(get32(tcp, 8) as u16)
            + Sum::word(window);
        let checksum = checksum::update(get16(tcp, tcp::CHECKSUM_OFFSET), before, after);
        put16(tcp, tcp::CHECKSUM_OFFSET, checksum);
    }
}
