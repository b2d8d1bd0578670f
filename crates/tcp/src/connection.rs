//! The connection: its parts, how it opens, and how it ends.
//!
//! Each part is a type with its own state. [`Connection`] passes inputs to them and carries out
//! what they decide. `input`, `output`, `timeouts`, `fast_path` and `api` are layers on top of this
//! module.

use millrace_wire::tcp::{Cookie, Segment};

use crate::cold_state::ColdState;
use crate::config::{Config, MtuProbing};
use crate::congestion::Congestion;
use crate::delayed_ack::DelayedAck;
use crate::ecn::Ecn;
use crate::events::{Error, Events};
use crate::fast_open::FastOpen;
use crate::half_open::HalfOpen;
use crate::open::Open;
use crate::options::{self, Features, Recent, timestamp};
use crate::pacing::Pacing;
use crate::pmtud::{self, Pmtud};
use crate::reassembly::Reassembly;
use crate::recovery::{Recovery, View};
use crate::rtt::Rtt;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::state::State;
use crate::time::{Instant, Ticks};
use crate::timers::Timers;
use crate::window::{ReceiveSpace, SendSpace};

bitflags::bitflags! {
    /// What has to be sent besides the stream.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(crate) struct Pending: u8 {
        /// An acknowledgement, by itself if nothing else carries it.
        const ACK = 1;
        /// SYN, or SYN-ACK in SYN-RECEIVED.
        const SYN = 1 << 1;
        /// RST: the connection is over.
        const RESET = 1 << 2;
        /// RST for one segment that does not belong to this connection.
        const REFUSE = 1 << 3;
        /// A keepalive or zero-window probe, which the peer acknowledges.
        const PROBE = 1 << 4;
        /// A tail loss probe: new data, or the last bytes in flight again.
        const LOSS_PROBE = 1 << 5;
    }
}

impl Pending {
    /// What goes before the stream.
    pub(crate) const CONTROL: Pending = Pending::SYN
        .union(Pending::RESET)
        .union(Pending::REFUSE)
        .union(Pending::PROBE);
}

/// Counters for [`crate::Info`]. Recovery has those of losses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) segments_in: u32,
    pub(crate) segments_out: u32,
    pub(crate) last_sent: Ticks,
    pub(crate) last_received: Ticks,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) state: State,
    pub(crate) pending: Pending,
    pub(crate) features: Features,
    pub(crate) events: Events,
    /// The program has closed it.
    pub(crate) orphan: bool,
    pub(crate) error: Option<Error>,
    /// The last ICMP report that was not fatal: the error if a time-out follows.
    pub(crate) soft_error: Option<Error>,
    pub(crate) send: SendSpace,
    pub(crate) receive: ReceiveSpace,
    pub(crate) timers: Timers,
    pub(crate) delayed_ack: DelayedAck,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    pub(crate) recovery: Recovery,
    pub(crate) reassembly: Reassembly,
    pub(crate) recent: Recent,
    pub(crate) counters: Counters,
    pub(crate) settings: Shared<Settings>,
    pub(crate) ecn: Ecn,
    /// Parts that few connections need.
    pub(crate) cold_state: Option<Box<ColdState>>,
    /// The MSS that we announced, or would.
    pub(crate) advertised_mss: u16,
    /// [`Open::default_mss`].
    pub(crate) default_mss: u16,
}

impl HalfOpen {
    /// Makes the connection, in SYN-RECEIVED. The owner passes it the segment that completed the
    /// handshake next.
    #[inline(always)]
    pub fn establish(
        &self,
        config: &Config,
        settings: &Shared<Settings>,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::answer(config, settings, self, now);
        match self.round_trip(now) {
            Some(sample) => connection
                .rtt
                .sample(config, sample.as_micros() as u32, now),
            None => connection.rtt.distrust_initial(),
        }
        connection.arm_timeout(config, now);
        connection.timers.set_backoff(self.repeated());
        connection
    }

