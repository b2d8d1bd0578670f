//! A network interface: finishes what the stack left to it, and refuses what no interface would
//! take.

use millrace_wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use millrace_wire::ethernet::{EtherType, HEADER_LEN as ETHERNET_LEN, Header as Ethernet, Mac};
use millrace_wire::offload::{Capabilities, ChecksumState, Offload};
use millrace_wire::tcp::{CHECKSUM_OFFSET, Flags, PROTOCOL, Segment};
use millrace_wire::{ipv4, ipv6};

/// What the interface of a host can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nic {
    /// Nothing: each frame is complete.
    Plain,
    /// Computes checksums.
    Checksum,
    /// Computes checksums and cuts into segments; the other hosts receive these.
    Segment,
    /// Hands frames over as they are, larger than the MTU and without checksums, as TAP devices do.
    HandOver,
}

/// The largest frame that is taken for cutting.
const SEGMENTATION_MAX: usize = ETHERNET_LEN + 0xffff;

/// A frame on the link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OnWire {
    pub bytes: Vec<u8>,
    pub checksum: ChecksumState,
    pub segment_size: u16,
}

impl Nic {
    pub(crate) fn capabilities(self, mac: Mac, mtu: u16) -> Capabilities {
        let segments = matches!(self, Nic::Segment | Nic::HandOver);
        Capabilities {
            tx_checksum: self != Nic::Plain,
            tx_segmentation_max: if segments { SEGMENTATION_MAX as u32 } else { 0 },
            rx_aggregated: self == Nic::HandOver,
            ..Capabilities::plain(mac, mtu)
        }
    }

    /// Makes of a frame what goes on the link.
    ///
    /// # Panics
    /// When the frame does not keep to what the interface can do, or contradicts itself.
    pub(crate) fn finish(
        self,
        mtu: u16,
        head: &[u8],
        payload: [&[u8]; 2],
        offload: Offload,
    ) -> Vec<OnWire> {
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(payload[0]);
        bytes.extend_from_slice(payload[1]);
        let frame_max = ETHERNET_LEN + usize::from(mtu);
        check_frame(&bytes, offload);
        match (self, offload) {
            (_, Offload::None) => {
                assert!(
                    bytes.len() <= frame_max,
                    "frame of {} bytes at an MTU of {mtu}",
                    bytes.len()
                );
                vec![OnWire {
                    bytes,
                    checksum: ChecksumState::Unchecked,
                    segment_size: 0,
                }]
            }
            (Nic::HandOver, Offload::Checksum { .. }) => {
                assert!(
                    bytes.len() <= frame_max,
                    "frame of {} bytes at an MTU of {mtu}",
                    bytes.len()
                );
                vec![OnWire {
                    bytes,
                    checksum: ChecksumState::Partial,
                    segment_size: 0,
                }]
            }
            (Nic::HandOver, Offload::Segment { segment_size, .. }) => {
                assert!(bytes.len() <= SEGMENTATION_MAX);
                vec![OnWire {
                    bytes,
                    checksum: ChecksumState::Partial,
                    segment_size,
                }]
            }
            (Nic::Checksum | Nic::Segment, Offload::Checksum { .. }) => {
                assert!(
                    bytes.len() <= frame_max,
                    "frame of {} bytes at an MTU of {mtu}",
                    bytes.len()
                );
                finish_checksum(&mut bytes);
                vec![OnWire {
                    bytes,
                    checksum: ChecksumState::Unchecked,
                    segment_size: 0,
                }]
            }
            (
                Nic::Segment,
                Offload::Segment {
                    header_len,
                    segment_size,
                    ..
                },
            ) => {
                assert!(bytes.len() <= SEGMENTATION_MAX);
                cut(
                    &bytes,
                    usize::from(header_len),
                    usize::from(segment_size),
                    frame_max,
                )
            }
            (Nic::Plain, Offload::Checksum { .. })
            | (Nic::Plain | Nic::Checksum, Offload::Segment { .. }) => {
                panic!("{self:?} was asked for {offload:?}")
            }
        }
    }
}

