//! SYN cookies (RFC 4987 3.6): when there is no room for another half-open connection, the
//! handshake's state goes into the SYN-ACK's sequence number and timestamp, and comes back with the
//! ACK.

use millrace_tcp::{Duration, Instant};
use millrace_wire::tcp::{Flags, Options, Segment, Seq, Timestamps};

use crate::connection_table::Tuple;
use crate::secrets::Secrets;

/// Segment sizes that a cookie can remember; the greatest that the peer's announcement allows.
const SEGMENT_SIZES: [u16; 4] = [536, 1300, 1440, 1460];
/// A cookie is made in one such span of time, and good in that and the next.
const SPAN: Duration = Duration::from_secs(60);
/// How long ACKs may bring a cookie back.
pub const LIFETIME: Duration = Duration::from_secs(120);
/// Round trip to assume when nothing is known: TCP's initial time-out.
const UNKNOWN_AGE_MS: u32 = 1000;
/// Bits of the timestamp that remember options: four for the window scale, one for SACK, one for
/// ECN.
const OPTION_BITS: u32 = 6;
const NO_SCALE: u32 = 15;
const SACK: u32 = 1 << 4;
const ECN: u32 = 1 << 5;

/// The initial sequence number of a SYN-ACK that remembers the peer's segment size.
pub fn sequence(secrets: &Secrets, tuple: &Tuple, syn: &Segment<'_>, now: Instant) -> Seq {
    let announced = syn.options.mss.unwrap_or(SEGMENT_SIZES[0]);
    let size = SEGMENT_SIZES
        .iter()
        .rposition(|&size| size <= announced)
        .unwrap_or(0) as u32;
    Seq(hash(secrets, tuple, syn.seq, span(now)) ^ size)
}

/// A timestamp that remembers the peer's options, and whether ECN was agreed on: the greatest not
/// above `clock` that ends in them.
pub fn timestamp(clock: u32, options: &Options, ecn: bool) -> u32 {
    let scale = options
        .window_scale
        .map_or(NO_SCALE, |scale| u32::from(scale.min(14)));
    let bits = scale | if options.sack_permitted { SACK } else { 0 };
    let bits = bits | if ecn { ECN } else { 0 };
    let value = clock >> OPTION_BITS << OPTION_BITS | bits;
    if value > clock {
        value.wrapping_sub(1 << OPTION_BITS)
    } else {
        value
    }
}

/// The SYN that an ACK with a good cookie answers to; `None` when the cookie is not ours, or too
/// old.
pub fn recall(
    secrets: &Secrets,
    tuple: &Tuple,
    ack: &Segment<'_>,
    now: Instant,
) -> Option<Segment<'static>> {
    let cookie = (ack.ack - 1u32).0;
    let seq = ack.seq - 1u32;
    let spans = [span(now), span(now).wrapping_sub(1)];
    let size = spans
        .iter()
        .map(|&span| hash(secrets, tuple, seq, span) ^ cookie)
        .find(|&size| size < SEGMENT_SIZES.len() as u32)?;
    let mut options = Options {
        mss: Some(SEGMENT_SIZES[size as usize]),
        ..Options::default()
    };
    let mut flags = Flags::SYN;
    // Without timestamps nothing could be remembered, and nothing else was agreed on.
    if let Some(timestamps) = ack.options.timestamps {
        let scale = timestamps.echo & 15;
        options.timestamps = Some(Timestamps {
            value: timestamps.value,
            echo: 0,
        });
        options.window_scale = (scale != NO_SCALE).then_some(scale as u8);
        options.sack_permitted = timestamps.echo & SACK != 0;
        flags.set(Flags::ECE | Flags::CWR, timestamps.echo & ECN != 0);
    }
    Some(Segment {
        src_port: ack.src_port,
        dst_port: ack.dst_port,
        seq,
        ack: Seq(0),
        flags,
        window: ack.window,
        urgent: 0,
        marked: false,
        options,
        payload: &[],
    })
}

