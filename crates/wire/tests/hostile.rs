//! Headers that contradict themselves, by the lines of the list of hostile inputs.

use std::net::Ipv4Addr;

use millrace_wire::icmpv4::{Message, Quoted, unreachable};
use millrace_wire::offload::{ChecksumState, Offload};
use millrace_wire::vnet::{Flags, Gso, VnetHeader};
use millrace_wire::{Error, checksum, ipv4, tcp};

fn datagram(payload: &[u8]) -> Vec<u8> {
    let header = ipv4::Header::new(
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
        tcp::PROTOCOL,
        payload.len() as u16,
    );
    let mut bytes = vec![0; ipv4::HEADER_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(payload);
    bytes
}

/// A datagram with these option bytes and no payload.
fn with_options(options: &[u8]) -> Vec<u8> {
    let mut bytes = datagram(&[]);
    bytes.extend_from_slice(options);
    bytes[0] = 0x45 + (options.len() / 4) as u8;
    bytes[3] = bytes.len() as u8;
    bytes
}

fn error_of(bytes: &[u8]) -> Option<Error> {
    ipv4::Header::parse(bytes).err()
}

#[test]
fn c2_checksum_of_all_ones_or_zeros() {
    let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let mut segment = [0u8; 20];
    segment[12] = 0x50;
    // Chosen so that the right checksum is 0.
    let rest =
        (checksum::pseudo_v4(src, dst, tcp::PROTOCOL, 20) + checksum::Sum::of(&segment)).finish();
    segment[4..6].copy_from_slice(&rest.to_be_bytes());
    for (field, right) in [(0u16, true), (0xffff, true), (1, false), (0xfffe, false)] {
        segment[16..18].copy_from_slice(&field.to_be_bytes());
        // Both zeros of ones' complement are right, as for every receiver that adds up (RFC 1071).
        assert_eq!(
            checksum::verify_v4(src, dst, tcp::PROTOCOL, &segment),
            right,
            "{field:#x}"
        );
    }
}

#[test]
fn c12_header_and_total_length() {
    let good = datagram(&[7; 12]);
    assert_eq!(error_of(&good), None);
    for len in 0..ipv4::HEADER_LEN {
        assert_eq!(error_of(&good[..len]), Some(Error::Truncated), "c18");
    }
    for version in (0..16u8).filter(|version| *version != 4) {
        let mut bytes = good.clone();
        bytes[0] = version << 4 | 5;
        assert_eq!(error_of(&bytes), Some(Error::Version));
    }
    for words in (0..5).chain(9..16) {
        let mut bytes = good.clone();
        bytes[0] = 0x40 | words;
        assert_eq!(
            error_of(&bytes),
            Some(Error::Length),
            "IHL {words} of 32 bytes"
        );
    }
    for total in (0..20).chain(33..64) {
        let mut bytes = good.clone();
        bytes[3] = total;
        assert_eq!(
            error_of(&bytes),
            Some(Error::Length),
            "total length {total} of 32 bytes"
        );
    }
    let mut padded = good.clone();
    padded.extend_from_slice(&[0; 14]);
    assert_eq!(ipv4::Header::parse(&padded).expect("padding").2, [7; 12]);
}

#[test]
fn c12_source_routes() {
    for kind in [131, 137] {
        for (pointer, len, fault) in [
            (4, 7, None),
            (3, 7, Some(22)),
            (0, 7, Some(22)),
            (4, 6, Some(21)),
            (4, 2, Some(21)),
        ] {
            let mut options = [kind, len, pointer, 9, 9, 9, 9, 0];
            options[usize::from(len)..].fill(0);
            let bytes = with_options(&options);
            let what = format!("kind {kind} length {len} pointer {pointer}");
            assert_eq!(error_of(&bytes).is_none(), fault.is_none(), "{what}");
            let at = ipv4::faulty_option(&bytes).map(|(_, at)| at);
            assert_eq!(at, fault, "{what}");
            assert_eq!(ipv4::faulty_option(&bytes[..bytes.len() - 1]), None);
        }
        let bytes = with_options(&[kind, 7, 4, 9, 9, 9, 9, 0]);
        let (_, options, _) = ipv4::Header::parse(&bytes).expect("sound");
        assert!(ipv4::is_source_routed(options));
    }
    for options in [[1, 1, 68, 0], [68, 1, 0, 0], [68, 5, 0, 0], [1, 1, 1, 68]] {
        assert_eq!(
            error_of(&with_options(&options)),
            Some(Error::Length),
            "{options:?}"
        );
    }
    let bytes = with_options(&[148, 4, 0, 0, 0, 131, 2, 0]);
    let (_, options, _) = ipv4::Header::parse(&bytes).expect("router alert, end");
    assert!(!ipv4::is_source_routed(options));
}

#[test]
fn h3_fragment_past_65535() {
    let mut bytes = datagram(&[7; 16]);
    bytes[6..8].copy_from_slice(&(0x2000u16 | 8189).to_be_bytes());
    let (header, _, _) = ipv4::Header::parse(&bytes).expect("ends at 65,528");
    assert_eq!(
        (header.fragment_offset, header.is_fragment()),
        (65_512, true)
    );
    bytes[6..8].copy_from_slice(&8190u16.to_be_bytes());
    assert_eq!(error_of(&bytes), Some(Error::Length), "ends at 65,536");
}

#[test]
fn g5_truncated_quotes() {
    let whole = datagram(&[1, 2, 3, 4, 0, 0, 0, 9, 5, 5, 5, 5]);
    for len in 0..28 {
        assert!(Quoted::parse(&whole[..len]).is_err(), "{len} bytes");
    }
    for len in 28..=whole.len() {
        let quoted = Quoted::parse(&whole[..len]).expect("eight bytes of TCP");
        let tcp = quoted.tcp().expect("is TCP");
        assert_eq!(
            (tcp.src_port, tcp.dst_port, tcp.seq),
            (0x102, 0x304, tcp::Seq(9))
        );
    }
    let mut claims_less = whole.clone();
    claims_less[3] = 27;
    assert!(
        Quoted::parse(&claims_less).is_err(),
        "bytes past the total length are none of the datagram's"
    );
    let mut later_fragment = whole;
    later_fragment[7] = 1;
    assert!(Quoted::parse(&later_fragment).is_err());
}

#[test]
fn g5_wrong_checksum_of_icmp() {
    let original = datagram(&[0; 8]);
    let message = Message::Unreachable {
        code: unreachable::FRAGMENTATION_NEEDED,
        next_hop_mtu: 1400,
        original: &original,
    };
    let mut bytes = [0; 64];
    let len = message.emit(&mut bytes);
    assert_eq!(Message::parse(&bytes[..len]), Ok(message));
    assert!(millrace_wire::icmpv4::verify(&bytes[..len]));
    bytes[7] ^= 1;
    assert!(!millrace_wire::icmpv4::verify(&bytes[..len]));
}

#[test]
fn vnet_header_says_what_is_asked() {
    let mut head = [0; 54];
    head[14] = 0x45;
    let ask = Offload::Segment {
        start: 34,
        offset: 16,
        header_len: 54,
        segment_size: 1448,
    };
    let header = VnetHeader::request(ask, &head);
    assert_eq!(
        header,
        VnetHeader {
            flags: Flags::NEEDS_CSUM,
            gso: Gso::TCP_V4,
            header_len: 54,
            gso_size: 1448,
            csum_start: 34,
            csum_offset: 16
        }
    );
    assert_eq!(
        (header.checksum_state(), header.segment_size()),
        (ChecksumState::Partial, 1448)
    );
    head[34 + 13] = tcp::Flags::CWR.bits();
    let with_cwr = VnetHeader::request(ask, &head);
    assert_eq!(
        (with_cwr.gso, with_cwr.segment_size()),
        (Gso(Gso::TCP_V4.0 | Gso::ECN.0), 1448)
    );
    head[14] = 0x60;
    assert_eq!(
        VnetHeader::request(ask, &head).gso,
        Gso(Gso::TCP_V6.0 | Gso::ECN.0)
    );
    let checksum = VnetHeader::request(
        Offload::Checksum {
            start: 34,
            offset: 16,
        },
        &head,
    );
    assert_eq!(
        (checksum.gso, checksum.flags),
        (Gso::NONE, Flags::NEEDS_CSUM)
    );
    assert_eq!(
        VnetHeader::request(Offload::None, &head),
        VnetHeader::default()
    );
    let valid = VnetHeader {
        flags: Flags::DATA_VALID,
        ..VnetHeader::default()
    };
    assert_eq!(
        (valid.checksum_state(), valid.segment_size()),
        (ChecksumState::Valid, 0)
    );
}
