//! The connection and what its owner may ask of it.

use std::ops::Range;

use millrace_wire::tcp::{Options, Seq};

use crate::cold_state::ColdState;
use crate::config::Config;
use crate::congestion::Congestion;
use crate::delayed_ack::DelayedAck;
use crate::ecn::Ecn;
use crate::events::{Error, Events};
use crate::half_open::HalfOpen;
use crate::info::Phase;
use crate::options::{self, Features, Recent};
use crate::pacing::Pacing;
use crate::recovery::loss_state::LossState;
use crate::recovery::sent_log::SentLog;
use crate::rtt::Rtt;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::state::State;
use crate::time::{Instant, Ticks};
use crate::time_wait::TimeWait;
use crate::timers::Timers;
use crate::window::{ReceiveSpace, SendSpace};

/// Where received payload goes.
pub trait ReceiveBuffer {
    /// Puts `data` at stream offset `offset`. What is stored lies within the window: at most `receive_limit` bytes from
    /// the last `consumed`. Bytes may come out of order, but no byte is stored twice. `false`: no memory; the bytes
    /// are not acknowledged.
    fn store(&mut self, offset: u64, data: &[u8]) -> bool;

    /// Makes room for `range`, which has a gap before it or bytes behind it. The bytes before `next` are in order, those of
    /// `held` are stored beyond it. `false`: there is no room; nothing of the range is stored.
    fn reserve(&mut self, next: u64, held: &[Range<u64>], range: &Range<u64>) -> bool {
        let _ = (next, held, range);
        true
    }

    /// Puts `data`, which belongs to the range reserved last, at stream offset `offset`.
    fn fill(&mut self, offset: u64, data: &[u8]) -> bool {
        self.store(offset, data)
    }

    /// The `bytes` bytes stored beyond `next` are not wanted any more: the peer sends them again.
    fn forget_beyond(&mut self, next: u64, bytes: u64) {
        let _ = (next, bytes);
    }
}

/// What a new connection is given by its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Initial send sequence number: unguessable and rising with time (RFC 6528).
    pub iss: Seq,
    /// Origin of the connection's timestamp clock: random (RFC 7323 5.4).
    pub timestamp_offset: u32,
    /// The largest segment we can receive and the link can carry: MTU less 40 for IPv4. TCP options are not subtracted.
    pub mss: u16,
    /// What a peer takes that announces no segment size: 536 over IPv4, 1,220 over IPv6 (RFC 9293 3.7.1).
    pub default_mss: u16,
    /// Receive buffer, in bytes.
    pub receive_limit: u32,
}

/// How far beyond an old connection's numbers those of its successor begin, when the clock has not gone far enough: as Linux has it.
const ISS_STEP: u32 = 65_535 + 2;

impl Open {
    /// Takes the place of a connection whose numbers ended at `after`: ours lie beyond (RFC 9293 3.10.7.4, RFC 6191 2).
    pub fn begin_after(&mut self, after: Seq) {
        if !self.iss.after(after) {
            self.iss = after + ISS_STEP;
        }
    }
}

bitflags::bitflags! {
    /// What is to be sent besides the stream.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(crate) struct Pending: u8 {
        /// An acknowledgement, by itself if nothing else carries it.
        const ACK = 1;
        /// SYN, or SYN-ACK in SYN-RECEIVED.
        const SYN = 1 << 1;
        /// RST: the connection is over.
        const RESET = 1 << 2;
        /// RST for one segment that has nothing to do with this connection.
        const REFUSE = 1 << 3;
        /// A segment that asks for an acknowledgement: keepalive or zero-window probe.
        const PROBE = 1 << 4;
        /// The last bytes in flight once more, or the next new ones: tail loss probe.
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

/// What is counted of each, for [`crate::Info`]; the rest is in [`crate::recovery::loss_state::Disturbances`].
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
    /// The program has let go of it.
    pub(crate) orphan: bool,
    pub(crate) error: Option<Error>,
    /// What ICMP said that was not fatal; the reason given if a time-out follows.
    pub(crate) soft_error: Option<Error>,
    pub(crate) send: SendSpace,
    pub(crate) receive: ReceiveSpace,
    pub(crate) timers: Timers,
    pub(crate) delayed_ack: DelayedAck,
    pub(crate) rtt: Rtt,
    pub(crate) congestion: Congestion,
    /// Where loss recovery stands; what it has only after a loss is in `disturbed`.
    pub(crate) phase: Phase,
    pub(crate) sent_log: SentLog,
    /// What most connections never need.
    pub(crate) loss_state: LossState,
    pub(crate) recent: Recent,
    pub(crate) counters: Counters,
    pub(crate) settings: Shared<Settings>,
    /// When the stream may go on, if it is paced.
    pub(crate) pacing: Option<Box<Pacing>>,
    pub(crate) ecn: Ecn,
    /// What few connections need.
    pub(crate) cold_state: Option<Box<ColdState>>,
    /// What we announced, or would.
    pub(crate) advertised_mss: u16,
    /// [`Open::default_mss`].
    pub(crate) default_mss: u16,
}