/// When the SYN-ACK that `ack` answers was sent, as far as its timestamp tells.
pub fn sent_at(ack: &Segment<'_>, timestamp_offset: u32, now: Instant) -> Instant {
    let clock = (now.as_millis() as u32).wrapping_add(timestamp_offset);
    let age_ms = ack.options.timestamps.map_or(UNKNOWN_AGE_MS, |timestamps| {
        clock.wrapping_sub(timestamps.echo)
    });
    let age_us = u64::from(age_ms).min(LIFETIME.as_millis()) * 1000;
    Instant::from_micros(now.as_micros().saturating_sub(age_us))
}

fn span(now: Instant) -> u64 {
    now.as_micros() / SPAN.as_micros()
}

/// Thirty bits that only we know; the last two are zero: there goes the segment size.
fn hash(secrets: &Secrets, tuple: &Tuple, seq: Seq, span: u64) -> u32 {
    secrets.cookie(tuple, span << 32 | u64::from(seq.0)) as u32 & !3
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::connection_table::Pair;

    fn tuple(remote_port: u16) -> Tuple {
        Tuple::V4(Pair {
            local: Ipv4Addr::new(10, 0, 0, 1),
            remote: Ipv4Addr::new(10, 0, 0, 2),
            local_port: 80,
            remote_port,
        })
    }

    fn segment(flags: Flags, seq: u32, ack: u32, options: Options) -> Segment<'static> {
        Segment {
            src_port: 40_000,
            dst_port: 80,
            seq: Seq(seq),
            ack: Seq(ack),
            flags,
            window: 1000,
            urgent: 0,
            marked: false,
            options,
            payload: &[],
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn what_was_agreed_on_comes_back() {
        let secrets = Secrets::new(&[5; 32]);
        let offered = Options {
            mss: Some(1452),
            window_scale: Some(9),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 77, echo: 0 }),
            ..Options::default()
        };
        let syn = segment(Flags::SYN, 1000, 0, offered);
        let cookie = sequence(&secrets, &tuple(40_000), &syn, at(100));
        let stamp = timestamp(123_456, &offered, true);
        assert!(stamp <= 123_456 && 123_456 - stamp < 64);
        let stamps = Timestamps {
            value: 80,
            echo: stamp,
        };
        let ack = segment(
            Flags::ACK,
            1001,
            cookie.0.wrapping_add(1),
            Options {
                timestamps: Some(stamps),
                ..Options::default()
            },
        );
        let recalled = recall(&secrets, &tuple(40_000), &ack, at(101)).expect("a good cookie");
        assert_eq!(
            (recalled.seq, recalled.options.mss),
            (Seq(1000), Some(1440))
        );
        assert_eq!(
            (
                recalled.options.window_scale,
                recalled.options.sack_permitted
            ),
            (Some(9), true)
        );
        assert!(recalled.flags.contains(Flags::ECE | Flags::CWR));
    }

    #[test]
    fn b6_old_cookies_and_those_of_other_connections_are_refused() {
        let secrets = Secrets::new(&[5; 32]);
        let syn = segment(Flags::SYN, 1000, 0, Options::default());
        let cookie = sequence(&secrets, &tuple(40_000), &syn, at(100))
            .0
            .wrapping_add(1);
        let ack = |seq| segment(Flags::ACK, seq, cookie, Options::default());
        assert!(recall(&secrets, &tuple(40_000), &ack(1001), at(130)).is_some());
        assert!(recall(&secrets, &tuple(40_000), &ack(1001), at(100 + 120)).is_none());
        assert!(recall(&secrets, &tuple(40_000), &ack(1002), at(130)).is_none());
        assert!(recall(&secrets, &tuple(40_001), &ack(1001), at(130)).is_none());
    }

    #[test]
    fn b6_guesses_do_not_make_connections() {
        let secrets = Secrets::new(&[5; 32]);
        let guesses = (0..1u32 << 20).map(|i| i.wrapping_mul(0x9e37_79b9));
        let good = guesses.filter(|&guess| {
            recall(
                &secrets,
                &tuple(40_000),
                &segment(Flags::ACK, 1, guess, Options::default()),
                at(50),
            )
            .is_some()
        });
        assert_eq!(good.count(), 0);
    }
}