/// Whether the frame is what it says, and what is asked of the interface is true of it.
fn check_frame(bytes: &[u8], offload: Offload) {
    let (link, rest) = Ethernet::parse(bytes).expect("a frame");
    assert!(link.src.is_unicast(), "from {}", link.src);
    let Some(ip) = Ip::parse(&link, rest) else {
        assert_eq!(offload, Offload::None);
        return;
    };
    let payload = ip.payload(rest);
    if ip.protocol() != PROTOCOL {
        assert_eq!(offload, Offload::None);
        return;
    }
    let segment = Segment::parse(payload).expect("a segment");
    let headers = bytes.len() - segment.payload.len();
    let field = u16::from_be_bytes([payload[CHECKSUM_OFFSET], payload[CHECKSUM_OFFSET + 1]]);
    let pseudo = ip.pseudo(payload.len());
    let place = (
        (ETHERNET_LEN + ip.header_len()) as u16,
        CHECKSUM_OFFSET as u16,
    );
    match offload {
        Offload::None => assert!(
            (pseudo + Sum::of(payload)).is_valid(),
            "wrong checksum: {} bytes of payload in {ip:?}",
            segment.payload.len()
        ),
        Offload::Checksum { start, offset } => {
            assert_eq!(((start, offset), field), (place, pseudo.fold()));
        }
        Offload::Segment {
            start,
            offset,
            header_len,
            segment_size,
        } => {
            assert_eq!(((start, offset), field), (place, pseudo.fold()));
            assert_eq!(usize::from(header_len), headers);
            assert!(
                segment_size > 0 && segment.payload.len() > usize::from(segment_size),
                "nothing to cut"
            );
            assert!(
                !segment
                    .flags
                    .intersects(Flags::SYN | Flags::RST | Flags::URG),
                "{:?} cannot be cut",
                segment.flags
            );
        }
    }
}

/// Cuts a frame into segments and finishes each.
fn cut(bytes: &[u8], header_len: usize, segment_size: usize, frame_max: usize) -> Vec<OnWire> {
    let (head, payload) = bytes.split_at(header_len);
    let ip = Ip::of_frame(bytes);
    let tcp_at = ETHERNET_LEN + ip.header_len();
    let first = Segment::parse(&bytes[tcp_at..]).expect("was checked");
    let last = payload.len().div_ceil(segment_size) - 1;
    let one = |(index, part): (usize, &[u8])| {
        let mut bytes = head.to_vec();
        bytes.extend_from_slice(part);
        assert!(
            bytes.len() <= frame_max,
            "segments of {segment_size} bytes make frames of {}",
            bytes.len()
        );
        let payload_len = (bytes.len() - tcp_at) as u16;
        ip.part(index as u16, payload_len)
            .emit(&mut bytes[ETHERNET_LEN..]);
        let mut flags = first.flags;
        if index != 0 {
            flags.remove(Flags::CWR);
        }
        if index != last {
            flags.remove(Flags::FIN | Flags::PSH);
        }
        let seq = first.seq + (index * segment_size) as u32;
        bytes[tcp_at + 4..tcp_at + 8].copy_from_slice(&seq.0.to_be_bytes());
        bytes[tcp_at + 13] = flags.bits();
        finish_checksum(&mut bytes);
        OnWire {
            bytes,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        }
    };
    payload.chunks(segment_size).enumerate().map(one).collect()
}

fn finish_checksum(bytes: &mut [u8]) {
    let ip = Ip::of_frame(bytes);
    let segment = &mut bytes[ETHERNET_LEN + ip.header_len()..];
    segment[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].fill(0);
    let sum = ip.pseudo(segment.len()) + Sum::of(segment);
    segment[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 2].copy_from_slice(&sum.finish().to_be_bytes());
}

/// The IP header of a frame, of either family. The stack sends neither options nor extension
/// headers.
#[derive(Debug)]
enum Ip {
    V4(ipv4::Header),
    V6(ipv6::Header),
}

impl Ip {
    /// The header of a packet; `None` when it is something else.
    ///
    /// # Panics
    /// When the packet contradicts itself or its frame.
    fn parse(link: &Ethernet, packet: &[u8]) -> Option<Ip> {
        match link.ethertype {
            EtherType::IPV4 => {
                let (ip, options, payload) = ipv4::Header::parse(packet).expect("a datagram");
                let whole = payload.len() + ipv4::HEADER_LEN == packet.len();
                assert!(
                    ipv4::verify(packet) && options.is_empty() && whole,
                    "{ip:?}"
                );
                Some(Ip::V4(ip))
            }
            EtherType::IPV6 => {
                let (ip, payload) = ipv6::Header::parse(packet).expect("a packet");
                assert!(payload.len() + ipv6::HEADER_LEN == packet.len(), "{ip:?}");
                Some(Ip::V6(ip))
            }
            _ => None,
        }
    }

