//! Proportional rate reduction: how the window comes down during one recovery (RFC 6937).

/// The variables of one recovery, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProportionalRateReduction {
    /// prr_delivered: delivered since the recovery began.
    delivered: u32,
    /// prr_out: sent since then.
    sent: u32,
    /// RecoverFS: in flight when it began.
    recover_fs: u32,
    /// The first segment is sent again whatever the window says (RFC 6675 5, step 4.3).
    forced: bool,
}

impl ProportionalRateReduction {
    /// Fast recovery begins with `flight` bytes in flight.
    pub(crate) fn fast_recovery(flight: u32) -> ProportionalRateReduction {
        ProportionalRateReduction {
            recover_fs: flight.max(1),
            forced: true,
            ..ProportionalRateReduction::default()
        }
    }

    /// A time-out came. Recent transmissions may still fill the window, but the first segment is
    /// sent again.
    pub(crate) fn after_timeout() -> ProportionalRateReduction {
        ProportionalRateReduction {
            forced: true,
            ..ProportionalRateReduction::default()
        }
    }

    /// `len` bytes were sent, for the first time or again.
    pub(crate) fn on_sent(&mut self, len: u32) {
        self.sent = self.sent.saturating_add(len);
    }

    /// Bytes were sent again.
    pub(crate) fn on_sent_again(&mut self) {
        self.forced = false;
    }

    /// Whether the first segment may be sent in spite of the window, once.
    pub(crate) fn take_forced(&mut self) -> bool {
        std::mem::take(&mut self.forced)
    }

    /// The bytes that may be sent after an acknowledgement that delivered `delivered` bytes (RFC
    /// 6937 3.1). While `pipe` is above `ssthresh`, they are in proportion to what leaves the
    /// network. Below, the slow-start reduction bound applies if the acknowledgement `advanced`
    /// SND.UNA, else the conservative one (RFC 9937).
    pub(crate) fn quota(
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
            return (share.div_ceil(u64::from(self.recover_fs)) as u32).saturating_sub(self.sent);
        }
        let mut bound = self.delivered.saturating_sub(self.sent).max(delivered);
        if advanced {
            bound = bound.saturating_add(mss);
        }
        bound.min(ssthresh - pipe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6937_3_1_as_much_is_let_out_as_the_threshold_has_of_the_flight() {
        let mut prr = ProportionalRateReduction::fast_recovery(20_000);
        let mut sent = 0;
        for i in 1..=10u32 {
            let out =
                prr.quota(1_000, false, 20_000 - 1_000 * i + sent, 10_000, 1_000) / 1_000 * 1_000;
            prr.on_sent(out);
            sent += out;
        }
        assert_eq!(sent, 5_000);
    }

    #[test]
    fn rfc6937_3_1_after_heavy_loss_the_flight_is_built_up_again() {
        let mut prr = ProportionalRateReduction::fast_recovery(20_000);
        assert_eq!(prr.quota(1_000, false, 2_000, 10_000, 1_000), 1_000);
        prr.on_sent(1_000);
        assert_eq!(prr.quota(1_000, true, 2_000, 10_000, 1_000), 2_000);
        prr.on_sent(2_000);
        assert_eq!(prr.quota(8_000, true, 9_500, 10_000, 1_000), 500);
    }
}
