//! Transfers and datagrams of which little is certain, to be run with many seeds.

use std::cell::RefCell;
use std::net::Ipv6Addr;
use std::rc::Rc;

use millrace_shard::{Ipv6, Options, Via};
use millrace_tcp::{Duration, Ecn, Settings};

use crate::correspondent::{Book, Correspondent};
use crate::goodput::ALGORITHMS;
use crate::host::Tuning;
use crate::link::Link;
use crate::network::Network;
use crate::nic::Nic;
use crate::program::{Client, Server};
use crate::rng::Rng;
use crate::talk::{Ending, Pace, Plan, Read};

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

/// Some connections between two hosts, of which nothing is certain but what `impair` has done to
/// the links, until all of them are done and nothing is left.
///
/// # Panics
/// When a program or a stack does what it must not.
pub fn transfer(network: &mut Network, impair: impl Fn(&mut Link, &mut Rng)) {
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
                routes: vec![Via {
                    prefix: Ipv6Addr::UNSPECIFIED,
                    prefix_len: 0,
                    gateway: Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 99),
                }],
                probes: 0,
            });
            config.buffers.receive_default = buffers[0];
            config.buffers.receive_max = buffers[1];
            config.buffers.send_default = buffers[0];
            config.buffers.send_max = buffers[1];
            config.tcp.timestamps = rng.chance(0.8);
            config.tcp.selective_ack = rng.chance(0.8);
            config.tcp.window_scaling = rng.chance(0.8);
            config.tcp.ecn = pick(&mut rng, &[Ecn::Off, Ecn::Accept, Ecn::Ask]);
            // One unlucky retransmission after the other, and the next one would be 120 s away.
            config.tcp.rto_max = Duration::from_secs(8);
        });
        let batch = Duration::from_micros(pick(&mut rng, &[0, 20, 500]));
        network.tune(
            host,
            Tuning {
                batch,
                transmit_room: pick(&mut rng, &[usize::MAX, 3, 1]),
                // One of two, without a number that others are drawn by.
                joins: delay.as_micros().is_multiple_of(2),
                late: Duration::ZERO,
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
    let options = Options {
        tcp: Settings {
            congestion: Some(pick(&mut rng, &ALGORITHMS).1),
            max_pacing_rate: pick(&mut rng, &[u64::MAX, u64::MAX, 1_000_000]),
            interactive: rng.chance(0.2),
            ..Settings::default()
        },
        ..Options::default()
    };
    network.run_program(hosts[1], Server::new(address, plan, connections));
    let client = Client::new(address, plan, connections, 2).options(options);
    network.run_program(hosts[0], client);
    network.run_until_done();
    network.settle();
}

/// Three hosts with two programs each that send datagrams to each other, to sockets connected to
/// somebody else and to a port that nobody has, until all of them are done and nothing is left.
/// Returns how many arrived.
///
/// # Panics
/// When a datagram arrives otherwise than it was sent, or vanishes uncounted.
pub fn datagrams(network: &mut Network, impair: impl Fn(&mut Link, &mut Rng)) -> u64 {
    const PORTS: [u16; 2] = [53, 54];
    let mut rng = network.rng().fork();
    let v6 = rng.chance(0.3);
    let mtu = pick(&mut rng, if v6 { &[1280, 1500] } else { &[576, 1500] });
    // Damage to two fragments may cancel out in the checksum of the datagram (RFC 1071): what may
    // be damaged goes in one packet.
    let in_fragments = rng.chance(0.5);
    let hosts: Vec<_> = (1..=3)
        .map(|number| {
            let mut link = Link {
                delay: Duration::from_micros(rng.between(10, 20_000)),
                spare_arp: true,
                ..Link::default()
            };
            impair(&mut link, &mut rng);
            if in_fragments {
                link.corrupt = 0.0;
            }
            network.add_host_with(Nic::Plain, link, |config| {
                config.mtu = mtu;
                config.ipv6 = v6.then(|| Ipv6 {
                    addresses: vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number), 64)],
                    routes: Vec::new(),
                    probes: 0,
                });
            })
        })
        .collect();
    let address = |network: &Network, host, port| match v6 {
        true => network.address_v6_of(host, port),
        false => network.address_of(host, port),
    };
    let ends = hosts
        .iter()
        .flat_map(|&host| PORTS.map(|port| (host, port)))
        .map(|(host, port)| (host, address(network, host, port)));
    let ends: Vec<_> = ends.collect();
    let book = Rc::new(RefCell::new(Book::default()));
    for &(host, local) in &ends {
        let others = ends.iter().filter(|(other, _)| *other != host);
        let mut others: Vec<_> = others.map(|&(_, end)| end).collect();
        let peer = pick(&mut rng, &others);
        let mut nobody = peer;
        nobody.set_port(9);
        others.push(nobody);
        let sizes = match in_fragments {
            true => vec![8, 100, 1_400, 1_473, 5_000, 20_000],
            false => vec![8, 100, 500],
        };
        let gap = Duration::from_micros(pick(&mut rng, &[100, 5_000, 100_000]));
        let what = (rng.between(1, 60), sizes, gap);
        let mut program = Correspondent::new(local, others, what, Rc::clone(&book));
        if rng.chance(0.3) {
            program = program.connected(peer);
        }
        if rng.chance(0.3) {
            program = program.lazy();
        }
        network.run_program(host, program);
    }
    network.run_until_done();
    network.settle();
    book.borrow().check(network)
}

/// 0.1 to 10 %.
pub fn low_probability(rng: &mut Rng) -> f64 {
    rng.between(1, 100) as f64 / 1000.0
}

/// Every mishap at once.
pub fn impair_in_every_way(link: &mut Link, rng: &mut Rng) {
    link.rate = rng.chance(0.5).then_some(20_000_000);
    link.queue_bytes = 60_000;
    link.mark_from = rng.chance(0.5).then_some(15_000);
    link.loss = low_probability(rng) / 2.0;
    link.burst_loss = low_probability(rng) / 50.0;
    link.reorder = low_probability(rng);
    link.duplicate = low_probability(rng);
    link.corrupt = low_probability(rng) / 2.0;
    link.jitter = Duration::from_micros(rng.below(5000));
}
