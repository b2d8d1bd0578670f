//! From the command line's words about a link to what the engine is told: which addresses, which
//! ways off it.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context as _, bail, ensure};
use millrace_engine::config::{
    self, ADDRESSES_MAX, Config, Limits, Link, ROUTES_MAX, Route, Shared,
};
use millrace_port::spec::Spec;
use millrace_port::{device, kernel};

use crate::addresses::{
    Address, DEFAULT_ADDRESS, covers, free_beside, is_v4, is_v6, list, network,
};
use crate::arguments::LinkArguments;

/// The kernel's end of that network.
const DEFAULT_HOST_ADDRESS: Address = (IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1)), 24);
/// What IPv6 needs (RFC 8200 5).
const MTU_MIN_V6: u16 = 1280;

/// The link that the arguments ask for; where they say nothing the defaults stand.
fn of(arguments: &LinkArguments) -> anyhow::Result<Link> {
    let device = arguments.link.clone().unwrap_or(Spec::Tap { name: None });
    ensure!(
        device.has_frames(),
        "--link {device} is for programs that have the stack inside; give tap, packet:NAME, macvtap:NAME or xdp:NAME"
    );
    let mut addresses = arguments.addr.clone();
    let shared = device.shares_addresses().then_some(Shared {
        addresses: addresses.is_empty(),
        routes: arguments.gateway.is_empty() && arguments.route.is_empty(),
    });
    // Where the kernel's addresses are shared its routes are known.
    let mut kernels = Vec::new();
    let hosts = match device.wire() {
        Some(name) => {
            ensure!(
                arguments.host_addr.is_empty(),
                "--host-addr is for a TAP device, whose other end is the kernel's; {name} has the addresses that it has: leave it out"
            );
            if shared.is_some() {
                kernels = shared_with_kernel(name, &mut addresses)?;
            }
            ensure!(
                shared.is_some() || addresses.iter().any(is_v4),
                "--link {device} takes an --addr IP/BITS: an address of the network that {name} is on, and that nobody else there has"
            );
            Vec::new()
        }
        None => {
            ensure!(
                arguments.vlan.is_none() || arguments.host_addr.is_empty(),
                "--host-addr would be outside of the LAN of --vlan: leave it out, and give an address to the kernel's own device of that LAN, such as \
                 `ip link add link mr0 name mr0.7 type vlan id 7`"
            );
            let hosts = both_ends(&mut addresses, &arguments.host_addr)?;
            match arguments.vlan {
                None => hosts,
                Some(_) => Vec::new(),
            }
        }
    };
    // Those of IPv4 first: the first address is the one that is shown.
    addresses.sort_by_key(|own| !is_v4(own));
    for (at, (ip, _)) in addresses.iter().enumerate() {
        let twice = addresses[..at].iter().any(|(other, _)| other == ip);
        ensure!(!twice, "--addr {ip} is given twice");
    }
    for family in [is_v4, is_v6] {
        ensure!(
            addresses.iter().filter(|own| family(own)).count() <= ADDRESSES_MAX,
            "more than {ADDRESSES_MAX} addresses of one family were given; leave some out"
        );
    }
    ensure!(
        !addresses.iter().any(is_v6) || arguments.mtu >= MTU_MIN_V6,
        "--mtu {} is less than the {MTU_MIN_V6} bytes that IPv6 needs",
        arguments.mtu
    );
    Ok(Link {
        device,
        shared,
        routes: match arguments.gateway.is_empty() && arguments.route.is_empty() {
            true => kernels,
            false => routes(arguments, &addresses)?,
        },
        addresses,
        hosts,
        vlan: arguments.vlan,
        mtu: arguments.mtu,
    })
}

