//! Acknowledging ahead of the host: a sender, a wire that loses and reorders, the card, and a host
//! that drops some of what it is given. The sender forgets what it was told has arrived; the host
//! must have all of it in the end.

use std::collections::{BTreeMap, VecDeque};

use millrace_offload::{ActiveAck, Config, HEAD_MAX, Instant};
use millrace_wire::tcp::{Flags, Segment, Seq, Timestamps};
use millrace_wire::vnet::VnetHeader;

use crate::model::Rng;
use crate::support::{Bench, Out, START, Spec};

const SCALE: u8 = 3;
const SIZE: u32 = 1000;
const PORT: u16 = 5000;

/// A frame as an [`Out`], for its looking into.
fn out(bytes: Vec<u8>) -> Out {
    Out {
        bytes,
        vnet: VnetHeader::default(),
        segments: 0,
    }
}

/// What an acknowledgement says: offset, right edge of the window as an offset, echo, and blocks.
#[derive(Clone, Debug)]
struct Told {
    ack: u32,
    edge: u32,
    echo: u32,
    blocks: Vec<(u32, u32)>,
}

fn told(segment: &Segment<'_>) -> Told {
    let offset = |seq: Seq| seq.0.wrapping_sub(START);
    let ack = offset(segment.ack);
    Told {
        ack,
        edge: ack + (u32::from(segment.window) << SCALE),
        echo: segment.options.timestamps.expect("timestamps").echo,
        blocks: segment
            .options
            .sack
            .iter()
            .map(|(start, end)| (offset(start), offset(end)))
            .collect(),
    }
}

struct Host {
    next: u32,
    ahead: BTreeMap<u32, u32>,
    read: u32,
    /// The right edge that it has advertised.
    edge: u32,
    buffer: u32,
    clock: u32,
    echo: u32,
}

impl Host {
    fn take(&mut self, out: &Out) {
        let (start, len) = out.range();
        let clock = out.segment().options.timestamps.expect("timestamps").value;
        let end = start + len;
        if start <= self.next {
            self.echo = clock;
        }
        // What is beyond the window is not taken.
        if end > self.read + self.buffer || end <= self.next {
            return;
        }
        let known = self.ahead.entry(start).or_insert(end);
        *known = end.max(*known);
        while let Some((&start, &end)) = self.ahead.first_key_value()
            && start <= self.next
        {
            self.next = self.next.max(end);
            self.ahead.remove(&start);
        }
    }

    fn acknowledge(&mut self) -> Spec {
        let window = (self.read + self.buffer - self.next) >> SCALE;
        self.edge = self.edge.max(self.next + (window << SCALE));
        self.clock += 1;
        Spec {
            reversed: true,
            seq: 900,
            ack: START.wrapping_add(self.next),
            window: window as u16,
            timestamps: Some(Timestamps {
                value: self.clock,
                echo: self.echo,
            }),
            ..Spec::bare(0, Flags::ACK)
        }
    }
}

struct World {
    rng: Rng,
    bench: Bench,
    host: Host,
    /// What is on the way, both ways.
    there: VecDeque<Spec>,
    back: VecDeque<Told>,
    /// Which bytes the card has seen.
    arrived: Vec<bool>,
    last_ahead: u64,
    aheads: u64,
}

impl World {
    fn new(seed: u64, buffers: usize) -> World {
        World::of(ActiveAck::All, seed, buffers)
    }

    /// The two have shaken hands.
    fn of(active_ack: ActiveAck, seed: u64, buffers: usize) -> World {
        let mut bench = Bench::new(Config {
            active_ack,
            flows: 4,
            buffers,
            ..Config::default()
        });
        let syn = |reversed| Spec {
            reversed,
            syn: Some(SCALE),
            ..Spec::bare(0, Flags::SYN)
        };
        bench.feed(&Spec {
            seq: START.wrapping_sub(1),
            ..syn(false)
        });
        let answer = Spec {
            seq: 899,
            ack: START,
            flags: Flags::SYN | Flags::ACK,
            window: 60_000,
            ..syn(true)
        };
        bench.outs.0.clear();
        let mut world = World {
            rng: Rng(seed),
            bench,
            host: Host {
                next: 0,
                ahead: BTreeMap::new(),
                read: 0,
                edge: 60_000,
                buffer: 60_000,
                clock: 0,
                echo: 0,
            },
            there: VecDeque::new(),
            back: VecDeque::new(),
            arrived: Vec::new(),
            last_ahead: 0,
            aheads: 0,
        };
        assert!(world.host_says(&answer));
        world
    }

