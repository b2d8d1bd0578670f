//! No transfer stalls: each ends within four times of what a plain sender takes that does as
//! Linux's does.
//!
//! A script made from a seed loses flights, acknowledgements and single frames.
//! [`Script::reference`] adds up what each of these costs by the RFCs and Linux's constants.

mod common;

use common::for_seeds;
use millrace_sim::{Client, HostId, Link, Network, Nic, Plan, Rng, Server};
use millrace_tcp::Duration;

/// How much longer than the reference a transfer may take.
const FACTOR: u64 = 4;
/// Linux's shortest retransmission time-out (TCP_RTO_MIN) and longest delay of an acknowledgement
/// (TCP_DELACK_MIN), in microseconds.
const RTO_MIN: u64 = 200_000;
const DELAYED_ACK: u64 = 40_000;
/// Segments of the first flight (RFC 6928), and bytes of one.
const FIRST_FLIGHT: u64 = 10;
const MSS: u64 = 1460;
/// How often the script looks at the time, in microseconds.
const TICK: u64 = 500;

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// A time in which what a host sends is lost, in microseconds from the start.
#[derive(Clone, Copy, Debug)]
struct Outage {
    start: u64,
    end: u64,
    /// Whether it is the sender whose frames are lost.
    of_data: bool,
}

#[derive(Debug)]
struct Script {
    bytes: u64,
    /// There and back, in microseconds.
    rtt: u64,
    rate: u64,
    /// The receiver's buffer.
    buffer: u64,
    scaling: bool,
    sack: bool,
    timestamps: bool,
    /// How probably single frames of the sender are lost or overtaken once the connection is open.
    loss: f64,
    reorder: f64,
    outages: Vec<Outage>,
}

impl Script {
    fn new(rng: &mut Rng) -> Script {
        let rtt = 2 * rng.between(500, 40_000);
        let buffer = pick(rng, &[2048, 4096, 16 << 10, 128 << 10, 1 << 20]);
        let mut outages = Vec::new();
        // One round trip asks for the hardware address, one opens the connection, and then the
        // first flight leaves.
        let mut start = 2 * rtt - rtt / 4;
        for number in 0..rng.below(4) {
            if number > 0 || rng.chance(0.4) {
                start += rng.below(20 * rtt);
            }
            let end = start + rtt * rng.between(2, 12) / 10;
            outages.push(Outage {
                start,
                end,
                of_data: rng.chance(0.75),
            });
            start = end + rtt;
        }
        Script {
            bytes: pick(rng, &[7_300, 20_000, 100_000, 600_000]).min(30 * buffer),
            rtt,
            rate: rng.between(10_000_000, 200_000_000),
            buffer,
            scaling: rng.chance(0.5),
            sack: rng.chance(0.4),
            timestamps: rng.chance(0.4),
            loss: pick(rng, &[0.0, 0.0, 0.005, 0.02]),
            reorder: pick(rng, &[0.0, 0.0, 0.02]),
            outages,
        }
    }

    /// Bytes that the receiver lets be in flight: half of its buffer is for what the packets take
    /// beside them.
    fn window(&self) -> u64 {
        let most = if self.scaling { u64::MAX } else { 65_535 };
        (self.buffer / 2).min(most).max(MSS)
    }

    /// How long the reference takes, in microseconds; `lost` frames were lost beside those of
    /// outages.
    fn reference(&self, lost: u64) -> u64 {
        let window = self.window();
        let first = (FIRST_FLIGHT * MSS).min(window);
        // RFC 5681 3.1: the window doubles with each round trip, up to the receiver's.
        let (mut rounds, mut flight, mut left) = (0, first, self.bytes);
        while left > 0 {
            left = left.saturating_sub(flight);
            flight = (2 * flight).min(window);
            rounds += 1;
        }
        // Flights of a segment or two may wait for a delayed acknowledgement each.
        let round = self.rtt + if window < 4 * MSS { DELAYED_ACK } else { 0 };
        let sending = rounds * round + self.bytes * 8_000_000 / self.rate;
        let opening_and_closing = 3 * self.rtt + DELAYED_ACK;
        // RFC 6298 2: a variance of half a round trip to begin with, and never less than the
        // minimum.
        let rto = RTO_MIN.max(2 * self.rtt) + self.rtt;
        // From one segment up to the window again, in the time that a whole flight takes to be sent
        // once more.
        let again = round * (2 + u64::from((window / MSS).max(1).ilog2()));
        let outage = |outage: &Outage| 2 * (outage.end - outage.start) + rto + again;
        let outages: u64 = self.outages.iter().map(outage).sum();
        // A single one takes a round trip with three duplicates behind it, and a time-out without.
        sending + opening_and_closing + outages + lost * (rto + round)
    }
}

/// Runs a script; how long it took and how many frames were lost beside those of outages.
fn play(network: &mut Network, script: &Script) -> (u64, u64) {
    let link = Link {
        rate: Some(script.rate),
        delay: Duration::from_micros(script.rtt / 2),
        spare_arp: true,
        ..Link::default()
    };
    let sender = network.add_host(Nic::Segment, link);
    let receiver = network.add_host_with(Nic::Segment, link, |config| {
        config.buffers.receive_default = script.buffer as u32;
        config.buffers.receive_max = script.buffer as u32;
        config.tcp.window_scaling = script.scaling;
        config.tcp.selective_ack = script.sack;
        config.tcp.timestamps = script.timestamps;
    });
    let plan = Plan::exchange(script.bytes, 0);
    let address = network.address_of(receiver, 80);
    network.run_program(receiver, Server::new(address, plan, 1));
    network.run_program(sender, Client::new(address, plan, 1, 1));
    let start = network.now();
    let cut_by = |network: &Network, host: HostId| network.link_counters(host).lost;
    let (mut alone, mut seen) = (0, [0, 0]);
    while !network.is_done() {
        let now = (network.now() - start).as_micros();
        let is_cut = |of_data| {
            let mut outages = script.outages.iter();
            outages.any(|it| it.of_data == of_data && (it.start..it.end).contains(&now))
        };
        let is_open = now >= 2 * script.rtt - script.rtt / 4;
        let cuts = [is_cut(true), is_cut(false)];
        for (host, is_cut) in [sender, receiver].into_iter().zip(cuts) {
            network.link_mut(host).cut = is_cut;
        }
        let link = network.link_mut(sender);
        link.loss = if is_open { script.loss } else { 0.0 };
        link.reorder = if is_open { script.reorder } else { 0.0 };
        link.reorder_delay = Duration::from_micros(script.rtt / 2);
        network.run_for(Duration::from_micros(TICK));
        for ((host, is_cut), seen) in [sender, receiver].into_iter().zip(cuts).zip(&mut seen) {
            let lost = cut_by(network, host);
            alone += if is_cut { 0 } else { lost - *seen };
            *seen = lost;
        }
        assert!(now < 600_000_000, "it does not end: {script:?}");
    }
    let took = (network.now() - start).as_micros();
    network.settle();
    (took, alone)
}

#[test]
fn no_transfer_stalls() {
    for_seeds("no_transfer_stalls", 1_000, |network| {
        let script = Script::new(&mut network.rng().fork());
        let (took, lost) = play(network, &script);
        let reference = script.reference(lost);
        assert!(
            took <= FACTOR * reference,
            "{took} us, the reference takes {reference} us with {lost} lost: {script:?}"
        );
    });
}
