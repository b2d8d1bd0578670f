//! Sending at a rate: each transmission has a time before which the next may not leave. There is no timer for each, only that time, which the connection's deadline includes
//! while something waits for it.

use crate::congestion::unit_size;
use crate::connection::Connection;
use crate::time::{Duration, Instant};

/// The initial window leaves at once, as in Linux.
const UNPACED_SEGMENTS: u64 = 10;

/// A connection that is paced: by its congestion control, or because the program has set a rate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// When the next transmission may leave.
    next: Instant,
    /// Something waits for it.
    waits: bool,
    /// Something has waited for it, and has had room in the windows ever since: what is late now is so because the thread was.
    waited: bool,
}

impl Connection {
    /// Begins or ends pacing, as the settings have it.
    pub(crate) fn choose_pacing(&mut self) {
        let paced = self.settings.rate_limit().is_some() || self.congestion.is_paced();
        if paced {
            self.pacing.get_or_insert_with(|| {
                Box::new(Pacing {
                    next: Instant::default(),
                    waits: false,
                    waited: false,
                })
            });
        } else {
            self.pacing = None;
        }
    }

    /// When something that is held back may leave: [`Instant::NEVER`] if nothing is.
    #[inline]
    pub(crate) fn paced_until(&self) -> Instant {
        match &self.pacing {
            Some(pacing) if pacing.waits => pacing.next,
            _ => Instant::NEVER,
        }
    }

    /// Whether the stream has to wait for its time. Then a deadline is running.
    #[cold]
    pub(crate) fn must_wait(&mut self, now: Instant) -> bool {
        let Some(pacing) = &mut self.pacing else {
            return false;
        };
        pacing.waits = now < pacing.next;
        pacing.waited |= pacing.waits;
        pacing.waits
    }

    /// It is time, and nothing of the stream may leave all the same.
    #[cold]
    pub(crate) fn miss_pace(&mut self) {
        if let Some(pacing) = &mut self.pacing {
            pacing.waited = false;
        }
    }

    /// The most payload to send at a time: none bigger than the rate is worth.
    #[cold]
    pub(crate) fn paced_unit(&self, most: u32) -> u32 {
        let rate = self.pacing_rate();
        if rate == 0 {
            return most;
        }
        most.min(unit_size(rate, u32::from(self.send.mss)))
    }

    /// `len` bytes leave now. What had to wait and was late catches up with all of it, up to a round trip: who waits for its time here is a thread, which on a busy
    /// machine is woken much later than an interrupt, and a rate that is never caught up with is one that the path seems to have. What the windows held back
    /// catches up by one transmission, or a sixteenth of the round trip.
    #[cold]
    pub(crate) fn pace(&mut self, len: u32, now: Instant) {
        let rate = self.pacing_rate();
        let srtt_us = u64::from(self.rtt.srtt_us());
        let first = self.send.nxt <= UNPACED_SEGMENTS * u64::from(self.send.mss);
        let Some(pacing) = &mut self.pacing else {
            return;
        };
        pacing.waits = false;
        if rate == 0 || first {
            return;
        }
        let takes_us = u64::from(len) * 1_000_000 / rate;
        let late_us = (now - pacing.next).as_micros();
        let part_us = if pacing.waited { srtt_us } else { srtt_us / 16 };
        let kept_us = late_us.min(takes_us.max(part_us));
        pacing.next += Duration::from_micros(late_us - kept_us + takes_us);
    }

    /// Bytes per second; 0 if nothing bounds it yet. Without a model of the path the window in a round trip, with room to grow (Linux: twice that in slow
    /// start, else six fifths).
    fn pacing_rate(&self) -> u64 {
        let limit = self.settings.rate_limit();
        let most = limit.unwrap_or(u64::MAX);
        let modelled = self.congestion.pacing_rate();
        if modelled > 0 {
            return modelled.min(most);
        }
        let srtt_us = u64::from(self.rtt.srtt_us());
        if srtt_us == 0 {
            return limit.unwrap_or(0);
        }
        let window = &self.congestion.window;
        let gain = if window.cwnd < window.ssthresh / 2 {
            200
        } else {
            120
        };
        let rate = u64::from(window.cwnd) * gain / 100 * 1_000_000 / srtt_us;
        rate.clamp(1, most)
    }
}
