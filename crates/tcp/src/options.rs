//! What two ends agree on in their SYNs, and the timestamp clock (RFC 7323, RFC 2018, RFC 9293
//! 3.7.1).

use millrace_wire::tcp::{Options, Seq, Timestamps};

use crate::config::{Config, Ecn};
use millrace_sockopt::Algorithm;

use crate::settings::Settings;
use crate::time::Instant;

/// The least MSS that is believed from a peer: it leaves 48 bytes of payload beside 40 bytes of
/// options (CVE-2019-11479).
pub(crate) const MIN_MSS: u16 = 88;
/// Bytes of a timestamps option with padding (RFC 7323 appendix A).
pub(crate) const TIMESTAMPS_LEN: u16 = 12;
/// Older timestamps say nothing about a segment's age (RFC 7323 5.5): 24 days, in the units of
/// [`Instant::near_seconds`], rounded up.
const RECENT_LIFETIME: u32 = (24 * 24 * 3_600_000_000_u64).div_ceil(1 << 20) as u32;

bitflags::bitflags! {
    /// Extensions in use on a connection.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub(crate) struct Features: u8 {
        const TIMESTAMPS = 1;
        const SACK = 1 << 1;
        const SCALE = 1 << 2;
        const ECN = 1 << 3;
    }
}

impl Features {
    /// What the engine offers.
    pub(crate) fn offered(config: &Config, settings: &Settings) -> Features {
        let mut features = Features::empty();
        features.set(Features::TIMESTAMPS, config.timestamps);
        features.set(Features::SACK, config.selective_ack);
        features.set(Features::SCALE, config.window_scaling);
        let asks = config.ecn == Ecn::Ask || settings.algorithm(config) == Algorithm::Dctcp;
        features.set(Features::ECN, asks);
        features
    }

    /// What remains of the offer after the peer's SYN: both ends must offer an extension. ECN is
    /// agreed on by flags and handled elsewhere.
    pub(crate) fn agreed(self, syn: &Options) -> Features {
        let mut theirs = Features::empty();
        theirs.set(Features::TIMESTAMPS, syn.timestamps.is_some());
        theirs.set(Features::SACK, syn.sack_permitted);
        theirs.set(Features::SCALE, syn.window_scale.is_some());
        self & (theirs | Features::ECN)
    }

    /// Options of our SYN or SYN-ACK.
    pub(crate) fn syn_options(self, mss: u16, scale: u8, timestamps: Timestamps) -> Options {
        Options {
            mss: Some(mss),
            window_scale: self.contains(Features::SCALE).then_some(scale),
            sack_permitted: self.contains(Features::SACK),
            timestamps: self.contains(Features::TIMESTAMPS).then_some(timestamps),
            ..Options::default()
        }
    }

    /// Bytes that options take on every segment.
    pub(crate) fn option_len(self) -> u16 {
        if self.contains(Features::TIMESTAMPS) {
            TIMESTAMPS_LEN
        } else {
            0
        }
    }
}

/// The least shift that can announce a window of `limit` bytes (RFC 7323 2.2): 0 to 14.
pub(crate) fn scale_for(limit: u32) -> u8 {
    let bits = 32 - limit.leading_zeros();
    bits.saturating_sub(16).min(14) as u8
}

/// The peer's MSS, or `default` if it sent none (RFC 9293 3.7.1, MUST-15); never below [`MIN_MSS`].
pub(crate) fn peer_mss(syn: &Options, default: u16) -> u16 {
    syn.mss.unwrap_or(default).max(MIN_MSS)
}

/// Our timestamp clock: milliseconds from an origin of the connection's own (RFC 7323 5.4).
pub(crate) fn timestamp(now: Instant, offset: u32) -> u32 {
    (now.as_millis() as u32).wrapping_add(offset)
}

/// `later - earlier` on a timestamp clock; negative if `later` is the earlier one (RFC 7323 5.2).
pub(crate) fn timestamp_delta(later: u32, earlier: u32) -> i32 {
    later.wrapping_sub(earlier) as i32
}

