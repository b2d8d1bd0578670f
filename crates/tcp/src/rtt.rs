//! Round-trip time and retransmission time-out (RFC 6298).

use crate::config::Config;
use crate::time::{Duration, Instant};

/// How long a least round trip counts before a new one replaces it: five minutes, in the units of
/// [`Instant::near_seconds`].
const MIN_RTT_LIFETIME: u32 = 286;

/// The estimator of RFC 6298, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rtt {
    /// SRTT, times 8; 0 before the first sample.
    srtt_8: u32,
    /// RTTVAR, times 4.
    rttvar_4: u32,
    /// RTO without back-off.
    rto_us: u32,
    /// The least recent sample; `u32::MAX` before the first.
    min_us: u32,
    min_at: u32,
}

impl Rtt {
    pub(crate) fn new(config: &Config) -> Rtt {
        Rtt {
            srtt_8: 0,
            rttvar_4: 0,
            rto_us: config.rto_initial.as_micros().min(u64::from(u32::MAX)) as u32,
            min_us: u32::MAX,
            min_at: 0,
        }
    }

    /// Takes a sample in microseconds (RFC 6298 2.2, 2.3).
    #[inline(always)]
    pub(crate) fn sample(&mut self, config: &Config, sample_us: u32, now: Instant) {
        // A sample of two minutes or more is no round trip. The bound also keeps the sums below in
        // range.
        let sample = sample_us.clamp(1, 120_000_000);
        if sample <= self.min_us || now.near_seconds().wrapping_sub(self.min_at) > MIN_RTT_LIFETIME
        {
            self.min_us = sample;
            self.min_at = now.near_seconds();
        }
        if self.srtt_8 == 0 {
            self.srtt_8 = sample * 8;
            self.rttvar_4 = sample * 2;
        } else {
            let deviation = (self.srtt_8 / 8).abs_diff(sample);
            self.rttvar_4 = self.rttvar_4 - self.rttvar_4 / 4 + deviation;
            self.srtt_8 = self.srtt_8 - self.srtt_8 / 8 + sample;
        }
        let variance = self.rttvar_4.max(config.rto_min.as_micros() as u32);
        let limit = config.rto_max.as_micros() as u32;
        self.rto_us = (self.srtt_8 / 8).saturating_add(variance).min(limit);
    }

    /// The handshake timed out. RFC 6298 5.7: "If the timer expires awaiting the ACK of a SYN
    /// segment and the TCP implementation is using an RTO less than 3 seconds, the RTO MUST be
    /// re-initialized to 3 seconds when data transmission begins".
    pub(crate) fn distrust_initial(&mut self) {
        if self.srtt_8 == 0 {
            self.rto_us = self.rto_us.max(3_000_000);
        }
    }

    /// Retransmission time-out without back-off.
    pub(crate) fn rto(&self) -> Duration {
        Duration::from_micros(u64::from(self.rto_us))
    }

    /// Retransmission time-out without back-off, in microseconds.
    pub(crate) fn rto_us(&self) -> u32 {
        self.rto_us
    }

    /// Smoothed round trip in microseconds; 0 before the first sample.
    pub(crate) fn srtt_us(&self) -> u32 {
        self.srtt_8 / 8
    }

    /// Variation of the round trip in microseconds.
    pub(crate) fn rttvar_us(&self) -> u32 {
        self.rttvar_4 / 4
    }

    /// Least recent round trip in microseconds; `u32::MAX` before the first sample.
    pub(crate) fn min_us(&self) -> u32 {
        self.min_us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[u32]) -> Rtt {
        let config = Config::default();
        let mut rtt = Rtt::new(&config);
        for &sample in samples {
            rtt.sample(&config, sample, Instant::from_micros(0));
        }
        rtt
    }

    #[test]
    fn rfc6298_2_1_initial_time_out_is_a_second() {
        assert_eq!(after(&[]).rto(), Duration::from_secs(1));
    }

    #[test]
    fn rfc6298_2_2_first_sample() {
        let rtt = after(&[100_000]);
        assert_eq!((rtt.srtt_us(), rtt.rttvar_us()), (100_000, 50_000));
        assert_eq!(rtt.rto(), Duration::from_millis(300));
    }

    #[test]
    fn rfc6298_2_3_later_samples() {
        let rtt = after(&[100_000, 200_000]);
        assert_eq!(rtt.srtt_us(), 112_500);
        assert_eq!(rtt.rttvar_us(), (50_000 * 3 + 100_000) / 4);
    }

    #[test]
    fn rfc6298_2_4_and_2_5_bounds() {
        assert_eq!(after(&[50; 50]).rto(), Duration::from_micros(200_050));
        assert_eq!(after(&[u32::MAX; 50]).rto(), Duration::from_secs(120));
    }

    #[test]
    fn rfc8985_6_2_the_least_round_trip_is_forgotten_after_minutes() {
        let config = Config::default();
        let mut rtt = after(&[10_000]);
        // The path has become longer.
        for minute in 1..=4 {
            rtt.sample(&config, 90_000, Instant::from_millis(minute * 60_000));
            assert_eq!(rtt.min_us(), 10_000);
        }
        rtt.sample(&config, 90_000, Instant::from_millis(6 * 60_000));
        assert_eq!(rtt.min_us(), 90_000);
    }

    #[test]
    fn rfc6298_4_a_steady_round_trip_leaves_the_variation_its_least() {
        let rtt = after(&[100_000; 200]);
        assert_eq!(rtt.srtt_us(), 100_000);
        let least = Config::default().rto_min;
        assert_eq!(rtt.rto(), Duration::from_millis(100) + least);
    }

    #[test]
    fn rfc6298_5_7_lost_syn() {
        let mut rtt = after(&[]);
        rtt.distrust_initial();
        assert_eq!(rtt.rto(), Duration::from_secs(3));
    }
}
