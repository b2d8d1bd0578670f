use std::net::Ipv4Addr;

use millrace_wire::ethernet::Mac;

use super::*;

fn address(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn host(gateway: Option<&str>) -> Ipv6 {
    let mut config = Config::new(
        Ipv4Addr::new(10, 1, 2, 3),
        24,
        Mac([2, 0, 0, 0, 0, 3]),
        [0; 32],
    );
    config.loopback = true;
    config.ipv6 = Some(crate::config::Ipv6 {
        addresses: vec![(address("2001:db8:1::3"), 64), (address("fd00:9::3"), 48)],
        routes: gateway
            .map(|gateway| crate::config::Via {
                prefix: Ipv6Addr::UNSPECIFIED,
                prefix_len: 0,
                gateway: address(gateway),
            })
            .into_iter()
            .collect(),
        probes: 0,
    });
    Ipv6::new(&config, Instant::from_micros(0))
}

#[test]
fn rfc4861_5_2_own_prefixes_gateway_and_self() {
    let host = host(Some("2001:db8:1::1"));
    let link = |text: &str| Some(Route::Link(address(text).into()));
    assert_eq!(host.find(address("2001:db8:1::9")), link("2001:db8:1::9"));
    assert_eq!(host.find(address("fe80::9")), link("fe80::9"));
    assert_eq!(host.find(address("fd00:9:0:5::9")), link("fd00:9:0:5::9"));
    assert_eq!(host.find(address("2001:db8:2::9")), link("2001:db8:1::1"));
    for here in ["::1", "2001:db8:1::3", "fe80::ff:fe00:3"] {
        assert_eq!(host.find(address(here)), Some(Route::Local), "{here}");
    }
    for nowhere in ["::", "ff02::1", "::ffff:10.1.2.4"] {
        assert_eq!(host.find(address(nowhere)), None, "{nowhere}");
    }
}

#[test]
fn without_a_gateway_only_the_link_is_reached() {
    assert_eq!(host(None).find(address("2001:db8:2::9")), None);
}

#[test]
fn rfc6724_5_the_source_has_the_scope_and_the_prefix_of_the_destination() {
    let host = host(None);
    for (destination, source) in [
        ("fe80::9", "fe80::ff:fe00:3"),
        ("ff02::1", "fe80::ff:fe00:3"),
        ("fd00:9:7::1", "fd00:9::3"),
        ("2001:db8:1::9", "2001:db8:1::3"),
        ("2600::1", "2001:db8:1::3"),
    ] {
        let chosen = host.source_for(address(destination));
        assert_eq!(chosen, Some(address(source)), "to {destination}");
    }
}

#[test]
fn rfc8200_5_a_link_of_less_than_1280_bytes_has_no_ipv6() {
    let mut config = Config::new(Ipv4Addr::new(10, 1, 2, 3), 24, Mac([2; 6]), [0; 32]);
    config.ipv6 = Some(crate::config::Ipv6::default());
    config.mtu = 1279;
    assert!(!Ipv6::new(&config, Instant::from_micros(0)).is_on());
    config.mtu = 1280;
    assert!(Ipv6::new(&config, Instant::from_micros(0)).is_on());
}

#[test]
fn rfc6724_5_rules_in_their_order() {
    let host = |sources: &[(&str, u8)]| {
        let mut config = Config::new(Ipv4Addr::new(10, 1, 2, 3), 24, Mac([2; 6]), [0; 32]);
        config.ipv6 = Some(crate::config::Ipv6 {
            addresses: sources
                .iter()
                .map(|&(own, len)| (address(own), len))
                .collect(),
            probes: 0,
            ..crate::config::Ipv6::default()
        });
        Ipv6::new(&config, Instant::from_micros(0))
    };
    for (rule, sources, destination, source) in [
        // The examples of RFC 6724 10.1, as far as they are of static addresses on one link.
        (2, &[("2001:db8:1::1", 64)][..], "ff05::1", "2001:db8:1::1"),
        (
            2,
            &[("2001:db8:3::1", 64)],
            "2001:db8:1::1",
            "2001:db8:3::1",
        ),
        (
            8,
            &[("2001:db8:1::2", 64), ("2001:db8:3::2", 64)],
            "2001:db8:1::1",
            "2001:db8:1::2",
        ),
        (
            6,
            &[("2002:c633:6401::2", 64), ("2001:db8:1::2", 64)],
            "2002:c633:6401::1",
            "2002:c633:6401::2",
        ),
        // Rule 6 before rule 8: to the world not from a local address, though that may have more
        // bits in common.
        (
            6,
            &[("fd00:9::2", 64), ("2001:db8:1::2", 64)],
            "fe00::1",
            "2001:db8:1::2",
        ),
        (
            1,
            &[("2001:db8:1::2", 64), ("2001:db8:1::1", 64)],
            "2001:db8:1::1",
            "2001:db8:1::1",
        ),
        // Bits beyond the prefix do not count; the first of two equal prefixes wins.
        (
            8,
            &[("2001:db8:1::f", 64), ("2001:db8:1::10", 64)],
            "2001:db8:1::11",
            "2001:db8:1::f",
        ),
    ] {
        assert_eq!(
            host(sources).source_for(address(destination)),
            Some(address(source)),
            "rule {rule}, to {destination}"
        );
    }
}

#[test]
fn rfc4861_5_2_the_longest_prefix_counts() {
    let via = |prefix: &str, prefix_len, gateway: &str| crate::config::Via {
        prefix: address(prefix),
        prefix_len,
        gateway: address(gateway),
    };
    let mut config = Config::new(Ipv4Addr::new(10, 1, 2, 3), 24, Mac([2; 6]), [0; 32]);
    config.ipv6 = Some(crate::config::Ipv6 {
        addresses: vec![(address("2001:db8:1::3"), 64)],
        routes: vec![
            via("2001:db8::", 32, "2001:db8:1::1"),
            via("2001:db8:2:8000::", 49, "2001:db8:1::2"),
        ],
        probes: 0,
    });
    let host = Ipv6::new(&config, Instant::from_micros(0));
    for (destination, hop) in [
        ("2001:db8:2::9", Some("2001:db8:1::1")),
        ("2001:db8:2:8000::9", Some("2001:db8:1::2")),
        ("2001:db8:1::9", Some("2001:db8:1::9")),
        ("2001:db9::9", None),
    ] {
        let route = hop.map(|hop| Route::Link(address(hop).into()));
        assert_eq!(host.find(address(destination)), route, "{destination}");
    }
}
