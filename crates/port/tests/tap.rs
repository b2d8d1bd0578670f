//! TAP devices against the kernel at their other end.

mod namespace;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use millrace_port::tap::{self, Config, Error, Tap};
use millrace_port::{BUFFER_LEN, ChecksumState, FRAME_MAX, MTU_MAX, Offload, Port, RxMeta};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::icmpv4::{self, Message};
use millrace_wire::tcp::{self, Flags, Segment, Seq};
use millrace_wire::{arp, checksum, ipv4, udp};
use rustix::event::{PollFd, PollFlags, Timespec};

const HOST: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const TCP_AT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

fn config() -> Config {
    Config {
        hosts: vec![(HOST.into(), 24)],
        ..Config::default()
    }
}

fn open_one(config: &Config) -> Tap {
    let mut taps = tap::open(config).expect("TAP devices can be made here");
    assert_eq!(taps.len(), 1);
    taps.remove(0)
}

/// As much of a stack as it takes to meet the kernel.
struct Station {
    tap: Tap,
    host_mac: Mac,
    buffer: Vec<u8>,
}

impl Station {
    /// Opens the device, and asks for the kernel's link-layer address.
    fn new(config: &Config) -> Station {
        let tap = open_one(config);
        let mut station = Station {
            tap,
            host_mac: Mac::BROADCAST,
            buffer: vec![0; FRAME_MAX],
        };
        station.send_arp(arp::Operation::REQUEST);
        let reply = station.receive_until(|frame, _| {
            let (header, payload) = ethernet::Header::parse(frame).ok()?;
            (header.ethertype == EtherType::ARP)
                .then(|| arp::Packet::parse(payload).ok())
                .flatten()
        });
        assert_eq!(
            (reply.operation, reply.sender_ip, reply.target_ip),
            (arp::Operation::REPLY, HOST, OURS)
        );
        station.host_mac = reply.sender_mac;
        station
    }

    fn mac(&self) -> Mac {
        self.tap.capabilities().mac
    }

    fn send_arp(&mut self, operation: arp::Operation) {
        let (sender_mac, target_mac) = (self.mac(), self.host_mac);
        let mut frame = [0; ethernet::HEADER_LEN + arp::LEN];
        ethernet::Header {
            dst: target_mac,
            src: sender_mac,
            ethertype: EtherType::ARP,
        }
        .emit(&mut frame);
        arp::Packet {
            operation,
            sender_mac,
            sender_ip: OURS,
            target_mac,
            target_ip: HOST,
        }
        .emit(&mut frame[14..]);
        assert!(
            self.tap
                .send(&frame, [&[]; 2], Offload::None)
                .expect("sent")
        );
    }

    /// Ethernet and IPv4 headers for so many bytes of payload.
    fn headers(&self, protocol: u8, payload_len: usize) -> Vec<u8> {
        let mut head = vec![0; TCP_AT];
        ethernet::Header {
            dst: self.host_mac,
            src: self.mac(),
            ethertype: EtherType::IPV4,
        }
        .emit(&mut head);
        let header = ipv4::Header::new(OURS, HOST, protocol, payload_len as u16);
        header.emit(&mut head[14..]);
        head
    }

    /// Sends a TCP segment; the kernel is left to finish it.
    fn send_tcp(&mut self, header: &tcp::Header, payload: &[u8], segment_size: u16) {
        let len = header.header_len();
        let mut head = self.headers(tcp::PROTOCOL, len + payload.len());
        head.resize(TCP_AT + len, 0);
        header.emit(&mut head[TCP_AT..]);
        let unfinished =
            checksum::pseudo_v4(OURS, HOST, tcp::PROTOCOL, (len + payload.len()) as u16).fold();
        head[TCP_AT + tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&unfinished.to_be_bytes());
        let (start, offset) = (TCP_AT as u16, tcp::CHECKSUM_OFFSET as u16);
        let offload = if payload.len() > usize::from(segment_size) {
            Offload::Segment {
                start,
                offset,
                header_len: head.len() as u16,
                segment_size,
            }
        } else {
            Offload::Checksum { start, offset }
        };
        let (one, two) = payload.split_at(payload.len() / 3);
        assert!(self.tap.send(&head, [one, two], offload).expect("sent"));
    }

