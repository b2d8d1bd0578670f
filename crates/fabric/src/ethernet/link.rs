//! The transport of one session over frames: handshake, sliding window, selective repair, signs of
//! life.

use std::collections::VecDeque;

use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

use super::frame::{ASKS, Header, Kind, write_record};
use crate::record::{HEAD_LEN, Head, Transport};
use crate::types::PortName;

/// Frames that are sent, or received out of order, before the first of them is acknowledged.
pub const WINDOW: usize = 64;
/// Frames in flight at first.
const WINDOW_FIRST: f64 = 16.0;
/// After so long without a word from the peer, or without progress, it is lost.
pub const DEAD_AFTER: Duration = Duration::from_millis(10_000);
/// After so long without a word it is asked for one, and then again and again.
const ASK_AFTER: Duration = Duration::from_millis(2_000);
const RTO_FIRST: Duration = Duration::from_millis(50);
const RTO_MIN: Duration = Duration::from_millis(2);
const RTO_MAX: Duration = Duration::from_millis(1_000);
/// How long one who has left the handshake to the peer waits for it.
const PATIENCE: Duration = Duration::from_millis(500);
/// Less room than this in a frame is not worth a piece of a message.
const PIECE_MIN: usize = 256;

/// How far the handshake is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Sends hellos.
    Opening,
    /// Has left it to the peer, whose hello goes first.
    Yielding,
    /// Has been welcomed, and sends confirmations until it hears more.
    Confirming,
    /// Carries records.
    Up,
}

/// A data frame that is not acknowledged.
#[derive(Debug)]
struct Unacked {
    records: Vec<u8>,
    /// When it was sent last, and how often it was.
    sent_at: Instant,
    times: u32,
    is_sacked: bool,
    is_lost: bool,
}

/// The transport of one session.
#[derive(Debug)]
pub struct Link {
    local: PortName,
    remote: PortName,
    pub(crate) state: State,
    pub(crate) epoch: u64,
    pub(crate) peer_epoch: u64,
    pub(crate) mac: Mac,
    /// Bytes of records that a frame takes.
    capacity: usize,
    /// When the next frame of the handshake is due, and how long after that another one.
    handshake_at: Instant,
    handshake_every: Duration,
    /// Data frames from `base` on; the first `sent` of them have been sent.
    queue: VecDeque<Unacked>,
    base: u64,
    sent: usize,
    window: f64,
    threshold: f64,
    peer_window: usize,
    /// Losses before this position are of a time for which the window was made smaller.
    recovery: u64,
    rtt: Option<(u64, u64)>,
    backoff: u32,
    /// Frames before `expected` have arrived; what came behind it lies here, by its position.
    expected: u64,
    held: Vec<Option<Vec<u8>>>,
    ack_due: bool,
    ask_due: bool,
    heard_at: Instant,
    asked_at: Instant,
    progress_at: Instant,
    /// Frames for vectors of records that are of no more use.
    spare: Vec<Vec<u8>>,
}

/// What a frame tells of the records before it did not agree with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadAck;

impl Link {
    /// One that opens a session. Frames have up to `capacity` bytes of records.
    pub fn new(
        local: PortName,
        remote: PortName,
        epoch: u64,
        capacity: usize,
        now: Instant,
    ) -> Link {
        Link {
            local,
            remote,
            state: State::Opening,
            epoch,
            peer_epoch: 0,
            mac: Mac::BROADCAST,
            capacity,
            handshake_at: now,
            handshake_every: Duration::from_millis(10),
            queue: VecDeque::new(),
            base: 0,
            sent: 0,
            window: WINDOW_FIRST,
            threshold: WINDOW as f64,
            peer_window: WINDOW,
            recovery: 0,
            rtt: None,
            backoff: 0,
            expected: 0,
            held: Vec::new(),
            ack_due: false,
            ask_due: false,
            heard_at: now,
            asked_at: now,
            progress_at: now,
            spare: Vec::new(),
        }
    }

