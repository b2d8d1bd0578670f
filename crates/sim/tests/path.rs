//! Paths that take less than the link, with routers that say so and routers that do not.

mod common;

use common::for_seeds;
use millrace_sim::{Client, HostId, Link, Network, Nic, Plan, Server};
use millrace_tcp::Duration;

fn two_hosts(network: &mut Network, nic: Nic) -> [HostId; 2] {
    let mut rng = network.rng().fork();
    [(); 2].map(|()| {
        let link = Link {
            rate: Some(rng.between(1_000_000, 20_000_000)),
            delay: Duration::from_micros(rng.between(500, 20_000)),
            spare_arp: true,
            ..Link::default()
        };
        network.add_host(nic, link)
    })
}

/// In the midst of a transfer the path becomes smaller, and nobody says so: it goes on, and in no
/// smaller segments than it has to.
#[test]
fn g3_rfc8899_4_3_a_transfer_passes_a_black_hole() {
    const BYTES: u64 = 3_000_000;
    for_seeds(
        "g3_rfc8899_4_3_a_transfer_passes_a_black_hole",
        20,
        |network| {
            let nic = if network.rng().chance(0.5) {
                Nic::Plain
            } else {
                Nic::Segment
            };
            let [client, server] = two_hosts(network, nic);
            let address = network.address_of(server, 80);
            let plan = Plan::exchange(BYTES, 1);
            network.run_program(server, Server::new(address, plan, 1));
            network.run_program(client, Client::new(address, plan, 1, 1));
            let before = network.rng().between(30, 140);
            network.run_for(Duration::from_millis(before));
            assert!(!network.is_done());
            let mtu = network.rng().between(576, 1_480) as u16;
            let link = network.link_mut(client);
            (link.path_mtu, link.silent) = (Some(mtu), true);
            network.run_until_done();
            let counters = network.stack(client).counters();
            assert_eq!(counters.icmp_errors_in, 0);
            // Headers and timestamps of each; some were lost before it was clear why.
            let payload = u64::from(mtu.min(1_024)) - 52;
            let frames = network.link_counters(client).frames;
            if nic == Nic::Plain {
                assert!(
                    frames < BYTES / payload * 5 / 4 + 1_000,
                    "{frames} frames at {mtu}"
                );
            }
            network.settle();
        },
    );
}

/// What one connection has heard of a path the next ones know (RFC 1191 6.2).
#[test]
fn rfc1191_6_2_connections_to_one_host_share_what_is_known_of_the_path() {
    let name = "rfc1191_6_2_connections_to_one_host_share_what_is_known_of_the_path";
    for_seeds(name, 10, |network| {
        let [client, server] = two_hosts(network, Nic::Segment);
        network.link_mut(client).path_mtu = Some(1_400);
        let address = network.address_of(server, 80);
        let plan = Plan::exchange(200_000, 1);
        network.run_program(server, Server::new(address, plan, 20));
        // One after the other.
        network.run_program(client, Client::new(address, plan, 20, 1));
        network.run_until_done();
        let errors = network.stack(client).counters().icmp_errors_in;
        // Those of the first flight alone.
        assert!((1..=12).contains(&errors), "{errors}");
        network.settle();
    });
}
