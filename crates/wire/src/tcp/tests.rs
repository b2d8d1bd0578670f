//! Unit tests of segments and options.

use super::*;

/// A header with these option bytes, padded with END, and no payload.
fn segment_with(flags: Flags, options: &[u8]) -> Vec<u8> {
    let len = HEADER_LEN + options.len().next_multiple_of(4);
    let mut bytes = vec![0; len];
    bytes[12] = ((len / 4) as u8) << 4;
    bytes[13] = flags.bits();
    bytes[HEADER_LEN..HEADER_LEN + options.len()].copy_from_slice(options);
    bytes
}

fn options_of(flags: Flags, options: &[u8]) -> Options {
    Segment::parse(&segment_with(flags, options))
        .expect("structure is right")
        .options
}

#[test]
fn c1_data_offset_below_five_or_past_the_end() {
    let mut bytes = segment_with(Flags::ACK, &[]);
    for offset in 0..5 {
        bytes[12] = offset << 4;
        assert_eq!(Segment::parse(&bytes), Err(Error::Length));
    }
    bytes[12] = 6 << 4;
    assert_eq!(Segment::parse(&bytes), Err(Error::Length));
    bytes[12] = 5 << 4;
    assert!(Segment::parse(&bytes).is_ok());
    for len in 0..HEADER_LEN {
        assert_eq!(
            Segment::parse(&bytes[..len]),
            Err(Error::Truncated),
            "c18: {len} bytes"
        );
    }
}

#[test]
fn c3_option_length_zero_or_one_stops() {
    for len in [0, 1] {
        let options = options_of(Flags::SYN, &[2, 4, 5, 180, 8, len, 3, 3, 7]);
        assert_eq!(
            options,
            Options {
                mss: Some(1460),
                ..Options::default()
            }
        );
    }
}

#[test]
fn c4_option_past_the_end_stops() {
    let options = options_of(Flags::SYN, &[3, 3, 7, 2, 6, 5, 180, 0]);
    assert_eq!(
        options,
        Options {
            window_scale: Some(7),
            ..Options::default()
        }
    );
    assert_eq!(
        options_of(Flags::SYN, &[1, 1, 1, 2]),
        Options::default(),
        "a kind without a length"
    );
}