impl Connection {
    /// Active open: SYN-SENT. The SYN is the first thing that [`Connection::poll_transmit`] gives.
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

    /// After a passive open: SYN-RECEIVED, with the SYN-ACK sent.
    #[inline(always)]
    pub(crate) fn accept(
        config: &Config,
        settings: &Shared<Settings>,
        half_open: &HalfOpen,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::answer(config, settings, half_open, now);
        match half_open.round_trip(now) {
            Some(sample) => connection
                .rtt
                .sample(config, sample.as_micros() as u32, now),
            None => connection.rtt.distrust_initial(),
        }
        connection.arm_timeout(config, now);
        connection.timers.backoff = half_open.repeated();
        connection
    }

    /// SYN-RECEIVED, with the SYN-ACK to be sent; the program need not wait for the handshake (RFC 7413 4.2.2).
    pub(crate) fn accept_early(
        config: &Config,
        settings: &Shared<Settings>,
        half_open: &HalfOpen,
        now: Instant,
    ) -> Connection {
        let mut connection = Connection::answer(config, settings, half_open, now);
        connection.begin_early(config, now);
        connection
    }

    /// SYN-RECEIVED, as a SYN has made it.
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
            congestion: Congestion::new(config, settings.algorithm(config)),
            phase: Phase::default(),
            sent_log: SentLog::default(),
            loss_state: LossState::default(),
            recent: Recent::default(),
            counters: Counters {
                last_sent: now.ticks(),
                last_received: now.ticks(),
                ..Counters::default()
            },
            settings: settings.clone(),
            pacing: None,
            ecn: Ecn::default(),
            cold_state: None,
            advertised_mss: mss,
            default_mss: open.default_mss,
        }
    }

    /// Both SYNs are known: what follows from the options of the peer's.
    pub(crate) fn agree(&mut self, peer_mss: u16, peer_scale: u8) {
        self.send.segment_limit = self.send.segment_limit.min(peer_mss);
        self.limit_pmtud(peer_mss);
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
        let early = self.cold_state.is_some() && self.end_early();
        if !early {
            self.congestion.start(config, mss, srtt_us, now);
        }
        if self.timers.backoff > 1 {
            // RFC 5681 3.1: a lost SYN says that the path is crowded. One time-out may just have been short (RFC 6928 2), two were not.
            self.congestion.window.cwnd = mss;
        }
        self.choose_pacing();
        self.start_pmtud(config, now);
        self.timers.transmit = Instant::NEVER;
        self.timers.progress();
        self.timers.measured();
        if early && self.send.in_flight() > 0 {
            self.arm_transmit(config, now);
        }
        self.arm_keepalive(now);
        if self.send.fin {
            self.state = State::FinWait1;
            self.wait_for_orphan(now);
        }
    }

    /// The largest segment that we announce to the peer, TCP options included, in bytes.
    #[inline]
    pub fn announced_segment(&self) -> u16 {
        self.advertised_mss
    }

    /// What has happened since the last call.
    #[inline]
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// The program has queued stream bytes up to `end`. `push`: no more is announced to follow at once (MSG_MORE).
    #[inline]
    pub fn enqueue(&mut self, end: u64, push: bool) {
        if !self.send.fin {
            self.send.end = self.send.end.max(end);
            self.send.more = !push;
        }
    }

    /// Stream bytes before this offset are acknowledged; nothing asks for them again.
    #[inline]
    pub fn acked(&self) -> u64 {
        self.send.una.min(self.send.end)
    }

    /// Stream bytes before this offset are queued.
    #[inline]
    pub fn queued(&self) -> u64 {
        self.send.end
    }

    /// Stream bytes that are queued and were never sent (`SIOCOUTQNSD`).
    #[inline]
    pub fn unsent(&self) -> u64 {
        self.send.end.saturating_sub(self.send.nxt)
    }

    /// Stream bytes before this offset have been stored without a gap.
    #[inline]
    pub fn received(&self) -> u64 {
        self.receive.received()
    }

    /// The program has read the stream up to `upto`; this may open the window, which the peer is told at once if it
    /// at least doubles (and so by RFC 9293 3.8.6.2.2 is worth telling).
    #[inline]
    pub fn consumed(&mut self, upto: u64, _now: Instant) {
        self.consumed_more(self.receive.more_read(upto));
    }

    /// The program has read so many bytes more of those that have been received: as [`Connection::consumed`].
    #[inline]
    pub fn consumed_more(&mut self, bytes: u32) {
        debug_assert!(bytes <= self.receive.unread());
        self.receive.consumed += bytes;
        self.consider_window();
    }

    #[inline(always)]
    fn consider_window(&mut self) {
        let receive = &mut self.receive;
        if !self.state.can_receive() {
            return;
        }
        let (announced, space) = (receive.window(), receive.space());
        let step = u32::from(receive.mss).min(receive.limit / 2);
        if announced <= receive.limit / 2
            && space >= announced.saturating_mul(2)
            && space - announced >= step
        {
            self.pending |= Pending::ACK;
        }
    }

    /// Sets the size of the receive buffer, in bytes. What was announced stays valid.
    pub fn set_receive_limit(&mut self, limit: u32) {
        self.receive.limit = limit;
    }

    /// No more will be queued: FIN after what is.
    pub fn shutdown_write(&mut self, now: Instant) {
        let next = match self.state {
            // Nothing was ever sent: there is nothing to finish (RFC 9293 3.10.4).
            State::SynSent => return self.finish(None, now),
            State::SynReceived => State::SynReceived,
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.state = next;
        self.send.fin = true;
    }

    /// The program has let go of the connection: FIN after what is queued; RST at once if it left received bytes unread
    /// (RFC 9293 3.6.1, RFC 2525 2.17), and RST to any that come later.
    pub fn close(&mut self, now: Instant) {
        if self.orphan {
            return;
        }
        self.orphan = true;
        if self.receive.has_unread() {
            return self.abort();
        }
        self.shutdown_write(now);
        self.wait_for_orphan(now);
    }

    /// Ends the connection with RST.
    pub fn abort(&mut self) {
        match self.state {
            State::Closed | State::TimeWait => return,
            State::SynSent => {}
            _ => self.pending |= Pending::RESET,
        }
        self.error = Some(Error::ConnectionAborted);
        self.over();
    }

    /// Applies changed socket options, or the same ones from where others share them. `max_segment` has its effect on SYN only, as in Linux.
    pub fn configure(&mut self, config: &Config, settings: &Shared<Settings>, now: Instant) {
        // To name the one that it has changes nothing.
        let algorithm = settings.algorithm(config);
        if algorithm != self.settings.algorithm(config) {
            self.congestion.choose(config, algorithm);
        }
        // Setting TCP_NODELAY, or letting go of TCP_CORK, sends what was held back.
        if (settings.nodelay && !self.settings.nodelay) || (self.settings.cork && !settings.cork) {
            self.send.more = false;
        }
        let keepalive_changed = settings.keepalive != self.settings.keepalive;
        self.settings = settings.clone();
        self.choose_pacing();
        if keepalive_changed && self.state.is_synchronized() {
            self.timers.keepalive_probes = 0;
            if settings.keepalive.is_some() {
                self.arm_keepalive(now);
            } else {
                self.timers.idle = Instant::NEVER;
                self.wait_for_orphan(now);
            }
        }
    }

    /// The socket options in effect.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Retransmission time-outs, or window probes, since there was progress.
    #[inline]
    pub fn timeouts_in_a_row(&self) -> u8 {
        self.timers.backoff
    }

    /// State of the connection.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// Why the connection failed, if it did.
    #[inline]
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// Congestion window, in bytes: what the network is thought to hold.
    pub fn congestion_window(&self) -> u32 {
        self.congestion.window.cwnd
    }

    /// The largest segment that is sent, in bytes of payload.
    pub fn send_mss(&self) -> u16 {
        self.send.mss
    }

    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub fn round_trip_us(&self) -> u32 {
        self.rtt.srtt_us()
    }

    /// The least recent round trip in microseconds, once there was one.
    pub fn least_round_trip_us(&self) -> Option<u32> {
        Some(self.rtt.min_us()).filter(|&us| us != u32::MAX)
    }

    /// Whether both ends send timestamps.
    pub fn timestamps(&self) -> bool {
        self.features.contains(Features::TIMESTAMPS)
    }

    /// What ICMP reported without ending the connection, once (`SO_ERROR` of Linux with `IP_RECVERR`).
    pub fn take_soft_error(&mut self) -> Option<Error> {
        self.soft_error.take()
    }

    /// The compact form of a connection in [`State::TimeWait`]; `None` in any other state.
    pub fn time_wait(&self, config: &Config, now: Instant) -> Option<TimeWait> {
        (self.state == State::TimeWait).then(|| TimeWait {
            send_next: self.send.seq(self.send.nxt),
            receive_next: self.receive.seq(self.receive.nxt),
            recent: self.recent,
            deadline: now + config.time_wait,
            answered: Ticks::before(now, config.challenge_interval),
            window: (self.receive.window() >> self.receive.scale).min(0xffff) as u16,
            features: self.features,
        })
    }

    /// TIME-WAIT begins.
    pub(crate) fn enter_time_wait(&mut self) {
        self.state = State::TimeWait;
        self.events |= Events::TIME_WAIT;
        self.timers.stop();
        self.loss_state.end_repair();
    }

    /// The end, with what the program is to know of it.
    pub(crate) fn fail(&mut self, error: Error, event: Events) {
        self.error = Some(error);
        self.events |= event;
        self.over();
    }

    /// The end without an error of the network's.
    pub(crate) fn finish(&mut self, error: Option<Error>, _now: Instant) {
        self.error = self.error.or(error);
        self.over();
    }

    fn over(&mut self) {
        self.state = State::Closed;
        self.events |= Events::CLOSED;
        self.pending &= Pending::RESET | Pending::REFUSE;
        self.timers.stop();
        self.loss_state.end_repair();
        self.loss_state.end_gaps();
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
}
