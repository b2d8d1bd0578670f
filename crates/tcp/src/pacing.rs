//! Pacing: each transmission sets a time before which the next may not leave.
//!
//! There is no timer for each transmission. The connection's deadline includes that time while
//! something waits for it.

use crate::congestion::Window;
use crate::time::{Duration, Instant};

/// Segments of the initial window, which leaves at once as in Linux.
const UNPACED_SEGMENTS: u64 = 10;

/// The state of a paced connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacing {
    /// When the next transmission may leave.
    next: Instant,
    /// A transmission waits for that time.
    waits: bool,
    /// A transmission has waited, and has had room in the windows ever since: the thread, not a
    /// window, made it late.
    waited: bool,
}

impl Pacing {
    /// The next transmission may leave at once.
    pub(crate) fn new() -> Pacing {
        Pacing {
            next: Instant::default(),
            waits: false,
            waited: false,
        }
    }

    /// When a waiting transmission may leave: [`Instant::NEVER`] if none waits.
    pub(crate) fn deadline(&self) -> Instant {
        if self.waits {
            self.next
        } else {
            Instant::NEVER
        }
    }

    /// Whether the stream has to wait now. Then [`Pacing::deadline`] is set.
    #[cold]
    pub(crate) fn must_wait(&mut self, now: Instant) -> bool {
        self.waits = now < self.next;
        self.waited |= self.waits;
        self.waits
    }

    /// The time has come, but a window keeps the stream from leaving.
    #[cold]
    pub(crate) fn on_blocked(&mut self) {
        self.waited = false;
    }

    /// `len` bytes leave now at `rate` bytes per second; a `rate` of 0 has no bound. `nxt` is
    /// SND.NXT.
    ///
    /// A transmission that was late because its thread woke late catches up by a round trip at
    /// most: otherwise the lost rate would look like the path's. One that a window held back
    /// catches up by one transmission or a sixteenth of the round trip.
    #[cold]
    pub(crate) fn on_sent(
        &mut self,
        len: u32,
        rate: u64,
        srtt_us: u32,
        nxt: u64,
        mss: u16,
        now: Instant,
    ) {
        self.waits = false;
        if rate == 0 || nxt <= UNPACED_SEGMENTS * u64::from(mss) {
            return;
        }
        let srtt_us = u64::from(srtt_us);
        let takes_us = u64::from(len) * 1_000_000 / rate;
        let late_us = (now - self.next).as_micros();
        let part_us = if self.waited { srtt_us } else { srtt_us / 16 };
        let kept_us = late_us.min(takes_us.max(part_us));
        self.next += Duration::from_micros(late_us - kept_us + takes_us);
    }
}

/// The rate to send at, in bytes per second; 0 while nothing bounds it. `modelled` is the
/// congestion control's own rate or 0, and `limit` the program's.
pub(crate) fn rate(modelled: u64, limit: Option<u64>, window: &Window, srtt_us: u32) -> u64 {
    let most = limit.unwrap_or(u64::MAX);
    if modelled > 0 {
        return modelled.min(most);
    }
    if srtt_us == 0 {
        return limit.unwrap_or(0);
    }
    // The window in a round trip, with room to grow as in Linux: twice that in slow start, else
    // 6/5.
    let gain = if window.cwnd < window.ssthresh / 2 {
        200
    } else {
        120
    };
    let rate = u64::from(window.cwnd) * gain / 100 * 1_000_000 / u64::from(srtt_us);
    rate.clamp(1, most)
}
