//! Any traffic, from seeds, beside a plain reassembler that sees the same frames: what it has of
//! the stream after some frames the host must have, too, and nothing else.

use millrace_offload::Config;
use millrace_wire::tcp::{Flags, Timestamps};

use crate::support::{Bench, Out, START, Spec, byte_at};

const STREAM: u32 = 200_000;
const FLOWS: u16 = 3;

/// Which bytes of each stream arrived.
#[derive(Clone)]
struct Reassembler(Vec<Vec<bool>>);

impl Reassembler {
    fn new() -> Reassembler {
        Reassembler(vec![vec![false; STREAM as usize]; usize::from(FLOWS)])
    }

    fn take(&mut self, flow: u16, offset: u32, payload: &[u8]) {
        for (index, &byte) in payload.iter().enumerate() {
            let at = offset + index as u32;
            assert_eq!(byte, byte_at(at), "the byte at {at}");
            self.0[usize::from(flow)][at as usize] = true;
        }
    }

    fn take_out(&mut self, out: &Out) {
        let segment = out.segment();
        let offset = segment.seq.0.wrapping_sub(START);
        self.take(segment.src_port, offset, segment.payload);
    }
}

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((value ^ (value >> 31)) % u64::from(end)) as u32
    }
}

/// A segment of the flow somewhere around `at`.
fn some_segment(rng: &mut Rng, flow: u16, at: &mut u32, clock: u32) -> Spec {
    let most = if rng.below(4) == 0 { 20 } else { 1448 };
    let len = 1 + rng.below(most);
    let offset = match rng.below(20) {
        0 => at.saturating_sub(rng.below(4000)),
        1 => *at + rng.below(4000),
        _ => *at,
    };
    let len = len.min(STREAM - offset.min(STREAM - 1));
    let offset = offset.min(STREAM - len);
    if offset <= *at {
        *at = (*at).max(offset + len);
    }
    let mut spec = Spec {
        port: flow,
        v6: flow == 1,
        vlan: (flow == 2).then_some(5),
        timestamps: Some(Timestamps {
            value: clock,
            echo: 1,
        }),
        tos: if rng.below(50) == 0 { 3 } else { 2 },
        ..Spec::data(offset, len)
    };
    if rng.below(30) == 0 {
        spec.flags |= Flags::PSH;
    }
    spec
}

/// Feeds a frame that is not held: when it comes out, so has all of its flow that came before it.
fn feed_marker(bench: &mut Bench, host: &mut Reassembler, spec: &Spec, window: u16) {
    bench.feed(&Spec {
        payload: Vec::new(),
        window,
        flags: Flags::ACK,
        ..spec.clone()
    });
    // Others' turns come later.
    let outs = std::mem::take(&mut bench.outs.0);
    let last = outs.last().expect("the marker");
    assert_eq!(last.segment().window, window);
    for out in &outs {
        host.take_out(out);
    }
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let mut bench = Bench::new(Config {
        aggregate: [u16::MAX, 9000, 1500][rng.below(3) as usize],
        flows: 1 + rng.below(4) as usize,
        buffers: [4, 64, 512][rng.below(3) as usize],
        finish_checksums: rng.below(2) == 0,
        ..Config::default()
    });
    let mut model = Reassembler::new();
    let mut host = Reassembler::new();
    let mut at = [0; FLOWS as usize];
    // Some segments wait here, and so come late.
    let mut delayed: Vec<Spec> = Vec::new();
    let mut markers = 0;
    for step in 0..600 {
        let flow = rng.below(FLOWS.into()) as u16;
        let mut spec = some_segment(&mut rng, flow, &mut at[usize::from(flow)], step);
        match rng.below(20) {
            0 => {
                delayed.push(spec);
                continue;
            }
            // Lost.
            1 => continue,
            2 if !delayed.is_empty() => {
                let late = delayed.swap_remove(rng.below(delayed.len() as u32) as usize);
                spec = late;
            }
            3 => {
                let mut frame = spec.build();
                let tcp_at = frame.len() - spec.payload.len();
                frame[tcp_at] ^= 1 + rng.below(255) as u8;
                bench.bytes(&frame);
                continue;
            }
            _ => {}
        }
        let flow = spec.port;
        let offset = spec.seq.wrapping_sub(START);
        bench.feed(&spec);
        model.take(flow, offset, &spec.payload);
        if rng.below(25) == 0 {
            markers += 1;
            feed_marker(&mut bench, &mut host, &spec, 10_000 + markers);
            assert_eq!(
                host.0[usize::from(flow)],
                model.0[usize::from(flow)],
                "seed {seed}"
            );
        }
        if rng.below(10) == 0 {
            let units = rng.below(3) as usize;
            bench.receive.serve(units, &mut bench.outs);
        }
        if rng.below(6) == 0 {
            bench.end_of_burst();
            bench.pass([100, 2_000, 200_000][rng.below(3) as usize]);
        }
    }
    bench.end_of_burst();
    bench.pass(10_000_000);
    for out in bench.taken() {
        host.take_out(&out);
    }
    assert!(host.0 == model.0, "seed {seed}: what came in came out");
    assert_eq!(
        bench.receive.deadline(),
        None,
        "seed {seed}: nothing is held"
    );
    let counters = bench.receive.counters();
    assert!(counters.units <= counters.segments);
}

#[test]
fn any_traffic_leaves_the_host_with_what_arrived() {
    let seeds: u64 = std::env::var("MILLRACE_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(300);
    for seed in 0..seeds {
        run(seed);
    }
}
