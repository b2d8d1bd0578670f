use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use millrace_port::{pair, spec};
use millrace_wire::vnet::{Flags, VnetHeader};

use super::header::{self, Message};
use super::*;
use crate::types::{Channel, Limits, Payload, PortName};
use crate::{ethernet, shm};

const ONE: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const TWO: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);

/// A directory that is removed at the end.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let process = std::process::id();
        Place(std::env::temp_dir().join(format!("millrace-fabric-ip-{name}-{process}")))
    }

    fn spec(&self, node: u16) -> spec::Fabric {
        spec::Fabric {
            directory: self.0.to_str().map(str::to_owned),
            ..spec::Fabric::new(node)
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An IPv4 packet of `len` bytes that tells its number.
fn packet(from: Ipv4Addr, to: Ipv4Addr, len: usize, number: u8) -> Vec<u8> {
    let mut bytes = vec![number; len];
    bytes[..20].fill(0);
    bytes[0] = 0x45;
    bytes[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    bytes[9] = 17;
    bytes[12..16].copy_from_slice(&from.octets());
    bytes[16..20].copy_from_slice(&to.octets());
    bytes
}

/// Both modules work until `done`, for 30 s at most.
fn work_until(one: &mut Module, two: &mut Module, mut done: impl FnMut(&mut Module) -> bool) {
    let begin = Instant::now();
    while !done(two) {
        for module in [&mut *one, &mut *two] {
            module.poll();
            module.look_around();
            module.wake().unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "no end");
    }
}

/// Takes the packets that come from [`ONE`].
fn take(module: &mut Module, arrived: &mut Vec<Vec<u8>>) {
    while let Some(packet) = module.receive(|_, packet| packet.to_vec()) {
        if packet[12..16] == ONE.octets() {
            arrived.push(packet);
        }
    }
}

/// Packets of every size go from one to two and arrive in order.
fn exchange(one: &mut Module, two: &mut Module) {
    let sizes = [20, 40, 52, 53, 500, 1012, 1013, 1500, 8192, 65535];
    let mut arrived = Vec::new();
    for (number, &size) in sizes.iter().cycle().take(60).enumerate() {
        let sent = packet(ONE, TWO, size, number as u8);
        while !one.send(&VnetHeader::default(), &[&sent[..20], &sent[20..]]) {
            one.poll();
            two.poll();
            take(two, &mut arrived);
        }
    }
    work_until(one, two, |two| {
        take(two, &mut arrived);
        arrived.len() == 60
    });
    for (number, (got, &size)) in arrived.iter().zip(sizes.iter().cycle()).enumerate() {
        assert_eq!(*got, packet(ONE, TWO, size, number as u8), "{number}");
    }
    assert!(one.counters().large > 0);
}

fn knows(module: &mut Module, address: Ipv4Addr) -> bool {
    while module.receive(|_, _| ()).is_some() {}
    // From no address that the module could take for its own.
    let probe = packet(Ipv4Addr::UNSPECIFIED, address, 20, 0);
    let before = module.counters().no_neighbour;
    module.send(&VnetHeader::default(), &[&probe]);
    module.counters().no_neighbour == before
}

#[test]
fn packets_find_their_node_by_announcement_in_shared_memory() {
    let place = Place::new("announced");
    let mut one = open(&place.spec(1), &[ONE.into()]).unwrap();
    let mut two = open(&place.spec(2), &[TWO.into()]).unwrap();
    work_until(&mut two, &mut one, |one| knows(one, TWO));
    exchange(&mut one, &mut two);
    assert!(one.counters().inline > 0);
    // A node that ends takes its addresses with it.
    drop(two);
    let begin = Instant::now();
    while knows(&mut one, TWO) {
        one.poll();
        one.wake().unwrap();
        assert!(begin.elapsed() < Duration::from_secs(30), "never forgotten");
    }
}

#[test]
fn packets_find_their_node_by_the_table() {
    let place = Place::new("table");
    let mut spec = place.spec(1);
    spec.table = vec![(TWO.into(), 2)];
    (spec.inline, spec.batch, spec.elide_checksums) = (false, false, false);
    let mut one = open(&spec, &[]).unwrap();
    let mut two = open(&place.spec(2), &[]).unwrap();
    exchange(&mut one, &mut two);
    assert_eq!(one.counters().inline, 0);
}

#[test]
fn packets_find_their_node_by_announcement_over_ethernet() {
    let (left, right) = pair::pair(pair::Config::default());
    let open = |end, node, address: Ipv4Addr| {
        let name = PortName::new(node, IP_PORT);
        let port = ethernet::Port::on_any(Box::new(end), name, Module::limits()).unwrap();
        let config = Config {
            addresses: vec![address.into()],
            ..Config::default()
        };
        Module::new(port.into(), config).unwrap()
    };
    let (mut one, mut two) = (open(left, 1, ONE), open(right, 2, TWO));
    work_until(&mut two, &mut one, |one| knows(one, TWO));
    exchange(&mut one, &mut two);
}

#[test]
fn a_checksum_that_is_not_elided_is_finished() {
    let place = Place::new("checksum");
    for elide in [true, false] {
        let mut spec = place.spec(1);
        spec.table = vec![(TWO.into(), 2)];
        spec.elide_checksums = elide;
        let mut one = open(&spec, &[]).unwrap();
        let mut two = open(&place.spec(2), &[]).unwrap();
        let vnet = VnetHeader {
            flags: Flags::NEEDS_CSUM,
            csum_start: 20,
            csum_offset: 6,
            ..VnetHeader::default()
        };
        let sent = packet(ONE, TWO, 1000, 9);
        assert!(one.send(&vnet, &[&sent]));
        let mut got = None;
        work_until(&mut one, &mut two, |two| {
            got = two.receive(|vnet, packet| (*vnet, packet.to_vec()));
            got.is_some()
        });
        let (said, bytes) = got.unwrap();
        assert_eq!(said.flags.contains(Flags::NEEDS_CSUM), elide);
        assert_eq!(bytes == sent, elide);
    }
}

#[test]
fn programs_cannot_take_the_ip_port() {
    let place = Place::new("reserved");
    let directory = shm::Directory::at(&place.0);
    let name = PortName::new(1, IP_PORT);
    let error = shm::Port::open_in(&directory, name, Limits::default()).unwrap_err();
    assert!(matches!(error, shm::OpenError::Reserved(_)), "{error}");
    let (end, _other) = pair::pair(pair::Config::default());
    let error = ethernet::Port::on(Box::new(end), name, Limits::default()).unwrap_err();
    assert!(matches!(error, ethernet::LinkError::Reserved(_)), "{error}");
}

#[test]
fn a_node_that_lies_about_addresses_is_not_believed() {
    let now = Instant::now();
    let name = |node| PortName::new(node, IP_PORT);
    let mut neighbours = Neighbours::new([(IpAddr::from(ONE), name(1))]);
    assert!(!neighbours.learn(ONE.into(), name(9), now), "of the table");
    assert!(neighbours.learn(TWO.into(), name(2), now));
    assert!(!neighbours.learn(TWO.into(), name(9), now), "another's");
    assert!(!neighbours.learn(Ipv4Addr::LOCALHOST.into(), name(9), now));
    assert_eq!(neighbours.find(TWO.into()), Some(name(2)));
    for host in 0..2 * NEIGHBOURS_MAX as u32 {
        neighbours.learn(Ipv4Addr::from(0x0b00_0000 + host).into(), name(9), now);
    }
    assert_eq!(neighbours.ports().count(), 1 + NEIGHBOURS_MAX);
    neighbours.forget(name(9));
    assert_eq!(neighbours.ports().count(), 2);
    neighbours.expire(now + neighbours::LIFETIME);
    assert_eq!(neighbours.find(TWO.into()), None);
    assert_eq!(neighbours.find(ONE.into()), Some(name(1)));
}

#[test]
fn messages_that_no_ip_module_sends_are_dropped_and_counted() {
    let place = Place::new("bad");
    let directory = shm::Directory::at(&place.0);
    let mut liar = shm::Port::open_in(&directory, PortName::new(9, 9), Limits::default()).unwrap();
    let mut two = open(&place.spec(2), &[]).unwrap();
    let good = packet(ONE, TWO, 40, 7);
    let mut far = header::emit(&VnetHeader {
        flags: Flags::NEEDS_CSUM,
        csum_start: 0xffff,
        csum_offset: 0xffff,
        ..VnetHeader::default()
    })
    .to_vec();
    far.extend(&good);
    let mut cut = header::emit(&VnetHeader::default()).to_vec();
    cut.extend(&good[..39]);
    let mut many = header::announcement(&[ONE.into()]);
    many[1] = 200;
    let announced = header::announcement(&[ONE.into()]);
    let messages = [&b"x"[..], &[1; 12], &[2; 64], &far, &cut, &many, &announced];
    for bytes in messages {
        let payload = Payload::Inline(bytes);
        liar.send(two.name(), Channel::System, 0, payload, 0)
            .unwrap();
    }
    let begin = Instant::now();
    while two.counters().bad < messages.len() as u64 {
        liar.poll();
        two.poll();
        two.wake().unwrap();
        assert!(two.receive(|_, _| ()).is_none());
        assert!(
            begin.elapsed() < Duration::from_secs(30),
            "{:?}",
            two.counters()
        );
    }
    assert!(!knows(&mut two, ONE), "a program announces no address");
}

#[test]
fn headers_are_read_as_they_are_written() {
    let vnet = VnetHeader {
        flags: Flags::NEEDS_CSUM,
        gso: millrace_wire::vnet::Gso::TCP_V4,
        header_len: 40,
        gso_size: 1448,
        csum_start: 20,
        csum_offset: 16,
    };
    let bytes = packet(ONE, TWO, 4000, 3);
    let mut message = header::emit(&vnet).to_vec();
    message.extend(&bytes);
    assert_eq!(header::parse(&message), Some(Message::Packet(vnet, &bytes)));
    let addresses = [IpAddr::from(ONE), "fd00::1".parse().unwrap()];
    let message = header::announcement(&addresses);
    let read = header::parse(&message);
    assert_eq!(read, Some(Message::Announcement(addresses.to_vec())));
}