    /// Makes the connection before the handshake is complete, since the SYN brought a valid cookie
    /// (RFC 7413 4.2.2). The owner calls [`Connection::take_early`] next. The connection sends the
    /// SYN-ACK.
    pub fn open_early(
        &self,
        config: &Config,
        settings: &Shared<Settings>,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::answer(config, settings, self, now);
        connection.pending = Pending::SYN;
        connection.cold_state_mut().fast_open = Some(FastOpen::passive());
        let mss = u32::from(connection.send.mss);
        connection
            .congestion
            .start(config.initial_window, mss, 0, now);
        connection.choose_pacing();
        connection.events |= Events::WRITABLE;
        connection
    }
}

impl Connection {
    /// Active open: SYN-SENT. The SYN is the first segment that [`Connection::poll_transmit`]
    /// returns.
    #[inline(always)]
    pub fn connect(
        config: &Config,
        settings: &Shared<Settings>,
        open: Open,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::new(config, settings, &open, State::SynSent, now);
        connection.features = Features::offered(config, settings);
        connection.recent = Recent::new(open.timestamp_offset, 0, now);
        connection.pending = Pending::SYN;
        connection
    }

    /// SYN-RECEIVED, after a passive open.
    #[inline(always)]
    fn answer(
        config: &Config,
        settings: &Shared<Settings>,
        half_open: &HalfOpen,
        now: Instant,
    ) -> Connection {
        let open = Open {
            iss: half_open.iss,
            timestamp_offset: half_open.recent.offset,
            mss: half_open.mss,
            default_mss: half_open.peer_mss,
            receive_limit: half_open.receive_limit,
        };
        let mut connection = Connection::new(config, settings, &open, State::SynReceived, now);
        connection.features = half_open.features;
        connection.recent = half_open.recent;
        connection.receive.start(half_open.irs);
        connection.send.wl1 = half_open.irs;
        connection.send.window = u32::from(half_open.peer_window);
        connection.agree(half_open.peer_mss, half_open.peer_scale);
        connection
    }

    #[inline(always)]
    fn new(
        config: &Config,
        settings: &Shared<Settings>,
        open: &Open,
        state: State,
        now: Instant,
    ) -> Connection {
        let scale = options::scale_for(config.receive_limit_max.max(open.receive_limit));
        let mss = match settings.max_segment {
            Some(limit) => open.mss.min(limit.max(options::MIN_MSS)),
            None => open.mss,
        };
        Connection {
            state,
            pending: Pending::empty(),
            features: Features::empty(),
            events: Events::empty(),
            orphan: false,
            error: None,
            soft_error: None,
            send: SendSpace::new(open.iss, mss),
            receive: ReceiveSpace::new(open.receive_limit, scale, mss),
            timers: Timers::default(),
            delayed_ack: DelayedAck::new(config, settings.interactive, now),
            rtt: Rtt::new(config),
            congestion: Congestion::new(&config.custom, settings.algorithm(config)),
            recovery: Recovery::default(),
            reassembly: Reassembly::default(),
            recent: Recent::default(),
            counters: Counters {
                last_sent: now.ticks(),
                last_received: now.ticks(),
                ..Counters::default()
            },
            settings: settings.clone(),
            ecn: Ecn::default(),
            cold_state: None,
            advertised_mss: mss,
            default_mss: open.default_mss,
        }
    }

