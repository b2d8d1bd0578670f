//! Packet sockets on one end of a veth pair, against the kernel at the other end.

mod namespace;

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;

use millrace_port::packet::{self, Config, Error, Packet};
use millrace_port::{ChecksumState, FRAME_MAX, Offload, Port, RxMeta};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::{arp, ipv4, udp};
use rustix::event::{PollFd, PollFlags, Timespec};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}

/// `mr-a`, where the port is to be, and `mr-b`, where the kernel has an address.
fn veth() {
    ip("link add mr-a type veth peer name mr-b");
    ip("addr add 10.98.0.1/24 dev mr-b");
    ip("link set mr-a up");
    ip("link set mr-b up");
    // Until the kernel has taken note of it, frames are dropped without a word.
    for _ in 0..500 {
        let shown = Command::new("ip")
            .args(["-o", "link", "show", "up"])
            .output()
            .expect("ip runs");
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        if shown
            .lines()
            .filter(|line| line.contains("state UP"))
            .count()
            >= 2
        {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("the devices do not come up");
}

fn open(device: &str, queues: u16) -> Result<Vec<Packet>, Error> {
    packet::open(&Config {
        device: device.into(),
        queues,
        mac: None,
        vlan: None,
    })
}

/// The next frame for which `pick` has something; other frames are passed over.
fn receive_until<T>(
    port: &mut Packet,
    mut pick: impl FnMut(&[u8], RxMeta) -> Option<T>,
) -> Option<T> {
    let mut buffer = vec![0; FRAME_MAX];
    for _ in 0..200 {
        while let Some(meta) = port.receive(&mut buffer).expect("the device is there") {
            if let Some(found) = pick(&buffer[..meta.len], meta) {
                return Some(found);
            }
        }
        let descriptor = port.descriptor().expect("a socket");
        let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        rustix::event::poll(&mut polled, Some(&patience)).expect("poll");
    }
    None
}

fn arp_in(frame: &[u8]) -> Option<arp::Packet> {
    let (header, payload) = ethernet::Header::parse(frame).ok()?;
    (header.ethertype == EtherType::ARP).then(|| arp::Packet::parse(payload).ok())?
}

fn send_arp(port: &mut Packet, operation: arp::Operation, to: Mac) {
    let ours = port.capabilities().mac;
    let mut frame = [0; ethernet::HEADER_LEN + arp::LEN];
    ethernet::Header {
        dst: to,
        src: ours,
        ethertype: EtherType::ARP,
    }
    .emit(&mut frame);
    arp::Packet {
        operation,
        sender_mac: ours,
        sender_ip: OURS,
        target_mac: to,
        target_ip: HOST,
    }
    .emit(&mut frame[ethernet::HEADER_LEN..]);
    assert!(port.send(&frame, [&[]; 2], Offload::None).expect("sent"));
}

/// Makes the kernel know our address, and us its.
fn meet(port: &mut Packet) -> Mac {
    send_arp(port, arp::Operation::REQUEST, Mac::BROADCAST);
    let reply = receive_until(port, |frame, _| {
        arp_in(frame).filter(|packet| packet.operation == arp::Operation::REPLY)
    });
    reply.expect("the kernel answers").sender_mac
}

#[test]
fn frames_go_to_the_kernel_and_come_from_it() {
    namespace::run("frames_go_to_the_kernel_and_come_from_it", || {
        veth();
        let mut port = open("mr-a", 1).expect("a port").remove(0);
        let host = meet(&mut port);
        let socket = UdpSocket::bind((HOST, 0)).expect("bound");
        socket.send_to(&[7; 1000], (OURS, 9)).expect("sent");
        let found = receive_until(&mut port, |frame, meta| {
            let (header, packet) = ethernet::Header::parse(frame).ok()?;
            let (ip, _, payload) = ipv4::Header::parse(packet).ok()?;
            let datagram = udp::Datagram::parse(payload).ok()?;
            (ip.dst == OURS && datagram.dst_port == 9).then_some((header, meta))
        });
        let (header, meta) = found.expect("the datagram arrives");
        assert_eq!((header.src, header.dst), (host, port.capabilities().mac));
        // The peer left the checksum to a device, and there is none in between.
        assert_eq!(meta.checksum, ChecksumState::Partial);
        assert!(port.counters().rx_frames >= 2 && port.counters().tx_frames == 1);
    });
}

#[test]
fn frames_to_other_stations_stay_the_kernels() {
    namespace::run("frames_to_other_stations_stay_the_kernels", || {
        veth();
        let mut port = open("mr-a", 1).expect("a port").remove(0);
        ip("neigh add 10.98.0.3 lladdr 02:00:00:00:00:77 dev mr-b");
        let socket = UdpSocket::bind((HOST, 0)).expect("bound");
        for _ in 0..10 {
            // The kernel may say that nobody takes the one before.
            let _ = socket.send_to(b"not for us", "10.98.0.3:9");
        }
        // What is asked for and answered after them has arrived after them.
        let mut strange = 0;
        send_arp(&mut port, arp::Operation::REQUEST, Mac::BROADCAST);
        receive_until(&mut port, |frame, _| {
            let (header, _) = ethernet::Header::parse(frame).ok()?;
            strange +=
                usize::from(header.ethertype == EtherType::IPV4 && !header.dst.is_multicast());
            arp_in(frame).filter(|packet| packet.operation == arp::Operation::REPLY)
        })
        .expect("the kernel answers");
        assert_eq!(strange, 0);
    });
}

#[test]
fn frames_of_a_virtual_lan_are_not_taken_for_ours() {
    namespace::run("frames_of_a_virtual_lan_are_not_taken_for_ours", || {
        veth();
        let mut port = open("mr-a", 1).expect("a port").remove(0);
        let mut other = open("mr-b", 1).expect("a port").remove(0);
        let sender_mac = other.capabilities().mac;
        let (tagged, plain) = (Ipv4Addr::new(10, 98, 0, 7), Ipv4Addr::new(10, 98, 0, 8));
        for (sender_ip, tag) in [(tagged, &[0x81, 0, 0, 5][..]), (plain, &[])] {
            let mut payload = [0; arp::LEN];
            arp::Packet {
                operation: arp::Operation::REQUEST,
                sender_mac,
                sender_ip,
                target_mac: Mac([0; 6]),
                target_ip: OURS,
            }
            .emit(&mut payload);
            let addresses = [Mac::BROADCAST.0, sender_mac.0].concat();
            let frame = [&addresses, tag, &[8, 6], &payload].concat();
            assert!(other.send(&frame, [&[]; 2], Offload::None).expect("sent"));
        }
        let heard = receive_until(&mut port, |frame, _| {
            arp_in(frame).filter(|packet| packet.sender_mac == sender_mac)
        });
        assert_eq!(heard.expect("the second").sender_ip, plain);
    });
}

#[test]
fn every_queue_is_a_port_and_a_flow_stays_on_one() {
    namespace::run("every_queue_is_a_port_and_a_flow_stays_on_one", || {
        veth();
        let mut ports = open("mr-a", 2).expect("ports");
        assert_eq!(ports.len(), 2);
        send_arp(&mut ports[0], arp::Operation::REQUEST, Mac::BROADCAST);
        let socket = UdpSocket::bind((HOST, 0)).expect("bound");
        for _ in 0..20 {
            socket.send_to(b"flow", (OURS, 9)).expect("sent");
        }
        let is_ours = |frame: &[u8]| {
            let parsed = ethernet::Header::parse(frame).ok();
            parsed.is_some_and(|(header, _)| header.ethertype == EtherType::IPV4)
        };
        let mut counts = [0; 2];
        let mut buffer = vec![0; FRAME_MAX];
        for _ in 0..200 {
            for (port, count) in ports.iter_mut().zip(&mut counts) {
                while let Some(meta) = port.receive(&mut buffer).expect("the device is there") {
                    *count += usize::from(is_ours(&buffer[..meta.len]));
                }
            }
            if counts.iter().sum::<usize>() == 20 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        counts.sort_unstable();
        assert_eq!(counts, [0, 20]);
    });
}

#[test]
fn errors_name_the_device_and_the_next_step() {
    namespace::run("errors_name_the_device_and_the_next_step", || {
        let message = |device, queues| open(device, queues).expect_err("refused").to_string();
        assert!(message("mr-none", 1).contains("no network device `mr-none`"));
        assert!(message("no/name", 1).contains("cannot name a network device"));
        assert!(message("lo", 0).contains("1 to 256"));
        assert!(message("lo", 1).contains("`ip link set lo up`"));
        ip("link set lo up");
        assert!(message("lo", 1).contains("does not carry Ethernet frames"));
    });
}