    /// Who is at the other end.
    pub fn remote(&self) -> PortName {
        self.remote
    }

    /// Begins to carry records.
    pub fn come_up(&mut self, epoch: u64, peer_epoch: u64, mac: Mac, now: Instant) {
        (self.epoch, self.peer_epoch, self.mac) = (epoch, peer_epoch, mac);
        self.state = State::Up;
        self.held.resize_with(WINDOW, || None);
        (self.heard_at, self.asked_at, self.progress_at) = (now, now, now);
        self.ack_due = true;
    }

    /// Has been welcomed.
    pub fn confirm(&mut self, peer_epoch: u64, mac: Mac, now: Instant) {
        (self.peer_epoch, self.mac) = (peer_epoch, mac);
        self.state = State::Confirming;
        self.handshake_again(now);
    }

    /// Leaves the handshake to the peer.
    pub fn yield_to_peer(&mut self, now: Instant) {
        self.state = State::Yielding;
        self.handshake_at = now + PATIENCE;
    }

    /// Begins the handshake anew.
    pub fn reopen(&mut self, epoch: u64, now: Instant) {
        (self.state, self.epoch, self.peer_epoch) = (State::Opening, epoch, 0);
        self.mac = Mac::BROADCAST;
        self.handshake_again(now);
    }

    fn handshake_again(&mut self, now: Instant) {
        self.handshake_at = now;
        self.handshake_every = Duration::from_millis(10);
    }

    /// Acknowledges even if nothing is new.
    pub fn acknowledge(&mut self) {
        self.ack_due = true;
    }

    fn rto(&self) -> Duration {
        let base = match self.rtt {
            Some((smoothed, variation)) => Duration::from_micros(smoothed + 4 * variation),
            None => RTO_FIRST,
        };
        let backed_off = base.as_micros().max(RTO_MIN.as_micros()) << self.backoff.min(10);
        Duration::from_micros(backed_off.min(RTO_MAX.as_micros()))
    }

    /// The first frame in flight, which the timer is for.
    fn oldest_sent_at(&self) -> Option<Instant> {
        let sent = self.queue.iter().take(self.sent);
        let in_flight = sent.filter(|frame| !frame.is_sacked && !frame.is_lost);
        in_flight.map(|frame| frame.sent_at).min()
    }

    /// When something is to be done though no frame comes.
    pub fn deadline(&self) -> Instant {
        if self.state != State::Up {
            return self.handshake_at;
        }
        let life = self.asked_at.max(self.heard_at) + ASK_AFTER;
        match self.oldest_sent_at() {
            Some(sent_at) => life.min(sent_at + self.rto()),
            None => life,
        }
    }

    /// Does what the time demands. False when the peer is lost.
    pub fn on_time(&mut self, now: Instant) -> bool {
        if self.state == State::Yielding && now >= self.handshake_at {
            self.state = State::Opening;
            self.handshake_again(now);
        }
        if self.state != State::Up {
            return true;
        }
        if now >= self.heard_at + DEAD_AFTER
            || (self.sent > 0 && now >= self.progress_at + DEAD_AFTER)
        {
            return false;
        }
        if now >= self.asked_at.max(self.heard_at) + ASK_AFTER {
            self.asked_at = now;
            self.ask_due = true;
        }
        if let Some(sent_at) = self.oldest_sent_at()
            && now >= sent_at + self.rto()
        {
            self.backoff += 1;
            self.lower_window(2.0);
            for frame in self.queue.iter_mut().take(self.sent) {
                frame.is_lost |= !frame.is_sacked;
            }
        }
        true
    }

    fn lower_window(&mut self, to: f64) {
        self.threshold = (self.window / 2.0).max(2.0);
        self.window = to.max(2.0);
        self.recovery = self.base + self.sent as u64;
    }

