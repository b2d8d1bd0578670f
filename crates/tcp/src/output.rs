//! What to send now (RFC 9293 3.8, 3.7.4; RFC 6675 5).

use std::ops::Range;

use millrace_wire::tcp::{Flags, Options, Seq};

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::info::Phase;
use crate::options::{Features, timestamp};
use crate::outgoing::{Limits, Outgoing};
use crate::pmtud::ProbeTurn;
use crate::recovery::tlp::TailLossProbe;
use crate::state::State;
use crate::time::Instant;
use crate::timers::Transmit;

/// The least piece that is cut from the stream because the peer's window ends there, in bytes: what fits into a packet of 68 bytes, which every host
/// takes (RFC 791 3.2), with the IP header.
const CUT_MIN: u32 = 48;

impl Connection {
    /// The next segment to send now; to be called until `None`, after whatever else was called. Everything it gives counts as sent.
    #[inline]
    pub fn poll_transmit(
        &mut self,
        config: &Config,
        limits: &Limits,
        now: Instant,
    ) -> Option<Outgoing> {
        if !self.has_output() {
            return None;
        }
        self.transmit(config, limits, now)
    }

    /// Whether it is worth asking [`Connection::poll_transmit`].
    #[inline(always)]
    pub fn has_output(&self) -> bool {
        !self.pending.is_empty() || self.send.has_unsent() || self.loss_state.repair().is_some()
    }

    fn transmit(&mut self, config: &Config, limits: &Limits, now: Instant) -> Option<Outgoing> {
        if self.pending.intersects(Pending::CONTROL) {
            if self.state == State::SynSent && self.holds_syn() {
                return None;
            }
            return Some(self.control(config, now));
        }
        if self.state.can_send() || self.is_early() {
            if self.pending.contains(Pending::LOSS_PROBE) {
                self.pending.remove(Pending::LOSS_PROBE);
                let probe = self.loss_probe(config, now);
                if probe.is_some() {
                    return probe;
                }
            }
            if self.pacing.is_some() && self.has_more() && self.must_wait(now) {
                return self.acknowledge_alone(now);
            }
            if self.loss_state.repair().is_some()
                && !self.probes_time_out(config, limits, now)
                && let Some(range) = self.next_lost(limits)
            {
                return Some(self.send_again(config, range, now));
            }
            if self.cold_state.is_some() && self.send.has_unsent() {
                match self.poll_mtu_probe(config, now) {
                    ProbeTurn::Probe(probe) => return Some(probe),
                    ProbeTurn::Wait => return self.acknowledge_alone(now),
                    ProbeTurn::Stream => {}
                }
            }
            if self.send.has_unsent()
                && let Some(len) = self.sendable(config, limits, now)
            {
                return Some(self.send_fresh(config, len, self.segment_size(), now));
            }
            if self.pacing.is_some() {
                self.miss_pace();
            }
        }
        self.acknowledge_alone(now)
    }

    /// What is left when nothing of the stream may leave.
    #[inline]
    fn acknowledge_alone(&mut self, now: Instant) -> Option<Outgoing> {
        if self.pending.contains(Pending::ACK) {
            return Some(self.bare_ack(now));
        }
        None
    }

    /// Whether there is something of the stream to send, now or later, for the first time or again.
    fn has_more(&self) -> bool {
        let repair = self.loss_state.repair();
        self.send.has_unsent() || repair.is_some_and(|repair| repair.board.next_lost().is_some())
    }

    /// The most payload to send in one piece. The urgent pointer is each segment's own, and CWR one segment's.
    #[inline]
    fn unit(&self, limits: &Limits) -> u32 {
        if self.is_urgent() || self.ecn.reduced {
            0
        } else if self.pacing.is_some() {
            self.paced_unit(limits.max_payload)
        } else {
            limits.max_payload
        }
    }

