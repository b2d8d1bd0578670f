//! Frames to feed, and what comes out.

use std::net::{Ipv4Addr, Ipv6Addr};

use millrace_offload::{Config, Instant, Receive, Sink, Unit, transmit};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::tcp::{self, Flags, Options, Segment, Seq, Timestamps};
use millrace_wire::vnet::VnetHeader;
use millrace_wire::{ipv4, ipv6};

/// Sequence number of the first byte of every stream here; the second 64 KB wrap.
pub const START: u32 = u32::MAX - 70_000;

/// What is chosen of a frame.
#[derive(Clone, Debug)]
pub struct Spec {
    pub v6: bool,
    pub vlan: Option<u16>,
    pub port: u16,
    pub seq: u32,
    pub ack: u32,
    pub flags: Flags,
    pub window: u16,
    pub timestamps: Option<Timestamps>,
    pub tos: u8,
    /// The shift of the window that a SYN tells, among the options of a common one.
    pub syn: Option<u8>,
    /// From the host.
    pub reversed: bool,
    pub payload: Vec<u8>,
}

impl Spec {
    /// Bytes of the stream from `offset` on.
    pub fn data(offset: u32, len: u32) -> Spec {
        Spec {
            v6: false,
            vlan: None,
            port: 5000,
            seq: START.wrapping_add(offset),
            ack: 77,
            flags: Flags::ACK,
            window: 500,
            timestamps: Some(Timestamps { value: 9, echo: 3 }),
            tos: 0,
            syn: None,
            reversed: false,
            payload: (offset..offset + len).map(byte_at).collect(),
        }
    }

    /// No bytes.
    pub fn bare(offset: u32, flags: Flags) -> Spec {
        Spec {
            flags,
            ..Spec::data(offset, 0)
        }
    }

    pub fn pushed(mut self) -> Spec {
        self.flags |= Flags::PSH;
        self
    }

    /// `src` and `dst`, swapped in a segment of the other direction.
    fn ends<T>(&self, src: T, dst: T) -> (T, T) {
        if self.reversed {
            (dst, src)
        } else {
            (src, dst)
        }
    }

    /// Header and payload, without a checksum.
    fn segment(&self) -> Vec<u8> {
        let (src_port, dst_port) = match self.reversed {
            false => (self.port, 80),
            true => (80, self.port),
        };
        let header = tcp::Header {
            src_port,
            dst_port,
            seq: Seq(self.seq),
            ack: Seq(self.ack),
            flags: self.flags,
            window: self.window,
            urgent: 0,
            options: Options {
                timestamps: self.timestamps,
                window_scale: self.syn,
                mss: self.syn.map(|_| 1460),
                sack_permitted: self.syn.is_some(),
                ..Options::default()
            },
        };
        let mut segment = vec![0; header.header_len()];
        header.emit(&mut segment);
        segment.extend_from_slice(&self.payload);
        segment
    }

    pub fn build(&self) -> Vec<u8> {
        let mac = |last| Mac([2, 0, 0, 0, 0, last]);
        let kind = if self.v6 {
            EtherType::IPV6
        } else {
            EtherType::IPV4
        };
        let mut frame = vec![0; ethernet::HEADER_LEN];
        ethernet::Header {
            dst: mac(1),
            src: mac(2),
            ethertype: kind,
        }
        .emit(&mut frame);
        if let Some(vlan) = self.vlan {
            let tag = [0x81, 0, (vlan >> 8) as u8, vlan as u8];
            frame.splice(12..12, tag);
        }
        let (src, dst) = self.ends(Ipv4Addr::new(10, 0, 0, 2), Ipv4Addr::new(10, 0, 0, 1));
        let (src6, dst6) = self.ends(
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2),
            Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1),
        );
        let mut segment = self.segment();
        let len = segment.len() as u16;
        let pseudo = if self.v6 {
            checksum::pseudo_v6(src6, dst6, tcp::PROTOCOL, len.into())
        } else {
            checksum::pseudo_v4(src, dst, tcp::PROTOCOL, len)
        };
        let sum = (pseudo + Sum::of(&segment)).finish();
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        let at = frame.len();
        if self.v6 {
            frame.resize(at + ipv6::HEADER_LEN, 0);
            ipv6::Header {
                src: src6,
                dst: dst6,
                next_header: tcp::PROTOCOL,
                hop_limit: 64,
                traffic_class: self.tos,
                flow_label: 0x12345,
                payload_len: len,
            }
            .emit(&mut frame[at..]);
        } else {
            frame.resize(at + ipv4::HEADER_LEN, 0);
            ipv4::Header {
                tos: self.tos,
                id: self.seq as u16,
                ..ipv4::Header::new(src, dst, tcp::PROTOCOL, len)
            }
            .emit(&mut frame[at..]);
        }
        frame.extend_from_slice(&segment);
        frame
    }
}

/// The byte of every stream at this offset.
pub fn byte_at(offset: u32) -> u8 {
    (offset.wrapping_mul(0x9e37_79b1) >> 24) as u8
}

