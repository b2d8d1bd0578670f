//! What the program, and the owner of a connection, ask of it.

use millrace_wire::tcp::{Cookie, Segment, Seq};

use crate::config::Config;
use crate::connection::{Connection, Pending};
use crate::events::{Error, Events, IcmpError};
use crate::fast_open::{FastOpen, FastOpenNews};
use crate::info::{Info, Phase};
use crate::options::Features;
use crate::reassembly::ReceiveBuffer;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::state::State;
use crate::time::{Instant, Ticks};
use crate::time_wait::TimeWait;

impl Connection {
    /// The largest segment that we announce to the peer, TCP options included, in bytes.
    #[inline]
    pub fn announced_segment(&self) -> u16 {
        self.advertised_mss
    }

    /// The events since the last call.
    #[inline]
    pub fn take_events(&mut self) -> Events {
        std::mem::take(&mut self.events)
    }

    /// The program has queued stream bytes up to offset `end`. `push` is false if more follow at
    /// once (MSG_MORE).
    #[inline]
    pub fn enqueue(&mut self, end: u64, push: bool) {
        if !self.send.fin {
            self.send.end = self.send.end.max(end);
            self.send.more = !push;
        }
    }

    /// Stream bytes before this offset are acknowledged, and are not asked for again.
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

    /// Stream bytes before this offset are stored without a gap.
    #[inline]
    pub fn received(&self) -> u64 {
        self.receive.received()
    }

    /// The program has read the stream up to `upto`. If that at least doubles the window, the peer
    /// is told at once (RFC 9293 3.8.6.2.2).
    #[inline]
    pub fn consumed(&mut self, upto: u64, _now: Instant) {
        self.consumed_more(self.receive.more_read(upto));
    }

    /// The program has read `bytes` more bytes of those received; see [`Connection::consumed`].
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

    /// Sets the size of the receive buffer, in bytes. A window that was announced stays valid.
    pub fn set_receive_limit(&mut self, limit: u32) {
        self.receive.limit = limit;
    }

    /// The program queues no more: FIN follows what is queued.
    pub fn shutdown_write(&mut self, now: Instant) {
        let next = match self.state {
            // Nothing was sent, so that nothing has to be finished (RFC 9293 3.10.4).
            State::SynSent => return self.finish(None, now),
            State::SynReceived => State::SynReceived,
            State::Established => State::FinWait1,
            State::CloseWait => State::LastAck,
            _ => return,
        };
        self.state = next;
        self.send.fin = true;
    }

    /// The program closes the connection: FIN follows what is queued. If received bytes are unread,
    /// RST is sent at once (RFC 9293 3.6.1, RFC 2525 2.17). Payload that arrives later is answered
    /// by RST.
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

    /// Ends the connection with RST; [`Connection::error`] is then [`Error::ConnectionAborted`].
    pub fn abort(&mut self) {
        match self.state {
            State::Closed | State::TimeWait => return,
            State::SynSent => {}
            _ => self.pending |= Pending::RESET,
        }
        self.error = Some(Error::ConnectionAborted);
        self.over();
    }