    fn host_says(&mut self, spec: &Spec) -> bool {
        let mut frame = spec.build();
        let now = Instant(self.bench.now);
        let (receive, outs) = (&mut self.bench.receive, &mut self.bench.outs);
        if !receive.from_host(&mut frame, &VnetHeader::default(), now, outs) {
            return false;
        }
        let frame = out(frame);
        let segment = frame.segment();
        if !segment.flags.contains(Flags::SYN) {
            self.back.push_back(told(&segment));
        }
        true
    }

    /// The card's own acknowledgements: sound, no more than is here, within what the host has
    /// allowed, and not too many.
    fn ahead(&mut self) {
        let mut frame = [0; HEAD_MAX];
        let now = Instant(self.bench.now);
        while let Some(len) = self.bench.receive.acknowledgement(now, &mut frame) {
            let frame = out(frame[..len].to_vec());
            let segment = frame.segment();
            assert_eq!((segment.src_port, segment.dst_port), (80, PORT));
            assert_eq!((segment.seq, segment.flags), (Seq(900), Flags::ACK));
            assert!(segment.payload.is_empty());
            let told = told(&segment);
            assert!(told.edge <= self.host.edge, "{told:?}, {}", self.host.edge);
            assert!(self.arrived[..told.ack as usize].iter().all(|&here| here));
            for &(start, end) in &told.blocks {
                assert!(start > told.ack && end > start);
                let block = &self.arrived[start as usize..end as usize];
                assert!(block.iter().all(|&here| here), "{told:?}");
            }
            assert!(self.bench.now >= self.last_ahead + 20_000, "too many");
            self.last_ahead = self.bench.now;
            self.aheads += 1;
            self.back.push_back(told);
        }
    }

    /// For long nothing comes.
    fn idle(&mut self) {
        self.bench.end_of_burst();
        self.bench.now += 20_000_000;
        let now = Instant(self.bench.now);
        self.bench.receive.on_timer(now);
        self.bench.serve();
        self.ahead();
        let outs = &mut self.bench.outs;
        self.bench.receive.give_what_is_due(now, outs);
    }

    /// What came out reaches the host, but for some of it.
    fn give_host(&mut self, loss: u32) {
        for out in std::mem::take(&mut self.bench.outs.0) {
            if self.rng.below(100) < loss || out.segment().payload.is_empty() {
                continue;
            }
            self.host.take(&out);
            let answer = self.host.acknowledge();
            self.host_says(&answer);
        }
    }

    /// Some frames arrive, late or never.
    fn deliver(&mut self, rng: &mut Rng, loss: u32) {
        for _ in 0..rng.below(16) {
            let late = if rng.below(10) == 0 { 3 } else { 1 };
            let at = rng.below(late) as usize;
            let Some(spec) = self
                .there
                .remove(at.min(self.there.len().saturating_sub(1)))
            else {
                break;
            };
            if rng.below(100) < loss {
                continue;
            }
            let offset = spec.seq.wrapping_sub(START) as usize;
            self.arrived[offset..offset + spec.payload.len()].fill(true);
            self.bench.feed(&spec);
        }
    }

    /// The host gets some units, and now and then reads.
    fn serve_host(&mut self, rng: &mut Rng, drops: u32) {
        self.ahead();
        let units = rng.below(4) as usize;
        self.bench.receive.serve(units, &mut self.bench.outs);
        self.give_host(drops);
        if rng.below(4) == 0 && self.host.read < self.host.next {
            self.host.read = self.host.next;
            let update = self.host.acknowledge();
            self.host_says(&update);
        }
    }

    /// The sender has forgotten everything. The host gets it, and no buffer is left over.
    fn let_host_finish(&mut self, seed: u64, total: u32, drops: u32, buffers: usize) {
        for _ in 0..2_000 {
            if self.host.next == total {
                break;
            }
            self.idle();
            self.give_host(drops);
            self.host.read = self.host.next;
            let update = self.host.acknowledge();
            self.host_says(&update);
            self.back.clear();
        }
        assert_eq!(self.host.next, total, "seed {seed}: all of it");
        // What came again may be held still.
        self.idle();
        self.give_host(0);
        let last = self.host.acknowledge();
        self.host_says(&last);
        assert_eq!(self.bench.receive.free_buffers(), buffers, "seed {seed}");
    }
}