/// A unit that came out.
#[derive(Clone, Debug)]
pub struct Out {
    pub bytes: Vec<u8>,
    pub vnet: VnetHeader,
    pub segments: u32,
}

impl Out {
    /// The packet behind the Ethernet header.
    pub fn packet(&self) -> &[u8] {
        let tagged = self.bytes[12..14] == [0x81, 0];
        &self.bytes[if tagged { 18 } else { 14 }..]
    }

    /// The segment, after the checksums of IP and TCP were verified in full.
    #[track_caller]
    pub fn segment(&self) -> Segment<'_> {
        let packet = self.packet();
        let (valid, payload) = if packet[0] >> 4 == 6 {
            let (header, payload) = ipv6::Header::parse(packet).expect("a packet");
            let valid = checksum::verify_v6(header.src, header.dst, tcp::PROTOCOL, payload);
            (valid, payload)
        } else {
            assert!(ipv4::verify(packet), "IP checksum");
            let (header, _, payload) = ipv4::Header::parse(packet).expect("a packet");
            let valid = checksum::verify_v4(header.src, header.dst, tcp::PROTOCOL, payload);
            (valid, payload)
        };
        assert!(valid, "TCP checksum");
        Segment::parse(payload).expect("a segment")
    }

    /// Where its payload is in the stream, and how long it is.
    #[track_caller]
    pub fn range(&self) -> (u32, u32) {
        let segment = self.segment();
        let offset = segment.seq.0.wrapping_sub(START);
        for (index, &byte) in segment.payload.iter().enumerate() {
            assert_eq!(byte, byte_at(offset + index as u32));
        }
        (offset, segment.payload.len() as u32)
    }
}

/// Keeps what comes out.
#[derive(Debug, Default)]
pub struct Outs(pub Vec<Out>);

impl Sink for Outs {
    fn unit(&mut self, unit: Unit<'_>) {
        let mut bytes = unit.head.to_vec();
        for slice in unit.payload {
            bytes.extend_from_slice(slice);
        }
        transmit::complete(&mut bytes, &unit.vnet).expect("a checksum field");
        self.0.push(Out {
            bytes,
            vnet: unit.vnet,
            segments: unit.segments,
        });
    }
}

/// A receiver, and its time in nanoseconds.
pub struct Bench {
    pub receive: Receive,
    pub outs: Outs,
    pub now: u64,
}

impl Bench {
    pub fn new(config: Config) -> Bench {
        Bench {
            receive: Receive::new(config),
            outs: Outs::default(),
            now: 1_000_000_000,
        }
    }

    pub fn small() -> Bench {
        Bench::new(Config {
            flows: 8,
            buffers: 256,
            ..Config::default()
        })
    }

    pub fn bytes(&mut self, frame: &[u8]) {
        self.with(frame, VnetHeader::default());
    }

    pub fn with(&mut self, frame: &[u8], vnet: VnetHeader) {
        let buffer = self.receive.buffer();
        let len = frame.len().min(buffer.len());
        buffer[..len].copy_from_slice(&frame[..len]);
        let now = Instant(self.now);
        self.receive
            .frame(0, len, &frame[len..], vnet, now, &mut self.outs);
    }

    pub fn feed(&mut self, spec: &Spec) {
        self.bytes(&spec.build());
    }

    pub fn end_of_burst(&mut self) {
        self.receive
            .end_of_burst(true, Instant(self.now), &mut self.outs);
    }

    /// Lets time pass, timers included.
    pub fn pass(&mut self, nanos: u64) {
        let end = self.now + nanos;
        while let Some(deadline) = self.receive.deadline()
            && deadline.0 <= end
        {
            self.now = self.now.max(deadline.0);
            self.receive.on_timer(Instant(self.now));
            self.serve();
        }
        self.now = end;
    }

    /// A burst of these, and what came out during it.
    pub fn burst(&mut self, specs: &[Spec]) -> Vec<Out> {
        for spec in specs {
            self.feed(spec);
        }
        self.end_of_burst();
        self.taken()
    }

    /// Makes the flow one that is worth waiting for: segments a microsecond apart. Returns how far
    /// the stream is.
    pub fn warm_up(&mut self) -> u32 {
        let mut offset = 0;
        for _ in 0..40 {
            self.pass(20_000);
            let burst: Vec<_> = (0..20).map(|i| Spec::data(offset + i * 100, 100)).collect();
            self.burst(&burst);
            offset += 2000;
        }
        self.pass(100_000);
        self.outs.0.clear();
        offset
    }

    /// Lets everybody have their turn.
    pub fn serve(&mut self) {
        self.receive.serve(usize::MAX, &mut self.outs);
    }

    /// What came out when everybody had their turn.
    pub fn taken(&mut self) -> Vec<Out> {
        self.serve();
        std::mem::take(&mut self.outs.0)
    }
}

/// The ranges of what came out.
#[track_caller]
pub fn ranges(outs: &[Out]) -> Vec<(u32, u32)> {
    outs.iter().map(Out::range).collect()
}
