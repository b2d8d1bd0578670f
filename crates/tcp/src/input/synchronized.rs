//! All states but LISTEN, SYN-SENT and TIME-WAIT, in the order of RFC 9293 3.10.7.4.

use millrace_wire::tcp::{Flags, Segment};

use crate::config::Config;
use crate::connection::{Connection, Pending, ReceiveBuffer};
use crate::events::Events;
use crate::options::Features;
use crate::state::State;
use crate::time::Instant;

impl Connection {
    pub(super) fn on_segment_synchronized(
        &mut self,
        config: &Config,
        segment: &Segment<'_>,
        buffer: &mut impl ReceiveBuffer,
        now: Instant,
    ) {
        let flags = segment.flags;
        let rst = flags.contains(Flags::RST);
        if self.is_syn_again(segment) {
            self.pending |= Pending::SYN;
            return;
        }

        // RFC 7323 5.3: timestamps come before the sequence number. A RST is exempt.
        if self.features.contains(Features::TIMESTAMPS) && !rst {
            match segment.options.timestamps {
                // RFC 7323 3.2: the option may not be missing.
                None => return,
                Some(timestamps) if self.recent.rejects(timestamps.value, now) => {
                    return self.acknowledge_unacceptable(config, segment, now);
                }
                Some(_) => {}
            }
        }

        // First: the sequence number.
        let crossed = self.is_crossed_syn(segment);
        if !crossed && !self.receive.accepts(segment.seq, segment.sequence_len()) {
            if !rst {
                self.acknowledge_unacceptable(config, segment, now);
            } else if self.is_reset_at_fin(segment) {
                self.on_reset(config, segment, now);
            }
            return;
        }
        if let Some(timestamps) = segment.options.timestamps
            && self.features.contains(Features::TIMESTAMPS)
            && !rst
        {
            let last_ack_sent = self.receive.seq(0) + self.receive.acked.0;
            self.recent
                .update(timestamps.value, segment.seq, last_ack_sent, now);
        }

        // Second: RST.
        if rst {
            return self.on_reset(config, segment, now);
        }
        // Fourth: a SYN in the window is answered as RFC 5961 4.2 says, and does nothing.
        if flags.contains(Flags::SYN) && !crossed {
            return self.challenge(config, now);
        }
        // Fifth: ACK.
        if !flags.contains(Flags::ACK) {
            return;
        }
        let ack = self.send.offset(segment.ack);
        if self.state == State::SynReceived {
            if ack < 0 || ack > self.send.nxt as i64 {
                self.pending |= Pending::REFUSE;
                self.loss_state.get_or_insert().refuse_seq = segment.ack;
                return;
            }
            self.complete_handshake(config, segment, now);
        } else if ack > self.send.nxt as i64
            || ack < self.send.una as i64 - i64::from(self.send.max_window)
        {
            // RFC 5961 5.2.
            return self.challenge(config, now);
        }
        self.counters.last_received = now.ticks();
        self.timers.keepalive_probes = 0;
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
            // Beyond the FIN there is nothing.
            self.challenge(config, now);
        }
    }

    /// In SYN-RECEIVED after a simultaneous open the peer's SYN-ACK repeats the SYN we know, and acknowledges ours (RFC 9293 3.5,
    /// figure 7, line 7).
    fn is_crossed_syn(&self, segment: &Segment<'_>) -> bool {
        self.state == State::SynReceived
            && segment.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN)
                == Flags::SYN | Flags::ACK
            && segment.seq + 1 == self.receive.seq(0)
            && self.receive.nxt == 0
            && segment.ack == self.send.seq(0)
    }

    /// SYN-RECEIVED and our SYN is acknowledged: ESTABLISHED.
    fn complete_handshake(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        self.pending.remove(Pending::SYN);
        if self.rtt.srtt_us() == 0 {
            self.sample_handshake(config, segment, now);
        }
        self.established(config, now);
        if segment.flags.contains(Flags::SYN) {
            self.pending |= Pending::ACK;
        }
        let scaled = if segment.flags.contains(Flags::SYN) {
            0
        } else {
            self.send.scale
        };
        self.send.wl1 = segment.seq;
        self.send.window = u32::from(segment.window) << scaled;
        self.send.max_window = self.send.max_window.max(self.send.window);
        self.events |= Events::WRITABLE;
    }

    /// An unacceptable segment is answered with an acknowledgement. One that took sequence space is what a
    /// peer sends again until it is acknowledged, so it gets its answer always; others are limited, for two ends that
    /// disagree would answer each other for ever.
    fn acknowledge_unacceptable(&mut self, config: &Config, segment: &Segment<'_>, now: Instant) {
        let carries = !segment.payload.is_empty() || segment.flags.contains(Flags::FIN);
        if !carries || segment.flags.contains(Flags::SYN) {
            return self.challenge(config, now);
        }
        self.pending |= Pending::ACK;
        let start = self.receive.offset(segment.seq).max(0);
        let end = self.receive.offset(segment.seq) + segment.payload.len() as i64;
        // RFC 2883 4: old bytes are reported as such.
        if start < end && end <= self.receive.nxt as i64 && self.features.contains(Features::SACK) {
            self.loss_state.get_or_insert().again =
                Some((self.receive.seq(start as u64), self.receive.seq(end as u64)));
        }
    }
}
