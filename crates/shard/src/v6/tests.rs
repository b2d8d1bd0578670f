use std::net::Ipv4Addr;

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
        gateway: gateway.map(address),
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
