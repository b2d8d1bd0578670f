//! A host that every address is meant for.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use millrace::{Builder, Link, Stack, State, TcpListener, TcpOptions, TcpStream, UdpSocket};

/// A client, and what stands between it and everybody.
fn hosts() -> (Stack, Stack) {
    let (one, two) = Link::pair(1500);
    let client = Builder::new()
        .link(one)
        .address(Ipv4Addr::new(10, 0, 0, 1), 24)
        .address(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), 64)
        .gateway(Ipv4Addr::new(10, 0, 0, 2))
        .gateway(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2));
    let proxy = Builder::new()
        .link(two)
        .address(Ipv4Addr::new(10, 0, 0, 2), 24)
        .address(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2), 64)
        .any_address(true);
    let hosts = (
        client.build().expect("a host"),
        proxy.build().expect("a host"),
    );
    // IPv6 looks for others with its addresses first.
    let begin = std::time::Instant::now();
    while begin.elapsed() < std::time::Duration::from_millis(1500) {
        turn(&hosts.0, &hosts.1);
        std::thread::yield_now();
    }
    hosts
}

fn turn(one: &Stack, two: &Stack) {
    one.poll();
    two.poll();
}

fn turns(one: &Stack, two: &Stack) {
    for _ in 0..50 {
        turn(one, two);
    }
}

fn begin(stack: &Stack, to: &str) -> TcpStream {
    let to: SocketAddr = to.parse().expect("an address");
    let stream = TcpStream::connect_nonblocking(stack, to, TcpOptions::new()).expect("a way");
    stream.set_nonblocking(true);
    stream
}

#[test]
fn it_accepts_for_whoever_was_meant() {
    let (client, proxy) = hosts();
    let listener = TcpListener::anywhere(&proxy, TcpOptions::new()).expect("the first");
    let second = TcpListener::anywhere(&proxy, TcpOptions::new()).expect_err("the second");
    assert_eq!(second.kind(), ErrorKind::AddrInUse);
    listener.set_nonblocking(true);
    // What is bound goes before.
    let bound = TcpListener::bind(&proxy, "10.0.0.2:80").expect("free");
    bound.set_nonblocking(true);
    for to in ["192.0.2.77:8080", "10.0.0.2:81", "[2001:db8::9]:443"] {
        let mut stream = begin(&client, to);
        turns(&client, &proxy);
        let (mut accepted, _) = listener.accept().expect(to);
        accepted.set_nonblocking(true);
        assert_eq!(accepted.local_addr().expect("open").to_string(), to);
        stream.write_all(b"hello").expect("room");
        turns(&client, &proxy);
        let mut buffer = [0; 8];
        assert_eq!(accepted.read(&mut buffer).expect("it came"), 5);
    }
    let _own = begin(&client, "10.0.0.2:80");
    turns(&client, &proxy);
    bound.accept().expect("its own");
    drop(listener);
    let late = begin(&client, "192.0.2.77:8080");
    turns(&client, &proxy);
    let error = late.take_error().expect("nobody listens any more");
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    for to in ["224.0.0.1:80", "255.255.255.255:80", "127.0.0.1:80"] {
        let to = to.parse().expect("an address");
        let begun = TcpStream::connect_nonblocking(&client, to, TcpOptions::new());
        turns(&client, &proxy);
        assert!(
            begun.map_or(true, |stream| stream.take_error().is_some()),
            "{to}"
        );
    }
}