impl LinkArguments {
    /// The engine's configuration; where the command line says nothing the defaults stand.
    pub fn config(&self, name: String, ephemeral: bool) -> anyhow::Result<Config> {
        let wants_link = self.link.is_some()
            || !self.addr.is_empty()
            || !self.host_addr.is_empty()
            || !self.gateway.is_empty()
            || self.vlan.is_some()
            || !self.route.is_empty();
        let link = if wants_link || !self.loopback {
            Some(of(self)?)
        } else {
            None
        };
        Ok(Config {
            name,
            link,
            loopback: self.loopback,
            ephemeral,
            shards: self.shards,
            shards_max: self.shards_max,
            balance: self.balance,
            topology: self.topology,
            io_threads: self.io_threads,
            cores: self.cores.clone().unwrap_or_default().0,
            shard_schedule: self.schedule.to_string(),
            io_schedule: self.io_schedule.to_string(),
            follow: !self.no_follow,
            join: !self.no_join,
            congestion: self.congestion.name().to_owned(),
            ecn: self.ecn,
            mtu_probing: self.mtu_probing,
            sandbox: Some(self.privileges.sandbox()),
            audit: self.audit.clone(),
            limits: Limits::default(),
        })
    }
}

/// Fills in or checks the addresses that the kernel has on a device, and are to be shared with it.
/// Its routes there.
fn shared_with_kernel(name: &str, own: &mut Vec<Address>) -> anyhow::Result<Vec<Route>> {
    let network = device::index(name).and_then(kernel::network);
    let network = network.with_context(|| format!("reading the addresses and routes of {name}"))?;
    let there = network.addresses;
    ensure!(
        !there.is_empty(),
        "the kernel has no address on {name} to share; give it one (`ip addr add 192.168.7.2/24 dev {name}`), or leave address=shared out and give --addr"
    );
    if let Some((ip, len)) = own.iter().find(|own| !there.contains(own)) {
        bail!(
            "the kernel does not have {ip}/{len} on {name}, where it has {}: share one of these, or leave address=shared out",
            list(&there)
        );
    }
    if own.is_empty() {
        own.extend(config::some_of_each_family(&there, ADDRESSES_MAX));
    }
    ensure!(
        network.routes.len() <= ROUTES_MAX,
        "the kernel has {} routes by {name}; an engine has {ROUTES_MAX} at most: give those that it is to have with --route",
        network.routes.len()
    );
    Ok(network.routes)
}

/// The kernel's addresses at its end of a TAP device; `own` gets those that it lacks.
fn both_ends(own: &mut Vec<Address>, given: &[Address]) -> anyhow::Result<Vec<Address>> {
    let mut hosts = given.to_vec();
    if !own.iter().any(is_v4) {
        match given.iter().find(|host| is_v4(host)) {
            Some(&host) => own.push(free_beside(host, given)?),
            None => {
                own.push(DEFAULT_ADDRESS);
                hosts.push(DEFAULT_HOST_ADDRESS);
            }
        }
    }
    for &(host, bits) in given {
        let others = own.iter().all(|(ip, _)| *ip != host);
        ensure!(
            others && own.iter().any(|own| covers(*own, host)),
            "--host-addr {host}/{bits} is not another address of a prefix of --addr, which are {}: give both from one prefix, such as --addr 10.9.0.2/24 \
             --host-addr 10.9.0.1/24",
            list(own)
        );
    }
    for &prefix in own.iter() {
        if !hosts.iter().any(|(host, _)| covers(prefix, *host)) {
            hosts.push(free_beside(prefix, own)?);
        }
    }
    Ok(hosts)
}

/// The words of each --route. A route ends after three words, or where the next prefix begins.
fn each_route(words: &[String]) -> Vec<String> {
    let mut routes: Vec<Vec<&str>> = Vec::new();
    for word in words.iter().flat_map(|word| word.split_whitespace()) {
        match routes.last_mut() {
            Some(route) if route.len() < 3 && !word.contains('/') => route.push(word),
            _ => routes.push(vec![word]),
        }
    }
    routes.iter().map(|route| route.join(" ")).collect()
}

