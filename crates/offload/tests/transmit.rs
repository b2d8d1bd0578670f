//! Cutting what a stack sends, and putting it together again.

use millrace_offload::{Config, Instant, Receive, Sink, Unit, transmit};
use millrace_wire::checksum;
use millrace_wire::tcp::{self, Flags, Segment};
use millrace_wire::vnet::{self, Gso, VnetHeader};
use millrace_wire::{ipv4, ipv6};
use proptest::prelude::*;

/// A unit as the kernel sends it, its checksum unfinished, and what it says of it.
fn unit(v6: bool, vlan: bool, flags: Flags, payload: &[u8], size: u16) -> (Vec<u8>, VnetHeader) {
    let mut frame = vec![2; 12];
    if vlan {
        frame.extend([0x81, 0, 0, 9]);
    }
    frame.extend(if v6 { [0x86, 0xdd] } else { [8, 0] });
    let header = tcp::Header {
        src_port: 1,
        dst_port: 2,
        seq: tcp::Seq(u32::MAX - 5000),
        ack: tcp::Seq(7),
        flags,
        window: 9,
        urgent: 0,
        options: tcp::Options {
            timestamps: Some(tcp::Timestamps { value: 1, echo: 2 }),
            ..tcp::Options::default()
        },
    };
    let len = header.header_len() + payload.len();
    let at = frame.len();
    let pseudo = if v6 {
        frame.resize(at + 40, 0);
        let header = ipv6::Header {
            src: 1.into(),
            dst: 2.into(),
            next_header: 6,
            hop_limit: 3,
            traffic_class: 0,
            flow_label: 5,
            payload_len: len as u16,
        };
        header.emit(&mut frame[at..]);
        checksum::pseudo_v6(header.src, header.dst, 6, len as u32)
    } else {
        frame.resize(at + 20, 0);
        let header = ipv4::Header {
            ttl: 3,
            id: 0xfffe,
            ..ipv4::Header::new(1.into(), 2.into(), 6, len as u16)
        };
        header.emit(&mut frame[at..]);
        checksum::pseudo_v4(header.src, header.dst, 6, len as u16)
    };
    let tcp_at = frame.len();
    frame.resize(tcp_at + header.header_len(), 0);
    header.emit(&mut frame[tcp_at..]);
    frame[tcp_at + 16..tcp_at + 18].copy_from_slice(&pseudo.fold().to_be_bytes());
    frame.extend_from_slice(payload);
    let vnet = VnetHeader {
        flags: vnet::Flags::NEEDS_CSUM,
        gso: if v6 { Gso::TCP_V6 } else { Gso::TCP_V4 },
        header_len: 0,
        gso_size: size,
        csum_start: tcp_at as u16,
        csum_offset: 16,
    };
    (frame, vnet)
}

fn cut(frame: &[u8], vnet: &VnetHeader) -> Vec<Vec<u8>> {
    let mut segments = Vec::new();
    let count = transmit::segment(frame, vnet, |head, payload| {
        segments.push([head, payload].concat());
    });
    assert_eq!(count, Ok(segments.len()));
    segments
}

fn parse(frame: &[u8], ip_at: usize) -> (u16, Segment<'_>) {
    let packet = &frame[ip_at..];
    let (id, valid, segment) = if packet[0] >> 4 == 6 {
        let (header, payload) = ipv6::Header::parse(packet).expect("a packet");
        let valid = checksum::verify_v6(header.src, header.dst, 6, payload);
        (0, valid, payload)
    } else {
        assert!(ipv4::verify(packet));
        let (header, _, payload) = ipv4::Header::parse(packet).expect("a packet");
        let valid = checksum::verify_v4(header.src, header.dst, 6, payload);
        (header.id, valid, payload)
    };
    assert!(valid);
    (id, Segment::parse(segment).expect("a segment"))
}

