//! What a connection needs from its first disturbance on: a loss, what came twice, a mark of the network's. Most never have one.

use millrace_wire::tcp::{Flags, Seq};

use crate::assembler::Assembler;
use crate::recovery::Repair;
use crate::recovery::rack::Rack;
use crate::recovery::tlp::TailLossProbe;
use crate::recovery::undo::Undo;

/// What disturbances leave, of both directions. The default is that there was none.
#[derive(Clone, Debug)]
pub(crate) struct Disturbances {
    /// SND.NXT when the last loss was acted upon (RecoveryPoint of RFC 6675); 0 before the first.
    pub(crate) high: u64,
    /// Segments that the peer must have received, by its duplicate acknowledgements; only without selective
    /// acknowledgement.
    pub(crate) duplicates: u16,
    pub(crate) rack: Rack,
    pub(crate) tlp: TailLossProbe,
    /// What is needed only while something is out of the ordinary.
    pub(crate) repair: Option<Box<Repair>>,
    /// How to go back if there was nothing to repair.
    pub(crate) undo: Option<Box<Undo>>,
    /// What was stored beyond a gap.
    pub(crate) gaps: Option<Box<Assembler>>,
    /// Bytes received again, to be reported in the next SACK option (RFC 2883).
    pub(crate) again: Option<(Seq, Seq)>,
    /// SND.NXT when a mark was last acted upon, modulo 2^32: one reduction in a round trip.
    pub(crate) reduced_until: Seq,
    /// What is to be acknowledged with the mark's former state first, low half of a stream offset (RFC 8257 3.2).
    pub(crate) former: Option<(u32, Flags)>,
    /// Sequence number of a RST with [`crate::connection::Pending::REFUSE`].
    pub(crate) refuse_seq: Seq,
    /// What is counted, for [`crate::Info`].
    pub(crate) bytes_retransmitted: u64,
    pub(crate) segments_retransmitted: u32,
    pub(crate) dsacks: u32,
    pub(crate) timeouts: u32,
}

static NONE: Disturbances = Disturbances {
    high: 0,
    duplicates: 0,
    rack: Rack::NEW,
    tlp: TailLossProbe::NONE,
    repair: None,
    undo: None,
    gaps: None,
    again: None,
    reduced_until: Seq(0),
    former: None,
    refuse_seq: Seq(0),
    bytes_retransmitted: 0,
    segments_retransmitted: 0,
    dsacks: 0,
    timeouts: 0,
};

/// The past of a connection, without memory of its own while there is none.
#[derive(Clone, Debug, Default)]
pub(crate) struct LossState(Option<Box<Disturbances>>);

impl LossState {
    /// What there was.
    #[inline]
    pub(crate) fn get(&self) -> &Disturbances {
        self.0.as_deref().unwrap_or(&NONE)
    }

    /// The same, to change, if there was anything.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut Disturbances> {
        self.0.as_deref_mut()
    }

    /// Something happens: the past, to be changed.
    pub(crate) fn get_or_insert(&mut self) -> &mut Disturbances {
        self.0.get_or_insert_with(|| Box::new(NONE.clone()))
    }

    /// The repair in progress.
    #[inline]
    pub(crate) fn repair(&self) -> Option<&Repair> {
        self.0.as_ref()?.repair.as_deref()
    }

    /// The same, to change.
    #[inline]
    pub(crate) fn repair_mut(&mut self) -> Option<&mut Repair> {
        self.0.as_mut()?.repair.as_deref_mut()
    }

    /// How to go back, if that may still be right.
    #[inline]
    pub(crate) fn undo_mut(&mut self) -> Option<&mut Undo> {
        self.0.as_mut()?.undo.as_deref_mut()
    }

    /// Whether something was stored beyond a gap.
    #[inline]
    pub(crate) fn has_gaps(&self) -> bool {
        self.0.as_ref().is_some_and(|state| state.gaps.is_some())
    }

    /// Whether the next acknowledgement has more to say than a number: what lies beyond a gap, or was received again.
    #[inline]
    pub(crate) fn has_reports(&self) -> bool {
        let reports = |state: &Disturbances| state.gaps.is_some() || state.again.is_some();
        self.0.as_deref().is_some_and(reports)
    }

    /// Whether there is nothing to repair and nothing to report.
    #[inline]
    pub(crate) fn is_calm(&self) -> bool {
        let is_calm = |state: &Disturbances| {
            state.repair.is_none() && state.gaps.is_none() && state.again.is_none()
        };
        self.0.as_deref().is_none_or(is_calm)
    }

    /// Nothing lies beyond a gap any more.
    pub(crate) fn end_gaps(&mut self) {
        if let Some(state) = self.get_mut() {
            state.gaps = None;
        }
    }

    /// There is nothing more to repair.
    pub(crate) fn end_repair(&mut self) {
        if let Some(state) = self.get_mut() {
            state.repair = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::connection::{Connection, Open, ReceiveBuffer};
    use crate::half_open::{HalfOpen, HalfOpenVerdict};
    use crate::outgoing::{Limits, Outgoing};
    use crate::shared::Shared;
    use crate::state::State;
    use crate::time::{Duration, Instant};
    use millrace_wire::tcp::Segment;

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
        connection.loss_state.0.is_none()
            && connection.cold_state.is_none()
            && connection.pacing.is_none()
            && connection.congestion.is_new()
    }

    /// A connection that is idle after messages went both ways takes its own size of memory and no more, if the tail of no flight had to be probed.
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
