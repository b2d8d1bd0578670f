//! The same frames as etherparse reads and writes.

use std::net::Ipv4Addr;

use etherparse::{PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice};
use millrace_wire::tcp::{Flags, Options, SackBlocks, Segment, Seq, Timestamps};
use millrace_wire::{checksum, ethernet, ipv4, tcp};
use proptest::collection::vec;
use proptest::prelude::*;

prop_compose! {
    fn options()(
        syn: bool,
        mss: Option<u16>,
        window_scale in proptest::option::of(0u8..=14),
        sack_permitted: bool,
        timestamps in proptest::option::of(any::<(u32, u32)>()),
        blocks in vec(any::<(u32, u32)>(), 0..=3),
    ) -> (bool, Options) {
        let timestamps = timestamps.map(|(value, echo)| Timestamps { value, echo });
        if syn {
            return (syn, Options { mss, window_scale, sack_permitted, timestamps, ..Options::default() });
        }
        let mut sack = SackBlocks::default();
        for (start, end) in blocks {
            sack.push(Seq(start), Seq(end));
        }
        (syn, Options { timestamps, sack, ..Options::default() })
    }
}

/// The options in etherparse's words, in any order.
fn elements(options: &Options) -> Vec<TcpOptionElement> {
    let mut elements = Vec::new();
    elements.extend(options.mss.map(TcpOptionElement::MaximumSegmentSize));
    elements.extend(options.window_scale.map(TcpOptionElement::WindowScale));
    elements.extend(
        options
            .sack_permitted
            .then_some(TcpOptionElement::SelectiveAcknowledgementPermitted),
    );
    elements.extend(
        options
            .timestamps
            .map(|t| TcpOptionElement::Timestamp(t.value, t.echo)),
    );
    let mut blocks = options.sack.iter().map(|(start, end)| (start.0, end.0));
    if let Some(first) = blocks.next() {
        let rest = [blocks.next(), blocks.next(), blocks.next()];
        elements.push(TcpOptionElement::SelectiveAcknowledgement(first, rest));
    }
    elements
}

prop_compose! {
    fn header()((syn, options) in options(), ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16) -> tcp::Header {
        let mut flags = Flags::from_bits_retain(flags);
        flags.set(Flags::SYN, syn);
        tcp::Header { src_port: ports.0, dst_port: ports.1, seq: Seq(seq), ack: Seq(ack), flags, window, urgent, options }
    }
}