fn run(seed: u64) -> u64 {
    let mut rng = Rng(seed ^ 0x5eed);
    let total = 50_000 + rng.below(250_000);
    let loss = [0, 2, 10][rng.below(3) as usize];
    let drops = [0, 3][rng.below(2) as usize];
    let buffers = [16, 64, 512][rng.below(3) as usize];
    let mut world = World::new(seed, buffers);
    world.arrived = vec![false; total as usize];
    let (mut una, mut next, mut edge) = (0, 0, 60_000u32);
    let mut progress = world.bench.now;
    let mut clock = 100;
    for step in 0u64.. {
        assert!(step < 400_000, "seed {seed}: stuck at {una} of {total}");
        if una == total {
            break;
        }
        clock += 1;
        let segment = |offset: u32| Spec {
            port: PORT,
            ack: 900,
            timestamps: Some(Timestamps {
                value: clock,
                echo: 0,
            }),
            ..Spec::data(offset, SIZE.min(total - offset))
        };
        if world.bench.now > progress + 30_000_000 {
            // Everything that was not acknowledged, once more; and one byte of what the window does
            // not allow.
            progress = world.bench.now;
            next = una;
            if edge <= una {
                world.there.push_back(Spec {
                    payload: segment(una).payload[..1].to_vec(),
                    ..segment(una)
                });
            }
        }
        for _ in 0..rng.below(12) {
            let len = SIZE.min(total - next);
            if len > 0 && next + len <= edge && next + len <= una + 100_000 {
                world.there.push_back(segment(next));
                next += len;
            }
        }
        world.deliver(&mut rng, loss);
        if rng.below(3) > 0 {
            world.bench.end_of_burst();
        }
        world.serve_host(&mut rng, drops);
        world.ahead();
        world.bench.now += 1000 * u64::from(1 + rng.below(200));
        let now = Instant(world.bench.now);
        world.bench.receive.on_timer(now);
        let outs = &mut world.bench.outs;
        world.bench.receive.give_what_is_due(now, outs);
        while let Some(told) = world.back.pop_front() {
            assert!(
                told.echo <= clock,
                "seed {seed}: an echo of what was not said"
            );
            if rng.below(100) < loss {
                continue;
            }
            if told.ack > una {
                una = told.ack;
                next = next.max(una);
                progress = world.bench.now;
            }
            if told.ack == una {
                edge = told.edge;
            }
        }
    }
    world.let_host_finish(seed, total, drops, buffers);
    world.aheads
}

#[test]
fn nothing_that_was_acknowledged_is_lost() {
    let seeds: u64 = std::env::var("MILLRACE_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(150);
    let aheads: u64 = (0..seeds).map(run).sum();
    assert!(
        aheads > 10 * seeds,
        "{aheads} acknowledgements in {seeds} runs"
    );
}

#[test]
fn only_flows_that_are_named_are_acknowledged() {
    for (named, acknowledged) in [(":80", true), ("10.0.0.2", true), (":81", false)] {
        let flows = named.parse().expect("flows");
        let mut world = World::of(ActiveAck::Only(vec![flows]), 1, 64);
        for i in 0..20 {
            world.bench.feed(&Spec::data(i * SIZE, SIZE));
        }
        world.bench.end_of_burst();
        let mut frame = [0; HEAD_MAX];
        let told = (world.bench.receive).acknowledgement(Instant(world.bench.now), &mut frame);
        assert_eq!(told.is_some(), acknowledged, "{named}");
    }
}

#[test]
fn a_handshake_that_was_not_seen_or_asks_for_more_is_left_alone() {
    for flags in [Flags::ACK, Flags::ACK | Flags::ECE] {
        let mut bench = Bench::new(Config {
            active_ack: ActiveAck::All,
            ..Config::default()
        });
        if flags.contains(Flags::ECE) {
            bench.feed(&Spec {
                seq: START.wrapping_sub(1),
                syn: Some(SCALE),
                ..Spec::bare(0, Flags::SYN | Flags::ECE | Flags::CWR)
            });
            let mut answer = Spec {
                reversed: true,
                syn: Some(SCALE),
                seq: 899,
                ack: START,
                ..Spec::bare(0, Flags::SYN | flags)
            }
            .build();
            let now = Instant(bench.now);
            let vnet = VnetHeader::default();
            assert!(
                bench
                    .receive
                    .from_host(&mut answer, &vnet, now, &mut bench.outs)
            );
        }
        for i in 0..20 {
            bench.feed(&Spec::data(i * SIZE, SIZE));
        }
        bench.end_of_burst();
        let mut frame = [0; HEAD_MAX];
        let now = Instant(bench.now);
        assert_eq!(bench.receive.acknowledgement(now, &mut frame), None);
    }
}
