//! How fast transfers are, in virtual time: a stack that is correct may still stall, or be afraid
//! of every shadow.

mod common;

use common::for_seeds;
use millrace_shard::{Config, Options};
use millrace_sim::{Client, Link, Network, Nic, Plan, Received, Server, Sink, Source};
use millrace_tcp::{Duration, Ecn};

/// Sends this much from one host to another and returns the payload bits per second. The links are
/// alike.
fn measure(network: &mut Network, link: Link, bytes: u64, connections: usize) -> f64 {
    measure_with(network, link, bytes, connections, |_| {})
}

/// The same with hosts that are set up like this.
fn measure_with(
    network: &mut Network,
    link: Link,
    bytes: u64,
    connections: usize,
    adjust: impl Fn(&mut Config),
) -> f64 {
    let [client, server] =
        [(); 2].map(|()| network.add_host_with(Nic::Segment, link, |config| adjust(config)));
    let plan = Plan::exchange(bytes, 0);
    let address = network.address_of(server, 80);
    let start = network.now();
    network.run_program(server, Server::new(address, plan, connections));
    network.run_program(client, Client::new(address, plan, connections, connections));
    network.run_until_done();
    let seconds = (network.now() - start).as_micros() as f64 / 1e6;
    network.settle();
    (bytes * connections as u64 * 8) as f64 / seconds
}

/// 20 Mbit/s, 40 ms there and back, and a queue of as much.
fn broadband() -> Link {
    Link {
        rate: Some(20_000_000),
        delay: Duration::from_millis(20),
        queue_bytes: 100_000,
        spare_arp: true,
        ..Link::default()
    }
}

#[test]
fn t2_one_connection_fills_a_link() {
    for_seeds("t2_one_connection_fills_a_link", 1, |network| {
        let rate = measure(network, broadband(), 10_000_000, 1);
        assert!(rate > 17e6, "{:.1} of 20 Mbit/s", rate / 1e6);
    });
}

/// A gigabit over 100 ms: 12.5 MB are on the way. Buffers start at 64 KB and have to find out.
#[test]
fn t10_a_long_fat_path_is_filled() {
    let delay = Duration::from_millis(50);
    let there = Link {
        rate: Some(1_000_000_000),
        queue_bytes: 12_500_000,
        delay,
        spare_arp: true,
        ..Link::default()
    };
    let back = Link {
        delay,
        ..Link::default()
    };
    for_seeds("t10_a_long_fat_path_is_filled", 1, |network| {
        let client = network.add_host(Nic::Segment, there);
        let server = network.add_host(Nic::Segment, back);
        let address = network.address_of(server, 80);
        let received = Received::default();
        network.run_program(server, Sink::new(address, received.clone()));
        let source = Source::new(address, network.now(), Options::default());
        network.run_program(client, source);
        let sum = || received.borrow().values().sum::<u64>();
        network.run_for(Duration::from_millis(2_000));
        let before = sum();
        network.run_for(Duration::from_millis(500));
        let rate = (sum() - before) as f64 * 16.0;
        assert!(rate > 940e6, "{:.1} of 1000 Mbit/s", rate / 1e6);
    });
}

#[test]
fn t9_ten_connections_share_a_link() {
    for_seeds("t9_ten_connections_share_a_link", 2, |network| {
        let rate = measure(network, broadband(), 2_000_000, 10);
        assert!(rate > 17e6, "{:.1} of 20 Mbit/s", rate / 1e6);
    });
}

#[test]
fn a_long_fat_pipe_is_filled() {
    for_seeds("a_long_fat_pipe_is_filled", 1, |network| {
        let link = Link {
            rate: Some(1_000_000_000),
            delay: Duration::from_millis(10),
            queue_bytes: 3_000_000,
            spare_arp: true,
            ..Link::default()
        };
        // 2.5 MB are on the way: more than a buffer has at first.
        let rate = measure(network, link, 80_000_000, 1);
        assert!(rate > 600e6, "{:.1} of 1000 Mbit/s", rate / 1e6);
    });
}

