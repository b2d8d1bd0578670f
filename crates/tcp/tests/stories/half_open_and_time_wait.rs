//! What is not a connection: SYN-RECEIVED after a passive open, and TIME-WAIT (RFC 9293 3.10.7.2,
//! 3.10.7.4; RFC 6191, RFC 1337).

use millrace_tcp::{
    Config, Duration, HalfOpen, HalfOpenVerdict, Instant, Settings, State, TimeWait,
    TimeWaitVerdict,
};
use millrace_wire::tcp::{Flags, Options, Segment, Seq, Timestamps};

use crate::support::script::{PEER_CLOCK, Script, base_config, open};

const IRS: Seq = Seq(5_000);
const ISS: Seq = Seq(0xffff_ff00);

fn segment(flags: Flags, seq: Seq, ack: Seq, stamp: Option<u32>) -> Segment<'static> {
    Segment {
        src_port: 1,
        dst_port: 2,
        seq,
        ack,
        flags,
        window: 1_000,
        urgent: 0,
        marked: false,
        options: Options {
            timestamps: stamp.map(|value| Timestamps { value, echo: 0 }),
            ..Options::default()
        },
        payload: &[],
    }
}

fn start() -> Instant {
    Instant::from_millis(1_000_000)
}

fn half_open_with(config: &Config, settings: &Settings) -> HalfOpen {
    let mut syn = segment(Flags::SYN, IRS, Seq(0), Some(PEER_CLOCK));
    syn.options.mss = Some(1_000);
    syn.options.window_scale = Some(9);
    syn.options.sack_permitted = true;
    HalfOpen::new(config, settings, open(), &syn, start())
}

fn half_open(config: &Config) -> HalfOpen {
    half_open_with(config, &Settings::UNSET)
}

fn deferring(config: &Config, defer_accept: u8) -> HalfOpen {
    let settings = Settings {
        defer_accept,
        ..Settings::UNSET
    };
    half_open_with(config, &settings)
}

