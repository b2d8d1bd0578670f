//! Ports on a virtual LAN, on a TAP device and by packet sockets, with hostile tags from the other
//! end.

mod namespace;

use std::process::Command;

use millrace_port::{FRAME_MAX, Offload, Port, packet, tap};
use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::vlan::Tag;
use rustix::event::{PollFd, PollFlags, Timespec};

/// A type that nobody else speaks, so that what the kernel sends on its own is told apart.
const OURS: EtherType = EtherType(0x88b5);
const FAR: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.expect("ip runs").success(), "ip {arguments}");
}

fn by_packets(device: &str, vlan: Option<u16>, mac: Option<Mac>) -> packet::Packet {
    let config = packet::Config {
        device: device.into(),
        queues: 1,
        mac,
        vlan: vlan.and_then(Tag::new),
    };
    packet::open(&config).expect("a port").remove(0)
}

/// A frame with these tags, as they stand in it.
fn frame(dst: Mac, tags: &[[u8; 4]], ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut bytes = [0; ethernet::HEADER_LEN];
    let header = ethernet::Header {
        dst,
        src: FAR,
        ethertype,
    };
    header.emit(&mut bytes);
    [&bytes[..12], &tags.concat(), &bytes[12..], payload].concat()
}

/// The next frame of our type; none when there is none for a while.
fn receive(port: &mut dyn Port) -> Option<Vec<u8>> {
    let mut buffer = vec![0; FRAME_MAX];
    for _ in 0..10 {
        while let Some(meta) = port.receive(&mut buffer).expect("the device is there") {
            let frame = &buffer[..meta.len];
            if ethernet::Header::parse(frame).is_ok_and(|(header, _)| header.ethertype == OURS) {
                return Some(frame.to_vec());
            }
        }
        let mut polled = [PollFd::from_borrowed_fd(
            port.descriptor().expect("a descriptor"),
            PollFlags::IN,
        )];
        let patience = Timespec {
            tv_sec: 0,
            tv_nsec: 30_000_000,
        };
        rustix::event::poll(&mut polled, Some(&patience)).expect("poll");
    }
    None
}

/// What `far`, which adds and takes nothing, sends with one tag reaches `near`, which is on LAN 7,
/// as if it had none, and the other way round. Other tags, two tags, no tag and half a tag do not.
fn exchange(near: &mut dyn Port, far: &mut dyn Port) {
    let mac = near.capabilities().mac;
    let plain = frame(mac, &[], OURS, b"seven");
    let send = |far: &mut dyn Port, frame: &[u8]| {
        far.send(frame, [&[]; 2], Offload::None).expect("sound");
    };
    for hostile in [
        plain.clone(),
        frame(mac, &[[0x81, 0, 0, 8]], OURS, b"eight"),
        frame(mac, &[[0x81, 0, 0, 0]], OURS, b"priority alone"),
        frame(mac, &[[0x88, 0xa8, 0, 7]], OURS, b"a provider's"),
        frame(mac, &[[0x81, 0, 0, 7], [0x81, 0, 0, 7]], OURS, b"nested"),
        frame(mac, &[[0x88, 0xa8, 0, 7], [0x81, 0, 0, 7]], OURS, b"both"),
        frame(mac, &[], EtherType::VLAN, b""),
        frame(mac, &[], EtherType::VLAN, b"\0"),
        frame(mac, &[], EtherType::VLAN, b"\0\x07"),
    ] {
        send(far, &hostile);
    }
    for priority in [0, 0xf0] {
        send(far, &frame(mac, &[[0x81, 0, priority, 7]], OURS, b"seven"));
        assert_eq!(receive(near).as_deref(), Some(&plain[..]), "{priority:x}");
    }
    assert_eq!(receive(near), None);
}

/// A TCP segment over IPv4 whose checksum is left to the device.
fn unfinished(dst: Mac, payload: &[u8]) -> (Vec<u8>, Offload) {
    use millrace_wire::{ipv4, tcp};
    let (from, to) = ([10, 9, 0, 2].into(), [10, 9, 0, 3].into());
    let mut segment = vec![0; tcp::HEADER_LEN];
    segment[12] = 5 << 4;
    let len = (segment.len() + payload.len()) as u16;
    let sum = pseudo_v4(from, to, tcp::PROTOCOL, len).fold();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0; ipv4::HEADER_LEN];
    ipv4::Header::new(from, to, tcp::PROTOCOL, len).emit(&mut packet);
    let head = frame(dst, &[], EtherType::IPV4, &[packet, segment].concat());
    let offload = Offload::Checksum {
        start: 34,
        offset: 16,
    };
    (head, offload)
}

#[test]
fn ieee8021q_a_tap_device_carries_tagged_frames_and_passes_over_others() {
    let name = "ieee8021q_a_tap_device_carries_tagged_frames_and_passes_over_others";
    namespace::run(name, || {
        let config = tap::Config {
            name: Some("mr-a".into()),
            up: true,
            vlan: Tag::new(7),
            ..tap::Config::default()
        };
        let mut near = tap::open(&config).expect("a device").remove(0);
        let mut far = by_packets("mr-a", None, Some(FAR));
        exchange(&mut near, &mut far);
        assert!(near.counters().rx_foreign >= 7, "{:?}", near.counters());
        // The other way: the kernel takes the tag off, and shows it to who asks for this LAN.
        let mut of_seven = by_packets("mr-a", Some(7), Some(FAR));
        let mut of_eight = by_packets("mr-a", Some(8), Some(FAR));
        let plain = frame(FAR, &[], OURS, b"to seven");
        assert!(near.send(&plain, [&[]; 2], Offload::None).expect("sound"));
        assert_eq!(receive(&mut of_seven).as_deref(), Some(&plain[..]));
        assert_eq!((receive(&mut of_eight), receive(&mut far)), (None, None));
    });
}

#[test]
fn ieee8021q_packet_sockets_carry_tagged_frames_beside_others() {
    let name = "ieee8021q_packet_sockets_carry_tagged_frames_beside_others";
    namespace::run(name, || {
        ip("link add mr-a type veth peer name mr-b");
        ip("link set mr-a up");
        ip("link set mr-b up");
        let mut near = by_packets("mr-a", Some(7), None);
        let mut far = by_packets("mr-b", None, Some(FAR));
        exchange(&mut near, &mut far);
        let mut of_seven = by_packets("mr-b", Some(7), Some(FAR));
        let plain = frame(FAR, &[], OURS, b"to seven");
        assert!(near.send(&plain, [&[]; 2], Offload::None).expect("sound"));
        assert_eq!(receive(&mut of_seven).as_deref(), Some(&plain[..]));
        assert_eq!(receive(&mut far), None);
        // A checksum that the device finishes is at its place in spite of the tag.
        let (head, offload) = unfinished(FAR, b"payload");
        assert!(near.send(&head, [b"payload", &[]], offload).expect("sound"));
        let mut buffer = vec![0; FRAME_MAX];
        let meta = loop {
            if let Some(meta) = of_seven.receive(&mut buffer).expect("sound")
                && buffer[12..14] == [8, 0]
            {
                break meta;
            }
        };
        assert_eq!(buffer[..34], head[..34]);
        let whole = &buffer[34..meta.len];
        let (from, to) = ([10, 9, 0, 2].into(), [10, 9, 0, 3].into());
        let sum = pseudo_v4(from, to, 6, whole.len() as u16) + Sum::of(whole);
        let partial = meta.checksum == millrace_port::ChecksumState::Partial;
        assert!(partial || sum.is_valid(), "{meta:?}");
    });
}