#[test]
fn c5_nops_and_unknown_kinds_are_no_options() {
    assert_eq!(options_of(Flags::SYN, &[1; 40]), Options::default());
    assert_eq!(options_of(Flags::SYN, &[255; 40]), Options::default());
    let options = options_of(
        Flags::ACK,
        &[254, 4, 9, 9, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
    );
    assert_eq!(
        options.timestamps,
        Some(Timestamps { value: 1, echo: 2 }),
        "after an unknown one"
    );
}

#[test]
fn c7_window_scale_above_14_is_14() {
    for (sent, taken) in [(0, 0), (14, 14), (15, 14), (255, 14)] {
        assert_eq!(
            options_of(Flags::SYN, &[3, 3, sent, 0]).window_scale,
            Some(taken)
        );
    }
}

#[test]
fn c8_syn_options_without_syn_are_ignored() {
    assert_eq!(
        options_of(Flags::ACK, &[2, 4, 5, 180, 3, 3, 7, 4, 2, 0, 0, 0]),
        Options::default()
    );
    let sack_on_syn = options_of(Flags::SYN, &[5, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert!(sack_on_syn.sack.is_empty());
}

#[test]
fn c9_sack_of_another_length_is_ignored() {
    for len in (2..=38u8).filter(|len| (len - 2) % 8 != 0) {
        let mut bytes = vec![5, len];
        bytes.resize(usize::from(len), 1);
        assert!(
            options_of(Flags::ACK, &bytes).sack.is_empty(),
            "length {len}"
        );
    }
    for blocks in 0..=4u8 {
        let mut bytes = vec![5, 2 + 8 * blocks];
        bytes.resize(usize::from(2 + 8 * blocks), 1);
        assert_eq!(
            options_of(Flags::ACK, &bytes).sack.len(),
            usize::from(blocks)
        );
    }
}

#[test]
fn c10_first_of_duplicates_counts() {
    let options = options_of(Flags::SYN, &[2, 4, 0, 1, 2, 4, 0, 2, 3, 3, 1, 3, 3, 2]);
    assert_eq!((options.mss, options.window_scale), (Some(1), Some(1)));
    let options = options_of(
        Flags::ACK,
        &[8, 10, 0, 0, 0, 1, 0, 0, 0, 1, 8, 10, 0, 0, 0, 2, 0, 0, 0, 2],
    );
    assert_eq!(options.timestamps, Some(Timestamps { value: 1, echo: 1 }));
}

#[test]
fn rfc9293_3_1_options_begin_anywhere() {
    for before in 0..4 {
        let mut bytes = vec![1; before];
        bytes.extend([2, 4, 5, 180, 3, 3, 7, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 4, 2]);
        bytes.resize(40, 0);
        let options = options_of(Flags::SYN, &bytes);
        assert_eq!((options.mss, options.window_scale), (Some(1_460), Some(7)));
        let stamps = Timestamps { value: 1, echo: 2 };
        assert_eq!(options.timestamps, Some(stamps));
        assert!(options.sack_permitted);
    }
}

#[test]
fn c16_reserved_bits_change_nothing() {
    let mut bytes = segment_with(Flags::SYN | Flags::ECE | Flags::CWR, &[]);
    bytes[12] |= 0x0f;
    let segment = Segment::parse(&bytes).expect("accepted");
    assert_eq!(segment.flags, Flags::SYN | Flags::ECE | Flags::CWR);
}

#[test]
fn sack_blocks_beside_timestamps_are_three() {
    let mut sack = SackBlocks::default();
    for i in 0..4 {
        assert!(sack.push(Seq(10 * i), Seq(10 * i + 5)));
    }
    assert!(!sack.push(Seq(0), Seq(1)));
    let alone = Options {
        sack,
        ..Options::default()
    };
    assert_eq!(alone.encoded_len(), 36);
    let beside = Options {
        timestamps: Some(Timestamps::default()),
        ..alone
    };
    assert_eq!(beside.encoded_len(), 40);
    let mut out = [0; 40];
    beside.emit(&mut out);
    assert_eq!(
        Options::parse(&out, false).sack.iter().collect::<Vec<_>>(),
        alone.sack.iter().take(3).collect::<Vec<_>>()
    );
}

#[test]
fn sequence_numbers_go_round() {
    let (low, high) = (Seq(5), Seq(u32::MAX - 5));
    assert!(high.before(low) && low.after(high));
    assert!(low.at_or_after(low) && low.at_or_before(low) && !low.before(low));
    assert_eq!(low - high, 11);
    assert_eq!(high + 11, low);
    assert_eq!(low - 11, high);
    assert!(
        Seq(0).within(high, 20)
            && high.within(high, 1)
            && !low.within(high, 11)
            && !high.within(high, 0)
    );
}

#[test]
fn rfc7413_2_the_cookie_option_survives_the_wire() {
    for len in [0, 4, 6, 8, 16] {
        let bytes: Vec<u8> = (1..=len).collect();
        let cookie = if len == 0 {
            Cookie::REQUEST
        } else {
            Cookie::new(&bytes).unwrap()
        };
        let mut options = Options {
            mss: Some(1_460),
            window_scale: Some(7),
            sack_permitted: true,
            timestamps: Some(Timestamps { value: 1, echo: 2 }),
            ..Options::default()
        };
        options.set_fast_open(cookie);
        let mut out = vec![0; options.encoded_len()];
        assert!(out.len() <= 40 && out.len().is_multiple_of(4));
        options.emit(&mut out);
        let parsed = Options::parse(&out, true);
        assert_eq!(parsed, options);
        assert_eq!(parsed.fast_open().unwrap().as_bytes(), bytes);
        // Without SYN it means nothing.
        assert_eq!(Options::parse(&out, false).fast_open(), None);
    }
    // Lengths that no cookie has.
    for len in [1, 2, 3, 5, 17, 18] {
        assert!(Cookie::new(&vec![1; len]).is_none());
        let mut option = vec![34, 2 + len as u8];
        option.resize(2 + len, 1);
        assert_eq!(Options::parse(&option, true).fast_open(), None);
    }
}