/// TS.Recent: the peer's timestamp that we echo and compare others with (RFC 7323 4.3, 5).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recent {
    /// Origin of our own clock.
    pub(crate) offset: u32,
    /// TS.Recent.
    pub(crate) value: u32,
    /// When TS.Recent was taken, in the units of [`Instant::near_seconds`].
    at: u32,
}

impl Recent {
    pub(crate) fn new(offset: u32, value: u32, now: Instant) -> Recent {
        Recent {
            offset,
            value,
            at: now.near_seconds(),
        }
    }

    /// PAWS, R1 of RFC 7323 5.3: whether a segment with this timestamp is an old duplicate.
    pub(crate) fn rejects(&self, value: u32, now: Instant) -> bool {
        timestamp_delta(value, self.value) < 0
            && now.near_seconds().wrapping_sub(self.at) < RECENT_LIFETIME
    }

    /// Takes the timestamp of an acceptable segment that begins at or before the last byte
    /// acknowledged (RFC 7323 4.3, rule 2). Only then does its echo measure the time until we
    /// acknowledge, and only then can a blind segment not move it (CVE-2005-0356).
    pub(crate) fn update(&mut self, value: u32, seq: Seq, last_ack_sent: Seq, now: Instant) {
        if seq.at_or_before(last_ack_sent) && !self.rejects(value, now) {
            *self = Recent::new(self.offset, value, now);
        }
    }

    /// The option for a segment that leaves now.
    pub(crate) fn stamp(&self, now: Instant) -> Timestamps {
        Timestamps {
            value: timestamp(now, self.offset),
            echo: self.value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn rfc7323_2_2_least_sufficient_scale() {
        assert_eq!(scale_for(0), 0);
        assert_eq!(scale_for(65_535), 0);
        assert_eq!(scale_for(65_536), 1);
        assert_eq!(scale_for(6 << 20), 7);
        assert_eq!(scale_for(u32::MAX), 14);
    }

    #[test]
    fn c6_peer_mss_is_clamped() {
        for (announced, used) in [
            (0, 88),
            (1, 88),
            (48, 88),
            (88, 88),
            (1_460, 1_460),
            (65_535, 65_535),
        ] {
            let syn = Options {
                mss: Some(announced),
                ..Options::default()
            };
            assert_eq!(peer_mss(&syn, 536), used);
        }
        assert_eq!(peer_mss(&Options::default(), 536), 536);
        assert_eq!(peer_mss(&Options::default(), 1_220), 1_220);
    }

    #[test]
    fn f1_paws_rejects_older_only() {
        let now = Instant::from_micros(5_000_000);
        let recent = Recent::new(0, 1_000, now);
        assert!(recent.rejects(999, now));
        assert!(!recent.rejects(1_000, now));
        assert!(!recent.rejects(1_000 + (1 << 30), now));
    }

    #[test]
    fn f2_timestamps_wrap_and_expire_after_24_days() {
        let now = Instant::from_micros(5_000_000);
        let recent = Recent::new(0, u32::MAX - 1, now);
        assert!(!recent.rejects(3, now));
        assert!(recent.rejects(u32::MAX - 2, now));
        assert!(!recent.rejects(u32::MAX - 2, now + Duration::from_secs(24 * 24 * 3_600 + 2)));
    }

    #[test]
    fn f3_recent_moves_only_at_or_before_the_last_ack() {
        let now = Instant::from_micros(5_000_000);
        let mut recent = Recent::new(0, 10, now);
        recent.update(1 << 30, Seq(101), Seq(100), now);
        assert_eq!(recent.value, 10);
        recent.update(12, Seq(100), Seq(100), now);
        assert_eq!(recent.value, 12);
        recent.update(11, Seq(100), Seq(100), now);
        assert_eq!(recent.value, 12);
    }
}
