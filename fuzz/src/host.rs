//! A shard whose every frame is looked at, and a host on its link that says what it likes.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace_shard::{Config, Egress, HeapMemory, Ipv6, Options, Owner, Reuse, Shard, SocketId};
use millrace_tcp::Instant;
use millrace_wire::checksum::{Sum, pseudo_v4, verify_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};
use millrace_wire::tcp::{self, Segment};
use millrace_wire::{arp, ipv4, ipv6};

/// Whose sockets these are.
pub const OWNER: Owner = Owner(1);
/// The shard's address.
pub const OURS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The host's.
pub const THEIRS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// The shard's address of IPv6.
pub const OURS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
/// The host's.
pub const THEIRS_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);
const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THEIR_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);
const MTU: u16 = 1500;
/// Memory for receive rings.
const MEMORY: u64 = 4 << 20;
/// Timers that may go off at one moment, one after the other.
const AT_ONCE: u32 = 10_000;

/// The last TCP segment that the shard has sent: what an answer refers to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    pub ours: u16,
    pub theirs: u16,
    /// The sequence number after it.
    pub seq: u32,
    pub ack: u32,
}

#[derive(Default)]
struct Link {
    said: Said,
    /// The last IPv4 packet, for ICMP errors to quote.
    packet: Vec<u8>,
}

impl Egress for Link {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        let frame = [head, payload[0], payload[1]].concat();
        assert!(
            frame.len() <= 14 + usize::from(MTU),
            "{} bytes",
            frame.len()
        );
        let (link, packet) = ethernet::Header::parse(&frame).expect("what we send can be read");
        assert_eq!(link.src, MAC);
        if link.ethertype != EtherType::IPV4 {
            return true;
        }
        let (header, _, payload) = ipv4::Header::parse(packet).expect("what we send can be read");
        assert!(ipv4::verify(packet), "a bad header checksum");
        self.packet = packet.to_vec();
        if header.protocol == tcp::PROTOCOL && !header.is_fragment() {
            assert!(verify_v4(header.src, header.dst, header.protocol, payload));
            let segment = Segment::parse(payload).expect("what we send can be read");
            self.said = Said {
                ours: segment.src_port,
                theirs: segment.dst_port,
                seq: segment.seq.0.wrapping_add(segment.sequence_len()),
                ack: segment.ack.0,
            };
        }
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(MAC, MTU)
    }
}

/// The shard, its clock and its link.
pub struct Host {
    pub shard: Shard<HeapMemory>,
    link: Link,
    now_us: u64,
    changed: Vec<SocketId>,
}

impl Host {
    /// A shard with small limits that knows its neighbour.
    pub fn new() -> Host {
        let mut config = Config::new(OURS, 24, MAC, [7; 32]);
        config.limits.sockets = 32;
        config.limits.half_open = 4;
        config.limits.time_wait = 4;
        config.limits.orphans = 4;
        config.limits.replies = 64;
        config.limits.send_memory = 1 << 20;
        config.loopback = true;
        config.ipv6 = Some(Ipv6 {
            addresses: vec![(OURS_V6, 64)],
            probes: 0,
            ..Ipv6::default()
        });
        let start = Instant::from_micros(1_000_000);
        let mut host = Host {
            shard: Shard::new(config, HeapMemory::new(MEMORY), start),
            link: Link::default(),
            now_us: 1_000_000,
            changed: Vec::new(),
        };
        let mut request = [0; arp::LEN];
        let greeting = arp::Packet {
            operation: arp::Operation::REQUEST,
            sender_mac: THEIR_MAC,
            sender_ip: THEIRS,
            target_mac: Mac([0; 6]),
            target_ip: OURS,
        };
        greeting.emit(&mut request);
        host.hear(EtherType::ARP, &request);
        host
    }

    pub fn now(&self) -> Instant {
        Instant::from_micros(self.now_us)
    }

    /// What the shard said last.
    pub fn said(&self) -> Said {
        self.link.said
    }

    /// The packet that it sent last.
    pub fn packet(&self) -> &[u8] {
        &self.link.packet
    }