#[test]
fn a_syn_has_no_answer_before_the_program_says_so() {
    let (client, proxy) = hosts();
    let listener = TcpListener::anywhere_asking(&proxy, TcpOptions::new()).expect("the first");
    let wanted = begin(&client, "192.0.2.1:80");
    let unwanted = begin(&client, "192.0.2.2:80");
    let forgotten = begin(&client, "192.0.2.3:80");
    turns(&client, &proxy);
    for stream in [&wanted, &unwanted, &forgotten] {
        assert_eq!(stream.info().expect("it tries").state, State::SynSent);
    }
    let handle = proxy.spawn(async move {
        let first = listener.request_async().await.expect("listening");
        assert_eq!(first.local_addr().to_string(), "192.0.2.1:80");
        let second = listener.request_async().await.expect("listening");
        assert_eq!(second.local_addr().to_string(), "192.0.2.2:80");
        second.refuse();
        let third = listener.request_async().await.expect("listening");
        drop(third);
        let stream = first.accept_async().await.expect("it waits");
        (stream, listener)
    });
    turns(&client, &proxy);
    let (mut stream, _listener) = proxy.block_on(handle);
    for stream in [&unwanted, &forgotten] {
        let error = stream.take_error().expect("refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
    stream.write_all(b"x").expect("room");
    turns(&client, &proxy);
    let mut buffer = [0; 2];
    assert_eq!(wanted.try_read(&mut buffer).expect("it came"), 1);
    assert_eq!(proxy.usage().half_open, 0);
}

#[test]
fn what_is_taken_back_is_no_request() {
    let (client, proxy) = hosts();
    let listener = TcpListener::anywhere_asking(&proxy, TcpOptions::new()).expect("the first");
    let impatient = begin(&client, "192.0.2.1:80");
    turns(&client, &proxy);
    assert_eq!(proxy.usage().half_open, 1);
    drop(impatient);
    let patient = begin(&client, "192.0.2.2:80");
    turns(&client, &proxy);
    let handle = proxy.spawn(async move {
        // The first says nothing when it goes in SYN-SENT, as on Linux: it is noticed when it is
        // answered.
        let mut accepted = Vec::new();
        for _ in 0..2 {
            let request = listener.request_async().await.expect("listening");
            if let Ok(stream) = request.accept_async().await {
                accepted.push(stream.local_addr().expect("open"));
            }
        }
        accepted
    });
    turns(&client, &proxy);
    let accepted = proxy.block_on(handle);
    assert_eq!(accepted, [patient.peer_addr().expect("open")]);
}

#[test]
fn datagrams_to_anybody_are_answered_by_whoever_was_meant() {
    let (client, proxy) = hosts();
    let all = UdpSocket::anywhere(&proxy).expect("the first");
    all.set_nonblocking(true);
    assert!(UdpSocket::anywhere(&proxy).is_err());
    for to in ["198.51.100.5:53", "[2001:db8::53]:53"] {
        let asking = UdpSocket::connected(&client, to.parse().expect("one")).expect("a port");
        asking.set_nonblocking(true);
        asking.send(b"where?").expect("room");
        turns(&client, &proxy);
        let mut buffer = [0; 64];
        let received = all.recv_with_info(&mut buffer).expect("it came");
        assert_eq!(received.to.to_string(), to);
        let flow = UdpSocket::answering(&proxy, &received).expect("anybody's");
        flow.set_nonblocking(true);
        flow.send(b"there").expect("room");
        turns(&client, &proxy);
        assert_eq!(asking.recv(&mut buffer).expect("an answer"), 5);
        // What follows is the flow's.
        asking.send(b"and?").expect("room");
        turns(&client, &proxy);
        assert_eq!(flow.recv(&mut buffer).expect("it came"), 4);
        assert!(all.recv_with_info(&mut buffer).is_err());
        // Another who means the same one is another flow.
        let other = UdpSocket::connected(&client, to.parse().expect("one")).expect("a port");
        other.send(b"me too").expect("room");
        turns(&client, &proxy);
        let received = all.recv_with_info(&mut buffer).expect("it came");
        let second = UdpSocket::answering(&proxy, &received).expect("anybody's");
        second.send(b"you").expect("room");
        turns(&client, &proxy);
        assert_eq!(other.recv(&mut buffer).expect("an answer"), 3);
    }
}
