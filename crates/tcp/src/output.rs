//! What to send now (RFC 9293 3.7.4, 3.8; RFC 6675 5).

use std::ops::Range;

use millrace_wire::tcp::{Flags, Options, Seq};

use crate::config::Config;
use crate::congestion::unit_size;
use crate::connection::{Connection, Pending};
use crate::options::Features;
use crate::outgoing::{Limits, Outgoing};
use crate::pacing;
use crate::pmtud::NextSize;
use crate::recovery::RetransmitLimits;
use crate::state::State;
use crate::time::Instant;
use crate::timers::Transmit;

/// The least piece that is cut from the stream because the peer's window ends there, in bytes: what
/// fits with the IP header into a packet of 68 bytes, which every host takes (RFC 791 3.2).
const CUT_MIN: u32 = 48;

/// Whether an MTU probe goes before the stream.
enum ProbeTurn {
    /// It goes now.
    Probe(Outgoing),
    /// It goes once there is room for it.
    Wait,
    /// There is none.
    Stream,
}

impl Connection {
    /// The next segment to send now. The owner calls it after any other call, until it returns
    /// `None`. A returned segment counts as sent.
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

    /// Whether [`Connection::poll_transmit`] may have something to send.
    #[inline(always)]
    pub fn has_output(&self) -> bool {
        !self.pending.is_empty() || self.send.has_unsent() || self.recovery.has_repair()
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
            if self.is_paced() && self.has_more() && self.must_wait(now) {
                return self.acknowledge_alone(now);
            }
            if self.recovery.has_repair()
                && !self.tests_timeout(config, limits, now)
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
            if let Some(pacing) = self.pacing_mut() {
                pacing.on_blocked();
            }
        }
        self.acknowledge_alone(now)
    }

    /// The acknowledgement that is due, if nothing of the stream may leave.
    #[inline]
    fn acknowledge_alone(&mut self, now: Instant) -> Option<Outgoing> {
        if self.pending.contains(Pending::ACK) {
            return Some(self.bare_ack(now));
        }
        None
    }

    /// Whether something of the stream waits to be sent, for the first time or again.
    fn has_more(&self) -> bool {
        self.send.has_unsent() || self.recovery.has_lost()
    }

    fn must_wait(&mut self, now: Instant) -> bool {
        self.pacing_mut()
            .is_some_and(|pacing| pacing.must_wait(now))
    }

    /// The rate to send at, in bytes per second; 0 while nothing bounds it.
    fn pacing_rate(&self) -> u64 {
        pacing::rate(
            self.congestion.pacing_rate(),
            self.settings.rate_limit(),
            &self.congestion.window,
            self.rtt.srtt_us(),
        )
    }

    /// `len` bytes of payload leave a paced connection.
    #[cold]
    fn pace(&mut self, len: u32, now: Instant) {
        let rate = self.pacing_rate();
        let (srtt_us, nxt, mss) = (self.rtt.srtt_us(), self.send.nxt, self.send.mss);
        if let Some(pacing) = self.pacing_mut() {
            pacing.on_sent(len, rate, srtt_us, nxt, mss, now);
        }
    }

    /// The most payload to send in one piece. The urgent pointer differs for each segment, CWR
    /// leaves on one segment only, and a paced piece is no larger than the rate is worth.
    #[inline]
    fn unit(&self, limits: &Limits) -> u32 {
        if self.is_urgent() || self.ecn.is_cwr_due() {
            return 0;
        }
        if self.is_paced() {
            let rate = self.pacing_rate();
            if rate > 0 {
                let unit = unit_size(rate, u32::from(self.send.mss));
                return limits.max_payload.min(unit);
            }
        }
        limits.max_payload
    }

    /// Control segments, which go before the stream.
    #[inline(never)]
    fn control(&mut self, config: &Config, now: Instant) -> Outgoing {
        if self.pending.contains(Pending::REFUSE) {
            self.pending.remove(Pending::REFUSE);
            let seq = self.cold_state_mut().refuse_seq;
            return Outgoing::control(seq, Seq(0), Flags::RST, 0);
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
        // A sequence number before SND.UNA makes the peer answer. RFC 9293 3.8.4: "Such a segment
        // generally contains SEG.SEQ = SND.NXT-1".
        self.pending.remove(Pending::PROBE | Pending::ACK);
        let seq = self.send.seq(self.send.una) - 1;
        self.segment(seq, Flags::ACK, self.segment_options(now), 0..0)
    }

    /// SYN, or SYN-ACK.
    fn syn(&mut self, config: &Config, now: Instant) -> Outgoing {
        let (flags, ack) = match self.state {
            // RFC 3168 6.1.1.1: only the first SYN asks for ECN. A path that drops such a SYN may
            // let others pass.
            State::SynSent
                if self.features.contains(Features::ECN) && self.timers.backoff() == 0 =>
            {
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
        self.recovery.on_sent(0, now);
        if !self.timers.runs() {
            self.arm_timeout(config, now);
        }
        self.counters.segments_out = self.counters.segments_out.wrapping_add(1);
        // RFC 7323 2.2: "The window field in a segment where the SYN bit is set (i.e., a <SYN> or
        // <SYN,ACK>) MUST NOT be scaled."
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

    /// An acknowledgement without payload.
    fn bare_ack(&mut self, now: Instant) -> Outgoing {
        self.pending.remove(Pending::ACK);
        let options = self.ack_options(now);
        let seq = self.send.seq(self.send.nxt);
        let prior = self
            .cold_state
            .as_mut()
            .and_then(|cold| cold.prior_ack.take());
        if let Some(prior) = prior.filter(|prior| Seq(prior.end).after(self.receive.acked)) {
            // RFC 8257 3.2: when the marks change, what came before the change is acknowledged
            // first.
            self.pending |= Pending::ACK;
            let mut ack = self.segment(seq, Flags::ACK, options, 0..0);
            ack.flags = (ack.flags - Flags::ECE) | prior.echo;
            ack.ack = self.receive.seq(u64::from(prior.end));
            return ack;
        }
        if self.delayed_ack.on_ack_sent() {
            self.pending |= Pending::ACK;
        }
        self.segment(seq, Flags::ACK, options, 0..0)
    }

    /// Whether lost data waits, because new data goes first and alone to test a time-out (RFC 5682
    /// 2.1 step 2b). If no new data can go, lost data does not wait.
    fn tests_timeout(&mut self, config: &Config, limits: &Limits, now: Instant) -> bool {
        if !self.recovery.prefers_fresh() {
            return false;
        }
        let fresh = self.recovery.has_sent_fresh(self.send.nxt)
            || self.send.has_unsent() && self.sendable(config, limits, now).is_some();
        if !fresh {
            self.recovery.stop_f_rto();
        }
        fresh
    }

    /// The first lost bytes, as far as the congestion window allows.
    fn next_lost(&mut self, limits: &Limits) -> Option<Range<u64>> {
        let room = self.congestion.window.cwnd.saturating_sub(self.pipe());
        let limits = RetransmitLimits {
            una: self.send.una,
            edge: self.send.una + u64::from(self.send.window),
            mss: u64::from(self.segment_size()),
            unit: u64::from(self.unit(limits)),
            room: u64::from(room),
        };
        self.recovery.next_lost(&limits)
    }

    /// A tail loss probe. RFC 8985 7.3: new data if there is some and the peer's window allows it,
    /// otherwise the last segment in flight again, whatever the congestion window says.
    #[cold]
    #[inline(never)]
    fn loss_probe(&mut self, config: &Config, now: Instant) -> Option<Outgoing> {
        if !self.recovery.is_open() || self.send.in_flight() == 0 {
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
        let (recovery, _, view) = self.recovery_parts(config, now);
        let tail = recovery
            .highest_unsacked(&view, u64::from(mss))
            .filter(|tail| tail.start < edge)?;
        recovery.on_tail_sent(view.send.nxt);
        Some(self.send_again(config, tail, now))
    }

    /// Sends bytes in flight again. The range may end with the FIN.
    fn send_again(&mut self, config: &Config, range: Range<u64>, now: Instant) -> Outgoing {
        let size = self.segment_size();
        let payload = range.start.min(self.send.end)..range.end.min(self.send.end);
        let len = payload.end - payload.start;
        let segments = len.div_ceil(u64::from(size)).max(1) as u32;
        let (recovery, _, view) = self.recovery_parts(config, now);
        recovery.on_retransmitted(&view, &range, len, segments);
        // RFC 6298 5: a time-out after this transmission, and not after earlier ones, the first
        // segment may be sent once more.
        let head = range.start == self.send.una && self.timers.is_timeout();
        if head || !self.timers.runs() {
            self.arm_timeout(config, now);
        }
        if self.is_paced() {
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

    /// How many new bytes may leave now, by the windows and the rules against small segments; 0 if
    /// only the FIN may. If nothing may leave and nothing is in flight, a timer is left running.
    #[inline(always)]
    fn sendable(&mut self, config: &Config, limits: &Limits, now: Instant) -> Option<u64> {
        if self.send.una == self.send.nxt {
            self.restart_after_idle(config, now);
        }
        let mss = u32::from(self.segment_size());
        let unsent = (self.send.end - self.send.nxt).min(u64::from(u32::MAX)) as u32;
        let usable = self.send.usable();
        // One segment may always leave into an empty network.
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
            self.on_blocked(config, usable, now);
            return None;
        }
        Some(u64::from(len))
    }

    /// Whether a segment that is not full may leave.
    fn may_send_short(&self, len: u32, unsent: u32, usable: u32, cwnd_limited: bool) -> bool {
        let send = &self.send;
        if len == unsent {
            // The last of what there is: Nagle's algorithm (RFC 9293 3.7.4). Only short segments in
            // flight hold it back (Minshall's refinement, as in Linux).
            let held = self.settings.cork || send.more;
            let quiet = self.settings.nodelay || send.small_end <= send.una;
            return send.fin || send.forced || self.is_urgent() || (!held && quiet);
        }
        // The peer's window cuts the segment. RFC 9293 3.8.6.2.1 sends it if it has half of the
        // largest window seen. It also has CUT_MIN bytes: a peer may have announced a single byte
        // from the start (Linux's `tcp_bound_to_half_wnd`).
        let least = (send.max_window / 2).max(CUT_MIN);
        len == usable && !cwnd_limited && (send.forced || usable >= least)
    }

    /// Sends the next `len` bytes, and the FIN after the last.
    #[inline(always)]
    fn send_fresh(&mut self, config: &Config, len: u64, mss: u16, now: Instant) -> Outgoing {
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
        if may_mark && self.ecn.take_cwr() {
            flags |= Flags::CWR;
        }
        self.account_fresh(config, &payload, now);
        self.pending.remove(Pending::ACK);
        let options = self.ack_options(now);
        let mut segment = self.segment(self.send.seq(payload.start), flags, options, payload);
        segment.segment_size = mss;
        segment.may_mark |= may_mark;
        segment
    }

    /// Tells every part that new data has left; SND.NXT is advanced already.
    #[inline(always)]
    fn account_fresh(&mut self, config: &Config, payload: &Range<u64>, now: Instant) {
        let len = payload.end - payload.start;
        let (una, nxt) = (self.send.una, self.send.nxt);
        self.recovery.on_sent_marked(nxt, len as u32, now);
        let pipe = self.pipe();
        self.congestion.on_sent(una, nxt, pipe);
        if self.is_paced() {
            let drained = !self.send.has_unsent();
            let before = pipe.saturating_sub((nxt - payload.start) as u32);
            self.congestion.on_paced(nxt, before, drained, now);
            self.pace(len as u32, now);
        }
        self.counters.last_sent = now.ticks();
        if len > 0 {
            self.delayed_ack
                .on_answer(config, self.receive.nxt > 0, now);
        }
        if una == payload.start {
            self.timers.on_progress();
            self.arm_transmit(config, now);
        } else {
            self.extend_transmit(config, now);
        }
    }

    /// Something is queued and may not leave. An acknowledgement of what is in flight will change
    /// that; with nothing in flight, only a timer can.
    fn on_blocked(&mut self, config: &Config, usable: u32, now: Instant) {
        if self.send.in_flight() > 0 || self.timers.runs() {
            return;
        }
        if usable == 0 {
            self.arm_persist(config, now);
        } else {
            self.timers.start(Transmit::Hold, now + config.hold);
        }
    }

    fn restart_after_idle(&mut self, config: &Config, now: Instant) {
        let idle = self.counters.last_sent.elapsed(now);
        let rto = self.rtt.rto();
        if idle > rto {
            let timeouts = idle.as_micros() / rto.as_micros().max(1);
            let mss = u32::from(self.send.mss);
            self.congestion
                .restart_after_idle(config.initial_window, timeouts, mss);
        }
    }

    /// An MTU probe, if one is due and worth its risk (RFC 4821 7.2). Something is queued.
    #[cold]
    #[inline(never)]
    fn poll_mtu_probe(&mut self, config: &Config, now: Instant) -> ProbeTurn {
        let (una, size) = (self.send.una, self.send.segment_limit);
        let options = self.features.option_len();
        let sack = self.features.contains(Features::SACK);
        let Some(pmtud) = self.pmtud_mut() else {
            return ProbeTurn::Stream;
        };
        let next = pmtud.next_size(una, size, options, now);
        let needs = pmtud.probe_needs(sack);
        let wanted = match next {
            NextSize::Keep => return ProbeTurn::Stream,
            NextSize::Use(size) => {
                self.use_segments(size);
                return ProbeTurn::Stream;
            }
            NextSize::Finish(size) => {
                self.use_segments(size);
                self.cold_state_mut().pmtud = None;
                return ProbeTurn::Stream;
            }
            NextSize::Probe(size) => size,
        };
        let payload = wanted - options;
        let mss = u32::from(self.send.mss);
        let followed = u32::from(payload) + needs.followers * mss;
        let window = self.congestion.window.cwnd;
        let good = self.recovery.is_open()
            && self.timers.backoff() == 0
            && !self.reassembly.has_reports()
            && !self.is_urgent()
            && window >= needs.window * mss
            && self.send.window >= followed
            && self.unsent() >= u64::from(followed);
        if !good {
            return ProbeTurn::Stream;
        }
        let room = self.send.usable().min(window.saturating_sub(self.pipe()));
        if room < u32::from(payload) {
            // Acknowledgements of what is in flight make room. With nothing in flight there are
            // none to wait for, and one segment may always leave.
            match self.send.in_flight() {
                0 if needs.eager => {}
                0 => return ProbeTurn::Stream,
                _ => return ProbeTurn::Wait,
            }
        }
        let start = self.send.nxt;
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.on_probe_sent(start..start + u64::from(payload));
        }
        ProbeTurn::Probe(self.send_fresh(config, payload.into(), payload, now))
    }

    /// Payload of a full segment with the options that the next one carries.
    fn segment_size(&self) -> u16 {
        if !self.reassembly.has_reports() || !self.features.contains(Features::SACK) {
            return self.send.mss;
        }
        // `mss` has room for timestamps. The SACK option takes what is left of the 40 bytes at
        // most.
        let most = if self.features.contains(Features::TIMESTAMPS) {
            28
        } else {
            36
        };
        self.send.mss - most
    }

    /// Options of an ordinary segment.
    #[inline(always)]
    pub(crate) fn segment_options(&self, now: Instant) -> Options {
        let mut options = Options::default();
        if self.features.contains(Features::TIMESTAMPS) {
            options.timestamps = Some(self.recent.stamp(now));
        }
        options
    }

    /// Options of a segment with an acknowledgement.
    #[inline(always)]
    fn ack_options(&mut self, now: Instant) -> Options {
        let mut options = self.segment_options(now);
        if self.reassembly.has_reports() {
            let room = if options.timestamps.is_some() { 3 } else { 4 };
            let sack = self.features.contains(Features::SACK);
            let base = self.receive.seq(0);
            if self.reassembly.report(&mut options, room, sack, base) {
                self.pending |= Pending::ACK;
            }
        }
        options
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
        self.timers.stop_ack();
        let window = self.receive.announce(self.receive.scale);
        let ack = self.receive.seq(self.receive.nxt);
        let mut flags = flags | self.ecn.echo();
        let mut urgent = 0;
        if let Some(cold) = &self.cold_state
            && cold.urgent.is_pending(self.send.una)
            && let Some(pointer) = cold.urgent.pointer(self.send.offset(seq), self.send.nxt)
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
