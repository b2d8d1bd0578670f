//! No bytes make a parser panic, and what was parsed can be written and parsed again.

use millrace_wire::checksum::Sum;
use millrace_wire::icmpv4::{Message, Quoted};
use millrace_wire::tcp::{PlainSegment, Segment};
use millrace_wire::vnet::VnetHeader;
use millrace_wire::{arp, checksum, ethernet, icmpv4, icmpv6, ipv4, ipv6, mld, ndp, tcp, udp};
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes that often look like what a parser looks for.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        any::<u8>(),
        0u8..12,
        Just(0x45),
        Just(0x50),
        Just(0x80),
        Just(0xff)
    ];
    vec(byte, 0..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tcp_segment(bytes in bytes()) {
        let Ok(segment) = Segment::parse(&bytes) else { return Ok(()) };
        prop_assert!(segment.payload.len() <= bytes.len() - tcp::HEADER_LEN);
        let Segment { src_port, dst_port, seq, ack, flags, window, urgent, options, .. } = segment;
        let header = tcp::Header { src_port, dst_port, seq, ack, flags, window, urgent, options };
        let mut out = [0; tcp::MAX_HEADER_LEN];
        let len = header.emit(&mut out);
        prop_assert_eq!(len, header.header_len());
        let mut again = out[..len].to_vec();
        again.extend_from_slice(segment.payload);
        prop_assert_eq!(Segment::parse(&again), Ok(segment));
    }

    /// What the short way takes is what the long way takes of it.
    #[test]
    fn tcp_plain_segment(mut bytes in bytes(), plausible: bool, stamped: bool) {
        if plausible && bytes.len() >= 24 {
            bytes[12] = if stamped { 0x80 } else { 0x50 };
            bytes[13] = 0x10 | (bytes[13] & 0x0b);
            bytes[20..24].copy_from_slice(&[1, 1, 8, 10]);
        }
        let Some(plain) = PlainSegment::parse(&bytes) else { return Ok(()) };
        let segment = Segment::parse(&bytes);
        prop_assert_eq!(segment.ok().and_then(|segment| PlainSegment::of(&segment)), Some(plain));
    }

    /// Sums of every length and at every place, beside one that adds word by word.
    #[test]
    fn checksum_of_any_length(bytes in vec(any::<u8>(), 0..1_600), start in 0usize..8) {
        let bytes = &bytes[start.min(bytes.len())..];
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
        let folded = Sum::of(bytes).fold();
        prop_assert_eq!(u32::from(folded) % 0xffff, sum % 0xffff);
        prop_assert_eq!(folded == 0, sum == 0);
    }

    #[test]
    fn ipv4_datagram(mut bytes in bytes(), plausible: bool) {
        if plausible && bytes.len() >= 4 {
            let len = bytes.len() as u16;
            bytes[0] = 0x40 | (bytes[0] & 7);
            bytes[2..4].copy_from_slice(&(len - len / 8).to_be_bytes());
        }
        ipv4::verify(&bytes);
        let Ok((header, options, payload)) = ipv4::Header::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(payload.len(), usize::from(header.payload_len));
        prop_assert!(usize::from(header.fragment_offset) + payload.len() <= 0xffff);
        ipv4::is_source_routed(options);
        let mut out = [0; ipv4::HEADER_LEN];
        header.emit(&mut out);
        prop_assert!(ipv4::verify(&out));
        let mut again = out.to_vec();
        again.extend_from_slice(payload);
        prop_assert_eq!(ipv4::Header::parse(&again), Ok((header, &[][..], payload)));
    }

    #[test]
    fn icmp_message(mut bytes in bytes(), kind in 0u8..14) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        icmpv4::verify(&bytes);
        let Ok(message) = Message::parse(&bytes) else { return Ok(()) };
        let mut out = vec![0; message.encoded_len()];
        prop_assert_eq!(message.emit(&mut out), out.len());
        prop_assert!(icmpv4::verify(&out));
        prop_assert_eq!(Message::parse(&out), Ok(message));
    }

    #[test]
    fn icmp_quote(bytes in bytes()) {
        if let Ok(quoted) = Quoted::parse(&bytes) {
            prop_assert!(quoted.payload.len() >= 8);
            prop_assert_eq!(quoted.tcp().is_some(), quoted.protocol == tcp::PROTOCOL);
        }
    }

    #[test]
    fn ipv6_packet(mut bytes in bytes(), next in prop_oneof![Just(0u8), Just(43), Just(44), Just(59), Just(60), Just(6)]) {
        if bytes.len() >= 41 {
            let len = bytes.len() as u16 - 40;
            bytes[0] = 0x60 | (bytes[0] & 0xf);
            bytes[4..6].copy_from_slice(&(len - len / 8).to_be_bytes());
            bytes[6] = next;
            bytes[40] &= 63;
        }
        let _ = icmpv6::Quoted::parse(&bytes);
        let Ok((header, payload)) = ipv6::Header::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(payload.len(), usize::from(header.payload_len));
        let mut again = vec![0; ipv6::HEADER_LEN];
        header.emit(&mut again);
        again.extend_from_slice(payload);
        prop_assert_eq!(ipv6::Header::parse(&again), Ok((header, payload)));
        match ipv6::walk(&header, payload) {
            Ok(content) => {
                prop_assert!(payload.ends_with(content.payload));
                prop_assert_eq!(again[content.protocol_at as usize], content.protocol);
            }
            Err(ipv6::Problem::Parameter { pointer, .. }) => prop_assert!((pointer as usize) < again.len()),
            Err(ipv6::Problem::Discard) => {}
        }
    }

    #[test]
    fn icmpv6_message(mut bytes in bytes(), kind in prop_oneof![0u8..6, 127u8..131, any::<u8>()], a: u128, b: u128) {
        let (a, b) = (a.into(), b.into());
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        icmpv6::verify(a, b, &bytes);
        let Ok(message) = icmpv6::Message::parse(&bytes) else { return Ok(()) };
        let mut out = vec![0; message.encoded_len()];
        prop_assert_eq!(message.emit(a, b, &mut out), out.len());
        prop_assert!(icmpv6::verify(a, b, &out));
        prop_assert_eq!(icmpv6::Message::parse(&out), Ok(message));
    }

    #[test]
    fn ndp_message(mut bytes in bytes(), kind in 132u8..139, lengths in 0u8..4, local: bool) {
        if bytes.len() > 26 {
            bytes[0] = kind;
            bytes[1] = 0;
            bytes[25] = lengths;
        }
        let src = if local { "fe80::1" } else { "2001:db8::1" };
        let header = ipv6::Header {
            src: src.parse().unwrap(),
            dst: "fe80::2".parse().unwrap(),
            next_header: icmpv6::PROTOCOL,
            hop_limit: ndp::HOP_LIMIT,
            traffic_class: 0,
            flow_label: 0,
            payload_len: bytes.len() as u16,
        };
        let _ = mld::Query::parse(&ipv6::Header { hop_limit: 1, ..header }, &bytes);
        let Ok(message) = ndp::Message::parse(&header, &bytes) else { return Ok(()) };
        if matches!(message, ndp::Message::RouterAdvertisement(_) | ndp::Message::Redirect) {
            return Ok(());
        }
        let mut out = [0; ndp::LEN_MAX];
        let len = message.emit(header.src, header.dst, &mut out);
        prop_assert!(icmpv6::verify(header.src, header.dst, &out[..len]));
        prop_assert_eq!(ndp::Message::parse(&header, &out[..len]), Ok(message));
    }

    #[test]
    fn udp_datagram(mut bytes in bytes(), len in 0u16..130) {
        if bytes.len() >= 6 {
            bytes[4..6].copy_from_slice(&len.to_be_bytes());
        }
        let Ok(datagram) = udp::Datagram::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(datagram.bytes.len(), usize::from(len));
        let mut again = vec![0; udp::HEADER_LEN];
        udp::Header {
            src_port: datagram.src_port,
            dst_port: datagram.dst_port,
            payload_len: datagram.payload().len() as u16,
        }
        .emit(&mut again);
        again.extend_from_slice(datagram.payload());
        let parsed = udp::Datagram::parse(&again).unwrap();
        prop_assert_eq!((parsed.src_port, parsed.dst_port, parsed.payload()), (datagram.src_port, datagram.dst_port, datagram.payload()));
    }

    #[test]
    fn ethernet_frame(bytes in bytes()) {
        let Ok((header, payload)) = ethernet::Header::parse(&bytes) else { return Ok(()) };
        let mut out = [0; ethernet::HEADER_LEN];
        header.emit(&mut out);
        prop_assert_eq!(&out[..], &bytes[..ethernet::HEADER_LEN]);
        prop_assert_eq!(payload, &bytes[ethernet::HEADER_LEN..]);
    }

    #[test]
    fn arp_packet(mut bytes in bytes(), plausible: bool) {
        if plausible && bytes.len() >= 6 {
            bytes[..6].copy_from_slice(&[0, 1, 8, 0, 6, 4]);
        }
        let Ok(packet) = arp::Packet::parse(&bytes) else { return Ok(()) };
        let mut out = [0; arp::LEN];
        packet.emit(&mut out);
        prop_assert_eq!(&out[..], &bytes[..arp::LEN]);
    }

    #[test]
    fn vnet_header(bytes in bytes()) {
        let Ok((header, _)) = VnetHeader::parse(&bytes) else { return Ok(()) };
        header.checksum_state();
        header.segment_size();
        prop_assert_eq!(&header.emit()[..], &bytes[..10]);
    }

    /// RFC 1071's sum, word by word.
    #[test]
    fn sum_is_that_of_the_words(bytes in vec(any::<u8>(), 0..400)) {
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            sum += u32::from(u16::from_be_bytes([word[0], word.get(1).copied().unwrap_or(0)]));
        }
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        prop_assert_eq!(u32::from(Sum::of(&bytes).fold()), sum);
    }

    /// A sum over pieces, wherever they are cut, is the sum over the whole.
    #[test]
    fn sum_over_slices(bytes in vec(any::<u8>(), 1..300), cuts in vec(any::<prop::sample::Index>(), 0..4)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.push(0);
        cuts.push(bytes.len());
        cuts.sort_unstable();
        let sum = cuts.windows(2).fold(Sum::ZERO, |sum, cut| sum.add_at(cut[0], Sum::of(&bytes[cut[0]..cut[1]])));
        prop_assert_eq!(sum.fold(), Sum::of(&bytes).fold());
    }

    /// RFC 1624: the update gives what a new computation gives.
    #[test]
    fn update_is_recomputation(mut bytes in vec(any::<u8>(), 20..60), new: [u8; 4], at in 0usize..8) {
        bytes[19] |= 1; // All zero bytes have two sums.
        let old = Sum::of(&bytes).finish();
        let place = 2 * at..2 * at + 4;
        let replaced = Sum::of(&bytes[place.clone()]);
        bytes[place].copy_from_slice(&new);
        prop_assert_eq!(checksum::update(old, replaced, Sum::of(&new)), Sum::of(&bytes).finish());
    }
}
