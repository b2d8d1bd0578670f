//! How connections begin, wait and end, and that nothing is left of them.

mod common;

use common::for_seeds;
use millrace_shard::{Options, Owner, SocketId, errno};
use millrace_sim::{
    Client, Context, Ending, HostId, Link, Network, Nic, Pace, Peer, Plan, Program, Server,
};
use millrace_tcp::Duration;

const LOSSY: f64 = 0.05;

/// Two hosts some milliseconds from each other, with this probability of loss each way.
fn two_hosts(network: &mut Network, loss: f64) -> [HostId; 2] {
    let mut rng = network.rng().fork();
    [(); 2].map(|()| {
        let delay = Duration::from_micros(rng.between(50, 10_000));
        network.add_host(
            Nic::Segment,
            Link {
                loss,
                delay,
                spare_arp: true,
                ..Link::default()
            },
        )
    })
}

/// `connections` conversations, `parallel` at a time, to the end of all timers.
fn converse(
    network: &mut Network,
    [client, server]: [HostId; 2],
    plan: Plan,
    connections: usize,
    parallel: usize,
) {
    let address = network.address_of(server, 80);
    network.run_program(server, Server::new(address, plan, connections));
    network.run_program(client, Client::new(address, plan, connections, parallel));
    network.run_until_done();
    network.settle();
}

#[test]
fn half_close_leaves_the_other_half_open() {
    for_seeds("half_close_leaves_the_other_half_open", 40, |network| {
        let hosts = two_hosts(network, LOSSY);
        // The client has said all long before the server, which is slow to read as well.
        let server_pace = Pace {
            chunk: 2000,
            stall_every: 10_000,
            stall: Duration::from_millis(500),
            ..Pace::default()
        };
        converse(
            network,
            hosts,
            Plan {
                server_pace,
                ..Plan::exchange(100, 200_000)
            },
            2,
            2,
        );
        converse_again(network, hosts);
    });
}

/// A second round on the same hosts, on another port: what the first left behind does not disturb.
fn converse_again(network: &mut Network, [client, server]: [HostId; 2]) {
    let plan = Plan::requests(3, 100, 5000);
    let address = network.address_of(server, 81);
    network.run_program(server, Server::new(address, plan, 1));
    network.run_program(client, Client::new(address, plan, 1, 1));
    network.run_until_done();
    network.settle();
}

#[test]
fn i5_every_way_of_closing() {
    for ending in [
        Ending::HalfClose,
        Ending::ClientCloses,
        Ending::ServerCloses,
        Ending::BothClose,
    ] {
        for_seeds("i5_every_way_of_closing", 25, |network| {
            let hosts = two_hosts(network, LOSSY);
            converse(
                network,
                hosts,
                Plan {
                    ending,
                    ..Plan::exchange(3000, 3000)
                },
                10,
                3,
            );
        });
    }
}

#[test]
fn an_abort_is_a_reset_to_the_peer() {
    for_seeds("an_abort_is_a_reset_to_the_peer", 25, |network| {
        let hosts = two_hosts(network, 0.0);
        converse(
            network,
            hosts,
            Plan {
                ending: Ending::ClientAborts,
                ..Plan::exchange(3000, 3000)
            },
            10,
            3,
        );
        assert_eq!(network.stack(hosts[1]).counters().resets_in, 10);
    });
}

#[test]
fn simultaneous_open() {
    for_seeds("simultaneous_open", 60, |network| {
        let [one, two] = two_hosts(network, 0.0);
        let loss = if network.rng().chance(0.5) {
            LOSSY
        } else {
            0.0
        };
        (network.link_mut(one).loss, network.link_mut(two).loss) = (loss, loss);
        // Both know each other's hardware address, so that SYNs are not held up for it.
        let echo = Plan::requests(1, 1, 1);
        let address = network.address_of(two, 9);
        network.run_program(two, Server::new(address, echo, 1));
        network.run_program(one, Client::new(address, echo, 1, 1));
        network.run_until_done();

        let ends = [network.address_of(one, 700), network.address_of(two, 800)];
        let plan = Plan {
            ending: Ending::BothClose,
            ..Plan::exchange(20_000, 20_000)
        };
        network.run_program(
            one,
            Peer::new(ends[0], ends[1], plan, Duration::from_millis(5)),
        );
        network.run_program(
            two,
            Peer::new(ends[1], ends[0], plan, Duration::from_millis(5)),
        );
        network.run_until_done();
        network.settle();
    });
}