    /// Takes the acknowledgements of a frame.
    pub fn on_ack(&mut self, header: &Header, now: Instant) -> Result<(), BadAck> {
        self.heard_at = now;
        let ahead = header.ack.wrapping_sub(self.base as u32);
        if ahead >= 1 << 31 {
            // It was overtaken.
            return Ok(());
        }
        let (ahead, reach) = (ahead as usize, 64 - header.sack.leading_zeros() as usize);
        if ahead > self.sent || (reach > 0 && ahead + 1 + reach > self.sent) {
            return Err(BadAck);
        }
        self.peer_window = usize::from(header.window).min(WINDOW);
        let mut newest = None;
        for at in 0..ahead + 1 + reach {
            let is_acked = at < ahead || (at > ahead && header.sack >> (at - ahead - 1) & 1 == 1);
            let Some(frame) = self.queue.get_mut(at).filter(|_| is_acked) else {
                continue;
            };
            if frame.is_sacked {
                continue;
            }
            frame.is_sacked = true;
            let (sent_at, times) = (frame.sent_at, frame.times);
            newest = newest.max(Some(sent_at));
            self.progress_at = now;
            self.backoff = 0;
            if times == 1 {
                self.measure(now.as_micros().saturating_sub(sent_at.as_micros()));
            }
            if self.window < self.threshold {
                self.window += 1.0;
            } else {
                self.window += 1.0 / self.window;
            }
            self.window = self.window.min(WINDOW as f64);
        }
        for frame in self.queue.drain(..ahead) {
            self.spare.push(frame.records);
        }
        self.base += ahead as u64;
        self.sent -= ahead;
        if let Some(newest) = newest {
            self.find_losses(newest);
        }
        Ok(())
    }

    fn measure(&mut self, micros: u64) {
        self.rtt = Some(match self.rtt {
            None => (micros, micros / 2),
            Some((smoothed, variation)) => (
                (7 * smoothed + micros) / 8,
                (3 * variation + smoothed.abs_diff(micros)) / 4,
            ),
        });
    }

    /// A frame is lost when one arrived that was sent so much later (as in RFC 8985).
    fn find_losses(&mut self, newest: Instant) {
        let reordering = self.rtt.map_or(1_000, |(smoothed, _)| smoothed / 4).max(50);
        let mut first = None;
        for (at, frame) in self.queue.iter_mut().take(self.sent).enumerate() {
            let is_late = frame.sent_at + Duration::from_micros(reordering) < newest;
            if !frame.is_sacked && !frame.is_lost && is_late {
                frame.is_lost = true;
                first = first.or(Some(self.base + at as u64));
            }
        }
        if first.is_some_and(|first| first >= self.recovery) {
            self.lower_window(self.window / 2.0);
        }
    }

    /// Takes the data frame of that sequence number. False if it has come before, or is out of the
    /// window.
    pub fn on_data(&mut self, seq: u32, records: &[u8]) -> bool {
        self.ack_due = true;
        let ahead = seq.wrapping_sub(self.expected as u32) as usize;
        if ahead >= WINDOW {
            return false;
        }
        let at = (self.expected as usize + ahead) % WINDOW;
        let is_new = self.held[at].is_none();
        if is_new {
            let mut kept = self.spare.pop().unwrap_or_default();
            kept.clear();
            kept.extend_from_slice(records);
            self.held[at] = Some(kept);
        }
        is_new
    }

    /// The next frame in order, if it has come. It is to be returned by [`Link::give_back`].
    pub fn next_in_order(&mut self) -> Option<Vec<u8>> {
        let at = self.expected as usize % WINDOW;
        let records = self.held.get_mut(at)?.take()?;
        self.expected += 1;
        Some(records)
    }

    /// Takes the memory of a frame back.
    pub fn give_back(&mut self, records: Vec<u8>) {
        if self.spare.len() < WINDOW {
            self.spare.push(records);
        }
    }

    fn header(&self, kind: Kind) -> Header {
        let mut sack = 0;
        for ahead in 1..self.held.len() {
            let at = (self.expected as usize + ahead) % WINDOW;
            sack |= u64::from(self.held[at].is_some()) << (ahead - 1);
        }
        Header {
            kind,
            src: self.local,
            dst: self.remote,
            src_epoch: self.epoch,
            dst_epoch: self.peer_epoch,
            seq: 0,
            ack: self.expected as u32,
            sack,
            window: WINDOW as u16,
            flags: 0,
        }
    }