    /// Both SYNs are known: applies the peer's options.
    pub(crate) fn agree(&mut self, peer_mss: u16, peer_scale: u8) {
        self.send.segment_limit = self.send.segment_limit.min(peer_mss);
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.on_peer_mss(peer_mss);
        }
        self.send.mss = self.send.segment_limit - self.features.option_len();
        self.receive.mss = self.receive.mss.min(self.greatest_received());
        if self.features.contains(Features::SCALE) {
            self.send.scale = peer_scale;
        } else {
            self.receive.scale = 0;
        }
    }

    /// Payload of the largest segment that the peer may send.
    pub(crate) fn greatest_received(&self) -> u16 {
        self.advertised_mss - self.features.option_len()
    }

    /// The handshake is complete.
    pub(crate) fn established(&mut self, config: &Config, now: Instant) {
        self.state = State::Established;
        self.events |= Events::ESTABLISHED;
        let (mss, srtt_us) = (u32::from(self.send.mss), self.rtt.srtt_us());
        let early = self.fast_open_mut().is_some_and(FastOpen::end_early);
        if !early {
            self.congestion
                .start(config.initial_window, mss, srtt_us, now);
        }
        if self.timers.backoff() > 1 {
            // RFC 5681 3.1: "If the SYN or SYN/ACK is lost, the initial window used by a sender
            // after a correctly transmitted SYN MUST be one segment". A single time-out may just
            // have been too short (RFC 6928 2); two were not.
            self.congestion.window.cwnd = mss;
        }
        self.choose_pacing();
        let base = pmtud::base(self.default_mss);
        if config.mtu_probing == MtuProbing::Always && self.send.segment_limit > base {
            self.search_from(base, now);
        }
        self.timers.stop();
        self.timers.on_progress();
        self.timers.on_measured();
        if early && self.send.in_flight() > 0 {
            self.arm_transmit(config, now);
        }
        self.arm_keepalive(now);
        if self.send.fin {
            self.state = State::FinWait1;
            self.wait_for_orphan(now);
        }
    }

    /// TIME-WAIT begins.
    pub(crate) fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.events |= Events::TIME_WAIT;
        self.timers.stop_all();
        self.recovery.end();
    }

    /// Ends the connection with an error that the program sees.
    pub(crate) fn fail(&mut self, error: Error, event: Events) {
        self.error = Some(error);
        self.events |= event;
        self.over();
    }

    /// Ends the connection. An error that is known already stays.
    pub(crate) fn finish(&mut self, error: Option<Error>, _now: Instant) {
        self.error = self.error.or(error);
        self.over();
    }

    /// Enters CLOSED.
    pub(crate) fn over(&mut self) {
        self.state = State::Closed;
        self.events |= Events::CLOSED;
        self.pending &= Pending::RESET | Pending::REFUSE;
        self.timers.stop_all();
        self.recovery.end();
        self.reassembly.drop_gaps();
    }

    /// The parts that take part in loss recovery.
    #[inline(always)]
    pub(crate) fn recovery_parts<'a>(
        &'a mut self,
        config: &'a Config,
        now: Instant,
    ) -> (&'a mut Recovery, &'a mut Congestion, View<'a>) {
        let view = View {
            config,
            send: &self.send,
            rtt: &self.rtt,
            features: self.features,
            clock: timestamp(now, self.recent.offset),
            now,
        };
        (&mut self.recovery, &mut self.congestion, view)
    }

    /// Pipe of RFC 6675: the bytes thought to be in the network.
    #[inline(always)]
    pub(crate) fn pipe(&self) -> u32 {
        self.recovery.pipe(&self.send)
    }

    /// The congestion window was reduced for a loss: an ECN connection announces that by CWR.
    pub(crate) fn on_window_reduced(&mut self) {
        self.ecn
            .on_window_reduced(self.features.contains(Features::ECN));
    }

    /// The cold state, allocated if need be.
    pub(crate) fn cold_state_mut(&mut self) -> &mut ColdState {
        self.cold_state.get_or_insert_default()
    }

    /// Begins or ends pacing, as the settings and the congestion control want it.
    pub(crate) fn choose_pacing(&mut self) {
        if self.settings.rate_limit().is_some() || self.congestion.is_paced() {
            self.cold_state_mut().pacing.get_or_insert_with(Pacing::new);
        } else if let Some(cold) = &mut self.cold_state {
            cold.pacing = None;
        }
    }

    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.pacing().is_some()
    }

    #[inline]
    pub(crate) fn pacing(&self) -> Option<&Pacing> {
        self.cold_state.as_ref()?.pacing.as_ref()
    }

    #[inline]
    pub(crate) fn pacing_mut(&mut self) -> Option<&mut Pacing> {
        self.cold_state.as_mut()?.pacing.as_mut()
    }

    #[inline]
    pub(crate) fn pmtud_mut(&mut self) -> Option<&mut Pmtud> {
        self.cold_state.as_mut()?.pmtud.as_mut()
    }

    /// The search for the path's size begins from `size`.
    pub(crate) fn search_from(&mut self, size: u16, now: Instant) {
        let una = self.send.una;
        self.pmtud_or_new(now).start_search(una, now);
        self.use_segments(size);
    }

    /// A router, or what is known of other connections to the host, says that no segment larger
    /// than `size` passes. Returns whether that was news.
    pub(crate) fn on_path_limit(&mut self, config: &Config, size: u16, now: Instant) -> bool {
        let size = pmtud::clamp_reported(size);
        let known = self.send.segment_limit;
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.bound_search(size, known);
        }
        if size >= known {
            return false;
        }
        self.pmtud_or_new(now).on_reported(size, now);
        self.use_segments(size);
        if self.send.in_flight() > 0 {
            let (recovery, _, view) = self.recovery_parts(config, now);
            recovery.lose_oversized(&view);
        }
        true
    }

    fn pmtud_or_new(&mut self, now: Instant) -> &mut Pmtud {
        let most = self.send.segment_limit;
        self.cold_state_mut()
            .pmtud
            .get_or_insert_with(|| Pmtud::new(most, now))
    }

    /// Uses segments of `size` bytes with options from now on.
    pub(crate) fn use_segments(&mut self, size: u16) {
        self.send.segment_limit = size;
        // The options are not known before the handshake is over; `agree` subtracts them.
        if self.state != State::SynSent {
            self.send.mss = size - self.features.option_len();
        }
    }

    /// Whether something urgent is queued or in flight.
    #[inline]
    pub(crate) fn is_urgent(&self) -> bool {
        self.cold_state
            .as_ref()
            .is_some_and(|cold| cold.urgent.is_pending(self.send.una))
    }

    #[inline]
    pub(crate) fn fast_open(&self) -> Option<&FastOpen> {
        self.cold_state.as_ref()?.fast_open.as_ref()
    }

    #[inline]
    pub(crate) fn fast_open_mut(&mut self) -> Option<&mut FastOpen> {
        self.cold_state.as_mut()?.fast_open.as_mut()
    }

    /// Whether this is a passive open with payload on its SYN whose handshake is not complete.
    pub(crate) fn is_early(&self) -> bool {
        self.state == State::SynReceived && self.fast_open().is_some_and(FastOpen::is_early)
    }

    /// The SYN or SYN-ACK leaves. Returns the cookie and the bytes of payload that it carries. One
    /// after a time-out has neither (RFC 7413 4.1.3).
    pub(crate) fn on_syn_out(&mut self) -> (Option<Cookie>, u64) {
        let (queued, active) = (self.send.end, self.state == State::SynSent);
        if self.timers.backoff() > 0 {
            return (None, 0);
        }
        let Some(fast_open) = self.fast_open_mut() else {
            return (None, 0);
        };
        if !active {
            return (fast_open.syn_ack_cookie(), 0);
        }
        let (cookie, sent) = fast_open.on_syn_sent(queued);
        self.send.nxt = sent;
        (cookie, sent)
    }

    /// The SYN got no answer: its payload is not sent again before there is one.
    pub(crate) fn on_syn_lost(&mut self) {
        if self.state == State::SynSent && self.timers.backoff() == 0 {
            self.send.nxt = 0;
            if let Some(fast_open) = self.fast_open_mut() {
                fast_open.on_syn_lost();
            }
        }
    }

    /// Bytes after our SYN that a SYN-ACK may acknowledge.
    pub(crate) fn sent_with_syn(&self) -> u32 {
        self.fast_open().map_or(0, FastOpen::sent)
    }

    /// The SYN-ACK has come. Payload of the SYN that it does not acknowledge is sent again as new
    /// data.
    pub(crate) fn on_syn_ack(&mut self, segment: &Segment<'_>) {
        let acked = (segment.ack - self.send.seq(0)).max(0) as u64;
        let given = segment.options.fast_open().filter(Cookie::is_some);
        let Some(fast_open) = self.fast_open_mut() else {
            return;
        };
        fast_open.on_syn_ack(acked, given);
        self.send.una = acked;
        self.send.nxt = acked;
        if acked > 0 {
            self.events |= Events::WRITABLE;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::connection::Connection;
    use crate::half_open::{HalfOpen, HalfOpenVerdict};
    use crate::open::Open;
    use crate::outgoing::{Limits, Outgoing};
    use crate::reassembly::ReceiveBuffer;
    use crate::shared::Shared;
    use crate::state::State;
    use crate::time::{Duration, Instant};
    use millrace_wire::tcp::{Flags, Segment, Seq};

    struct Nowhere;

    impl ReceiveBuffer for Nowhere {
        fn store(&mut self, _: u64, _: &[u8]) -> bool {
            true
        }
    }

    fn segment(out: &Outgoing) -> Segment<'static> {
        Segment {
            src_port: 1,
            dst_port: 2,
            seq: out.seq,
            ack: out.ack,
            flags: out.flags,
            window: out.window,
            urgent: out.urgent,
            marked: false,
            options: out.options,
            payload: &[0; 1_460][..(out.payload.end - out.payload.start) as usize],
        }
    }

    fn holds_nothing_apart(connection: &Connection) -> bool {
        connection.recovery.is_new()
            && !connection.reassembly.has_reports()
            && connection.cold_state.is_none()
            && connection.congestion.is_new()
    }

    /// A connection that is idle after messages went both ways takes its own size of memory and no
    /// more, if the tail of no flight had to be probed.
    #[test]
    fn without_a_disturbance_there_is_nothing_apart() {
        let (config, settings) = (Config::default(), Shared::default());
        let limits = Limits { max_payload: 0 };
        let open = |iss| Open {
            iss: Seq(iss),
            timestamp_offset: iss,
            mss: 1_460,
            default_mss: 536,
            receive_limit: 1 << 18,
        };
        let mut now = Instant::from_millis(1_000);
        let mut step = |us| {
            now += Duration::from_micros(us);
            now
        };
        let mut client = Connection::connect(&config, &settings, open(1_000), step(0));
        let syn = client.poll_transmit(&config, &limits, step(0));
        let syn = segment(&syn.expect("SYN"));
        let mut half = HalfOpen::new(&config, &settings, open(9_000), &syn, step(50));
        let answer = segment(&half.reply(step(0)));
        client.on_segment(&config, &answer, &mut Nowhere, step(50));
        let ack = client.poll_transmit(&config, &limits, step(0));
        let ack = segment(&ack.expect("ACK"));
        let verdict = half.on_segment(&config, &ack, step(50));
        assert_eq!(verdict, HalfOpenVerdict::Establish);
        let mut server = half.establish(&config, &settings, step(0));
        server.on_segment(&config, &ack, &mut Nowhere, step(0));
        let mut ends = [client, server];
        let mut queued = [0; 2];
        for i in 0..100u64 {
            let who = (i % 2) as usize;
            queued[who] += 1 + i * 14;
            ends[who].enqueue(queued[who], true);
            loop {
                let mut silent = true;
                for from in 0..2 {
                    let at = step(20);
                    if ends[from].deadline().is_some_and(|due| due <= at) {
                        ends[from].on_timer(&config, at);
                    }
                    while let Some(out) = ends[from].poll_transmit(&config, &limits, at) {
                        silent = false;
                        ends[1 - from].on_segment(&config, &segment(&out), &mut Nowhere, at);
                    }
                    let received = ends[1 - from].received();
                    ends[1 - from].consumed(received, at);
                }
                // The acknowledgement may be delayed.
                let acked = (0..2).all(|who| ends[who].acked() == queued[who]);
                if silent && acked {
                    break;
                }
                step(if silent { 1_000 } else { 0 });
            }
        }
        assert!(ends.iter().all(|end| end.state() == State::Established));
        assert!(ends.iter().all(holds_nothing_apart));
        // A duplicate is remembered.
        let again = Outgoing::control(Seq(1_001), Seq(9_001), Flags::ACK, 100);
        let mut again = segment(&again);
        again.payload = b"x";
        again.options = ends[0].segment_options(now);
        ends[1].on_segment(&config, &again, &mut Nowhere, now);
        assert!(!holds_nothing_apart(&ends[1]));
    }
}
