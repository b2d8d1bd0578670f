//! Payload and FIN (RFC 9293 3.10.7.4, seventh and eighth; RFC 2018, RFC 2883).

use millrace_wire::tcp::Segment;

use crate::config::Config;
use crate::connection::{Connection, Pending, ReceiveBuffer};
use crate::events::Events;
use crate::options::Features;
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Any payload and FIN of an acceptable segment, beginning at stream offset `start`.
    pub(crate) fn on_payload(
        &mut self,
        config: &Config,
        start: i64,
        payload: &[u8],
        fin: bool,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        let end = start + payload.len() as i64;
        let nxt = self.receive.nxt as i64;
        let in_order = start == nxt && !self.loss_state.has_gaps() && self.receive.fin == u64::MAX;
        if in_order && !fin && end <= self.receive.edge() as i64 {
            return self.on_data_in_order(config, payload, buffer, now);
        }
        // Nothing follows the FIN, and what is beyond the window is not taken: the peer sends it again.
        let limit = self.receive.edge().min(self.receive.fin) as i64;
        let fin_here = fin && end <= limit && self.take_fin_offset(end);

        if start < nxt && start < end {
            // RFC 2883 4: what was received before is reported. What claims to come before the first byte was not.
            if nxt > 0 && end > 0 {
                self.report_again(start.max(0) as u64, end.min(nxt) as u64);
            }
            self.pending |= Pending::ACK;
        }
        let (from, to) = (start.max(nxt), end.min(limit));
        if end > limit && start < end {
            self.pending |= Pending::ACK;
        }
        if from < to {
            let part = &payload[(from - start) as usize..(to - start) as usize];
            if from == nxt && !self.loss_state.has_gaps() {
                self.on_data_in_order(config, part, buffer, now);
            } else if !self.store_out_of_order(config, from as u64, part, buffer) {
                // RFC 2018 8: bytes that were reported and not yet read may be discarded "if the receiver runs out of buffer
                // space", and what is next in order is worth more (Linux's `tcp_prune_ofo_queue`).
                if from != nxt || self.drop_out_of_order(buffer) == 0 {
                    return;
                }
                self.pending |= Pending::ACK;
                self.on_data_in_order(config, part, buffer, now);
            }
        }
        if fin_here && self.receive.nxt < self.receive.fin {
            // The FIN came ahead of data.
            self.pending |= Pending::ACK;
        }
        if self.receive.nxt == self.receive.fin {
            self.on_fin();
        }
    }

    /// A FIN at offset `end` lies in the window: remembers where, once and for all. One that contradicts an earlier FIN, or
    /// data that has come from beyond it, is ignored.
    fn take_fin_offset(&mut self, end: i64) -> bool {
        let end = end as u64;
        let highest = self
            .loss_state
            .get()
            .gaps
            .as_ref()
            .map_or(self.receive.nxt, |gaps| gaps.end());
        if self.receive.fin == u64::MAX && end >= self.receive.nxt && end >= highest {
            self.receive.fin = end;
        }
        self.receive.fin == end
    }

    /// Payload with a gap before it or data stored behind it. Each byte is stored once: what has been reported as held never changes.
    fn store_out_of_order(
        &mut self,
        config: &Config,
        from: u64,
        part: &[u8],
        buffer: &mut impl ReceiveBuffer,
    ) -> bool {
        let range = from..from + part.len() as u64;
        let next = self.receive.nxt;
        let state = self.loss_state.get_or_insert();
        let gaps = state.gaps.get_or_insert_default();
        let held = gaps.covering(&range);
        if held.is_none()
            && from > next
            && gaps.is_full_for(&range, config.gaps_max(self.receive.limit))
        {
            return false;
        }
        let room = held.is_some() || buffer.reserve(next, gaps.ranges(), &range);
        let stored = room
            && gaps.missing(range.clone()).all(|missing| {
                let bytes = &part[(missing.start - from) as usize..(missing.end - from) as usize];
                buffer.fill(missing.start, bytes)
            });
        if !stored {
            if gaps.is_empty() {
                state.gaps = None;
            }
            return false;
        }
        self.pending |= Pending::ACK;
        if from > next {
            if held.is_some() {
                gaps.touch(&range);
                self.report_again(range.start, range.end);
            } else {
                gaps.insert(range);
            }
            if !self.features.contains(Features::SACK) {
                self.delayed_ack.duplicates = self.delayed_ack.duplicates.saturating_add(1);
            }
            return true;
        }
        // RFC 5681 4.2: what fills a gap is acknowledged at once.
        self.receive.nxt = gaps.advance(range.end);
        if gaps.is_empty() {
            state.gaps = None;
        }
        self.events |= Events::READABLE;
        true
    }

    /// Whether bytes are stored beyond a gap.
    pub fn has_gaps(&self) -> bool {
        self.loss_state.has_gaps()
    }

    /// Forgets what was stored beyond a gap, so that its memory is free: the peer, which keeps what is not acknowledged (RFC 2018 8), sends it
    /// again. Returns how many bytes that were.
    pub fn drop_out_of_order(&mut self, buffer: &mut impl ReceiveBuffer) -> u64 {
        let gaps = self
            .loss_state
            .get_mut()
            .and_then(|state| state.gaps.take());
        let bytes = gaps.map_or(0, |gaps| gaps.bytes());
        if bytes > 0 {
            buffer.forget_beyond(self.receive.nxt, bytes);
        }
        bytes
    }

    /// Everything before the peer's FIN has been received (RFC 9293 3.10.7.4, eighth).
    pub(crate) fn on_fin(&mut self) {
        self.receive.nxt += 1;
        self.loss_state.end_gaps();
        self.pending |= Pending::ACK;
        self.events |= Events::PEER_CLOSED;
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 if self.send.fin_acked() => self.enter_time_wait(),
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(),
            _ => {}
        }
    }

    /// Bytes came that had been received before.
    fn report_again(&mut self, start: u64, end: u64) {
        if self.features.contains(Features::SACK) {
            self.loss_state.get_or_insert().again =
                Some((self.receive.seq(start), self.receive.seq(end)));
        }
    }

    /// Whether a segment brings something that nobody is there to read.
    pub(super) fn brings_unwanted(&self, segment: &Segment<'_>) -> bool {
        let end = self.receive.offset(segment.seq) + segment.payload.len() as i64;
        self.orphan && !segment.payload.is_empty() && end > self.receive.nxt as i64
    }
}