    /// Receives, answering ARP, until `wanted` makes something of a frame.
    fn receive_until<T>(&mut self, mut wanted: impl FnMut(&[u8], &RxMeta) -> Option<T>) -> T {
        loop {
            let Some(meta) = self.tap.receive(&mut self.buffer).expect("a sound device") else {
                let descriptor = self.tap.descriptor().expect("a TAP device has one");
                let limit = Timespec {
                    tv_sec: 10,
                    tv_nsec: 0,
                };
                let ready = rustix::event::poll(
                    &mut [PollFd::new(&descriptor, PollFlags::IN)],
                    Some(&limit),
                );
                assert_eq!(ready.expect("polled"), 1, "nothing arrives");
                continue;
            };
            let frame = &self.buffer[..meta.len];
            if let Some(found) = wanted(frame, &meta) {
                return found;
            }
            let (header, payload) = ethernet::Header::parse(frame).expect("a frame");
            if header.ethertype == EtherType::ARP
                && arp::Packet::parse(payload)
                    .is_ok_and(|p| p.operation == arp::Operation::REQUEST && p.target_ip == OURS)
            {
                self.send_arp(arp::Operation::REPLY);
            }
        }
    }

    /// Receives until `wanted` makes something of a TCP segment from the kernel.
    fn receive_tcp<T>(&mut self, mut wanted: impl FnMut(&Segment<'_>, &RxMeta) -> Option<T>) -> T {
        self.receive_until(|frame, meta| {
            let (link, payload) = ethernet::Header::parse(frame).ok()?;
            let (ip, _, payload) = ipv4::Header::parse(payload).ok()?;
            if link.ethertype != EtherType::IPV4 || ip.protocol != tcp::PROTOCOL {
                return None;
            }
            assert_eq!((ip.src, ip.dst), (HOST, OURS));
            wanted(&Segment::parse(payload).expect("from the kernel"), meta)
        })
    }
}

#[test]
fn the_kernel_answers_a_ping() {
    namespace::run("the_kernel_answers_a_ping", || {
        let mut station = Station::new(&config());
        let data = *b"there and back";
        let mut message = [0; 64];
        let len = Message::EchoRequest {
            id: 7,
            sequence: 1,
            data: &data,
        }
        .emit(&mut message);
        let head = station.headers(ipv4::PROTOCOL_ICMP, len);
        assert!(
            station
                .tap
                .send(&head, [&message[..len], &[]], Offload::None)
                .expect("sent")
        );
        station.receive_until(|frame, _| {
            let (_, _, payload) = ipv4::Header::parse(&frame[14..]).ok()?;
            let reply = Message::parse(payload).ok()?;
            if reply
                != (Message::EchoReply {
                    id: 7,
                    sequence: 1,
                    data: &data,
                })
            {
                return None;
            }
            assert!(icmpv4::verify(payload));
            Some(())
        });
        let counters = station.tap.counters();
        assert!(
            counters.tx_frames >= 2 && counters.rx_frames >= 2 && counters.tx_refused == 0,
            "{counters:?}"
        );
    });
}

#[test]
fn the_kernel_resolves_our_address_and_sends() {
    namespace::run("the_kernel_resolves_our_address_and_sends", || {
        let mut station = Station::new(&config());
        let socket = UdpSocket::bind((HOST, 0)).expect("the kernel has the address");
        socket
            .send_to(b"datagram", (OURS, 9))
            .expect("there is a route");
        let mac = station.mac();
        station.receive_until(|frame, meta| {
            let (link, payload) = ethernet::Header::parse(frame).expect("a frame");
            let (ip, _, payload) = ipv4::Header::parse(payload).ok()?;
            if ip.protocol != 17 || ip.dst != OURS {
                return None;
            }
            assert_eq!(
                (link.dst, &payload[8..], meta.segment_size),
                (mac, &b"datagram"[..], 0)
            );
            assert_eq!(
                meta.checksum,
                ChecksumState::Partial,
                "what the kernel made itself it leaves unfinished"
            );
            Some(())
        });
    });
}

/// A connection from us to a listener of the kernel.
fn connect(station: &mut Station) -> (TcpStream, tcp::Header) {
    let listener = TcpListener::bind((HOST, 0)).expect("the kernel has the address");
    let port = listener.local_addr().expect("bound").port();
    let mut header = tcp::Header {
        src_port: 40_000,
        dst_port: port,
        seq: Seq(u32::MAX - 5000),
        ack: Seq(0),
        flags: Flags::SYN,
        window: 0xffff,
        urgent: 0,
        options: tcp::Options {
            mss: Some(1460),
            window_scale: Some(7),
            ..tcp::Options::default()
        },
    };
    station.send_tcp(&header, &[], 1460);
    header.ack = station.receive_tcp(|segment, _| {
        assert_eq!(
            (segment.flags, segment.ack),
            (Flags::SYN | Flags::ACK, header.seq + 1)
        );
        Some(segment.seq + 1)
    });
    header.seq += 1;
    header.flags = Flags::ACK;
    header.options = tcp::Options::default();
    station.send_tcp(&header, &[], 1460);
    let (stream, peer) = listener.accept().expect("established");
    assert_eq!(peer, SocketAddrV4::new(OURS, 40_000).into());
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .expect("set");
    (stream, header)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

#[test]
fn one_write_is_many_segments_to_the_kernel() {
    namespace::run("one_write_is_many_segments_to_the_kernel", || {
        let mut station = Station::new(&config());
        let (mut stream, mut header) = connect(&mut station);
        let sent = pattern(40_001);
        header.flags |= Flags::PSH | Flags::CWR;
        station.send_tcp(&header, &sent, 1460);
        let mut received = vec![0; sent.len()];
        stream.read_exact(&mut received).expect("all of it");
        assert!(received == sent);
        let end = header.seq + sent.len() as u32;
        station.receive_tcp(|segment, _| (segment.ack == end).then_some(()));
    });
}

#[test]
fn what_the_kernel_sends_arrives_aggregated() {
    namespace::run("what_the_kernel_sends_arrives_aggregated", || {
        let mut station = Station::new(&config());
        let (mut stream, mut header) = connect(&mut station);
        let sent = pattern(200_000);
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || stream.write_all(&sent).map(|()| stream)
        });
        let (start, mut received, mut largest) = (header.ack, Vec::new(), 0);
        while received.len() < sent.len() {
            let next = header.ack;
            station.receive_tcp(|segment, meta| {
                if segment.seq != next || segment.payload.is_empty() {
                    return None;
                }
                assert_eq!(meta.checksum, ChecksumState::Partial);
                if segment.payload.len() > 1460 {
                    assert_eq!(meta.segment_size, 1460);
                    largest = largest.max(segment.payload.len());
                }
                received.extend_from_slice(segment.payload);
                Some(())
            });
            header.ack = start + received.len() as u32;
            station.send_tcp(&header, &[], 1460);
        }
        writer.join().expect("no panic").expect("written");
        assert!(received == sent);
        assert!(
            largest > 10 * 1460,
            "largest frame had {largest} bytes of payload"
        );
    });
}