#[test]
fn a_partition_heals() {
    for_seeds("a_partition_heals", 40, |network| {
        let hosts = two_hosts(network, 0.0);
        let plan = Plan::exchange(300_000, 300_000);
        let address = network.address_of(hosts[1], 80);
        network.link_mut(hosts[0]).rate = Some(2_000_000);
        network.link_mut(hosts[1]).rate = Some(2_000_000);
        network.run_program(hosts[1], Server::new(address, plan, 3));
        network.run_program(hosts[0], Client::new(address, plan, 3, 3));
        for _ in 0..3 {
            let before = network.rng().between(200_000, 1_200_000);
            network.run_for(Duration::from_micros(before));
            let cut = network.rng().chance(0.5);
            network.link_mut(hosts[0]).cut = true;
            network.link_mut(hosts[1]).cut = cut;
            // All in all shorter than a stack keeps trying for a program that has closed.
            let length = network.rng().between(1, 12);
            network.run_for(Duration::from_secs(length));
            network.link_mut(hosts[0]).cut = false;
            network.link_mut(hosts[1]).cut = false;
        }
        network.run_until_done();
        network.settle();
    });
}

#[test]
fn e4_a_reader_that_sleeps() {
    for_seeds("e4_a_reader_that_sleeps", 30, |network| {
        let hosts = two_hosts(network, LOSSY);
        let stall = Duration::from_secs(network.rng().between(1, 300));
        let server_pace = Pace {
            chunk: 10_000,
            stall_every: 150_000,
            stall,
            ..Pace::default()
        };
        // The sender's program stays: a connection that nobody holds gives up sooner, as on Linux.
        let ending = Ending::ServerCloses;
        converse(
            network,
            hosts,
            Plan {
                server_pace,
                ending,
                ..Plan::exchange(600_000, 0)
            },
            1,
            1,
        );
    });
}

#[test]
fn e5_a_reader_of_single_bytes() {
    for_seeds("e5_a_reader_of_single_bytes", 10, |network| {
        let hosts = two_hosts(network, 0.0);
        let server_pace = Pace {
            chunk: 1,
            stall_every: 100,
            stall: Duration::from_millis(1),
            ..Pace::default()
        };
        converse(
            network,
            hosts,
            Plan {
                server_pace,
                ..Plan::exchange(100_000, 0)
            },
            1,
            1,
        );
        // No silly windows (RFC 9293 3.8.6.2): what was sent went in segments of a decent size.
        let segments = network.stack(hosts[0]).counters().segments_out;
        assert!(segments < 400, "{segments} segments for 100,000 bytes");
    });
}

#[test]
fn requests_and_answers() {
    for_seeds("requests_and_answers", 40, |network| {
        let hosts = two_hosts(network, LOSSY);
        let request = network.rng().between(1, 3000);
        let answer = network.rng().between(1, 20_000);
        converse(network, hosts, Plan::requests(30, request, answer), 6, 3);
    });
}

#[test]
fn e7_many_short_connections() {
    for_seeds("e7_many_short_connections", 3, |network| {
        let hosts = two_hosts(network, 0.01);
        converse(network, hosts, Plan::requests(1, 64, 64), 3000, 100);
        let counters = network.stack(hosts[1]).counters();
        assert_eq!(counters.passive_opens, 3000, "{counters:?}");
    });
}

#[test]
fn e3_a_full_accept_queue_recovers() {
    for_seeds("e3_a_full_accept_queue_recovers", 20, |network| {
        let hosts = two_hosts(network, 0.0);
        let plan = Plan::requests(1, 64, 64);
        let address = network.address_of(hosts[1], 80);
        network.run_program(hosts[1], Server::new(address, plan, 100).backlog(2));
        network.run_program(hosts[0], Client::new(address, plan, 100, 10));
        network.run_until_done();
        network.settle();
    });
}

