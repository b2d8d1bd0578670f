//! Receive offload by itself: what it costs for each segment, from memory to nowhere.
//!
//! ```text
//! cargo build --release -p millrace-offload --example segments
//! target/release/examples/segments bulk 1000000 64   # 1,460 bytes, 64 flows in turn
//! target/release/examples/segments known 1000000 64  # with checksums that are known
//! target/release/examples/segments message 1000000 on     # 64 bytes, pushed, one in a burst
//! target/release/examples/segments message 1000000 off    # likewise, with aggregation off
//! ```
//! For instructions per segment subtract the counts of two runs of different length.

use millrace_offload::{Config, Instant, Receive, Sink, Unit};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Seq};
use millrace_wire::vnet::{self, VnetHeader};

const TCP_AT: usize = 34;
const PAYLOAD_AT: usize = TCP_AT + tcp::HEADER_LEN;
/// Frames in a burst, and units handed on after it, as in `millrace nic`.
const BURST: usize = 32;
const UNITS: usize = 1;

/// Looks at units no more than a system call would be told.
#[derive(Default)]
struct Nowhere {
    units: u64,
    bytes: u64,
}

impl Sink for Nowhere {
    fn unit(&mut self, unit: Unit<'_>) {
        self.units += 1;
        let slices = unit.payload.iter().map(|slice| slice.len() as u64);
        self.bytes += unit.head.len() as u64 + slices.sum::<u64>();
    }
}

/// A sender: the headers of its segments, and the sum of all but the number.
struct Flow {
    head: [u8; PAYLOAD_AT],
    sum: Sum,
    next: u32,
}

fn flow(port: u16, flags: Flags, payload: &[u8]) -> Flow {
    let mut head = [2; PAYLOAD_AT];
    head[12..14].copy_from_slice(&[8, 0]);
    let ip = ipv4::Header::new(
        [10, 0, 0, 1].into(),
        [10, 0, 0, 2].into(),
        tcp::PROTOCOL,
        (tcp::HEADER_LEN + payload.len()) as u16,
    );
    ip.emit(&mut head[14..]);
    let header = tcp::Header {
        src_port: port,
        dst_port: 80,
        seq: Seq(0),
        ack: Seq(1),
        flags,
        window: 9,
        urgent: 0,
        options: tcp::Options::default(),
    };
    header.emit(&mut head[TCP_AT..]);
    let pseudo = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, ip.payload_len);
    Flow {
        sum: pseudo + Sum::of(&head[TCP_AT..]) + Sum::of(payload),
        head,
        next: 1,
    }
}

impl Flow {
    /// Headers into a buffer, in which the payload is already, as behind a device that writes to
    /// memory by itself.
    fn next_into(&mut self, buffer: &mut [u8], payload: &[u8]) -> usize {
        let seq = self.next.to_be_bytes();
        self.next = self.next.wrapping_add(payload.len() as u32);
        buffer[..PAYLOAD_AT].copy_from_slice(&self.head);
        buffer[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&seq);
        let sum = (self.sum + Sum::of(&seq)).finish();
        buffer[TCP_AT + 16..TCP_AT + 18].copy_from_slice(&sum.to_be_bytes());
        let (end, len) = (PAYLOAD_AT + payload.len(), payload.len());
        if buffer[PAYLOAD_AT] != payload[0] || buffer[end - 1] != payload[len - 1] {
            buffer[PAYLOAD_AT..end].copy_from_slice(payload);
        }
        end
    }
}

/// Takes a frame. By itself, as is the next one, so that callgrind can count what is done for it.
#[inline(never)]
fn offload_frame(
    receive: &mut Receive,
    len: usize,
    vnet: VnetHeader,
    now: Instant,
    sink: &mut Nowhere,
) {
    receive.frame(0, len, &[], vnet, now, sink);
}

#[inline(never)]
fn offload_burst(receive: &mut Receive, now: Instant, sink: &mut Nowhere) {
    receive.end_of_burst(false, now, sink);
    receive.serve(UNITS, sink);
}

fn main() {
    let mut words = std::env::args().skip(1);
    let usage = "segments bulk|known COUNT FLOWS, or segments message COUNT on|off";
    let mode = words.next().expect(usage);
    let count: usize = words
        .next()
        .and_then(|word| word.parse().ok())
        .expect(usage);
    let rest = words.next().expect(usage);
    let is_message = mode == "message";
    let flows: u16 = if is_message {
        1
    } else {
        rest.parse().expect(usage)
    };
    let mut receive = Receive::new(Config {
        aggregate: if rest == "off" { 0 } else { u16::MAX },
        hash_key: [3, 4],
        ..Config::default()
    });
    let (len, flags, burst) = match is_message {
        true => (64, Flags::ACK | Flags::PSH, 1),
        false => (1460, Flags::ACK, BURST),
    };
    let mut vnet = VnetHeader::default();
    if mode == "known" {
        vnet.flags = vnet::Flags::DATA_VALID;
    }
    let payload: Vec<u8> = (1..=len).map(|i| i as u8).collect();
    let mut flows: Vec<Flow> = (0..flows).map(|port| flow(port, flags, &payload)).collect();
    let mut sink = Nowhere::default();
    let mut now = Instant(0);
    for index in 0..count {
        let at = index % flows.len();
        let len = flows[at].next_into(receive.buffer(), &payload);
        offload_frame(&mut receive, len, vnet, now, &mut sink);
        if (index + 1).is_multiple_of(burst) {
            now = now.after(10_000);
            offload_burst(&mut receive, now, &mut sink);
        }
    }
    println!(
        "{count} segments with payload, {} units, {} bytes",
        sink.units, sink.bytes
    );
}