/// What the answer is, in short.
fn verdict(verdict: &HalfOpenVerdict) -> String {
    match verdict {
        HalfOpenVerdict::Reply(reply) => {
            format!("{:?} {} {}", reply.flags, reply.seq - ISS, reply.ack - IRS)
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn they_are_small() {
    assert!(size_of::<HalfOpen>() <= 64);
    assert!(size_of::<TimeWait>() <= 48);
    assert!(
        size_of::<millrace_tcp::Connection>() <= 328,
        "{}",
        size_of::<millrace_tcp::Connection>()
    );
}

#[test]
fn rfc9293_3_10_7_2_syn_is_answered_with_syn_ack() {
    let config = Config::default();
    let reply = half_open(&config).reply(start());
    assert_eq!(
        (reply.flags, reply.seq, reply.ack),
        (Flags::SYN | Flags::ACK, ISS, IRS + 1)
    );
    assert_eq!(
        (
            reply.options.mss,
            reply.options.window_scale,
            reply.options.sack_permitted
        ),
        (Some(1_460), Some(9), true)
    );
    assert_eq!(reply.options.timestamps.expect("stamped").echo, PEER_CLOCK);
    assert_eq!(reply.window, 65_535);
}

#[test]
fn rfc9293_3_10_7_4_segments_in_syn_received() {
    let config = base_config();
    let cases: [(Flags, u32, u32, &str); 12] = [
        (Flags::ACK, 1, 1, "Establish"),
        (Flags::ACK | Flags::PSH, 1, 1, "Establish"),
        (Flags::ACK | Flags::FIN, 1, 1, "Establish"),
        // A8: the state stays.
        (Flags::ACK, 1, 0, "Flags(RST) 0 -5000"),
        (Flags::ACK, 1, 2, "Flags(RST) 2 -5000"),
        // RFC 5961.
        (Flags::RST, 1, 0, "Drop"),
        (Flags::RST, 2, 0, "Flags(ACK) 1 1"),
        (Flags::RST, 70_000, 0, "Ignore"),
        (Flags::SYN, 9, 0, "Flags(ACK) 1 1"),
        // The SYN again.
        (Flags::SYN, 0, 0, "Flags(SYN | ACK) 0 1"),
        (Flags::ACK, 70_000, 1, "Flags(ACK) 1 1"),
        (Flags::empty(), 1, 1, "Ignore"),
    ];
    for (flags, seq, ack, expected) in cases {
        let mut half_open = half_open(&config);
        let now = start() + Duration::from_millis(600);
        let answer =
            half_open.on_segment(&config, &segment(flags, IRS + seq, ISS + ack, None), now);
        assert_eq!(verdict(&answer), expected, "{flags:?} {seq} {ack}");
    }
}

fn with_payload(flags: Flags) -> Segment<'static> {
    Segment {
        payload: b"GET",
        ..segment(flags, IRS + 1, ISS + 1, None)
    }
}

#[test]
fn defer_accept_completes_with_payload() {
    let config = base_config();
    let bare = segment(Flags::ACK, IRS + 1, ISS + 1, None);
    for last in [
        with_payload(Flags::ACK),
        segment(Flags::ACK | Flags::FIN, IRS + 1, ISS + 1, None),
    ] {
        let mut half_open = deferring(&config, 2);
        let now = start() + Duration::from_millis(30);
        for _ in 0..2 {
            let answer = half_open.on_segment(&config, &bare, now);
            assert_eq!(answer, HalfOpenVerdict::Ignore);
        }
        let now = now + Duration::from_millis(400);
        let answer = half_open.on_segment(&config, &last, now);
        assert_eq!(answer, HalfOpenVerdict::Establish);
        // The round trip is the handshake's, not the peer's time to think.
        let connection = half_open.establish(&config, &Settings::default().into(), now);
        assert_eq!(connection.info(now).srtt_us, 30_000);
    }
}

#[test]
fn defer_accept_asks_once_more_when_the_time_is_over() {
    let config = base_config();
    let bare = segment(Flags::ACK, IRS + 1, ISS + 1, None);
    let mut half_open = deferring(&config, 3);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let answer = half_open.on_segment(&config, &bare, start());
        assert_eq!(answer, HalfOpenVerdict::Ignore);
        let now = half_open.deadline();
        let waited = (now - start()).as_secs();
        answers.push((waited, verdict(&half_open.on_timer(&config, now))));
    }
    let again = "Flags(SYN | ACK) 0 1".to_string();
    let silence = "Ignore".to_string();
    assert_eq!(answers, [(1, silence.clone()), (3, silence), (7, again)]);
    let now = start() + Duration::from_secs(7);
    assert_eq!(
        half_open.on_segment(&config, &bare, now),
        HalfOpenVerdict::Establish
    );
}

#[test]
fn defer_accept_repeats_the_syn_ack_until_it_is_acknowledged() {
    let config = base_config();
    let mut half_open = deferring(&config, 200);
    for _ in 0..config.syn_ack_retries {
        let now = half_open.deadline();
        assert_eq!(
            verdict(&half_open.on_timer(&config, now)),
            "Flags(SYN | ACK) 0 1"
        );
    }
    let now = half_open.deadline();
    assert_eq!(half_open.on_timer(&config, now), HalfOpenVerdict::Drop);
}

#[test]
fn a11_all_flags_in_syn_received() {
    let config = base_config();
    for bits in 0..=255u8 {
        let flags = Flags::from_bits_retain(bits);
        for (seq, ack) in [(0, 1), (1, 1), (1, 5), (2, 1), (90_000, 1)] {
            let mut half_open = half_open(&config);
            let answer = half_open.on_segment(
                &config,
                &segment(flags, IRS + seq, ISS + ack, None),
                start() + Duration::from_secs(1),
            );
            if answer == HalfOpenVerdict::Establish {
                assert!(
                    flags.contains(Flags::ACK) && !flags.intersects(Flags::SYN | Flags::RST),
                    "{flags:?}"
                );
                assert_eq!(ack, 1);
            }
            if let (HalfOpenVerdict::Reply(reply), true) = (&answer, flags.contains(Flags::RST)) {
                assert!(!reply.flags.contains(Flags::RST), "a10: {flags:?}");
            }
        }
    }
}

#[test]
fn a6_answers_in_syn_received_are_bounded() {
    let config = base_config();
    let mut half_open = half_open(&config);
    let mut answers = 0;
    for i in 0..10_000u64 {
        let now = start() + Duration::from_micros(100 * i);
        let flags = if i % 2 == 0 { Flags::RST } else { Flags::SYN };
        let answer = half_open.on_segment(&config, &segment(flags, IRS + 2, Seq(0), None), now);
        answers += usize::from(matches!(answer, HalfOpenVerdict::Reply(_)));
    }
    assert!(answers <= 2, "{answers}");
}

#[test]
fn c11_c17_in_syn_received() {
    let config = Config::default();
    let mut half_open = half_open(&config);
    let now = start() + Duration::from_secs(1);
    // The timestamps that were agreed on may not be missing, nor be old.
    let bare = segment(Flags::ACK, IRS + 1, ISS + 1, None);
    assert_eq!(
        half_open.on_segment(&config, &bare, now),
        HalfOpenVerdict::Ignore
    );
    let old = segment(Flags::ACK, IRS + 1, ISS + 1, Some(PEER_CLOCK - 1));
    assert!(matches!(
        half_open.on_segment(&config, &old, now),
        HalfOpenVerdict::Reply(_)
    ));
    let good = segment(Flags::ACK, IRS + 1, ISS + 1, Some(PEER_CLOCK));
    assert_eq!(
        half_open.on_segment(&config, &good, now),
        HalfOpenVerdict::Establish
    );
    // C17: bytes on the SYN are not acknowledged by the SYN-ACK, so they come again.
    assert_eq!(half_open.reply(now).ack, IRS + 1);
}

#[test]
fn e2_half_open_ends_within_63_s() {
    let config = base_config();
    let mut half_open = half_open(&config);
    let mut replies = 0;
    loop {
        let due = half_open.deadline();
        match half_open.on_timer(&config, due) {
            HalfOpenVerdict::Reply(_) => replies += 1,
            HalfOpenVerdict::Drop => {
                assert_eq!(due - start(), Duration::from_secs(63));
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(replies, 5);
    assert_eq!(
        half_open.on_timer(&config, start()),
        HalfOpenVerdict::Ignore
    );
}

#[test]
fn what_was_agreed_on_is_carried_over() {
    let script = Script::passive(
        Config {
            timestamps: true,
            ..Config::default()
        },
        Settings::default(),
        "mss 1012 sackOK wscale 5",
    );
    let info = script.connection.info(script.now);
    assert_eq!(
        (
            info.timestamps,
            info.selective_ack,
            info.send_scale,
            info.receive_scale
        ),
        (true, true, Some(5), Some(9))
    );
    assert_eq!(
        (info.send_mss, info.send_window, info.srtt_us),
        (1_000, 60_000 << 5, 10_000)
    );
}

#[test]
fn payload_and_fin_on_the_completing_segment_count() {
    let config = base_config();
    let payload = [7u8; 100];
    let mut last = segment(Flags::ACK | Flags::FIN | Flags::PSH, IRS + 1, ISS + 1, None);
    last.payload = &payload;
    let mut half_open = half_open(&config);
    assert_eq!(
        half_open.on_segment(&config, &last, start()),
        HalfOpenVerdict::Establish
    );
    let mut connection = half_open.establish(&config, &Settings::default().into(), start());
    let mut received = crate::support::script::Received::default();
    connection.on_segment(&config, &last, &mut received, start());
    assert_eq!(
        (connection.state(), connection.received()),
        (State::CloseWait, 100)
    );
}

/// A script in TIME-WAIT: our FIN took 1, the peer's took 1.
fn time_wait(timestamps: bool) -> (Config, TimeWait, Instant) {
    let config = Config {
        timestamps,
        ..base_config()
    };
    let mut script = Script::active(config.clone(), Settings::default(), "mss 1012");
    script.connection.close(script.now);
    script.poll().expect("a FIN");
    script.inject("F. 1:1(0) ack 2");
    script.poll().expect("an acknowledgement");
    let time_wait = script
        .connection
        .time_wait(&config, script.now)
        .expect("TIME-WAIT");
    assert_eq!(time_wait.deadline() - script.now, Duration::from_secs(60));
    (config, time_wait, script.now)
}

#[test]
fn a9_rfc1337_rst_does_not_end_time_wait() {
    let (config, mut time_wait, now) = time_wait(false);
    let deadline = time_wait.deadline();
    for seq in [0, 1, 2, 3, 100] {
        let reset = segment(Flags::RST, IRS + seq, ISS + 2, None);
        assert_eq!(
            time_wait.on_segment(&config, &reset, now),
            TimeWaitVerdict::Ignore
        );
    }
    assert_eq!(time_wait.deadline(), deadline);
}

#[test]
fn rfc9293_3_10_7_4_fin_again_restarts_time_wait() {
    let (config, mut time_wait, now) = time_wait(false);
    let later = now + Duration::from_secs(30);
    for i in 0..3 {
        let fin = segment(Flags::FIN | Flags::ACK, IRS + 1, ISS + 2, None);
        let at = later + Duration::from_millis(10 * i);
        let TimeWaitVerdict::Reply(reply) = time_wait.on_segment(&config, &fin, at) else {
            panic!("no answer")
        };
        assert_eq!(
            (reply.flags, reply.seq, reply.ack),
            (Flags::ACK, ISS + 2, IRS + 2)
        );
        assert_eq!(time_wait.deadline(), at + Duration::from_secs(60));
    }
}

#[test]
fn f4_syn_beyond_the_old_connection_reopens() {
    let (config, mut time_wait, now) = time_wait(false);
    let old = segment(Flags::SYN, IRS + 1, Seq(0), None);
    assert!(matches!(
        time_wait.on_segment(&config, &old, now),
        TimeWaitVerdict::Reply(_)
    ));
    let new = segment(Flags::SYN, IRS + 3, Seq(0), None);
    assert_eq!(
        time_wait.on_segment(&config, &new, now),
        TimeWaitVerdict::Reopen { after: ISS + 2 }
    );
}

#[test]
fn f4_rfc6191_syn_with_a_later_timestamp_reopens() {
    let (config, mut time_wait, now) = time_wait(true);
    // (sequence after the old connection's?, timestamp later?)
    for (seq, stamp, reopens) in [
        (3, 100, true),
        (0, 100, true),
        (3, 10, true),
        (0, 10, false),
        (3, 5, false),
        (0, 5, false),
    ] {
        let syn = segment(Flags::SYN, IRS + seq, Seq(0), Some(PEER_CLOCK + stamp));
        let answer = time_wait.clone().on_segment(&config, &syn, now);
        assert_eq!(
            matches!(answer, TimeWaitVerdict::Reopen { .. }),
            reopens,
            "{seq} {stamp}"
        );
    }
    // Timestamps that the old connection had and the SYN has not say nothing.
    let syn = segment(Flags::SYN, IRS + 3, Seq(0), None);
    assert!(matches!(
        time_wait.on_segment(&config, &syn, now),
        TimeWaitVerdict::Reopen { .. }
    ));
}

#[test]
fn a11_all_flags_in_time_wait() {
    for bits in 0..=255u8 {
        let flags = Flags::from_bits_retain(bits);
        for seq in [0, 1, 2, 3, 90_000] {
            let (config, mut time_wait, now) = time_wait(false);
            match time_wait.on_segment(&config, &segment(flags, IRS + seq, ISS + 2, None), now) {
                TimeWaitVerdict::Reopen { .. } => {
                    assert!(
                        flags.contains(Flags::SYN)
                            && !flags.intersects(Flags::ACK | Flags::RST | Flags::FIN),
                        "{flags:?}"
                    );
                }
                TimeWaitVerdict::Reply(reply) => assert_eq!(reply.flags, Flags::ACK),
                TimeWaitVerdict::Ignore => {}
            }
        }
    }
}

#[test]
fn f1_old_duplicates_in_time_wait_are_answered_rarely() {
    let (config, mut time_wait, now) = time_wait(true);
    let mut answers = 0;
    for i in 0..1_000 {
        let old = segment(Flags::ACK, IRS + 1, ISS + 2, Some(PEER_CLOCK - 5));
        let answer = time_wait.on_segment(&config, &old, now + Duration::from_millis(i));
        answers += usize::from(matches!(answer, TimeWaitVerdict::Reply(_)));
    }
    assert!(answers <= 3, "{answers}");
}
