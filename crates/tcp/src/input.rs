//! Segments that arrive (RFC 9293 3.10.7), but for what they acknowledge.

mod ack;

use millrace_wire::tcp::{Flags, PlainSegment, Segment};

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::delayed_ack::AckDue;
use crate::ecn::{self, MARKED_QUICK, PriorAck};
use crate::events::{Error, Events};
use crate::options::{self, Features, Recent, timestamp};
use crate::reassembly::{ReceiveBuffer, Stored};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    /// Processes a segment of this connection (RFC 9293 3.10.7.3 and 3.10.7.4). Answers wait for
    /// [`Connection::poll_transmit`], so that the program's reaction to a batch of segments can
    /// carry them.
    pub fn on_segment(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        if let Some(simple) = PlainSegment::of(segment)
            && (self.on_predicted_segment(config, &simple, buffer, now)
                || self.on_predicted_closing_segment(config, &simple, buffer, now))
        {
            return;
        }
        self.counters.segments_in = self.counters.segments_in.wrapping_add(1);
        match self.state {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.on_segment_syn_sent(config, segment, buffer, now),
            _ => self.on_segment_synchronized(config, segment, buffer, now),
        }
    }

    /// SYN-SENT, in the order of RFC 9293 3.10.7.3.
    fn on_segment_syn_sent(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        let flags = segment.flags;
        let has_ack = flags.contains(Flags::ACK);
        // First: only our SYN can be acknowledged, with its payload if it had any (RFC 7413 4.2.1).
        let beyond = segment.ack - self.send.seq(0);
        if has_ack && !(beyond >= 0 && beyond as u32 <= self.sent_with_syn()) {
            if !flags.contains(Flags::RST) {
                self.refuse(segment);
            }
            return;
        }
        // Second: RST.
        if flags.contains(Flags::RST) {
            if has_ack {
                self.fail(Error::ConnectionRefused, Events::REFUSED);
            }
            return;
        }
        // Fifth: "If neither of the SYN or RST bits is set, then drop the segment and return." No
        // peer sends a SYN with FIN.
        if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
            return;
        }
        // Fourth: SYN.
        self.counters.last_received = now.ticks();
        self.take_syn(segment, now);
        if has_ack {
            self.on_syn_ack(segment);
            self.sample_handshake(config, segment, now);
            self.established(config, now);
            self.pending.remove(Pending::SYN);
            let due = self
                .delayed_ack
                .on_handshake(self.settings.defer_accept > 0);
            self.acknowledge(due, now);
            if !segment.payload.is_empty() {
                self.on_payload(config, 0, segment.payload, false, buffer, now);
            }
        } else {
            // Simultaneous open: both SYNs cross (RFC 9293 3.5, figure 7). Our SYN-ACK repeats the
            // SYN.
            self.state = State::SynReceived;
            self.pending |= Pending::SYN;
        }
    }

    fn take_syn(&mut self, syn: &Segment<'_>, now: Instant) {
        self.features = self.features.agreed(&syn.options);
        let agreed = if syn.flags.contains(Flags::ACK) {
            ecn::is_agreed(syn.flags)
        } else {
            ecn::is_asked(syn.flags)
        };
        if !agreed {
            self.features.remove(Features::ECN);
        }
        let peer_clock = syn
            .options
            .timestamps
            .map_or(0, |timestamps| timestamps.value);
        self.recent = Recent::new(self.recent.offset, peer_clock, now);
        self.receive.start(syn.seq);
        self.agree(
            options::peer_mss(&syn.options, self.default_mss),
            syn.options.window_scale.unwrap_or(0),
        );
        // RFC 7323 2.2: the window of a SYN is not scaled.
        self.send.wl1 = syn.seq;
        self.send.window = u32::from(syn.window);
        self.send.max_window = self.send.window;
    }

    /// Samples the first round trip: the handshake, if our SYN was sent once or timestamps are in
    /// use.
    fn sample_handshake(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        let once = self.timers.backoff() == 0;
        match (self.recovery.on_acked(0), segment.options.timestamps) {
            (Some(sent), _) if once => {
                self.rtt
                    .sample(config, (now.as_micros() as u32).wrapping_sub(sent), now);
            }
            (_, Some(timestamps)) if self.features.contains(Features::TIMESTAMPS) => {
                let sample_ms = timestamp(now, self.recent.offset).wrapping_sub(timestamps.echo);
                if sample_ms < 1 << 20 {
                    self.rtt.sample(config, sample_ms.max(1) * 1_000, now);
                }
            }
            _ => self.rtt.distrust_initial(),
        }
    }

    /// All states but LISTEN, SYN-SENT and TIME-WAIT, in the order of RFC 9293 3.10.7.4.
    fn on_segment_synchronized(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        let flags = segment.flags;
        if self.is_syn_again(segment) {
            self.pending |= Pending::SYN;
            return;
        }
        let crossed = self.is_crossed_syn(segment);
        if !self.is_acceptable(config, segment, crossed, now) {
            return;
        }
        // Second: RST.
        if flags.contains(Flags::RST) {
            return self.on_reset(config, segment, now);
        }
        // Fourth: SYN. RFC 5961 4.2: "If the SYN bit is set, irrespective of the sequence number,
        // TCP MUST send an ACK (also referred to as challenge ACK) to the remote peer".
        if flags.contains(Flags::SYN) && !crossed {
            return self.challenge(config, now);
        }
        // Fifth: "if the ACK bit is off, drop the segment and return".
        if !flags.contains(Flags::ACK) || !self.takes_ack(config, segment, now) {
            return;
        }
        self.counters.last_received = now.ticks();
        self.timers.on_heard();
        if self.features.contains(Features::ECN) {
            self.take_marks(segment, now);
        }
        self.on_ack(config, segment, now);
        if crossed || matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }

        // Sixth: URG.
        if flags.contains(Flags::URG) && self.state.can_receive() {
            self.take_urgent_pointer(segment);
        }

        // Seventh and eighth: payload and FIN.
        if self.state.can_receive() {
            if self.brings_unwanted(segment) {
                // RFC 9293 3.6.1: data would be lost, so the peer must know.
                self.pending |= Pending::RESET;
                return self.finish(None, now);
            }
            let fin = flags.contains(Flags::FIN);
            if !segment.payload.is_empty() || fin {
                let start = self.receive.offset(segment.seq);
                self.on_payload(config, start, segment.payload, fin, buffer, now);
            }
        } else if segment.sequence_len() > 0 {
            // Nothing follows the peer's FIN.
            self.challenge(config, now);
        }
    }

    /// First: whether the timestamp and the sequence number are acceptable. Answers a segment whose
    /// are not.
    fn is_acceptable(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        crossed: bool,
        now: Instant,
    ) -> bool {
        let rst = segment.flags.contains(Flags::RST);
        // RFC 7323 5.3: the timestamp is checked before the sequence number, except on a RST.
        let stamped = self.features.contains(Features::TIMESTAMPS) && !rst;
        if stamped {
            match segment.options.timestamps {
                // RFC 7323 3.2: "If a non-<RST> segment is received without a TSopt, a TCP SHOULD
                // silently drop the segment."
                None => return false,
                Some(timestamps) if self.recent.rejects(timestamps.value, now) => {
                    self.acknowledge_unacceptable(config, segment, now);
                    return false;
                }
                Some(_) => {}
            }
        }
        if !crossed && !self.receive.accepts(segment.seq, segment.sequence_len()) {
            if !rst {
                self.acknowledge_unacceptable(config, segment, now);
            } else if self.is_reset_at_fin(segment) {
                self.on_reset(config, segment, now);
            }
            return false;
        }
        if let Some(timestamps) = segment.options.timestamps
            && stamped
        {
            let last_ack_sent = self.receive.seq(0) + self.receive.acked.0;
            self.recent
                .update(timestamps.value, segment.seq, last_ack_sent, now);
        }
        true
    }

    /// Fifth: whether the acknowledgement number is acceptable. Answers a segment whose is not.
    fn takes_ack(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) -> bool {
        let ack = self.send.offset(segment.ack);
        if self.state == State::SynReceived {
            if ack < 0 || ack > self.send.nxt as i64 {
                self.refuse(segment);
                return false;
            }
            self.complete_handshake(config, segment, now);
            return true;
        }
        // RFC 5961 5.2: "The ACK value is considered acceptable only if it is in the range of
        // ((SND.UNA - MAX.SND.WND) <= SEG.ACK <= SND.NXT)."
        let least = self.send.una as i64 - i64::from(self.send.max_window);
        if ack > self.send.nxt as i64 || ack < least {
            self.challenge(config, now);
            return false;
        }
        true
    }

    /// Answers a segment that does not belong to this connection with a RST.
    fn refuse(&mut self, segment: &Segment<'_>) {
        self.pending |= Pending::REFUSE;
        self.cold_state_mut().refuse_seq = segment.ack;
    }

    /// Whether this is the peer's SYN again, in SYN-RECEIVED: our answer was lost.
    fn is_syn_again(&self, segment: &Segment<'_>) -> bool {
        self.state == State::SynReceived
            && segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN) == Flags::SYN
            && segment.seq + 1 == self.receive.seq(0)
    }

    /// Whether this is the peer's SYN-ACK in SYN-RECEIVED after a simultaneous open: it repeats the
    /// SYN that we know and acknowledges ours (RFC 9293 3.5, figure 7, line 7).
    fn is_crossed_syn(&self, segment: &Segment<'_>) -> bool {
        self.state == State::SynReceived
            && segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN)
                == Flags::SYN | Flags::ACK
            && segment.seq + 1 == self.receive.seq(0)
            && self.receive.nxt == 0
            && segment.ack == self.send.seq(0)
    }

    /// Our SYN is acknowledged in SYN-RECEIVED: ESTABLISHED.
    fn complete_handshake(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        self.pending.remove(Pending::SYN);
        if self.rtt.srtt_us() == 0 {
            self.sample_handshake(config, segment, now);
        }
        self.established(config, now);
        let syn = segment.flags.contains(Flags::SYN);
        if syn {
            self.pending |= Pending::ACK;
        }
        let scale = if syn { 0 } else { self.send.scale };
        self.send.wl1 = segment.seq;
        self.send.window = u32::from(segment.window) << scale;
        self.send.max_window = self.send.max_window.max(self.send.window);
        self.events |= Events::WRITABLE;
    }

    /// Answers an unacceptable segment with an acknowledgement. A peer repeats a segment with
    /// payload or FIN until it is acknowledged, so that always gets its answer. Other answers are
    /// limited: two ends that disagree would answer each other for ever.
    fn acknowledge_unacceptable(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        let carries = !segment.payload.is_empty() || segment.flags.contains(Flags::FIN);
        if !carries || segment.flags.contains(Flags::SYN) {
            return self.challenge(config, now);
        }
        self.pending |= Pending::ACK;
        let start = self.receive.offset(segment.seq).max(0);
        let end = self.receive.offset(segment.seq) + segment.payload.len() as i64;
        if start < end && end <= self.receive.nxt as i64 {
            self.report_duplicate(start as u64, end as u64);
        }
    }

    /// A challenge ACK (RFC 5961 7 and 10), unless one was sent just before.
    fn challenge(&mut self, config: &Config, now: Instant) {
        if self.delayed_ack.may_challenge(config, now) {
            self.pending |= Pending::ACK;
        }
    }

    /// A RST that is in the window. RFC 5961 3.2: "If the RST bit is set and the sequence number
    /// exactly matches the next expected sequence number (RCV.NXT), then TCP MUST reset the
    /// connection." Any other is answered by a challenge ACK, so that a blind attacker has to guess
    /// 32 bits.
    fn on_reset(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        if segment.seq != self.receive.seq(self.receive.nxt) && !self.is_reset_at_fin(segment) {
            return self.challenge(config, now);
        }
        match self.state {
            State::SynReceived if !self.is_early() => {
                self.fail(Error::ConnectionRefused, Events::REFUSED);
            }
            // Both streams are complete; only our last acknowledgement was missing.
            State::Closing | State::LastAck => self.finish(Some(Error::ConnectionReset), now),
            _ => self.fail(Error::ConnectionReset, Events::RESET),
        }
    }

    /// Whether a RST has the number of the peer's FIN, as macOS sends it. That lies before the
    /// window then. Linux accepts it too (`tcp_reset_check`).
    fn is_reset_at_fin(&self, segment: &Segment<'_>) -> bool {
        self.receive.nxt > self.receive.fin && segment.seq == self.receive.seq(self.receive.fin)
    }

    /// Takes the marks of a segment on an ECN connection: its own mark, and ECE. Called before its
    /// acknowledgement is processed.
    fn take_marks(&mut self, segment: &Segment<'_>, now: Instant) {
        if !segment.payload.is_empty() {
            let cwr = segment.flags.contains(Flags::CWR);
            let dctcp = self.congestion.counts_marks();
            let action = self.ecn.on_payload(segment.marked, cwr, dctcp);
            if let Some(echo) = action.prior_echo
                && self.receive.unacked() > 0
            {
                let end = self.receive.nxt as u32;
                self.cold_state_mut().prior_ack = Some(PriorAck { end, echo });
            }
            if action.acknowledge {
                self.pending |= Pending::ACK;
            }
            if action.quickack {
                self.delayed_ack.enter_quickack(MARKED_QUICK);
            }
        }
        if segment.flags.contains(Flags::ECE) {
            self.take_echo(segment, now);
        }
    }

    /// The peer echoes a mark. RFC 3168 6.1.2: the window comes down as for a loss, at most once in
    /// a round trip, and nothing is sent again.
    fn take_echo(&mut self, segment: &Segment<'_>, now: Instant) {
        let acked = segment.ack - self.send.seq(self.send.una);
        let flight = self.send.in_flight();
        if acked < 0 || acked as u32 > flight {
            return;
        }
        self.congestion.on_echo(acked as u32);
        if self.recovery.is_repairing() || self.ecn.is_reduced(self.send.una) || flight == 0 {
            return;
        }
        let threshold = self
            .congestion
            .marked(flight, u32::from(self.send.mss), now);
        let window = &mut self.congestion.window;
        window.ssthresh = threshold;
        window.cwnd = window.cwnd.min(threshold);
        self.ecn.on_mark_echoed(self.send.nxt);
    }

    /// Sixth: the urgent pointer is the sequence number after the urgent byte (RFC 6093 3.1; Linux
    /// with `tcp_stdurg` off).
    fn take_urgent_pointer(&mut self, segment: &Segment<'_>) {
        let ahead = i64::from(segment.urgent.saturating_sub(1));
        let mark = self.receive.offset(segment.seq) + ahead;
        let nxt = self.receive.nxt;
        if mark >= nxt as i64 && self.cold_state_mut().urgent.on_mark(mark, nxt) {
            self.events |= Events::URGENT;
        }
    }

    /// Seventh and eighth: payload and FIN of an acceptable segment that begins at offset `start`.
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
        let in_order = start == nxt && !self.reassembly.has_gaps() && self.receive.fin == u64::MAX;
        if in_order && !fin && end <= self.receive.edge() as i64 {
            return self.on_data_in_order(config, payload, buffer, now);
        }
        // Nothing follows the FIN. Bytes beyond the window are not taken: the peer sends them
        // again.
        let limit = self.receive.edge().min(self.receive.fin) as i64;
        let fin_here = fin && end <= limit && self.take_fin_offset(end);

        if start < nxt && start < end {
            // RFC 2883 4: a duplicate is reported, but for bytes before the first, which never
            // came.
            if nxt > 0 && end > 0 {
                self.report_duplicate(start.max(0) as u64, end.min(nxt) as u64);
            }
            self.pending |= Pending::ACK;
        }
        let (from, to) = (start.max(nxt), end.min(limit));
        if end > limit && start < end {
            self.pending |= Pending::ACK;
        }
        if from < to {
            let part = &payload[(from - start) as usize..(to - start) as usize];
            if !self.store(config, from as u64, part, buffer, now) {
                return;
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

    /// Stores payload in the window. Returns `false` if there is no room for it.
    fn store(
        &mut self,
        config: &Config,
        from: u64,
        part: &[u8],
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) -> bool {
        let next = self.receive.nxt;
        if from == next && !self.reassembly.has_gaps() {
            self.on_data_in_order(config, part, buffer, now);
            return true;
        }
        let limit = config.gaps_max(self.receive.limit);
        match self.reassembly.store(next, limit, from, part, buffer) {
            Stored::Refused => {
                // RFC 2018 8 lets a receiver discard bytes that it has reported "if the receiver
                // runs out of buffer space". The bytes next in order are worth more (Linux's
                // `tcp_prune_ofo_queue`).
                if from != next || self.drop_out_of_order(buffer) == 0 {
                    return false;
                }
                self.pending |= Pending::ACK;
                self.on_data_in_order(config, part, buffer, now);
                return true;
            }
            // RFC 5681 4.2: "a TCP receiver SHOULD send an immediate ACK when the incoming segment
            // fills in all or part of a gap in the sequence space."
            Stored::Advanced(nxt) => {
                self.receive.nxt = nxt;
                self.events |= Events::READABLE;
            }
            Stored::Duplicate => {
                self.report_duplicate(from, from + part.len() as u64);
                self.count_duplicate_ack();
            }
            Stored::BeyondGap => self.count_duplicate_ack(),
        }
        self.pending |= Pending::ACK;
        true
    }

    /// A peer without selective acknowledgement counts one duplicate acknowledgement for each
    /// segment.
    fn count_duplicate_ack(&mut self) {
        if !self.features.contains(Features::SACK) {
            self.delayed_ack.add_duplicate();
        }
    }

    /// Remembers the offset of a FIN in the window, once and for all. A FIN that contradicts an
    /// earlier one, or data beyond it, is ignored.
    fn take_fin_offset(&mut self, end: i64) -> bool {
        let end = end as u64;
        let highest = self.reassembly.end().unwrap_or(self.receive.nxt);
        if self.receive.fin == u64::MAX && end >= self.receive.nxt && end >= highest {
            self.receive.fin = end;
        }
        self.receive.fin == end
    }

    /// Whether bytes are stored beyond a gap.
    pub fn has_gaps(&self) -> bool {
        self.reassembly.has_gaps()
    }

    /// Forgets what is stored beyond a gap, so that its memory is free. The peer keeps what is not
    /// acknowledged (RFC 2018 8) and sends it again. Returns the bytes that were stored there.
    pub fn drop_out_of_order(&mut self, buffer: &mut impl ReceiveBuffer) -> u64 {
        let bytes = self.reassembly.drop_gaps();
        if bytes > 0 {
            buffer.forget_beyond(self.receive.nxt, bytes);
        }
        bytes
    }

    /// Everything before the peer's FIN has been received (RFC 9293 3.10.7.4, eighth).
    pub(crate) fn on_fin(&mut self) {
        self.receive.nxt += 1;
        self.reassembly.drop_gaps();
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

    /// Bytes were received twice: the next acknowledgement reports them (RFC 2883 4).
    fn report_duplicate(&mut self, start: u64, end: u64) {
        if self.features.contains(Features::SACK) {
            let (start, end) = (self.receive.seq(start), self.receive.seq(end));
            self.reassembly.on_duplicate(start, end);
        }
    }

    /// Whether a segment brings payload that no program will read.
    fn brings_unwanted(&self, segment: &Segment<'_>) -> bool {
        let end = self.receive.offset(segment.seq) + segment.payload.len() as i64;
        self.orphan && !segment.payload.is_empty() && end > self.receive.nxt as i64
    }

    /// `len` bytes of payload arrived in order: decides when to acknowledge them.
    #[inline(always)]
    pub(crate) fn acknowledge_in_order(&mut self, config: &Config, len: usize, now: Instant) {
        self.delayed_ack.on_arrival(config, self.rtt.rto(), now);
        let full = len >= usize::from(self.receive.mss);
        if len > usize::from(self.receive.mss) {
            self.receive.mss = len.min(usize::from(self.greatest_received())) as u16;
        }
        let (unacked, mss) = (self.receive.unacked(), self.receive.mss);
        let due = self.delayed_ack.on_data(config, unacked, mss, full);
        self.acknowledge(due, now);
    }

    #[inline(always)]
    fn acknowledge(&mut self, due: AckDue, now: Instant) {
        match due {
            AckDue::Now => self.pending |= Pending::ACK,
            AckDue::After(delay) => self.timers.delay_ack(now + delay),
        }
    }
}
