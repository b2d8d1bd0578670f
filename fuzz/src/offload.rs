//! Receive and transmit offload: any frames at any times, sound and otherwise. Every unit that is
//! made is a sound segment.

use millrace_offload::{
    ActiveAck, Config, HEAD_MAX, Instant, Pacer, Receive, Sink, Unit, transmit,
};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ethernet;
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Options, Segment, Seq, Timestamps};
use millrace_wire::vnet::{self, Gso, VnetHeader};

use crate::bytes::Bytes;

/// Each step is a frame, of bytes as they come or a segment near what is expected, or a change of
/// time.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut receive = Receive::new(Config {
        aggregate: if bytes.u8() & 1 == 0 { u16::MAX } else { 3000 },
        flows: 2,
        buffers: 8,
        buffer_len: 512,
        finish_checksums: bytes.u8() & 1 == 0,
        active_ack: match bytes.u8() & 1 {
            0 => ActiveAck::All,
            _ => ActiveAck::Off,
        },
        ..Config::default()
    });
    let mut pacer = Pacer::default();
    let mut now = 1_000_000;
    let mut held = 0;
    while !bytes.is_empty() {
        match bytes.u8() % 5 {
            0 => {
                let len = usize::from(bytes.u8());
                let vnet = vnet(&mut bytes);
                let frame = bytes.take(len).to_vec();
                give(&mut receive, &frame, vnet, now);
                let mut copy = frame.clone();
                let _ = transmit::complete(&mut copy, &vnet);
                let whole = |head: &[u8], payload: &[u8]| {
                    assert!(head.len() + payload.len() <= frame.len() + ethernet::HEADER_LEN);
                };
                let cut = transmit::segment(&frame, &vnet, whole);
                let mut left = 0;
                pacer.buffer()[..frame.len()].copy_from_slice(&frame);
                let taken = pacer.frame(0, frame.len(), &vnet, Instant(now), |_, _| left += 1);
                assert!(left == 0 || taken.is_ok());
                assert!(taken.is_ok() || cut.is_err() || vnet.gso == Gso::NONE);
                pacer.on_timer(Instant(now), |_, _| ());
            }
            3 => {
                // The host's side of a flow, as likely as not one that is known.
                let mut frame = segment(&mut bytes);
                swap_ends(&mut frame);
                let now = Instant(now);
                receive.from_host(&mut frame, &VnetHeader::default(), now, &mut Checked);
                let mut head = [0; HEAD_MAX];
                while receive.acknowledgement(now, &mut head).is_some() {}
                receive.give_what_is_due(now, &mut Checked);
            }
            1 | 2 => {
                let frame = segment(&mut bytes);
                held += 1;
                give(&mut receive, &frame, VnetHeader::default(), now);
            }
            _ => {
                now += u64::from(bytes.u16()) * 100;
                receive.end_of_burst(bytes.u8() & 1 == 0, Instant(now), &mut Checked);
                receive.serve(usize::from(bytes.u8()), &mut Checked);
            }
        }
    }
    receive.end_of_burst(true, Instant(now), &mut Checked);
    // The host knows nothing of any connection: whatever was kept for it goes.
    for port in 0..3 {
        let mut reset = made(port, Seq(0), Seq(0), Flags::RST, None, 0, 0);
        swap_ends(&mut reset);
        let vnet = VnetHeader::default();
        assert!(receive.from_host(&mut reset, &vnet, Instant(now), &mut Checked));
    }
    while let Some(deadline) = receive.deadline() {
        receive.on_timer(deadline);
        receive.serve(usize::MAX, &mut Checked);
        receive.give_what_is_due(deadline, &mut Checked);
    }
    assert_eq!(receive.free_buffers(), 8, "after {held} segments");
}

fn give(receive: &mut Receive, frame: &[u8], vnet: VnetHeader, now: u64) {
    let buffer = receive.buffer();
    let len = frame.len().min(buffer.len());
    buffer[..len].copy_from_slice(&frame[..len]);
    let rest = &frame[len..];
    receive.frame(0, len, rest, vnet, Instant(now), &mut Checked);
}

fn vnet(bytes: &mut Bytes<'_>) -> VnetHeader {
    VnetHeader {
        flags: vnet::Flags::from_bits_retain(bytes.u8()),
        gso: Gso(bytes.u8() % 6),
        header_len: 0,
        gso_size: bytes.u16(),
        csum_start: u16::from(bytes.u8()),
        csum_offset: u16::from(bytes.u8()),
    }
}

/// Makes what came from the sender come from the host.
fn swap_ends(frame: &mut [u8]) {
    for at in [26..30, 30..34, 34..36, 36..38]
        .chunks_exact(2)
        .map(<[_]>::to_vec)
    {
        let (one, two) = (frame[at[0].clone()].to_vec(), frame[at[1].clone()].to_vec());
        frame[at[0].clone()].copy_from_slice(&two);
        frame[at[1].clone()].copy_from_slice(&one);
    }
}

/// A sound segment.
fn segment(bytes: &mut Bytes<'_>) -> Vec<u8> {
    let port = u16::from(bytes.u8() % 3);
    let seq = Seq(bytes.near(u32::MAX - 20));
    let ack = Seq(bytes.near(9));
    let flags = Flags::from_bits_retain(bytes.u8()) | Flags::ACK;
    let timestamps = (bytes.u8() & 1 == 0).then_some(Timestamps { value: 1, echo: 2 });
    let len = usize::from(bytes.u8() % 64);
    made(port, seq, ack, flags, timestamps, len, bytes.u8() & 3)
}

fn made(
    src_port: u16,
    seq: Seq,
    ack: Seq,
    flags: Flags,
    timestamps: Option<Timestamps>,
    len: usize,
    tos: u8,
) -> Vec<u8> {
    let header = tcp::Header {
        src_port,
        dst_port: 80,
        seq,
        ack,
        flags,
        window: 9,
        urgent: 0,
        options: Options {
            timestamps,
            ..Options::default()
        },
    };
    let mut segment = vec![0; header.header_len()];
    header.emit(&mut segment);
    segment.resize(segment.len() + len, 7);
    let ip = ipv4::Header {
        tos,
        ..ipv4::Header::new(1.into(), 2.into(), tcp::PROTOCOL, segment.len() as u16)
    };
    let sum = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, ip.payload_len) + Sum::of(&segment);
    segment[16..18].copy_from_slice(&sum.finish().to_be_bytes());
    let mut frame = vec![2; 12];
    frame.extend([8, 0]);
    frame.resize(frame.len() + ipv4::HEADER_LEN, 0);
    ip.emit(&mut frame[14..]);
    frame.extend(segment);
    frame
}

/// Takes units, and looks at those that were made.
struct Checked;

impl Sink for Checked {
    fn unit(&mut self, unit: Unit<'_>) {
        if unit.segments == 0 {
            return;
        }
        let mut frame = unit.head.to_vec();
        for slice in unit.payload {
            frame.extend_from_slice(slice);
        }
        transmit::complete(&mut frame, &unit.vnet).expect("a place for the checksum");
        let ip_at = if frame[12] == 8 || frame[12] == 0x86 {
            14
        } else {
            18
        };
        let packet = &frame[ip_at..];
        if packet[0] >> 4 == 4 {
            assert!(ipv4::verify(packet));
            let (_, _, payload) = ipv4::Header::parse(packet).expect("a packet");
            Segment::parse(payload).expect("a segment");
        }
        if unit.segments > 1 {
            assert!(unit.vnet.gso.is_tcp() && unit.vnet.gso_size > 0);
        }
    }
}