fn flags_of(header: &etherparse::TcpHeaderSlice<'_>) -> Flags {
    let bits = [
        (Flags::FIN, header.fin()),
        (Flags::SYN, header.syn()),
        (Flags::RST, header.rst()),
        (Flags::PSH, header.psh()),
        (Flags::ACK, header.ack()),
        (Flags::URG, header.urg()),
        (Flags::ECE, header.ece()),
        (Flags::CWR, header.cwr()),
    ];
    bits.into_iter()
        .filter(|(_, set)| *set)
        .map(|(flag, _)| flag)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_reads_what_we_write(
        header in header(),
        (src, dst, ttl, tos, id) in any::<(Ipv4Addr, Ipv4Addr, u8, u8, u16)>(),
        dont_fragment: bool,
        macs: ([u8; 6], [u8; 6]),
        payload in vec(any::<u8>(), 0..200),
    ) {
        let tcp_len = header.header_len();
        let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN + tcp_len];
        ethernet::Header { dst: ethernet::Mac(macs.0), src: ethernet::Mac(macs.1), ethertype: ethernet::EtherType::IPV4 }.emit(&mut frame);
        let ip = ipv4::Header { ttl, tos, id, dont_fragment, ..ipv4::Header::new(src, dst, tcp::PROTOCOL, (tcp_len + payload.len()) as u16) };
        ip.emit(&mut frame[14..]);
        prop_assert_eq!(header.emit(&mut frame[34..]), tcp_len);
        frame.extend_from_slice(&payload);
        let sum = checksum::pseudo_v4(src, dst, tcp::PROTOCOL, ip.payload_len) + checksum::Sum::of(&frame[34..]);
        frame[50..52].copy_from_slice(&sum.finish().to_be_bytes());

        let packet = SlicedPacket::from_ethernet(&frame).expect("etherparse takes it");
        let Some(etherparse::NetSlice::Ipv4(their_ip)) = packet.net else { panic!("not IPv4") };
        let their_ip = their_ip.header();
        prop_assert_eq!(their_ip.to_header().calc_header_checksum(), their_ip.header_checksum());
        prop_assert_eq!(
            (their_ip.source_addr(), their_ip.destination_addr(), their_ip.ttl(), their_ip.identification(), their_ip.dont_fragment()),
            (src, dst, ttl, id, dont_fragment)
        );
        prop_assert_eq!((their_ip.dcp().value() << 2) | their_ip.ecn().value(), tos);
        let Some(TransportSlice::Tcp(theirs)) = packet.transport else { panic!("not TCP") };
        prop_assert_eq!(theirs.payload(), &payload[..]);
        let theirs = etherparse::TcpHeaderSlice::from_slice(theirs.slice()).expect("a header");
        prop_assert_eq!(
            (theirs.source_port(), theirs.destination_port(), theirs.sequence_number(), theirs.acknowledgment_number()),
            (header.src_port, header.dst_port, header.seq.0, header.ack.0)
        );
        prop_assert_eq!((theirs.window_size(), theirs.urgent_pointer(), flags_of(&theirs)), (header.window, header.urgent, header.flags));
        prop_assert_eq!(theirs.calc_checksum_ipv4(&their_ip, &payload).expect("short enough"), theirs.checksum());
        let kind = |element: &TcpOptionElement| format!("{element:?}");
        let mut found: Vec<_> = theirs.options_iterator().map(|element| element.expect("an option")).filter(|e| *e != TcpOptionElement::Noop).collect();
        let mut wanted = elements(&header.options);
        found.sort_by_key(kind);
        wanted.sort_by_key(kind);
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn we_read_what_it_writes(header in header(), ends: ([u8; 4], [u8; 4]), payload in vec(any::<u8>(), 0..200)) {
        let mut builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(ends.0, ends.1, 64)
            .tcp(header.src_port, header.dst_port, header.seq.0, header.window);
        if header.flags.contains(Flags::ACK) { builder = builder.ack(header.ack.0); }
        if header.flags.contains(Flags::URG) { builder = builder.urg(header.urgent); }
        if header.flags.contains(Flags::FIN) { builder = builder.fin(); }
        if header.flags.contains(Flags::SYN) { builder = builder.syn(); }
        if header.flags.contains(Flags::RST) { builder = builder.rst(); }
        if header.flags.contains(Flags::PSH) { builder = builder.psh(); }
        if header.flags.contains(Flags::ECE) { builder = builder.ece(); }
        if header.flags.contains(Flags::CWR) { builder = builder.cwr(); }
        let Ok(builder) = builder.options(&elements(&header.options)) else { return Ok(()) }; // It pads less well than we.
        let mut frame = Vec::new();
        builder.write(&mut frame, &payload).expect("a vector takes it");

        let (link, rest) = ethernet::Header::parse(&frame).expect("Ethernet");
        prop_assert_eq!(link.ethertype, ethernet::EtherType::IPV4);
        prop_assert!(ipv4::verify(rest));
        let (ip, _, rest) = ipv4::Header::parse(rest).expect("IPv4");
        prop_assert_eq!((ip.src.octets(), ip.dst.octets(), ip.protocol), (ends.0, ends.1, tcp::PROTOCOL));
        prop_assert!(checksum::verify_v4(ip.src, ip.dst, ip.protocol, rest));
        let segment = Segment::parse(rest).expect("TCP");
        prop_assert_eq!((segment.flags, segment.seq, segment.window), (header.flags, header.seq, header.window));
        prop_assert_eq!(segment.options, header.options);
        prop_assert_eq!(segment.payload, &payload[..]);

        // C2: one bit anywhere, and the checksum is wrong.
        let mut damaged = rest.to_vec();
        let at = payload.len() % damaged.len();
        damaged[at] ^= 1 << (payload.len() % 8);
        prop_assert!(!checksum::verify_v4(ip.src, ip.dst, ip.protocol, &damaged));
    }
}
