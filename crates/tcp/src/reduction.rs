//! How the window comes down during one recovery, and goes back up if there was nothing to recover from (RFC 6937,
//! RFC 3522, RFC 4015).

use crate::congestion::Window;
use crate::options::timestamp_delta;

/// One recovery, from the first loss until all that was in flight then is acknowledged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reduction {
    /// Delivered since it began (prr_delivered), in bytes.
    delivered: u32,
    /// Sent since it began (prr_out).
    sent: u32,
    /// In flight when it began (RecoverFS).
    flight: u32,
    /// The first segment is sent again whatever the window says (RFC 6675 5, step 4.3).
    forced: bool,
    /// The window before, until it is known that it was rightly reduced.
    before: Option<Window>,
    /// Our timestamp on the first segment that was sent again.
    first_again: Option<u32>,
}

impl Reduction {
    /// Fast recovery begins with `flight` bytes in flight.
    pub(crate) fn fast(window: Window, flight: u32) -> Reduction {
        Reduction {
            flight: flight.max(1),
            forced: true,
            ..Reduction::after_timeout(window)
        }
    }

    /// A time-out: the flight is given up.
    pub(crate) fn after_timeout(window: Window) -> Reduction {
        Reduction {
            before: Some(window),
            ..Reduction::default()
        }
    }

    /// Another time-out of the same flight; what to go back to stays.
    pub(crate) fn again(&mut self) {
        self.forced = false;
    }

    /// Bytes left the sender, for the first time or again.
    pub(crate) fn on_sent(&mut self, len: u32) {
        self.sent = self.sent.saturating_add(len);
    }

    /// Bytes were sent again, with this timestamp.
    pub(crate) fn on_sent_again(&mut self, timestamp: u32) {
        self.forced = false;
        self.first_again.get_or_insert(timestamp);
    }

    /// Whether the first segment may go in spite of the window; once.
    pub(crate) fn take_forced(&mut self) -> bool {
        std::mem::take(&mut self.forced)
    }

    /// RFC 6937 3.1: how many bytes an acknowledgement lets out that delivered `delivered` bytes. While more than the threshold is in the network, in
    /// proportion to what leaves it; below, with the slow-start reduction bound if the acknowledgement `advanced`, else the conservative one (RFC 9937).
    pub(crate) fn let_out(
        &mut self,
        delivered: u32,
        advanced: bool,
        pipe: u32,
        ssthresh: u32,
        mss: u32,
    ) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        if pipe > ssthresh {
            let share = u64::from(self.delivered) * u64::from(ssthresh);
            return (share.div_ceil(u64::from(self.flight)) as u32).saturating_sub(self.sent);
        }
        let mut bound = self.delivered.saturating_sub(self.sent).max(delivered);
        if advanced {
            bound = bound.saturating_add(mss);
        }
        bound.min(ssthresh - pipe)
    }

    /// Something new is acknowledged for the first time since bytes were sent again; `echo` is our timestamp that it echoes, if there are
    /// timestamps. Returns the window to go back to if the acknowledgement is of what was sent the first time, which then was never lost (the
    /// Eifel detection of RFC 3522 3.2).
    pub(crate) fn disproved(&mut self, echo: Option<u32>) -> Option<Window> {
        let first_again = self.first_again?;
        let before = self.before.take()?;
        (timestamp_delta(echo?, first_again) < 0).then_some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window {
        cwnd: 20_000,
        ssthresh: u32::MAX,
    };

    #[test]
    fn rfc6937_3_1_as_much_is_let_out_as_the_threshold_has_of_the_flight() {
        let mut reduction = Reduction::fast(WINDOW, 20_000);
        let mut sent = 0;
        for i in 1..=10u32 {
            let out = reduction.let_out(1_000, false, 20_000 - 1_000 * i + sent, 10_000, 1_000)
                / 1_000
                * 1_000;
            reduction.on_sent(out);
            sent += out;
        }
        assert_eq!(sent, 5_000);
    }

    #[test]
    fn rfc6937_3_1_after_heavy_loss_the_flight_is_built_up_again() {
        let mut reduction = Reduction::fast(WINDOW, 20_000);
        assert_eq!(reduction.let_out(1_000, false, 2_000, 10_000, 1_000), 1_000);
        reduction.on_sent(1_000);
        assert_eq!(reduction.let_out(1_000, true, 2_000, 10_000, 1_000), 2_000);
        reduction.on_sent(2_000);
        assert_eq!(reduction.let_out(8_000, true, 9_500, 10_000, 1_000), 500);
    }

    #[test]
    fn rfc3522_3_2_echo_of_the_first_transmission_disproves_the_loss() {
        let mut reduction = Reduction::fast(WINDOW, 20_000);
        assert_eq!(
            reduction.disproved(Some(5)).map(|window| window.cwnd),
            None,
            "nothing was sent again"
        );
        reduction.on_sent_again(100);
        reduction.on_sent_again(200);
        let mut proved = reduction;
        assert!(proved.disproved(Some(100)).is_none());
        assert!(
            proved.disproved(Some(99)).is_none(),
            "only the first acknowledgement tells"
        );
        assert_eq!(
            reduction.disproved(Some(99)).map(|window| window.cwnd),
            Some(20_000)
        );
        let mut without = Reduction::fast(WINDOW, 20_000);
        without.on_sent_again(100);
        assert!(without.disproved(None).is_none());
    }
}