#[test]
fn rfc3168_1_marks_take_the_place_of_losses() {
    for_seeds("rfc3168_1_marks_take_the_place_of_losses", 2, |network| {
        let link = Link {
            mark_from: Some(50_000),
            queue_bytes: 400_000,
            ..broadband()
        };
        let client = network.add_host_with(Nic::Segment, link, |config| {
            config.tcp.ecn = Ecn::Ask;
        });
        let server = network.add_host(Nic::Segment, link);
        let plan = Plan::exchange(10_000_000, 0);
        let address = network.address_of(server, 80);
        let start = network.now();
        network.run_program(server, Server::new(address, plan, 1));
        network.run_program(client, Client::new(address, plan, 1, 1));
        network.run_until_done();
        let seconds = (network.now() - start).as_micros() as f64 / 1e6;
        let counters = network.link_counters(client);
        assert!(counters.marked > 0 && counters.overflowed == 0);
        assert!(10_000_000.0 * 8.0 / seconds > 17e6, "{seconds:.1} s");
        network.settle();
    });
}

#[test]
fn random_loss_costs_what_it_must() {
    for_seeds("random_loss_costs_what_it_must", 3, |network| {
        // The square-root law allows about 1.22 * 1448 * 8 / (0.042 * sqrt(0.001)) = 10.6 Mbit/s
        // with one loss in a thousand.
        let rate = measure(
            network,
            Link {
                loss: 0.001,
                ..broadband()
            },
            10_000_000,
            1,
        );
        assert!(rate > 6e6, "{:.1} of 20 Mbit/s", rate / 1e6);
    });
}

#[test]
fn t8_reordering_is_not_loss() {
    for_seeds("t8_reordering_is_not_loss", 3, |network| {
        let reordering = Link {
            reorder: 0.02,
            reorder_delay: Duration::from_millis(5),
            ..broadband()
        };
        let rate = measure(network, reordering, 10_000_000, 1);
        assert!(rate > 10e6, "{:.1} of 20 Mbit/s", rate / 1e6);
    });
}

#[test]
fn t8_shaping_costs_no_more_with_rack_than_without() {
    for_seeds(
        "t8_shaping_costs_no_more_with_rack_than_without",
        3,
        |network| {
            // Slow, with a long queue; frames come in bunches, and some are overtaken.
            let shaped = Link {
                rate: Some(5_000_000),
                jitter: Duration::from_millis(15),
                reorder: 0.02,
                reorder_delay: Duration::from_millis(20),
                ..broadband()
            };
            let with = measure(network, shaped, 3_000_000, 1);
            let without = measure_with(network, shaped, 3_000_000, 1, |config| {
                config.tcp.selective_ack = false;
            });
            assert!(
                with > 0.95 * without && with > 4e6,
                "{:.2} of 5 Mbit/s, {:.2} without",
                with / 1e6,
                without / 1e6
            );
        },
    );
}

#[test]
fn t1_a_short_answer_takes_one_flight() {
    for_seeds("t1_a_short_answer_takes_one_flight", 5, |network| {
        let link = Link {
            delay: Duration::from_millis(50),
            ..Link::default()
        };
        let [client, server] = [(); 2].map(|()| network.add_host(Nic::Plain, link));
        let plan = Plan::requests(1, 100, 8192);
        let address = network.address_of(server, 80);
        let start = network.now();
        network.run_program(server, Server::new(address, plan, 1));
        network.run_program(client, Client::new(address, plan, 1, 1));
        network.run_until_done();
        // ARP, handshake, request and answer, and the client's FIN on its way: three and a half
        // round trips.
        let round_trips = (network.now() - start).as_micros() as f64 / 100_000.0;
        assert!(round_trips < 3.6, "{round_trips} round trips");
    });
}

#[test]
fn t3_a_delayed_ack_does_not_meet_nagle() {
    for_seeds("t3_a_delayed_ack_does_not_meet_nagle", 5, |network| {
        let link = Link {
            delay: Duration::from_micros(500),
            ..Link::default()
        };
        let [client, server] = [(); 2].map(|()| network.add_host(Nic::Plain, link));
        let plan = Plan::requests(100, 64, 64);
        let address = network.address_of(server, 80);
        let start = network.now();
        network.run_program(server, Server::new(address, plan, 1));
        network.run_program(client, Client::new(address, plan, 1, 1));
        network.run_until_done();
        let millis = (network.now() - start).as_millis();
        assert!(millis < 130, "100 round trips of 1 ms took {millis} ms");
    });
}