    /// Control segments, which go before the stream.
    #[inline(never)]
    fn control(&mut self, config: &Config, now: Instant) -> Outgoing {
        if self.pending.contains(Pending::REFUSE) {
            self.pending.remove(Pending::REFUSE);
            return Outgoing::control(self.loss_state.get().refuse_seq, Seq(0), Flags::RST, 0);
        }
        if self.pending.contains(Pending::RESET) {
            self.pending = Pending::empty();
            let (seq, ack) = (
                self.send.seq(self.send.nxt),
                self.receive.seq(self.receive.nxt),
            );
            let mut reset = Outgoing::control(seq, ack, Flags::RST | Flags::ACK, 0);
            reset.options = self.segment_options(now);
            return reset;
        }
        if self.pending.contains(Pending::SYN) {
            self.pending.remove(Pending::SYN | Pending::ACK);
            return self.syn(config, now);
        }
        // An acknowledgement of what is long past makes the peer answer (RFC 9293 3.8.4, 3.8.6.1).
        self.pending.remove(Pending::PROBE | Pending::ACK);
        let seq = self.send.seq(self.send.una) - 1;
        self.segment(seq, Flags::ACK, self.segment_options(now), 0..0)
    }

    /// SYN, or SYN-ACK.
    fn syn(&mut self, config: &Config, now: Instant) -> Outgoing {
        let (flags, ack) = match self.state {
            // Asked once: what is in the way of such a SYN may let others pass (RFC 3168 6.1.1.1).
            State::SynSent if self.features.contains(Features::ECN) && self.timers.backoff == 0 => {
                (Flags::SYN | Flags::ECE | Flags::CWR, Seq(0))
            }
            State::SynSent => {
                self.features.remove(Features::ECN);
                (Flags::SYN, Seq(0))
            }
            _ => {
                let mut flags = Flags::SYN | Flags::ACK;
                flags.set(Flags::ECE, self.features.contains(Features::ECN));
                (flags, self.receive.seq(self.receive.nxt))
            }
        };
        self.sent_log.sent(0, now);
        if self.timers.transmit == Instant::NEVER {
            self.arm_timeout(config, now);
        }
        self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        // The window of a SYN is never scaled (RFC 7323 2.2).
        let window = self.receive.announce_on_syn();
        let (cookie, sent) = self.on_syn_out();
        let mut syn = Outgoing::control(self.send.iss(), ack, flags, window);
        syn.options = self.features.syn_options(
            self.advertised_mss,
            self.receive.scale,
            self.recent.stamp(now),
        );
        if let Some(cookie) = cookie {
            syn.options.set_fast_open(cookie);
        }
        if sent > 0 {
            syn.payload = 0..sent;
            syn.segment_size = sent as u16;
            syn.flags.set(Flags::PSH, sent == self.send.end);
        }
        syn
    }

    /// An acknowledgement by itself.
    fn bare_ack(&mut self, now: Instant) -> Outgoing {
        self.pending.remove(Pending::ACK);
        let options = self.ack_options(now);
        if let Some((end, echo)) = self
            .loss_state
            .get_mut()
            .and_then(|state| state.former.take())
            && Seq(end).after(self.receive.acked)
        {
            // RFC 8257 3.2: what came before the mark, or its end, is acknowledged by itself.
            self.pending |= Pending::ACK;
            let mut former = self.segment(self.send.seq(self.send.nxt), Flags::ACK, options, 0..0);
            former.flags = (former.flags - Flags::ECE) | echo;
            former.ack = self.receive.seq(u64::from(end));
            return former;
        }
        if self.delayed_ack.duplicates > 1 {
            // One for each segment that came out of order: the peer counts them.
            self.delayed_ack.duplicates -= 1;
            self.pending |= Pending::ACK;
        } else {
            self.delayed_ack.duplicates = 0;
        }
        self.segment(self.send.seq(self.send.nxt), Flags::ACK, options, 0..0)
    }