    /// A frame to the shard, and what it does then.
    pub fn hear(&mut self, ethertype: EtherType, payload: &[u8]) {
        let mut frame = vec![0; 14];
        ethernet::Header {
            dst: MAC,
            src: THEIR_MAC,
            ethertype,
        }
        .emit(&mut frame);
        frame.extend_from_slice(payload);
        let frame = Frame {
            bytes: &frame,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        };
        let now = self.now();
        self.shard.input(&frame, now);
        self.settle();
    }

    /// An IPv4 packet to it.
    pub fn hear_ip(&mut self, protocol: u8, payload: &[u8]) {
        let mut packet = vec![0; ipv4::HEADER_LEN];
        let header = ipv4::Header {
            id: 1,
            dont_fragment: false,
            ..ipv4::Header::new(THEIRS, OURS, protocol, payload.len() as u16)
        };
        header.emit(&mut packet);
        packet.extend_from_slice(payload);
        self.hear(EtherType::IPV4, &packet);
    }

    /// An IPv6 packet to it.
    pub fn hear_ipv6(&mut self, next_header: u8, payload: &[u8]) {
        let mut packet = vec![0; ipv6::HEADER_LEN];
        let header = ipv6::Header {
            src: THEIRS_V6,
            dst: OURS_V6,
            next_header,
            hop_limit: 255,
            traffic_class: 0,
            flow_label: 0,
            payload_len: payload.len() as u16,
        };
        header.emit(&mut packet);
        packet.extend_from_slice(payload);
        self.hear(EtherType::IPV6, &packet);
    }

    /// A TCP segment to it, whose checksum is made good.
    pub fn hear_tcp(&mut self, mut segment: Vec<u8>) {
        segment[tcp::CHECKSUM_OFFSET..][..2].fill(0);
        let len = segment.len() as u16;
        let sum = pseudo_v4(THEIRS, OURS, tcp::PROTOCOL, len) + Sum::of(&segment);
        segment[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.finish().to_be_bytes());
        self.hear_ip(tcp::PROTOCOL, &segment);
    }

    /// Sends what there is to send, and fires what is due: a moment ends, whatever was said.
    pub fn settle(&mut self) {
        let now = self.now();
        for _ in 0..AT_ONCE {
            self.shard.advance(now);
            self.shard.transmit(&mut self.link, now);
            self.shard.take_changed(&mut self.changed);
            self.changed.clear();
            if self.shard.deadline().is_none_or(|next| next > now) {
                assert!(self.shard.memory().in_use() <= MEMORY);
                return;
            }
        }
        panic!("timers without end at {now:?}");
    }

    /// Lets time pass, from deadline to deadline, a hundred at most.
    pub fn wait(&mut self, us: u64) {
        let end = self.now_us + us;
        for _ in 0..100 {
            let next = self.shard.deadline().map_or(u64::MAX, Instant::as_micros);
            if next >= end {
                break;
            }
            self.now_us = next.max(self.now_us);
            self.settle();
        }
        self.now_us = end;
        self.settle();
    }

    /// Ends every socket, and waits until nothing of them is left.
    pub fn end(mut self, sockets: &[SocketId]) {
        let now = self.now();
        for id in sockets {
            let _ = self.shard.abort(*id, now);
            let _ = self.shard.close(*id, now);
        }
        self.settle();
        for _ in 0..200 {
            self.wait(60_000_000);
        }
        assert_eq!(self.shard.usage(), millrace_shard::Usage::default());
        assert_eq!(self.shard.memory().in_use(), 0);
    }

    pub fn listen(&mut self, port: u16) -> Option<SocketId> {
        let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port);
        let reuse = Reuse {
            address: true,
            port: false,
        };
        self.shard.listen(OWNER, any, 2, reuse).ok()
    }

    pub fn connect(&mut self, to: Ipv4Addr, port: u16) -> Option<SocketId> {
        let remote = SocketAddr::new(to.into(), port);
        let now = self.now();
        self.shard
            .connect(OWNER, None, remote, &Options::default(), now)
            .ok()
    }
}
