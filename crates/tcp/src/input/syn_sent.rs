//! SYN-SENT (RFC 9293 3.10.7.3).

use millrace_wire::tcp::{Flags, Segment};

use crate::config::Config;
use crate::connection::{Connection, Pending, ReceiveBuffer};
use crate::ecn;
use crate::events::{Error, Events};
use crate::options::{self, Features, Recent, timestamp};
use crate::state::State;
use crate::time::Instant;

impl Connection {
    pub(super) fn on_segment_syn_sent(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        let flags = segment.flags;
        let has_ack = flags.contains(Flags::ACK);
        // First: the only thing to acknowledge is our SYN, with its payload if it had any (RFC 7413 4.2.1).
        let beyond = segment.ack - self.send.seq(0);
        if has_ack && !(beyond >= 0 && beyond as u32 <= self.sent_with_syn()) {
            if !flags.contains(Flags::RST) {
                self.pending |= Pending::REFUSE;
                self.loss_state.get_or_insert().refuse_seq = segment.ack;
            }
            return;
        }
        // Second.
        if flags.contains(Flags::RST) {
            if has_ack {
                self.fail(Error::ConnectionRefused, Events::REFUSED);
            }
            return;
        }
        // Fifth. A SYN with FIN is no peer's.
        if !flags.contains(Flags::SYN) || flags.contains(Flags::FIN) {
            return;
        }
        // Fourth.
        self.counters.last_received = now.ticks();
        self.take_syn(segment, now);
        if has_ack {
            self.on_syn_ack(segment);
            self.sample_handshake(config, segment, now);
            self.established(config, now);
            self.pending.remove(Pending::SYN);
            self.acknowledge_handshake(now);
            if !segment.payload.is_empty() {
                self.on_payload(config, 0, segment.payload, false, buffer, now);
            }
        } else {
            // Simultaneous open: both SYNs cross (RFC 9293 3.5, figure 7). Our SYN-ACK repeats the SYN.
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
        // The window of a SYN is never scaled (RFC 7323 2.2).
        self.send.wl1 = syn.seq;
        self.send.window = u32::from(syn.window);
        self.send.max_window = self.send.window;
    }

    /// The handshake is the first round trip, if our SYN was sent once; with timestamps also otherwise.
    pub(super) fn sample_handshake(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        now: Instant,
    ) {
        let once = self.timers.backoff == 0;
        match (self.sent_log.acked(0), segment.options.timestamps) {
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
}