    fn of_frame(bytes: &[u8]) -> Ip {
        let (link, packet) = Ethernet::parse(bytes).expect("was checked");
        match link.ethertype {
            EtherType::IPV6 => Ip::V6(ipv6::Header::parse(packet).expect("was checked").0),
            _ => Ip::V4(ipv4::Header::parse(packet).expect("was checked").0),
        }
    }

    fn header_len(&self) -> usize {
        match self {
            Ip::V4(_) => ipv4::HEADER_LEN,
            Ip::V6(_) => ipv6::HEADER_LEN,
        }
    }

    fn payload<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        &packet[self.header_len()..]
    }

    fn protocol(&self) -> u8 {
        match self {
            Ip::V4(ip) => ip.protocol,
            Ip::V6(ip) => ip.next_header,
        }
    }

    fn pseudo(&self, len: usize) -> Sum {
        match self {
            Ip::V4(ip) => pseudo_v4(ip.src, ip.dst, PROTOCOL, len as u16),
            Ip::V6(ip) => pseudo_v6(ip.src, ip.dst, PROTOCOL, len as u32),
        }
    }

    /// The header of segment `index` of those that the frame is cut into.
    fn part(&self, index: u16, payload_len: u16) -> Ip {
        match self {
            Ip::V4(ip) => Ip::V4(ipv4::Header {
                id: ip.id.wrapping_add(index),
                payload_len,
                ..*ip
            }),
            Ip::V6(ip) => Ip::V6(ipv6::Header { payload_len, ..*ip }),
        }
    }

    fn emit(&self, out: &mut [u8]) {
        match self {
            Ip::V4(ip) => ip.emit(out),
            Ip::V6(ip) => ip.emit(out),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use millrace_wire::tcp::{Header, Options, Seq};

    use super::*;

    fn head(payload_len: usize) -> Vec<u8> {
        let (src, dst) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let mut head = vec![0; 54];
        Ethernet {
            dst: Mac([2; 6]),
            src: Mac([4; 6]),
            ethertype: EtherType::IPV4,
        }
        .emit(&mut head);
        let ip = ipv4::Header {
            id: 9,
            ..ipv4::Header::new(src, dst, PROTOCOL, (20 + payload_len) as u16)
        };
        ip.emit(&mut head[14..]);
        let flags = Flags::ACK | Flags::PSH | Flags::FIN | Flags::CWR;
        let (seq, ack) = (Seq(u32::MAX - 10), Seq(5));
        Header {
            src_port: 1,
            dst_port: 2,
            seq,
            ack,
            flags,
            window: 7,
            urgent: 0,
            options: Options::default(),
        }
        .emit(&mut head[34..]);
        let unfinished = pseudo_v4(src, dst, PROTOCOL, ip.payload_len).fold();
        head[50..52].copy_from_slice(&unfinished.to_be_bytes());
        head
    }

    #[test]
    fn segments_are_what_the_stack_would_have_sent() {
        let payload: Vec<u8> = (0..=255).cycle().take(3000).collect();
        let ask = Offload::Segment {
            start: 34,
            offset: 16,
            header_len: 54,
            segment_size: 1446,
        };
        let frames = Nic::Segment.finish(1500, &head(3000), [&payload[..7], &payload[7..]], ask);
        let (mut seq, mut all) = (Seq(u32::MAX - 10), Vec::new());
        for (index, frame) in frames.iter().enumerate() {
            check_frame(&frame.bytes, Offload::None);
            let segment = Segment::parse(&frame.bytes[34..]).expect("a segment");
            assert_eq!(segment.seq, seq);
            seq += segment.payload.len() as u32;
            all.extend_from_slice(segment.payload);
            assert_eq!(segment.flags.contains(Flags::CWR), index == 0);
            assert_eq!(segment.flags.contains(Flags::FIN | Flags::PSH), index == 2);
        }
        assert!(all == payload && frames.len() == 3);
    }

    #[test]
    #[should_panic(expected = "was asked for")]
    fn a_plain_interface_takes_no_work() {
        Nic::Plain.finish(
            1500,
            &head(1),
            [&[1], &[]],
            Offload::Checksum {
                start: 34,
                offset: 16,
            },
        );
    }

    #[test]
    #[should_panic(expected = "wrong checksum")]
    fn an_unfinished_frame_is_noticed() {
        Nic::Segment.finish(1500, &head(1), [&[1], &[]], Offload::None);
    }
}
