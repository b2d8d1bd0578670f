use super::*;
use crate::config::Via;
use millrace_wire::ethernet::Mac;

fn ip(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

/// A host with `addresses` and routes, each a prefix, its length and the gateway.
fn routes(addresses: &[(&str, u8)], beyond: &[(&str, u8, &str)]) -> Ipv4 {
    let mut config = Config::new(Ipv4Addr::UNSPECIFIED, 0, Mac([2; 6]), [0; 32]);
    config.addresses = addresses.iter().map(|&(own, len)| (ip(own), len)).collect();
    let via = |&(prefix, prefix_len, gateway): &(&str, u8, &str)| Via {
        prefix: ip(prefix),
        prefix_len,
        gateway: ip(gateway),
    };
    config.routes = beyond.iter().map(via).collect();
    config.loopback = true;
    Ipv4::new(&config)
}

fn link(hop: &str) -> Option<Route> {
    Some(Route::Link(ip(hop).into()))
}

#[test]
fn own_prefix_gateway_and_self() {
    let routes = routes(&[("10.1.2.3", 24)], &[("0.0.0.0", 0, "10.1.2.254")]);
    assert_eq!(routes.find(ip("10.1.2.9")), link("10.1.2.9"));
    assert_eq!(routes.find(ip("8.8.8.8")), link("10.1.2.254"));
    assert_eq!(routes.find(ip("10.1.2.3")), Some(Route::Local));
    assert_eq!(routes.find(ip("127.9.9.9")), Some(Route::Local));
    for nowhere in [
        "10.1.2.255",
        "10.1.2.0",
        "255.255.255.255",
        "224.0.0.1",
        "0.0.0.0",
    ] {
        assert_eq!(routes.find(ip(nowhere)), None, "{nowhere}");
    }
}

#[test]
fn a_host_in_the_first_prefix_is_found_as_the_tables_have_it() {
    // A prefix of hosts alone, with and without a route into it; and prefixes with addresses that
    // are nobody's.
    let near = routes(&[("10.1.2.3", 24)], &[]);
    assert!(near.is_valid_source(ip("10.1.2.4")));
    assert_eq!(near.source_for(ip("10.1.2.4")), ip("10.1.2.3"));
    let behind = routes(&[("10.1.2.3", 24)], &[("10.1.2.64", 26, "10.1.2.9")]);
    assert_eq!(behind.find(ip("10.1.2.70")), link("10.1.2.9"));
    assert_eq!(behind.find(ip("10.1.2.4")), link("10.1.2.4"));
    for (own, len) in [("64.1.2.3", 1), ("10.1.2.3", 7), ("0.0.0.0", 32)] {
        let wide = routes(&[(own, len)], &[]);
        for bad in ["127.0.0.1", "0.0.0.1", "224.0.0.1", own] {
            assert!(!wide.is_valid_source(ip(bad)), "{own}/{len}: {bad}");
            assert!(!matches!(wide.find(ip(bad)), Some(Route::Link(_))), "{bad}");
        }
    }
}

#[test]
fn without_a_gateway_only_the_link_is_reached() {
    let routes = routes(&[("10.1.2.3", 24)], &[]);
    assert_eq!(routes.find(ip("8.8.8.8")), None);
}

#[test]
fn rfc1812_5_2_4_3_the_longest_prefix_counts() {
    let routes = routes(
        &[("10.1.2.3", 24), ("172.16.0.3", 16)],
        &[
            ("0.0.0.0", 0, "10.1.2.254"),
            ("192.0.2.0", 24, "10.1.2.1"),
            ("192.0.2.128", 25, "172.16.0.1"),
            ("192.0.2.200", 32, "10.1.2.2"),
            // A part of the link is behind a neighbour.
            ("172.16.9.0", 24, "172.16.0.9"),
            // The same prefix as ours: ours counts.
            ("10.1.2.0", 24, "172.16.0.1"),
        ],
    );
    for (destination, hop) in [
        ("192.0.2.1", "10.1.2.1"),
        ("192.0.2.129", "172.16.0.1"),
        ("192.0.2.200", "10.1.2.2"),
        ("192.0.3.1", "10.1.2.254"),
        ("172.16.1.1", "172.16.1.1"),
        ("172.16.9.1", "172.16.0.9"),
        ("10.1.2.77", "10.1.2.77"),
    ] {
        assert_eq!(routes.find(ip(destination)), link(hop), "{destination}");
    }
}

#[test]
fn rfc1122_3_3_4_3_the_source_is_of_the_prefix_that_the_next_hop_is_in() {
    let routes = routes(
        &[
            ("10.1.2.3", 24),
            ("172.16.0.3", 16),
            ("10.1.2.4", 24),
            ("172.16.5.3", 24),
        ],
        &[
            ("0.0.0.0", 0, "172.16.0.1"),
            ("192.0.2.0", 24, "10.1.2.1"),
            ("198.51.100.0", 24, "203.0.113.1"),
        ],
    );
    for (destination, source) in [
        ("10.1.2.9", "10.1.2.3"),
        ("172.16.9.9", "172.16.0.3"),
        ("172.16.5.9", "172.16.5.3"),
        ("192.0.2.1", "10.1.2.3"),
        ("8.8.8.8", "172.16.0.3"),
        // By way of a gateway that is in no prefix of ours: the first.
        ("198.51.100.1", "10.1.2.3"),
    ] {
        assert_eq!(
            routes.source_for(ip(destination)),
            ip(source),
            "{destination}"
        );
    }
}

#[test]
fn rfc1122_3_2_1_3_no_address_and_no_broadcast_of_any_prefix_is_a_source() {
    let routes = routes(&[("10.1.2.3", 24), ("172.16.0.3", 16)], &[]);
    for bad in [
        "10.1.2.3",
        "172.16.0.3",
        "10.1.2.255",
        "10.1.2.0",
        "172.16.255.255",
        "127.0.0.1",
        "0.0.0.1",
        "239.1.1.1",
    ] {
        assert!(!routes.is_valid_source(ip(bad)), "{bad}");
    }
    for good in ["10.1.2.4", "172.16.2.255", "8.8.8.8"] {
        assert!(routes.is_valid_source(ip(good)), "{good}");
    }
}

#[test]
fn rfc3021_a_prefix_of_31_bits_has_no_broadcast() {
    let routes = routes(&[("10.1.2.3", 31)], &[]);
    assert_eq!(routes.find(ip("10.1.2.2")), link("10.1.2.2"));
}

#[test]
fn the_longest_prefix_is_the_nearest_and_what_nobody_said_the_farthest() {
    let routes = routes(
        &[("10.1.2.3", 24)],
        &[("10.0.0.0", 8, "10.1.2.9"), ("0.0.0.0", 0, "10.1.2.1")],
    );
    for (destination, len) in [("10.1.2.9", 24), ("10.9.9.9", 8), ("192.0.2.1", 0)] {
        let nearness = routes.nearness(ip(destination));
        assert_eq!(nearness, Some(Nearness::Prefix(len)), "{destination}");
    }
    let mut alone = Config::new(ip("10.1.2.3"), 24, Mac([2, 0, 0, 0, 0, 1]), [0; 32]);
    let closed = Ipv4::new(&alone);
    assert_eq!(closed.nearness(ip("192.0.2.1")), None);
    assert_eq!(closed.nearness(ip("239.1.1.1")), Some(Nearness::Fallback));
    alone.only_station = Some(Mac([2, 0, 0, 0, 0, 2]));
    let behind_one = Ipv4::new(&alone);
    let everywhere = behind_one.nearness(ip("192.0.2.1"));
    assert_eq!(everywhere, Some(Nearness::Fallback));
    assert!(everywhere < Some(Nearness::Prefix(0)));
}