/// Whether the next is a short one or the longest is not known when the room for it is given.
#[test]
fn short_frames_and_the_longest_arrive_whole_in_any_order() {
    namespace::run(
        "short_frames_and_the_longest_arrive_whole_in_any_order",
        || {
            let mut station = Station::new(&Config {
                mtu: MTU_MAX,
                ..config()
            });
            let socket = UdpSocket::bind((HOST, 0)).expect("a socket");
            let longest = usize::from(MTU_MAX) - ipv4::HEADER_LEN - udp::HEADER_LEN;
            for room in [BUFFER_LEN, FRAME_MAX] {
                station.buffer = vec![0; room];
                for len in [1, 1, longest, longest, 2, 1500, 3, 2500, longest, 4] {
                    let sent = pattern(len);
                    let to = SocketAddrV4::new(OURS, 7);
                    assert_eq!(socket.send_to(&sent, to).expect("sent"), len);
                    let received = station.receive_until(|frame, _| {
                        let (link, payload) = ethernet::Header::parse(frame).ok()?;
                        let (ip, _, payload) = ipv4::Header::parse(payload).ok()?;
                        let is_ours =
                            link.ethertype == EtherType::IPV4 && ip.protocol == udp::PROTOCOL;
                        is_ours.then(|| payload[udp::HEADER_LEN..].to_vec())
                    });
                    assert!(received == sent, "{len} bytes into {room}");
                }
            }
        },
    );
}

