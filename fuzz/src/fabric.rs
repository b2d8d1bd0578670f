//! A node of the fabric whose peer sends whatever it likes: valid frames with other fields, records
//! that break the protocol, and bytes that are no frames.

use millrace_fabric::ethernet::Node;
use millrace_fabric::ethernet::frame::{Header, Kind, write_record};
use millrace_fabric::{Channel, Head, Limits, Payload, PortName, Words};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::{self, Mac};

use crate::bytes::Bytes;

const VICTIM: usize = 0;
const PEER: usize = 1;
const FRIEND: usize = 2;

fn mac(host: usize) -> Mac {
    Mac([2, 0, 0, 0, 0, host as u8 + 1])
}

fn name(host: usize) -> PortName {
    PortName::new(host as u16, 1)
}

/// Has every frame arrive, for a while. Returns the last one from the peer to the victim.
fn exchange(nodes: &mut [Node], now: &mut Instant) -> Option<Vec<u8>> {
    let mut last = None;
    for _ in 0..16 {
        *now += Duration::from_micros(100);
        for from in 0..nodes.len() {
            let mut frames = Vec::new();
            nodes[from].transmit(*now, |frame| {
                frames.push(frame.to_vec());
                true
            });
            for frame in frames {
                for to in (0..nodes.len()).filter(|&to| to != from) {
                    nodes[to].input(&frame, *now);
                }
                if from == PEER && frame[..6] == mac(VICTIM).0 {
                    last = Some(frame);
                }
            }
        }
    }
    last
}

fn send(nodes: &mut [Node], from: usize, bytes: &[u8], now: Instant) {
    let payload = Payload::Inline(bytes);
    let sent = nodes[from].send(1, name(VICTIM), Channel::System, 0, payload, 1, now);
    sent.expect("room");
}

/// A record with fields of the input's choice.
fn record(bytes: &mut Bytes<'_>, records: &mut Vec<u8>) {
    let words = Words {
        kind: bytes.u8() % 9,
        channel_kind: bytes.u8() % 4,
        channel: u16::from(bytes.u8() % 20),
        ticket: bytes.near(0),
        value: bytes.near(0),
        offset: u64::from(bytes.u8()) << (bytes.u8() % 64),
    };
    let body = bytes.take(usize::from(bytes.0.first().copied().unwrap_or_default()));
    match Head::from_words(words) {
        Some(head) => write_record(head, body, records),
        None => records.extend_from_slice(body),
    }
}

/// A node whose port 1 is open, with few buffers.
fn node(host: usize) -> Node {
    let mut node = Node::new(host as u16, mac(host), 1500, [host as u8; 16]);
    let limits = Limits {
        system_buffers: 8,
        peers: 4,
        ..Limits::default()
    };
    assert!(node.open(1, limits));
    node
}

/// A frame of the input's choice: `last` with other bytes, or one with other fields than `model`.
fn frame(
    bytes: &mut Bytes<'_>,
    last: &[u8],
    link: ethernet::Header,
    model: Header,
    seq: &mut u32,
) -> Vec<u8> {
    let mut header = model;
    match bytes.u8() % 8 {
        0 => {
            let mut frame = last.to_vec();
            for (at, byte) in bytes.take(64).iter().enumerate() {
                frame[14 + at % (last.len() - 14)] ^= byte;
            }
            return frame;
        }
        1 => header.src_epoch = bytes.u64(),
        2 => header.dst_epoch = bytes.u64(),
        3 => (header.ack, header.sack) = (bytes.near(model.ack), bytes.u64()),
        4 => header.src.port = u16::from(bytes.u8()),
        _ => {}
    }
    let kinds = [
        Kind::Hello,
        Kind::Welcome,
        Kind::Confirm,
        Kind::Reset,
        Kind::Ack,
    ];
    let kind = kinds.get(usize::from(bytes.u8() % 16));
    header.kind = *kind.unwrap_or(&Kind::Data);
    header.window = u16::from(bytes.u8());
    header.seq = bytes.near(*seq);
    let mut records = Vec::new();
    if header.kind == Kind::Data {
        for _ in 0..=bytes.u8() % 3 {
            record(bytes, &mut records);
        }
        *seq = seq.wrapping_add(1);
    }
    let mut frame = Vec::new();
    header.emit(link, &records, &mut frame);
    frame
}

/// A session, frames of the input's, and then a message of somebody else's, which must arrive.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut now = Instant::from_micros(1);
    let mut nodes: Vec<Node> = (0..3).map(node).collect();
    send(&mut nodes, PEER, b"peer", now);
    send(&mut nodes, FRIEND, b"friend", now);
    let last = exchange(&mut nodes, &mut now).expect("they speak");
    let port = nodes[VICTIM].port(1).expect("open");
    let buffer = port.register(4096).expect("memory");
    port.post(Channel::Normal(0), buffer).expect("idle");
    let window = port.register(4096).expect("memory");
    port.offer(Channel::Open(0), window).expect("idle");
    let (link, rest) = ethernet::Header::parse(&last).expect("a frame");
    let (model, _) = Header::parse(rest).expect("of ours");
    let mut seq = 1;
    for _ in 0..32 {
        if bytes.is_empty() {
            break;
        }
        let frame = frame(&mut bytes, &last, link, model, &mut seq);
        nodes[VICTIM].input(&frame, now);
        now += Duration::from_micros(u64::from(bytes.u8()));
        nodes[VICTIM].transmit(now, |_| true);
    }
    let port = nodes[VICTIM].port(1).expect("open");
    while let Some(message) = port.poll_received() {
        let _ = port.message(&message).expect("its bytes are there");
        let _ = port.free(message.buffer);
    }
    send(&mut nodes, FRIEND, b"again", now);
    exchange(&mut nodes, &mut now);
    let port = nodes[VICTIM].port(1).expect("open");
    let mut arrived = false;
    while let Some(message) = port.poll_received() {
        let is_friend = message.from == name(FRIEND);
        arrived |= is_friend && port.message(&message) == Ok(&b"again"[..]);
    }
    assert!(arrived, "the other pair is unharmed");
}
