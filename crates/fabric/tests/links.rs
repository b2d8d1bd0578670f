//! Ports on links of this host: two ends in memory, each with a thread of its own.

use std::time::Duration;

use millrace_fabric::ethernet::{LinkError, MTU_MIN};
use millrace_fabric::{Channel, Failure, Limits, Payload, Port, PortName, ethernet};
use millrace_port::pair;

const ONE: PortName = PortName::new(1, 1);
const TWO: PortName = PortName::new(2, 1);
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));

fn pair_of_ports(mtu: u16) -> Result<(Port, Port), LinkError> {
    let (one, two) = pair::pair(pair::Config {
        mtu,
        ..pair::Config::default()
    });
    let open = |end, name| ethernet::Port::on(Box::new(end), name, Limits::default());
    Ok((open(one, ONE)?.into(), open(two, TWO)?.into()))
}

/// Waits for the end of a request.
fn finish(port: &mut Port) -> Result<(), Failure> {
    loop {
        assert!(port.wait(LIMIT).unwrap(), "the request did not end");
        if let Some(sent) = port.poll_sent() {
            return sent.result;
        }
    }
}

#[test]
fn messages_of_every_size_cross_a_link() {
    let (mut one, mut two) = pair_of_ports(1500).unwrap();
    let sizes = [1, 64, 1024, 1500, 8192, 100_000];
    let receiver = std::thread::spawn(move || {
        for size in sizes {
            let buffer = two.register(size).unwrap();
            two.post(Channel::Normal(3), buffer).unwrap();
            assert!(two.wait(LIMIT).unwrap(), "{size} B did not come");
            let message = two.poll_received().unwrap();
            assert_eq!((message.from, message.len), (ONE, size));
            let is_same = two.message(&message).unwrap().iter().all(|&byte| byte == 7);
            assert!(is_same, "{size} B are others");
            two.free(message.buffer).unwrap();
        }
        two
    });
    for size in sizes {
        let buffer = one.register(size).unwrap();
        one.bytes_mut(buffer).unwrap().fill(7);
        let payload = Payload::Buffer(buffer, size);
        one.send(TWO, Channel::Normal(3), 0, payload, 0).unwrap();
        assert_eq!(finish(&mut one), Ok(()));
        one.free(buffer).unwrap();
    }
    let two = receiver.join().unwrap();
    assert_eq!(two.counters().received, sizes.len() as u64);
    assert_eq!(one.peers(), [TWO]);
}

#[test]
fn a_port_that_is_dropped_is_lost_to_its_peer() {
    let (mut one, mut two) = pair_of_ports(1500).unwrap();
    one.send(TWO, Channel::System, 0, Payload::Inline(b"x"), 0)
        .unwrap();
    while two.poll_received().is_none() {
        one.poll();
        two.poll();
    }
    while !one.peers().is_empty() && one.poll_sent().is_none() {
        one.poll();
        two.poll();
    }
    // What nobody has posted a buffer for.
    one.send(TWO, Channel::Normal(0), 0, Payload::Inline(b"y"), 0)
        .unwrap();
    one.poll();
    drop(two);
    assert_eq!(finish(&mut one), Err(Failure::PeerLost));
}

#[test]
fn a_link_that_takes_no_system_message_is_refused() {
    let error = pair_of_ports(MTU_MIN - 1).unwrap_err();
    assert!(matches!(error, LinkError::Mtu(_)), "{error}");
    assert!(pair_of_ports(MTU_MIN).is_ok());
}