#[test]
fn every_queue_is_a_port() {
    namespace::run("every_queue_is_a_port", || {
        let taps = tap::open(&Config {
            queues: 4,
            ..config()
        })
        .expect("TAP devices can be made here");
        assert_eq!(taps.len(), 4);
        let (name, mac) = (taps[0].name().to_owned(), taps[0].capabilities().mac);
        assert!(
            mac.is_unicast() && mac.0[0] & 2 != 0,
            "{mac} is locally administered"
        );
        for mut tap in taps {
            assert_eq!(
                (
                    tap.name(),
                    tap.capabilities().mac,
                    tap.capabilities().queues
                ),
                (&name[..], mac, 4)
            );
            let mut frame = [0; ethernet::HEADER_LEN + arp::LEN];
            ethernet::Header {
                dst: Mac::BROADCAST,
                src: mac,
                ethertype: EtherType::ARP,
            }
            .emit(&mut frame);
            assert!(tap.send(&frame, [&[]; 2], Offload::None).expect("sent"));
        }
    });
}

#[test]
fn nothing_blocks_and_nothing_is_inherited() {
    namespace::run("nothing_blocks_and_nothing_is_inherited", || {
        let mut tap = open_one(&Config {
            hosts: Vec::new(),
            ..config()
        });
        assert_eq!(tap.receive(&mut vec![0; FRAME_MAX]).expect("sound"), None);
        let descriptor = tap.descriptor().expect("a TAP device has one");
        let flags = rustix::io::fcntl_getfd(descriptor).expect("open");
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(
            !tap.send(&[0; 60], [&[]; 2], Offload::None)
                .expect("refused"),
            "the device is down"
        );
        assert_eq!(
            (tap.counters().tx_refused, tap.counters().tx_frames),
            (1, 0)
        );
    });
}

#[test]
fn free_names_are_found_and_devices_go_with_their_ports() {
    namespace::run(
        "free_names_are_found_and_devices_go_with_their_ports",
        || {
            let unnumbered = Config {
                hosts: Vec::new(),
                ..config()
            };
            let (one, two) = (open_one(&unnumbered), open_one(&unnumbered));
            assert_eq!((one.name(), two.name()), ("mr0", "mr1"));
            drop(one);
            assert_eq!(open_one(&unnumbered).name(), "mr0");
        },
    );
}

#[test]
fn errors_name_the_value_and_the_next_step() {
    namespace::run("errors_name_the_value_and_the_next_step", || {
        let refuse = |config: &Config| tap::open(config).expect_err("refused");
        let named = |name: &str| Config {
            name: Some(name.to_owned()),
            ..config()
        };

        assert!(matches!(refuse(&named("lo")), Error::Exists { name } if name == "lo"));
        assert!(matches!(refuse(&named("mr%d")), Error::Name(_)));
        assert!(matches!(
            refuse(&Config {
                mtu: 67,
                ..config()
            }),
            Error::Mtu { mtu: 67 }
        ));
        assert!(matches!(
            refuse(&Config {
                mtu: MTU_MAX + 1,
                ..config()
            }),
            Error::Mtu { .. }
        ));
        for queues in [0, 257] {
            assert!(matches!(
                refuse(&Config { queues, ..config() }),
                Error::Queues { .. }
            ));
        }

        let first = open_one(&Config {
            mtu: MTU_MAX,
            ..named("first")
        });
        let wider = (Ipv4Addr::new(10, 0, 0, 1).into(), 8);
        let error = refuse(&Config {
            hosts: vec![wider],
            ..named("second")
        });
        let message = error.to_string();
        assert!(
            matches!(error, Error::PrefixInUse { interface, .. } if interface == "first"),
            "{message}"
        );
        assert!(
            message.contains("10.0.0.1/8") && message.contains("10.99.0.1/24"),
            "{message}"
        );
        drop(first);
        open_one(&Config {
            hosts: vec![wider],
            ..named("second")
        });

        // Without its privileges, for good: this process is the test's alone.
        rustix::thread::set_capabilities(
            None,
            rustix::thread::CapabilitySets {
                effective: rustix::thread::CapabilitySet::empty(),
                permitted: rustix::thread::CapabilitySet::empty(),
                inheritable: rustix::thread::CapabilitySet::empty(),
            },
        )
        .expect("privileges can be given up");
        let error = refuse(&named("third"));
        assert!(matches!(error, Error::NoPrivilege { .. }), "{error}");
        assert!(
            error.to_string().contains("`third`") && error.to_string().contains("CAP_NET_ADMIN"),
            "{error}"
        );
    });
}