    /// Whether what is lost waits, because new data goes first and alone after a time-out (RFC 5682 2.1, step 2b). If none can go, nothing waits for it.
    fn probes_time_out(&mut self, config: &Config, limits: &Limits, now: Instant) -> bool {
        if !matches!(&self.loss_state.get().undo, Some(undo) if undo.prefers_fresh()) {
            return false;
        }
        let fresh = self.send.nxt > self.loss_state.get().high
            || self.send.has_unsent() && self.sendable(config, limits, now).is_some();
        if !fresh && let Some(undo) = self.loss_state.undo_mut() {
            undo.stop_probe();
        }
        fresh
    }

    /// Bytes that were lost, the first of them first, as far as the congestion window allows.
    fn next_lost(&mut self, limits: &Limits) -> Option<Range<u64>> {
        let lost = self.loss_state.repair()?.board.next_lost()?;
        // What the peer has taken out of its window is not sent again, but for the first byte, which then probes it
        // (RFC 9293 3.8.6, SHLD-14).
        let edge = self.send.una + u64::from(self.send.window);
        if lost.start >= edge && lost.start > self.send.una {
            return None;
        }
        let mss = u64::from(self.segment_size());
        let room = u64::from(self.congestion.window.cwnd.saturating_sub(self.pipe()));
        let most = self.unit(limits);
        let mut len = (lost.end - lost.start).min(u64::from(most).max(mss));
        if len > room {
            len = room / mss * mss;
            if len == 0 {
                if !self.loss_state.repair_mut()?.prr.take_forced() {
                    return None;
                }
                len = mss.min(lost.end - lost.start);
            }
        }
        Some(lost.start..lost.start + len)
    }

    /// RFC 8985 7.3: new data if there is some and the peer's window lets it, otherwise the last segment in flight again; no matter the
    /// congestion window.
    #[cold]
    #[inline(never)]
    fn loss_probe(&mut self, config: &Config, now: Instant) -> Option<Outgoing> {
        if self.phase != Phase::Open || self.send.in_flight() == 0 {
            return None;
        }
        let mss = self.segment_size();
        if self.send.nxt < self.send.end && self.send.usable() > 0 {
            let len = (self.send.end - self.send.nxt)
                .min(u64::from(mss))
                .min(u64::from(self.send.usable()));
            return Some(self.send_fresh(config, len, mss, now));
        }
        let edge = self.send.una + u64::from(self.send.window);
        let tail = self
            .repair(config)
            .board
            .tail(u64::from(mss))
            .filter(|tail| tail.start < edge)?;
        self.loss_state.get_or_insert().tlp = TailLossProbe::probed(self.send.nxt);
        Some(self.send_again(config, tail, now))
    }

    /// Sends bytes in flight again. The range may end with the FIN.
    fn send_again(&mut self, config: &Config, range: Range<u64>, now: Instant) -> Outgoing {
        let size = self.segment_size();
        let payload = range.start.min(self.send.end)..range.end.min(self.send.end);
        let len = payload.end - payload.start;
        self.loss_state.get_or_insert().bytes_retransmitted += len;
        self.loss_state.get_or_insert().segments_retransmitted +=
            len.div_ceil(u64::from(size)).max(1) as u32;
        let stamp = timestamp(now, self.recent.offset);
        let repair = self.repair(config);
        repair.board.resend(range.clone(), now.as_micros() as u32);
        repair.prr.on_sent((range.end - range.start) as u32);
        repair.prr.on_sent_again();
        if let Some(undo) = self.loss_state.undo_mut() {
            undo.on_sent_again((range.end - range.start) as u32, stamp);
        }
        // RFC 6298 5: a time-out after this, and not after what was sent before, the first segment may be sent once more.
        let head = range.start == self.send.una && self.timers.purpose == Transmit::Timeout;
        if head || self.timers.transmit == Instant::NEVER {
            self.arm_timeout(config, now);
        }
        if self.pacing.is_some() {
            self.pace(len as u32, now);
        }
        let mut flags = Flags::ACK;
        if range.end > self.send.end {
            flags |= Flags::FIN;
        }
        if payload.end == self.send.end && len > 0 {
            flags |= Flags::PSH;
        }
        self.pending.remove(Pending::ACK);
        let options = self.ack_options(now);
        let mut segment = self.segment(self.send.seq(range.start), flags, options, payload);
        segment.segment_size = size;
        segment
    }