    /// Applies changed socket options, or an equal set that is shared with others. As in Linux,
    /// `max_segment` affects the SYN only.
    pub fn configure(&mut self, config: &Config, settings: &Shared<Settings>, now: Instant) {
        // Naming the present algorithm changes nothing.
        let algorithm = settings.algorithm(config);
        if algorithm != self.settings.algorithm(config) {
            self.congestion.choose(&config.custom, algorithm);
        }
        // Setting TCP_NODELAY or clearing TCP_CORK sends what was held back.
        if (settings.nodelay && !self.settings.nodelay) || (self.settings.cork && !settings.cork) {
            self.send.more = false;
        }
        let keepalive_changed = settings.keepalive != self.settings.keepalive;
        self.settings = settings.clone();
        self.choose_pacing();
        if keepalive_changed && self.state.is_synchronized() {
            self.timers.on_heard();
            if settings.keepalive.is_some() {
                self.arm_keepalive(now);
            } else {
                self.timers.stop_idle();
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
        self.timers.backoff()
    }

    /// State of the connection.
    #[inline]
    pub fn state(&self) -> State {
        self.state
    }

    /// The error that ended the connection, if one did.
    #[inline]
    pub fn error(&self) -> Option<Error> {
        self.error
    }

    /// Congestion window, in bytes.
    pub fn congestion_window(&self) -> u32 {
        self.congestion.window.cwnd
    }

    /// Payload of a full segment, in bytes.
    pub fn send_mss(&self) -> u16 {
        self.send.mss
    }

    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    pub fn round_trip_us(&self) -> u32 {
        self.rtt.srtt_us()
    }

    /// The least recent round trip in microseconds; `None` before the first sample.
    pub fn least_round_trip_us(&self) -> Option<u32> {
        Some(self.rtt.min_us()).filter(|&us| us != u32::MAX)
    }

    /// Whether both ends send timestamps.
    pub fn timestamps(&self) -> bool {
        self.features.contains(Features::TIMESTAMPS)
    }

    /// The last ICMP report that did not end the connection, once (`SO_ERROR` of Linux with
    /// `IP_RECVERR`).
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

    /// TCP_QUICKACK as in Linux: it acts once and is not a mode. On: an acknowledgement that waits
    /// is sent now, and the program counts as one that does not answer until it does. Off: it
    /// counts as one that answers.
    pub fn set_quick_ack(&mut self, on: bool) {
        self.delayed_ack.set_interactive(!on);
        if on && self.timers.stop_ack() {
            self.pending |= Pending::ACK;
        }
    }

    /// The value of TCP_QUICKACK: whether acknowledgements do not wait for the program's answers.
    pub fn quick_ack(&self) -> bool {
        !self.delayed_ack.is_interactive()
    }

    /// Marks the last byte queued as urgent (`MSG_OOB`). Segments announce it until it is
    /// acknowledged, and it is not held back.
    pub fn send_urgent(&mut self) {
        if self.send.end > self.send.una && !self.send.fin {
            let end = self.send.end;
            self.cold_state_mut().urgent.send(end);
        }
    }

    /// Stream offset of the latest byte that the peer announced as urgent. It need not have arrived
    /// yet.
    #[inline]
    pub fn urgent(&self) -> Option<u64> {
        self.cold_state
            .as_ref()
            .and_then(|cold| cold.urgent.received())
    }

    /// The largest segment that the path carries as far as is known, in bytes: with options,
    /// without headers.
    pub fn path_max_segment(&self) -> u16 {
        self.send.segment_limit
    }

    /// Other connections have found that the path to the host carries no segment larger than
    /// `limit` bytes. Only for a connection that has not sent payload.
    pub fn start_with_path_limit(&mut self, config: &Config, limit: u16, now: Instant) {
        self.on_path_limit(config, limit, now);
    }

    /// Opens with TCP Fast Open: before anything was sent, puts `cookie` on the SYN. Unless `room`
    /// is 0, the SYN waits until something is queued, and carries up to `room` bytes of it.
    pub fn open_fast(&mut self, cookie: Option<Cookie>, room: u16) {
        if self.state == State::SynSent && self.pending.contains(Pending::SYN) {
            self.cold_state_mut().fast_open = Some(FastOpen::active(cookie, room));
        }
    }

    /// Puts a new cookie on the SYN-ACK: the one on the peer's SYN expires soon.
    pub fn give_cookie(&mut self, cookie: Cookie) {
        if let Some(fast_open) = self.fast_open_mut() {
            fast_open.give_cookie(cookie);
        }
    }

    /// Whether the SYN waits for something to send.
    pub fn holds_syn(&self) -> bool {
        self.fast_open().is_some_and(FastOpen::waits_for_payload) && self.send.end == 0
    }

    /// Whether payload may be queued although the handshake is not complete.
    pub fn takes_early(&self) -> bool {
        self.holds_syn() || self.is_early()
    }

    /// Whether the connection was opened with TCP Fast Open.
    #[inline]
    pub fn is_opened_fast(&self) -> bool {
        self.fast_open().is_some()
    }

    /// What an active open has learnt about the peer's host, once.
    pub fn take_fast_open_news(&mut self) -> Option<FastOpenNews> {
        self.fast_open_mut()?.take_news()
    }

    /// Takes the payload of the SYN after [`crate::HalfOpen::open_early`]. The SYN-ACK acknowledges
    /// it.
    pub fn take_early(
        &mut self,
        config: &Config,
        syn: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        if !syn.payload.is_empty() {
            self.on_payload(config, 0, syn.payload, false, buffer, now);
        }
        let accepted = self.receive.nxt > 0;
        if let Some(fast_open) = self.fast_open_mut() {
            fast_open.set_accepted(accepted);
        }
    }

    /// Processes an ICMP message about a segment of ours with sequence number `quoted`. RFC 5927
    /// 4.1: one that quotes a number that is not in flight is ignored. Returns whether the message
    /// was believed.
    pub fn on_icmp(
        &mut self,
        config: &Config,
        error: IcmpError,
        quoted: Seq,
        now: Instant,
    ) -> bool {
        let opening = matches!(self.state, State::SynSent | State::SynReceived);
        let offset = self.send.offset(quoted);
        let believed = if opening {
            quoted == self.send.iss()
        } else {
            offset >= self.send.una as i64 && offset < self.send.nxt as i64
        };
        if !believed || matches!(self.state, State::TimeWait | State::Closed) {
            return false;
        }
        match error {
            IcmpError::FragmentationNeeded { max_segment } => {
                self.on_path_limit(config, max_segment, now);
            }
            IcmpError::Unreachable(error) if self.state == State::SynSent => {
                self.fail(error, Events::REFUSED);
            }
            // RFC 5927 5.2: no such report ends an established connection. The network may heal.
            IcmpError::Unreachable(error) => self.soft_error = Some(error),
        }
        true
    }

    /// A snapshot for `tcp_info` and `ss`.
    pub fn info(&self, now: Instant) -> Info {
        let scaled = self.features.contains(Features::SCALE);
        let (sacked, lost, retransmitted) = self.recovery.marked_bytes();
        let counters = self.recovery.counters();
        Info {
            state: self.state,
            error: self.error,
            phase: match self.recovery.phase() {
                Phase::Open if self.ecn.is_reduced(self.send.una) && self.send.in_flight() > 0 => {
                    Phase::Reduced
                }
                phase => phase,
            },
            backoff: self.timers.backoff(),
            timestamps: self.features.contains(Features::TIMESTAMPS),
            selective_ack: self.features.contains(Features::SACK),
            syn_data: self.fast_open().is_some_and(FastOpen::is_accepted),
            ecn: self.features.contains(Features::ECN),
            send_scale: scaled.then_some(self.send.scale),
            receive_scale: scaled.then_some(self.receive.scale),
            rto_us: self.rtt.rto().as_micros() as u32,
            srtt_us: self.rtt.srtt_us(),
            rttvar_us: self.rtt.rttvar_us(),
            min_rtt_us: self.rtt.min_us(),
            cwnd: self.congestion.window.cwnd,
            ssthresh: self.congestion.window.ssthresh,
            send_mss: self.send.mss,
            receive_mss: self.receive.mss,
            advertised_mss: self.advertised_mss,
            in_flight: self.send.in_flight(),
            sacked,
            lost,
            retransmitted,
            unsent: self.unsent(),
            send_window: self.send.window,
            receive_window: self.receive.window(),
            bytes_acked: self.acked(),
            bytes_received: self.received(),
            bytes_retransmitted: counters.bytes_retransmitted,
            segments_retransmitted: counters.segments_retransmitted,
            dsacks: counters.dsacks,
            segments_in: self.counters.segments_in,
            segments_out: self.counters.segments_out,
            timeouts: counters.timeouts,
            last_sent_ms: self.counters.last_sent.elapsed(now).as_millis() as u32,
            last_received_ms: self.counters.last_received.elapsed(now).as_millis() as u32,
        }
    }
}
