//! Transfers both ways, byte for byte, under each mishap alone and all at once.

mod common;

use std::net::Ipv6Addr;

use common::for_seeds;
use millrace_shard::Ipv6;
use millrace_sim::{Client, Ending, Link, Network, Nic, Pace, Plan, Read, Rng, Server, Tuning};
use millrace_tcp::Duration;

/// How many seeds each mishap is tried with.
const SEEDS: u64 = 100;

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

fn pace(rng: &mut Rng) -> Pace {
    Pace {
        chunk: pick(rng, &[100, 1460, 5000, 100_000]),
        read: pick(rng, &[Read::Call, Read::Ring]),
        stall_every: pick(rng, &[u64::MAX, u64::MAX, 20_000]),
        stall: Duration::from_millis(rng.below(300)),
    }
}

fn plan(rng: &mut Rng) -> Plan {
    Plan {
        client_bytes: pick(rng, &[0, 1, 1000, 20_000, 100_000, 400_000]),
        server_bytes: pick(rng, &[0, 1, 1000, 20_000, 100_000, 400_000]),
        turns: None,
        ending: pick(
            rng,
            &[
                Ending::HalfClose,
                Ending::ClientCloses,
                Ending::ServerCloses,
                Ending::BothClose,
            ],
        ),
        client_pace: pace(rng),
        server_pace: pace(rng),
    }
}

/// Some connections between two hosts of which nothing is certain but what `impair` has done to the links.
fn transfer(network: &mut Network, impair: impl Fn(&mut Link, &mut Rng)) {
    let mut rng = network.rng().fork();
    let v6 = rng.chance(0.3);
    let mtu = if v6 {
        pick(&mut rng, &[1500, 1500, 1280, 9000])
    } else {
        pick(&mut rng, &[1500, 1500, 576, 9000])
    };
    let mut number = 0;
    let interfaces = [Nic::Plain, Nic::Checksum, Nic::Segment, Nic::HandOver];
    let hosts = [(); 2].map(|()| {
        let delay = Duration::from_micros(rng.between(10, 20_000));
        let mut link = Link {
            delay,
            spare_arp: true,
            ..Link::default()
        };
        impair(&mut link, &mut rng);
        let buffers = [
            pick(&mut rng, &[4096, 16 << 10, 64 << 10]),
            pick(&mut rng, &[64 << 10, 256 << 10, 6 << 20]),
        ];
        let host = network.add_host_with(pick(&mut rng, &interfaces), link, |config| {
            config.mtu = mtu;
            number += 1;
            config.ipv6 = v6.then(|| Ipv6 {
                addresses: vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number), 64)],
                gateway: Some(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 99)),
                probes: 0,
            });
            config.buffers.receive_default = buffers[0];
            config.buffers.receive_max = buffers[1];
            config.buffers.send_default = buffers[0];
            config.buffers.send_max = buffers[1];
            config.tcp.timestamps = rng.chance(0.8);
            config.tcp.selective_ack = rng.chance(0.8);
            config.tcp.window_scaling = rng.chance(0.8);
            // One unlucky retransmission after the other, and the next one would be 120 s away.
            config.tcp.rto_max = Duration::from_secs(8);
        });
        let batch = Duration::from_micros(pick(&mut rng, &[0, 20, 500]));
        network.tune(
            host,
            Tuning {
                batch,
                transmit_room: pick(&mut rng, &[usize::MAX, 3, 1]),
            },
        );
        host
    });
    let plan = plan(&mut rng);
    let connections = rng.between(1, 4) as usize;
    let address = match v6 {
        true => network.address_v6_of(hosts[1], 80),
        false => network.address_of(hosts[1], 80),
    };
    network.run_program(hosts[1], Server::new(address, plan, connections));
    network.run_program(hosts[0], Client::new(address, plan, connections, 2));
    network.run_until_done();
    network.settle();
}

/// 0.1 to 10 %.
fn low_probability(rng: &mut Rng) -> f64 {
    rng.between(1, 100) as f64 / 1000.0
}

#[test]
fn over_a_clean_link() {
    for_seeds("over_a_clean_link", SEEDS, |network| {
        transfer(network, |_, _| {});
    });
}

#[test]
fn over_a_bottleneck() {
    for_seeds("over_a_bottleneck", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.rate = Some(rng.between(1_000_000, 100_000_000));
            link.queue_bytes = rng.between(10_000, 200_000);
        });
    });
}

#[test]
fn with_loss() {
    for_seeds("with_loss", SEEDS, |network| {
        transfer(network, |link, rng| link.loss = low_probability(rng));
    });
}

#[test]
fn with_heavy_loss() {
    for_seeds("with_heavy_loss", SEEDS, |network| {
        transfer(network, |link, _| link.loss = 0.15);
    });
}

#[test]
fn with_loss_in_bursts() {
    for_seeds("with_loss_in_bursts", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.burst_loss = low_probability(rng) / 10.0;
            link.burst = Duration::from_millis(rng.between(1, 400));
        });
    });
}

#[test]
fn with_reordering() {
    for_seeds("with_reordering", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.reorder = low_probability(rng) * 3.0;
            link.reorder_delay = Duration::from_micros(rng.between(100, 50_000));
        });
    });
}

#[test]
fn with_jitter() {
    for_seeds("with_jitter", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.jitter = Duration::from_micros(rng.between(100, 100_000));
        });
    });
}

#[test]
fn with_duplication() {
    for_seeds("with_duplication", SEEDS, |network| {
        transfer(network, |link, rng| {
            link.duplicate = low_probability(rng) * 5.0;
            link.reorder_delay = Duration::from_micros(rng.between(100, 500_000));
        });
    });
}

#[test]
fn c2_with_corruption() {
    for_seeds("c2_with_corruption", SEEDS, |network| {
        transfer(network, |link, rng| link.corrupt = low_probability(rng));
    });
}

#[test]
fn with_everything() {
    for_seeds("with_everything", 3 * SEEDS, |network| {
        transfer(network, |link, rng| {
            link.rate = rng.chance(0.5).then_some(20_000_000);
            link.queue_bytes = 60_000;
            link.loss = low_probability(rng) / 2.0;
            link.burst_loss = low_probability(rng) / 50.0;
            link.reorder = low_probability(rng);
            link.duplicate = low_probability(rng);
            link.corrupt = low_probability(rng) / 2.0;
            link.jitter = Duration::from_micros(rng.below(5000));
        });
    });
}