    /// How many bytes that were never sent may leave now, as the windows and the rules against small segments allow; 0 if it is the FIN's
    /// turn alone. If nothing may leave and nothing is in flight, a timer is left running.
    #[inline(always)]
    fn sendable(&mut self, config: &Config, limits: &Limits, now: Instant) -> Option<u64> {
        if self.send.una == self.send.nxt {
            self.restart_after_idle(config, now);
        }
        let mss = u32::from(self.segment_size());
        let unsent = (self.send.end - self.send.nxt).min(u64::from(u32::MAX)) as u32;
        let usable = self.send.usable();
        // A segment more than nothing always fits.
        let room = self
            .congestion
            .window
            .cwnd
            .max(mss)
            .saturating_sub(self.pipe());

        let wanted = unsent.min(usable).min(self.unit(limits).max(mss));
        let mut len = wanted.min(room);
        let short = if len < mss { len } else { len % mss };
        if short != 0 && !self.may_send_short(len, unsent, usable, wanted > room) {
            len -= short;
        }
        let fin_alone = unsent == 0 && self.send.fin && usable > 0;
        if len == 0 && !fin_alone {
            self.blocked(config, usable, now);
            return None;
        }
        Some(u64::from(len))
    }

    /// Whether a segment that is not full may leave.
    fn may_send_short(&self, len: u32, unsent: u32, usable: u32, cwnd_limited: bool) -> bool {
        let send = &self.send;
        if len == unsent {
            // The last of what there is: Nagle's rule, which looks at short segments only (Minshall, as in Linux).
            let held = self.settings.cork || send.more;
            let quiet = self.settings.nodelay || send.small_end <= send.una;
            return send.fin || send.forced || self.is_urgent() || (!held && quiet);
        }
        // The peer's window cuts it: not worth it unless it is half of what the peer ever had (RFC 9293 3.8.6.2.1), and no less than what the smallest
        // packet that every host takes has room for: a peer may have announced a byte from the start (Linux's `tcp_bound_to_half_wnd`).
        let least = (send.max_window / 2).max(CUT_MIN);
        len == usable && !cwnd_limited && (send.forced || usable >= least)
    }

    /// Sends the next `len` bytes, and the FIN if it is its turn.
    #[inline(always)]
    pub(crate) fn send_fresh(
        &mut self,
        config: &Config,
        len: u64,
        mss: u16,
        now: Instant,
    ) -> Outgoing {
        let send = &mut self.send;
        let payload = send.nxt..send.nxt + len;
        let mut flags = Flags::ACK;
        if payload.end == send.end {
            if len > 0 {
                flags |= Flags::PSH;
            }
            if send.fin && u64::from(send.usable()) > len {
                flags |= Flags::FIN;
            }
        }
        send.nxt = payload.end + u64::from(flags.contains(Flags::FIN));
        if len < u64::from(mss) || !len.is_multiple_of(u64::from(mss)) {
            send.small_end = payload.end;
        }
        send.forced = false;
        let may_mark = len > 0 && self.features.contains(Features::ECN);
        if may_mark && std::mem::take(&mut self.ecn.reduced) {
            flags |= Flags::CWR;
        }
        let (una, nxt) = (send.una, send.nxt);
        let was_idle = una == payload.start;

        self.sent_log.sent(nxt, now);
        if let Some(repair) = self.loss_state.repair_mut() {
            repair.board.sent(nxt, now.as_micros() as u32);
            repair.prr.on_sent(len as u32);
        }
        let pipe = self.pipe();
        self.congestion.on_sent(una, nxt, pipe);
        if self.pacing.is_some() {
            let drained = !self.send.has_unsent();
            let before = pipe.saturating_sub((nxt - payload.start) as u32);
            self.congestion.on_paced(nxt, before, drained, now);
            self.pace(len as u32, now);
        }
        self.counters.last_sent = now.ticks();
        if len > 0 {
            self.note_answer(config, now);
        }
        if was_idle {
            self.timers.progress();
            self.arm_transmit(config, now);
        } else {
            self.extend_transmit(config, now);
        }
        self.pending.remove(Pending::ACK);
        let options = self.ack_options(now);
        let mut segment = self.segment(self.send.seq(payload.start), flags, options, payload);
        segment.segment_size = mss;
        segment.may_mark |= may_mark;
        segment
    }