/// The routes that --gateway and --route ask for, the longest prefix first.
fn routes(arguments: &LinkArguments, own: &[Address]) -> anyhow::Result<Vec<Route>> {
    let everything =
        |gateway: &IpAddr| (format!("--gateway {gateway}"), Route::default_via(*gateway));
    let mut wanted: Vec<_> = arguments.gateway.iter().map(everything).collect();
    for words in each_route(&arguments.route) {
        let said = format!("--route {words}");
        let route: Route = words.parse().ok().with_context(|| {
            format!("{said} is not of the form --route 10.0.0.0/8 via 10.9.0.1")
        })?;
        let prefix = (route.prefix, route.prefix_len);
        let network = network(prefix);
        ensure!(
            network == prefix.0,
            "{said} names a host, not a prefix; write the prefix as {network}/{}",
            prefix.1
        );
        wanted.push((said, route));
    }
    let mut routes: Vec<Route> = Vec::new();
    for (said, route) in wanted {
        let Route {
            prefix,
            prefix_len,
            gateway,
        } = route;
        ensure!(
            prefix.is_ipv4() == gateway.is_ipv4(),
            "{said}: the prefix is of one family and the gateway of the other"
        );
        let is_link_local = |ip: IpAddr| matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        let on_link = own.iter().any(|own| covers(*own, gateway))
            || (is_link_local(gateway) && own.iter().any(is_v6));
        ensure!(
            on_link && own.iter().all(|(ip, _)| *ip != gateway),
            "{said}: {gateway} is not a neighbour on the link, whose prefixes are those of --addr: {}",
            list(own)
        );
        let same = |route: &&Route| (route.prefix, route.prefix_len) == (prefix, prefix_len);
        if let Some(other) = routes.iter().find(same) {
            bail!(
                "{said}: there is a way to {prefix}/{prefix_len} already, via {}",
                other.gateway
            );
        }
        routes.push(route);
    }
    ensure!(
        routes.len() <= ROUTES_MAX,
        "{} routes were given; an engine has {ROUTES_MAX} at most",
        routes.len()
    );
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn link(line: &[&str]) -> anyhow::Result<Link> {
        let line = ["millrace", "run"]
            .iter()
            .chain(line)
            .chain(&["--", "true"]);
        let Command::Run(run) = Arguments::try_parse_from(line)?.command else {
            unreachable!("it says run")
        };
        Ok(run.link.config("x".to_owned(), true)?.link.expect("a link"))
    }

    fn address(text: &str) -> Address {
        let (ip, len) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), len.parse().unwrap())
    }

    /// What the line gives: the engine's addresses and the kernel's.
    fn ends(line: &str) -> (String, String) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let link = link(&words).unwrap();
        (list(&link.addresses), list(&link.hosts))
    }

    #[test]
    fn addresses_default_to_the_documented_prefix_and_to_neighbours() {
        for (line, own, hosts) in [
            ("", "10.9.0.2/24", "10.9.0.1/24"),
            ("--addr 10.1.0.1/16", "10.1.0.1/16", "10.1.0.2/16"),
            ("--host-addr 10.1.0.9/16", "10.1.0.1/16", "10.1.0.9/16"),
            (
                "--addr fd00:9::2/64 --addr 2001:db8::1/48",
                "10.9.0.2/24, fd00:9::2/64, 2001:db8::1/48",
                "10.9.0.1/24, fd00:9::1/64, 2001:db8::2/48",
            ),
            // Two addresses of one prefix have one neighbour, which is neither of them.
            (
                "--addr 10.1.0.1/24 --addr 10.1.0.2/24 --addr 172.16.0.7/16",
                "10.1.0.1/24, 10.1.0.2/24, 172.16.0.7/16",
                "10.1.0.3/24, 172.16.0.1/16",
            ),
            (
                "--addr 10.1.0.1/24 --addr 10.2.0.1/24 --host-addr 10.2.0.9/24",
                "10.1.0.1/24, 10.2.0.1/24",
                "10.2.0.9/24, 10.1.0.2/24",
            ),
        ] {
            assert_eq!(ends(line), (own.to_owned(), hosts.to_owned()), "{line}");
        }
    }

    #[test]
    fn routes_are_prefixes_with_a_neighbour() {
        let line = "--addr fd00:9::2/64 --gateway 10.9.0.1 --route 192.0.2.0/24 via 10.9.0.7 \
                    --route 2001:db8::/32 via fe80::1 --route 198.51.100.9/32 via 10.9.0.8";
        let words: Vec<&str> = line.split_whitespace().collect();
        let route = |prefix: &str, gateway: &str| {
            let (prefix, prefix_len) = address(prefix);
            let gateway = gateway.parse().unwrap();
            Route {
                prefix,
                prefix_len,
                gateway,
            }
        };
        assert_eq!(
            link(&words).unwrap().routes,
            [
                route("0.0.0.0/0", "10.9.0.1"),
                route("192.0.2.0/24", "10.9.0.7"),
                route("2001:db8::/32", "fe80::1"),
                route("198.51.100.9/32", "10.9.0.8"),
            ]
        );
    }

    #[test]
    fn nonsense_is_refused_with_its_value() {
        for (line, said) in [
            ("--addr 10.9.0.0/24", "10.9.0.0/24"),
            ("--addr 10.9.0.2", "10.9.0.2"),
            ("--addr x", "x"),
            ("--link wire:x", "wire:x"),
            ("--mtu 10", "10"),
            ("--shards 0", "0"),
            ("--addr 10.9.0.2/24 --host-addr 10.8.0.1/24", "10.8.0.1/24"),
            ("--addr 10.9.0.2/24 --host-addr 10.9.0.2/24", "10.9.0.2/24"),
            ("--addr fe80::2/64", "fe80::2/64"),
            ("--addr fd00:9::2/127", "fd00:9::2/127"),
            ("--addr fd00:9::2/64 --host-addr fd00:8::1/64", "fd00:8::1"),
            ("--addr fd00:9::2/64 --host-addr fd00:9::2/64", "fd00:9::2"),
            ("--addr fd00:9::2/64 --mtu 1000", "--mtu 1000"),
            (
                "--addr 10.9.0.2/24 --addr 10.9.0.2/16",
                "10.9.0.2 is given twice",
            ),
            ("--gateway 1.2.3.4", "--gateway 1.2.3.4"),
            ("--gateway 10.9.0.2", "--gateway 10.9.0.2"),
            ("--gateway fe80::1", "--gateway fe80::1"),
            ("--gateway 10.9.0.1 --gateway 10.9.0.3", "via 10.9.0.1"),
            ("--addr fd00:9::2/64 --gateway fd00:8::1", "fd00:8::1"),
            ("--route 10.0.0.0/8 by 10.9.0.1", "10.0.0.0/8 by 10.9.0.1"),
            (
                "--route 10.0.0.0/8 --route 10.1.0.0/16 via 10.9.0.1",
                "--route 10.0.0.0/8 is not of the form --route 10.0.0.0/8 via",
            ),
            ("--addr 127.0.0.1/8", "127.0.0.1/8 is a loopback address"),
            ("--route 10.0.0.0/33 via 10.9.0.1", "10.0.0.0/33"),
            ("--route 10.0.0.1/8 via 10.9.0.1", "10.0.0.0/8"),
            (
                "--route 10.0.0.0/8 via 10.8.0.1",
                "10.8.0.1 is not a neighbour",
            ),
            ("--route 2001:db8::/32 via 10.9.0.1", "2001:db8::/32"),
            (
                "--route 10.0.0.0/8 via 10.9.0.1 --route 10.0.0.0/8 via 10.9.0.3",
                "via 10.9.0.1",
            ),
            ("--vlan 7 --host-addr 10.9.0.1/24", "--vlan"),
            ("--vlan 4095", "4095"),
            ("--vlan 0", "0"),
            ("--link packet:eth0 --host-addr 10.8.0.1/24", "eth0"),
            ("--link packet:eth0 --addr fd00:9::2/64", "eth0"),
            ("--link macvtap:eth0", "macvtap:eth0"),
            ("--link xdp:eth0,mode=copy", "xdp:eth0,mode=copy"),
            ("--link xdp:eth0,mode=fast", "mode=fast"),
            ("--link xdp:eth0,busy-poll=on", "xdp:eth0,busy-poll=on"),
            ("--link xdp:eth0,busy-poll=50", "busy-poll=50"),
        ] {
            let words: Vec<&str> = line.split_whitespace().collect();
            let error = format!("{:#}", link(&words).expect_err(line));
            assert!(error.contains(said), "{line}: {error}");
        }
        let many: Vec<String> = (0..33)
            .flat_map(|at| {
                let prefix = format!("192.0.2.{at}/32");
                [
                    "--route".to_owned(),
                    prefix,
                    "via".to_owned(),
                    "10.9.0.1".to_owned(),
                ]
            })
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(link(&many).unwrap_err().to_string().contains("32 at most"));
        let many: Vec<String> = (2..11)
            .flat_map(|at| ["--addr".to_owned(), format!("10.9.0.{at}/24")])
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(link(&many).unwrap_err().to_string().contains("more than 8"));
    }
}
