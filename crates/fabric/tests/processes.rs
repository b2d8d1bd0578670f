//! Two processes of one user, without any privilege: one is killed in the midst of it.

use std::process::Command;
use std::time::Duration;

use millrace_fabric::shm::{Directory, Port};
use millrace_fabric::{Channel, Failure, Limits, Payload, PortName};

const PARENT: PortName = PortName::new(0, 1);
const CHILD: PortName = PortName::new(0, 2);
const PLACE: &str = "MILLRACE_FABRIC_PLACE";
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

/// Says that it is there, and then sends back what it receives, until it is killed.
fn echo(directory: &Directory) {
    let mut port = Port::open_in(directory, CHILD, Limits::default()).unwrap();
    let say = |port: &mut Port, bytes: &[u8]| {
        port.send(PARENT, Channel::System, 0, Payload::Inline(bytes), 0)
            .unwrap();
    };
    say(&mut port, b"here");
    while port.wait(LIMIT).unwrap() {
        while port.poll_sent().is_some() {}
        while let Some(message) = port.poll_received() {
            let bytes = port.message(&message).unwrap().to_vec();
            port.free(message.buffer).unwrap();
            say(&mut port, &bytes);
        }
    }
}

fn receive(port: &mut Port) -> Vec<u8> {
    loop {
        assert!(port.wait(LIMIT).unwrap(), "nothing came");
        while port.poll_sent().is_some() {}
        if let Some(message) = port.poll_received() {
            let bytes = port.message(&message).unwrap().to_vec();
            port.free(message.buffer).unwrap();
            return bytes;
        }
    }
}

#[test]
fn two_processes_exchange_messages() {
    if let Some(place) = std::env::var_os(PLACE) {
        return echo(&Directory::at(place));
    }
    let place = std::env::temp_dir().join(format!("millrace-fabric-two-{}", std::process::id()));
    let mut port = Port::open_in(&Directory::at(&place), PARENT, Limits::default()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes_exchange_messages"])
        .env(PLACE, &place)
        .spawn()
        .unwrap();
    assert_eq!(receive(&mut port), b"here");
    for number in 0..1_000u32 {
        let bytes = number.to_ne_bytes();
        port.send(CHILD, Channel::System, 0, Payload::Inline(&bytes), 0)
            .unwrap();
        assert_eq!(receive(&mut port), bytes);
    }
    while port.poll_sent().is_some() {}
    let buffer = port.register(100).unwrap();
    let payload = Payload::Buffer(buffer, 100);
    port.send(CHILD, Channel::Normal(0), 0, payload, 9).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(port.wait(LIMIT).unwrap(), "the end is noticed");
    let sent = port.poll_sent().unwrap();
    assert_eq!((sent.tag, sent.result), (9, Err(Failure::PeerLost)));
    port.free(buffer).unwrap();
    drop(port);
    std::fs::remove_dir_all(place).unwrap();
}