#[test]
fn g3_a_smaller_path_is_found() {
    for_seeds("g3_a_smaller_path_is_found", 30, |network| {
        let hosts = two_hosts(network, 0.02);
        let client_mtu = network.rng().between(576, 1500) as u16;
        let server_mtu = network.rng().between(576, 1500) as u16;
        network.link_mut(hosts[0]).path_mtu = Some(client_mtu);
        network.link_mut(hosts[1]).path_mtu = Some(server_mtu);
        converse(network, hosts, Plan::exchange(200_000, 200_000), 3, 2);
        let errors = network.stack(hosts[0]).counters().icmp_errors_in;
        assert_eq!(
            errors > 0,
            client_mtu < 1500,
            "{errors} reports at a path MTU of {client_mtu}"
        );
    });
}

#[test]
fn within_one_host() {
    for_seeds("within_one_host", 20, |network| {
        let host =
            network.add_host_with(Nic::Plain, Link::default(), |config| config.loopback = true);
        let own = network.address_of(host, 80);
        let loopback = std::net::SocketAddr::new(std::net::Ipv4Addr::LOCALHOST.into(), 80);
        for address in [own, loopback] {
            let plan = Plan {
                ending: Ending::BothClose,
                ..Plan::exchange(300_000, 100_000)
            };
            network.run_program(host, Server::new(address, plan, 5));
            network.run_program(host, Client::new(address, plan, 5, 2));
        }
        network.run_until_done();
        assert_eq!(
            network.link_counters(host).frames,
            0,
            "nothing leaves the host"
        );
        network.settle();
    });
}

#[test]
fn several_hosts_at_once() {
    for_seeds("several_hosts_at_once", 20, |network| {
        let hosts: Vec<_> = (0..5).flat_map(|_| two_hosts(network, 0.02)).collect();
        for (index, &server) in hosts.iter().enumerate() {
            let address = network.address_of(server, 80);
            let plan = Plan::exchange(10_000, 30_000);
            network.run_program(server, Server::new(address, plan, 6));
            for other in [1, 3] {
                network.run_program(
                    hosts[(index + other) % hosts.len()],
                    Client::new(address, plan, 3, 2),
                );
            }
        }
        network.run_until_done();
        network.settle();
    });
}

/// Connects, and wants to fail with this error.
struct Failing {
    remote: std::net::SocketAddr,
    error: i32,
    write: bool,
    id: Option<SocketId>,
    failed: bool,
}

impl Program for Failing {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        let view = context.stack.view(id).expect("it is open");
        if self.write && view.queued == 0 && view.state == Some(millrace_tcp::State::Established) {
            context
                .stack
                .send(id, b"to nobody", true)
                .expect("there is room");
        }
        if view.error != 0 {
            assert_eq!(view.error, self.error);
            assert!(
                view.poll()
                    .contains(millrace_shard::Poll::ERR | millrace_shard::Poll::HUP)
            );
            context.stack.close(id, context.now).expect("it is open");
            self.failed = true;
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        let id = context
            .stack
            .connect(
                Owner(0),
                None,
                self.remote,
                &Options::default(),
                context.now,
            )
            .expect("begun");
        context.adopt(id);
        self.id = Some(id);
    }

    fn progress(&self) -> u64 {
        u64::from(self.failed)
    }

    fn is_done(&self) -> bool {
        self.failed
    }
}

#[test]
fn connects_that_fail_say_why() {
    for_seeds("connects_that_fail_say_why", 10, |network| {
        let [one, two] = two_hosts(network, 0.0);
        let failing = |remote, error| Failing {
            remote,
            error,
            write: false,
            id: None,
            failed: false,
        };
        network.run_program(
            one,
            failing(network.address_of(two, 81), errno::ECONNREFUSED),
        );
        network.run_program(
            one,
            failing(
                "10.0.0.77:80".parse().expect("an address"),
                errno::EHOSTUNREACH,
            ),
        );
        network.run_until_done();
        network.link_mut(two).cut = true;
        // It was known, and is asked for again once nothing comes back; as on Linux the error is
        // that of its address.
        network.run_program(
            one,
            failing(network.address_of(two, 82), errno::EHOSTUNREACH),
        );
        network.run_until_done();
        network.settle();
    });
}

#[test]
fn the_same_seed_gives_the_same_frames() {
    let run = |seed| {
        let mut network = Network::new(seed);
        let hosts = two_hosts(&mut network, LOSSY);
        converse(&mut network, hosts, Plan::exchange(100_000, 100_000), 3, 2);
        (network.digest(), network.now())
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(0), run(1));
}