/// RFC 3168 6.1.2: CWR on the first alone. FIN and PSH on the last; the identification goes up.
#[test]
fn rfc3168_6_1_2_flags_go_where_they_belong() {
    let payload = vec![5; 3500];
    let flags = Flags::ACK | Flags::CWR | Flags::PSH | Flags::FIN | Flags::ECE;
    let (frame, vnet) = unit(false, false, flags, &payload, 1000);
    let segments = cut(&frame, &vnet);
    let parsed: Vec<_> = segments.iter().map(|frame| parse(frame, 14)).collect();
    let ids: Vec<_> = parsed.iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [0xfffe, 0xffff, 0, 1]);
    let always = Flags::ACK | Flags::ECE;
    let flags: Vec<_> = parsed.iter().map(|(_, segment)| segment.flags).collect();
    assert_eq!(
        flags,
        [
            always | Flags::CWR,
            always,
            always,
            always | Flags::PSH | Flags::FIN
        ]
    );
    let lens: Vec<_> = parsed.iter().map(|(_, s)| s.payload.len()).collect();
    assert_eq!(lens, [1000, 1000, 1000, 500]);
}

#[test]
fn what_is_said_of_a_frame_is_checked() {
    let (frame, good) = unit(false, false, Flags::ACK, &[1; 100], 10);
    let bad = [
        VnetHeader {
            gso_size: 0,
            ..good
        },
        VnetHeader {
            gso_size: 65_500,
            ..good
        },
        VnetHeader {
            csum_start: 0,
            ..good
        },
        VnetHeader {
            csum_start: 33,
            ..good
        },
        VnetHeader {
            csum_start: 1000,
            ..good
        },
        VnetHeader {
            csum_offset: 6,
            ..good
        },
        VnetHeader {
            gso: Gso(5),
            ..good
        },
        VnetHeader {
            flags: vnet::Flags::empty(),
            ..good
        },
    ];
    for vnet in bad {
        let cut = transmit::segment(&frame, &vnet, |_, _| panic!("nothing is sent"));
        assert_eq!(cut, Err(transmit::Unsound), "{vnet:?}");
    }
    for len in 0..66 {
        assert!(transmit::segment(&frame[..len], &good, |_, _| ()).is_err());
    }
    let mut short = [0; 10];
    let vnet = VnetHeader {
        csum_start: 5,
        csum_offset: 4,
        ..good
    };
    assert_eq!(
        transmit::complete(&mut short, &vnet),
        Err(transmit::Unsound)
    );
}

#[test]
fn a_checksum_that_is_left_is_finished() {
    let (mut frame, mut vnet) = unit(true, true, Flags::ACK, b"odd", 0);
    vnet.gso = Gso::NONE;
    transmit::complete(&mut frame, &vnet).expect("sound");
    assert_eq!(parse(&frame, 18).1.payload, b"odd");
    assert_eq!(cut(&frame, &vnet), [frame.clone()]);
    // RFC 768: a checksum of zero is sent as all ones.
    let mut zero = [0xff, 0xff, 0, 0];
    let vnet = VnetHeader {
        csum_start: 0,
        csum_offset: 2,
        ..vnet
    };
    transmit::complete(&mut zero, &vnet).expect("sound");
    assert_eq!(zero[2..], [0xff, 0xff]);
}

/// Keeps units' payload.
struct Joined(Vec<u8>, usize);

impl Sink for Joined {
    fn unit(&mut self, unit: Unit<'_>) {
        self.1 += 1;
        for slice in unit.payload {
            self.0.extend_from_slice(slice);
        }
    }
}

proptest! {
    /// What is cut here is joined again by the other side of this crate, and every checksum is
    /// right by a full look.
    #[test]
    fn cut_and_joined_again(
        payload in prop::collection::vec(any::<u8>(), 1..6000), size in 100u16..1900, v6: bool, vlan: bool,
    ) {
        let (frame, vnet) = unit(v6, vlan, Flags::ACK | Flags::PSH, &payload, size);
        let segments = cut(&frame, &vnet);
        let mut receive = Receive::new(Config { flows: 1, buffers: 64, ..Config::default() });
        let mut joined = Joined(Vec::new(), 0);
        for segment in &segments {
            parse(segment, if vlan { 18 } else { 14 });
            receive.buffer()[..segment.len()].copy_from_slice(segment);
            receive.frame(0, segment.len(), &[], VnetHeader::default(), Instant(5), &mut joined);
        }
        receive.serve(usize::MAX, &mut joined);
        prop_assert_eq!(joined.0, payload);
        prop_assert_eq!(joined.1, 1);
    }
}
