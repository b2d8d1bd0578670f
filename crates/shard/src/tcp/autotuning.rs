//! Sizes of buffers, while the program has not set them: as large as the connection can use.

use std::num::NonZeroU32;

use millrace_tcp::Instant;

use crate::config::Buffers;
use crate::socket::{Options, Stream};

/// The least time over which reading is measured. Segments and programs run in batches, so that on
/// a fast link the window has to cover more than the bare round trip.
const SPAN_MIN_US: u32 = 1_000;

/// A send buffer grows beyond this only where a link of 100 Gbit/s could have so much on the way:
/// what is larger than a processor's caches slows down what has no need of it.
const SEND_COMFORTABLE: u32 = 4 << 20;
/// Twice what such a link carries in a microsecond, in bytes.
const SEND_PER_US: u32 = 2 * 12_500;

/// The least share of a send buffer that many senders leave to each, in bytes.
const SEND_SHARE_MIN: u32 = 96 << 10;
/// Connections count as sending at the same time within 2^14 microseconds, about 16 ms.
const CROWD_LOG2: u32 = 14;

/// Segments that the first send buffer holds at least: two initial windows.
const FIRST_SEND_SEGMENTS: u32 = 20;
/// Segments that the first receive buffer holds at least, so that every second one can be
/// acknowledged.
const FIRST_RECEIVE_SEGMENTS: u32 = 4;

/// The send and receive buffer of a new connection with segments of `mss` bytes.
#[inline]
pub(crate) fn first_limits(options: &Options, buffers: &Buffers, mss: u16) -> (u32, u32) {
    let send = buffers
        .send_default
        .max(FIRST_SEND_SEGMENTS * u32::from(mss))
        .min(buffers.send_max);
    let receive = buffers
        .receive_default
        .max(FIRST_RECEIVE_SEGMENTS * u32::from(mss))
        .max(options.receive_low.saturating_mul(2))
        .min(buffers.receive_max);
    (
        options.send_buffer.map_or(send, NonZeroU32::get),
        options.receive_buffer.map_or(receive, NonZeroU32::get),
    )
}

/// How many connections have had something to send of late.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ActiveSenders {
    span: u32,
    /// Within this span so far, and within the one before.
    now: u32,
    before: u32,
}

impl ActiveSenders {
    /// A connection has its turn; `counted` is its own note of the span in which it was counted
    /// last.
    #[inline]
    fn note(&mut self, counted: &mut u32, now: Instant) {
        let span = (now.as_micros() >> CROWD_LOG2) as u32;
        if span != self.span {
            self.before = if span == self.span.wrapping_add(1) {
                self.now
            } else {
                0
            };
            self.now = 0;
            self.span = span;
        }
        if *counted != span {
            *counted = span;
            self.now += 1;
        }
    }

    /// As [`ActiveSenders::note`], for a connection if it has something to send.
    #[inline]
    pub(crate) fn note_stream(&mut self, stream: &mut Stream, now: Instant) {
        if stream.send.len() > 0 {
            self.note(&mut stream.counted, now);
        }
    }

    /// So many.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.now.max(self.before)
    }
}

impl Stream {
    /// How much the program may have queued now. Alone, as much as the buffer holds. A program that
    /// serves many gives each in its turn as much as its buffer takes: if those differ, so do the
    /// shares, and whose share is large grows on. So those who send at the same time share what is
    /// comfortable, or what their path needs if that is more.
    #[inline]
    pub(crate) fn send_share(&self, active_senders: u32) -> u32 {
        if active_senders <= 1 || self.send_limit <= SEND_SHARE_MIN {
            return self.send_limit;
        }
        let useful = self
            .connection
            .least_round_trip_us()
            .map_or(0, |us| us.saturating_mul(SEND_PER_US));
        let share = useful.max(SEND_COMFORTABLE) / active_senders;
        self.send_limit.min(share.max(SEND_SHARE_MIN))
    }

    /// Grows the send buffer to twice the congestion window, so that there is always a window's
    /// worth to send while another waits for its acknowledgements (as Linux's `tcp_sndbuf_expand`).
    /// Never shrinks it.
    #[inline(always)]
    pub(crate) fn tune_send(&mut self, buffers: &Buffers) {
        // A buffer that is not full need not grow.
        if self.send_limit >= buffers.send_max || self.send.len() * 2 < u64::from(self.send_limit) {
            return;
        }
        let useful = self
            .connection
            .least_round_trip_us()
            .map_or(0, |us| us.saturating_mul(SEND_PER_US));
        let wanted = self
            .connection
            .congestion_window()
            .saturating_mul(2)
            .min(useful.max(SEND_COMFORTABLE))
            .min(buffers.send_max);
        self.send_limit = self.send_limit.max(wanted);
    }

    /// Grows the receive buffer when the program read more in a round trip than in any before: the
    /// sender may double its window in the next, and must find room for it (dynamic right-sizing,
    /// as Linux's `tcp_rcv_space_adjust`). Never shrinks it.
    #[inline(always)]
    pub(crate) fn tune_receive(&mut self, buffers: &Buffers, now: Instant) {
        if self.receive_limit >= buffers.receive_max {
            return;
        }
        let tuning = &mut self.tuning;
        let consumed = self.recv.mark();
        let read = consumed.wrapping_sub(tuning.from);
        // So little in any time is no reason to grow.
        if read < self.receive_limit / 8 {
            return;
        }
        let now = now.as_micros() as u32;
        let taken = now.wrapping_sub(tuning.since);
        if taken < tuning.span_us {
            return;
        }
        // A measurement that took much longer than a round trip does not count.
        if taken <= tuning.span_us.saturating_mul(2) && read > tuning.best {
            let grown = u64::from(read - tuning.best);
            // Twice what was read, and more while that still accelerates.
            let wanted = 2 * u64::from(read)
                + 2 * u64::from(read) * grown / u64::from(tuning.best.max(read / 2).max(1));
            let limit = (wanted.min(u64::from(buffers.receive_max)) as u32).max(self.receive_limit);
            tuning.best = read;
            if limit > self.receive_limit {
                self.receive_limit = limit;
                self.connection.set_receive_limit(limit);
            }
        }
        tuning.since = now;
        tuning.from = consumed;
        tuning.span_us = self.connection.round_trip_us().max(SPAN_MIN_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn a_crowd_is_who_sends_within_a_moment() {
        let mut active_senders = ActiveSenders::default();
        let mut counted = [u32::MAX; 10];
        for _ in 0..3 {
            for own in &mut counted {
                active_senders.note(own, at(1_000));
            }
        }
        assert_eq!(active_senders.count(), 10, "each counts once");
        // One goes on alone: the others are remembered for a moment, and no longer.
        active_senders.note(&mut counted[0], at(1_020));
        assert_eq!(active_senders.count(), 10);
        active_senders.note(&mut counted[0], at(1_040));
        assert_eq!(active_senders.count(), 1);
        active_senders.note(&mut counted[1], at(9_000));
        assert_eq!(active_senders.count(), 1);
    }
}