    /// Something is queued and may not leave. What is in flight will bring an acknowledgement; without it, only a timer can help.
    fn blocked(&mut self, config: &Config, usable: u32, now: Instant) {
        if self.send.in_flight() > 0 || self.timers.transmit != Instant::NEVER {
            return;
        }
        if usable == 0 {
            self.arm_persist(config, now);
        } else {
            self.timers.transmit = now + config.hold;
            self.timers.purpose = Transmit::Hold;
        }
    }

    fn restart_after_idle(&mut self, config: &Config, now: Instant) {
        let idle = self.counters.last_sent.elapsed(now);
        let rto = self.rtt.rto();
        if idle > rto {
            let timeouts = idle.as_micros() / rto.as_micros().max(1);
            self.congestion
                .restart_after_idle(config, timeouts, u32::from(self.send.mss));
        }
    }

    /// Payload of a full segment with the options that the next one carries.
    fn segment_size(&self) -> u16 {
        let reports = self.loss_state.has_reports();
        if !reports || !self.features.contains(Features::SACK) {
            return self.send.mss;
        }
        // Timestamps are known to be in `mss`; the SACK option takes what is left of the 40 bytes at most.
        let most = if self.features.contains(Features::TIMESTAMPS) {
            28
        } else {
            36
        };
        self.send.mss - most
    }

    /// Options of a segment with an acknowledgement.
    #[inline(always)]
    fn ack_options(&mut self, now: Instant) -> Options {
        let mut options = self.segment_options(now);
        if self.loss_state.has_reports() {
            self.report(&mut options);
        }
        options
    }

    /// What was received again, then what lies beyond the gap (RFC 2883 4, RFC 2018 4). What does not fit goes into another acknowledgement.
    #[cold]
    fn report(&mut self, options: &mut Options) {
        let mut room = if options.timestamps.is_some() { 3 } else { 4 };
        if let Some((start, end)) = self
            .loss_state
            .get_mut()
            .and_then(|state| state.again.take())
        {
            options.sack.push(start, end);
            room -= 1;
        }
        if !self.features.contains(Features::SACK) {
            return;
        }
        let base = self.receive.seq(0);
        let state = self.loss_state.get_mut();
        let Some(gaps) = state.and_then(|state| state.gaps.as_mut()) else {
            return;
        };
        for range in gaps.report(room).into_iter().flatten() {
            options
                .sack
                .push(base + range.start as u32, base + range.end as u32);
        }
        if gaps.has_news() {
            self.pending |= Pending::ACK;
        }
    }

    /// A segment that acknowledges what has been received.
    #[inline(always)]
    fn segment(
        &mut self,
        seq: Seq,
        flags: Flags,
        options: Options,
        payload: Range<u64>,
    ) -> Outgoing {
        self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        self.timers.acknowledge = Instant::NEVER;
        let window = self.receive.announce(self.receive.scale);
        let ack = self.receive.seq(self.receive.nxt);
        let mut flags = flags | self.ecn.echo;
        let mut urgent = 0;
        if self.is_urgent()
            && let Some(pointer) = self.urgent_pointer(seq)
        {
            flags |= Flags::URG;
            urgent = pointer;
        }
        Outgoing {
            seq,
            ack,
            flags,
            window,
            urgent,
            may_mark: false,
            options,
            payload,
            segment_size: self.send.mss,
        }
    }
}