    /// The next frame to be sent, and its records.
    pub fn transmit(&mut self, now: Instant) -> Option<(Header, &[u8])> {
        let kind = match self.state {
            State::Up => return self.transmit_data(now),
            State::Opening => Kind::Hello,
            State::Confirming => Kind::Confirm,
            State::Yielding => return None,
        };
        if now < self.handshake_at {
            return None;
        }
        self.handshake_at = now + self.handshake_every;
        let next = self.handshake_every.as_micros() * 2;
        self.handshake_every = Duration::from_micros(next.min(500_000));
        Some((self.header(kind), &[]))
    }

    fn transmit_data(&mut self, now: Instant) -> Option<(Header, &[u8])> {
        let sent = self.queue.iter().take(self.sent);
        let in_flight = sent.filter(|frame| !frame.is_sacked && !frame.is_lost);
        let may_send = in_flight.count() < self.window as usize;
        let mut sent = self.queue.iter().take(self.sent);
        let lost = sent.position(|frame| frame.is_lost && !frame.is_sacked);
        let fresh = (self.sent < self.queue.len().min(self.peer_window)).then_some(self.sent);
        if let Some(at) = lost.or(fresh).filter(|_| may_send) {
            if self.sent == 0 {
                self.progress_at = now;
            }
            self.sent = self.sent.max(at + 1);
            (self.ack_due, self.ask_due) = (false, false);
            let mut header = self.header(Kind::Data);
            header.seq = (self.base as u32).wrapping_add(at as u32);
            let frame = &mut self.queue[at];
            (frame.sent_at, frame.is_lost) = (now, false);
            frame.times += 1;
            return Some((header, &self.queue[at].records));
        }
        if std::mem::take(&mut self.ack_due) | self.ask_due {
            let mut header = self.header(Kind::Ack);
            header.flags = u16::from(std::mem::take(&mut self.ask_due)) * ASKS;
            return Some((header, &[]));
        }
        None
    }

    /// Bytes of records that the last frame still takes, if it has not been sent.
    fn left_in_last(&self) -> usize {
        match self.queue.back() {
            Some(frame) if self.queue.len() > self.sent => self.capacity - frame.records.len(),
            _ => 0,
        }
    }

    /// Bytes that it holds for the peer: to be sent again, and received out of order.
    pub fn memory(&self) -> usize {
        let held = self.held.iter().flatten().map(Vec::len).sum::<usize>();
        let queued = self.queue.iter().map(|frame| frame.records.len());
        held + queued.sum::<usize>()
    }
}

impl Transport for Link {
    fn push(&mut self, head: Head, body: &[u8]) -> bool {
        let len = HEAD_LEN + body.len();
        if self.state != State::Up {
            return false;
        }
        if self.left_in_last() < len {
            if self.queue.len() >= WINDOW || len > self.capacity {
                return false;
            }
            let mut records = self.spare.pop().unwrap_or_default();
            records.clear();
            self.queue.push_back(Unacked {
                records,
                sent_at: Instant::default(),
                times: 0,
                is_sacked: false,
                is_lost: false,
            });
        }
        if let Some(frame) = self.queue.back_mut() {
            write_record(head, body, &mut frame.records);
        }
        true
    }

    fn room(&mut self) -> Option<usize> {
        let left = self.left_in_last();
        if self.state != State::Up {
            None
        } else if left >= HEAD_LEN + PIECE_MIN {
            Some(left - HEAD_LEN)
        } else {
            (self.queue.len() < WINDOW).then_some(self.capacity - HEAD_LEN)
        }
    }

    fn position(&self) -> u64 {
        self.base + self.queue.len() as u64
    }

    fn delivered(&self) -> u64 {
        self.base
    }
}
