//! A stack of two links, with a host at the other end of each. Time is the test's.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use millrace::{
    BuildError, Builder, Capabilities, Instant, Link, Mac, Offload, Port, PortCounters, RxMeta,
    SendTo, Stack, TcpListener, TcpOptions, TcpStream, UdpSocket,
};

/// `middle` is 10.1.0.2 and fd01::2 to `left` and 10.2.0.2 to `right`, which is its way to
/// everything else. Packets are larger on the right.
struct Net {
    left: Stack,
    middle: Stack,
    right: Stack,
    now: Cell<u64>,
}

fn at(address: &str) -> SocketAddr {
    address.parse().expect("an address")
}

fn host(link: Link, net: u8) -> Builder {
    Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, net, 0, 1), 24)
        .manual_clock()
}

impl Net {
    fn new() -> Net {
        let ((one, left), (two, right)) = (Link::pair(1500), Link::pair(9000));
        let right = host(right, 2).address(Ipv4Addr::new(203, 0, 113, 7), 32);
        let left = host(left, 1).gateway(Ipv4Addr::new(10, 1, 0, 2));
        let middle = Builder::new()
            .link(one)
            .address(Ipv4Addr::new(10, 1, 0, 2), 24)
            .link(two)
            .address(Ipv4Addr::new(10, 2, 0, 2), 24)
            .gateway(Ipv4Addr::new(10, 2, 0, 1))
            .manual_clock();
        let build = |builder: Builder| builder.build().expect("a host");
        let (left, middle, right) = (build(left), build(middle), build(right));
        Net {
            left,
            middle,
            right,
            now: Cell::new(0),
        }
    }

    /// Lets so many milliseconds go by.
    fn turns(&self, count: u64) {
        for _ in 0..count {
            self.now.set(self.now.get() + 1);
            for stack in [&self.left, &self.middle, &self.right] {
                stack.poll_at(Instant::from_millis(self.now.get()));
            }
        }
    }

    /// A connection to `to`, and its accepted end.
    fn connect(&self, from: &Stack, listener: &TcpListener, to: &str) -> (TcpStream, TcpStream) {
        let client = begin(from, to).expect("a way");
        self.turns(20);
        let (server, peer) = listener.accept().expect("it has come");
        assert_eq!(peer, client.local_addr().expect("open"));
        server.set_nonblocking(true);
        (client, server)
    }

    fn carries(&self, (one, other): (&mut TcpStream, &mut TcpStream)) {
        for (from, to) in [(&*one, &*other), (&*other, &*one)] {
            let (mut from, mut to) = (from, to);
            let sent: Vec<u8> = (0..40_000u32).map(|at| (at % 251) as u8).collect();
            assert_eq!(from.write(&sent).expect("room"), sent.len());
            self.turns(20);
            let mut got = vec![0; sent.len()];
            to.read_exact(&mut got).expect("all has come");
            assert!(got == sent);
        }
    }
}

fn listen(stack: &Stack, address: &str) -> TcpListener {
    let listener = TcpListener::bind(stack, address).expect("free");
    listener.set_nonblocking(true);
    listener
}

fn begin(stack: &Stack, to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_nonblocking(stack, at(to), TcpOptions::new())?;
    stream.set_nonblocking(true);
    Ok(stream)
}

fn datagrams(stack: &Stack, address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(stack, address).expect("free");
    socket.set_nonblocking(true);
    socket
}

fn kind<T>(outcome: io::Result<T>) -> ErrorKind {
    outcome.err().expect("it cannot be").kind()
}

#[test]
fn one_listener_hears_both_links_and_itself() {
    let net = Net::new();
    let listener = listen(&net.middle, "0.0.0.0:80");
    assert_eq!(listener.local_addr().expect("open"), at("0.0.0.0:80"));
    for (from, to) in [
        (&net.left, "10.1.0.2:80"),
        (&net.right, "10.2.0.2:80"),
        (&net.middle, "10.1.0.2:80"),
        (&net.middle, "10.2.0.2:80"),
        (&net.middle, "127.0.0.1:80"),
    ] {
        let (mut client, mut server) = net.connect(from, &listener, to);
        assert_eq!(server.local_addr().expect("open"), at(to));
        net.carries((&mut client, &mut server));
    }
    assert_eq!(kind(listener.accept()), ErrorKind::WouldBlock);
}

#[test]
fn a_link_with_many_connections_keeps_the_other_not_waiting() {
    let net = Net::new();
    let listener = listen(&net.middle, "0.0.0.0:80");
    let many: Vec<_> = (0..10)
        .map(|_| begin(&net.left, "10.1.0.2:80").expect("a way"))
        .collect();
    let late = begin(&net.right, "10.2.0.2:80").expect("a way");
    net.turns(20);
    let both = [(); 2].map(|()| listener.accept().expect("they wait").1);
    assert!(both.contains(&late.local_addr().expect("open")), "{both:?}");
    let rest = (0..9).map(|_| listener.accept().expect("they wait"));
    assert_eq!(rest.count(), many.len() - 1);
}

#[test]
fn one_address_hears_its_own_link() {
    let net = Net::new();
    let left = listen(&net.middle, "10.1.0.2:80");
    let right = listen(&net.middle, "10.2.0.2:80");
    net.connect(&net.left, &left, "10.1.0.2:80");
    net.connect(&net.right, &right, "10.2.0.2:80");
    // An address is heard on its own link alone.
    let astray = begin(&net.left, "10.2.0.2:80").expect("a way, it thinks");
    net.turns(20);
    assert_eq!(kind(right.accept()), ErrorKind::WouldBlock);
    drop(astray);
    let foreign = TcpListener::bind(&net.middle, "10.3.0.2:80");
    assert_eq!(kind(foreign), ErrorKind::AddrNotAvailable);
}

#[test]
fn connections_leave_by_the_link_that_leads_to_the_peer() {
    let net = Net::new();
    for (there, to, own) in [
        (&net.left, "10.1.0.1:7", "10.1.0.2"),
        (&net.right, "10.2.0.1:7", "10.2.0.2"),
        (&net.right, "203.0.113.7:7", "10.2.0.2"),
    ] {
        let listener = listen(there, to);
        let (mut client, mut server) = net.connect(&net.middle, &listener, to);
        let local = client.local_addr().expect("open").ip();
        assert_eq!(local, own.parse::<IpAddr>().expect("one"));
        net.carries((&mut client, &mut server));
    }
    // The larger packets are used where there are such.
    let before = net.middle.on_link(1).expect("it is there").counters();
    assert!(before.frames_out > 0);
    assert_eq!(
        net.middle.on_link(0).expect("it is there").links(),
        1,
        "a handle of one link"
    );
    let (one, other) = (Link::packets(1500), Link::packets(1500));
    let closed = host(one, 1)
        .link(other)
        .address(Ipv4Addr::new(10, 2, 0, 1), 24);
    let closed = closed.build().expect("a host");
    // Where all others are behind one station everybody is.
    assert!(begin(&closed, "192.0.2.1:7").is_ok());
    let (one, other) = (Link::pair(1500).0, Link::pair(1500).0);
    let closed = host(one, 1)
        .link(other)
        .address(Ipv4Addr::new(10, 2, 0, 1), 24);
    let closed = closed.build().expect("a host");
    let nowhere = begin(&closed, "192.0.2.1:7");
    assert_eq!(kind(nowhere), ErrorKind::NetworkUnreachable);
    let nowhere = UdpSocket::connected(&closed, at("192.0.2.1:7"));
    assert_eq!(kind(nowhere), ErrorKind::NetworkUnreachable);
}

#[test]
fn a_bound_address_chooses_its_link() {
    let net = Net::new();
    let from = |local: &str, to: &str| {
        let local = Some(at(local));
        TcpStream::connect_nonblocking_from(&net.middle, local, at(to), TcpOptions::new())
    };
    // The left link leads nowhere but to its own network, the right one everywhere.
    let unreachable = from("10.1.0.2:0", "203.0.113.7:7");
    assert_eq!(kind(unreachable), ErrorKind::NetworkUnreachable);
    let across = from("10.1.0.2:0", "10.2.0.2:7");
    assert_eq!(kind(across), ErrorKind::NetworkUnreachable);
    let foreign = from("10.9.0.2:0", "10.2.0.1:7");
    assert_eq!(kind(foreign), ErrorKind::AddrNotAvailable);
    let listener = listen(&net.left, "10.1.0.1:7");
    for local in ["10.1.0.2:1234", "0.0.0.0:1235", "10.1.0.2:0"] {
        let client = from(local, "10.1.0.1:7").expect("a way");
        net.turns(20);
        let (_, peer) = listener.accept().expect("it has come");
        assert_eq!(peer, client.local_addr().expect("open"));
    }
    // And a handle of one link goes by no other.
    let left = net.middle.on_link(0).expect("it is there");
    assert_eq!(
        kind(begin(&left, "10.2.0.1:7")),
        ErrorKind::NetworkUnreachable
    );
    assert!(net.middle.on_link(2).is_err() && left.on_link(1).is_err());
}

#[test]
fn one_port_is_free_on_all_links() {
    let net = Net::new();
    let taken = listen(&net.middle, "10.2.0.2:80");
    let all = TcpListener::bind(&net.middle, "0.0.0.0:80");
    assert_eq!(kind(all), ErrorKind::AddrInUse);
    // What was bound on the first link is not any more.
    let first = listen(&net.middle, "10.1.0.2:80");
    drop((taken, first));
    drop(listen(&net.middle, "0.0.0.0:80"));
    let any = listen(&net.middle, "0.0.0.0:0");
    let port = any.local_addr().expect("open").port();
    assert_ne!(port, 0);
    for (from, address) in [(&net.left, "10.1.0.2"), (&net.right, "10.2.0.2")] {
        net.connect(from, &any, &format!("{address}:{port}"));
    }
    let socket = datagrams(&net.middle, "0.0.0.0:0");
    assert_ne!(socket.local_addr().expect("open").port(), 0);
    // All that one port can be taken of is taken on the second link.
    let second = net.middle.on_link(1).expect("it is there");
    let held: Vec<_> = (1..=u16::MAX)
        .filter_map(|port| UdpSocket::bind(&second, (Ipv4Addr::UNSPECIFIED, port)).ok())
        .collect();
    assert!(held.len() > 60_000);
    let none = UdpSocket::bind(&net.middle, "0.0.0.0:0");
    assert_eq!(kind(none), ErrorKind::AddrInUse);
}

#[test]
fn a_datagram_socket_hears_both_links_and_sends_by_either() {
    let net = Net::new();
    let middle = datagrams(&net.middle, "0.0.0.0:53");
    let (left, right) = (
        datagrams(&net.left, "10.1.0.1:9"),
        datagrams(&net.right, "10.2.0.1:9"),
    );
    let mut room = [0; 16];
    for (link, peer, to) in [(0, &left, "10.1.0.2:53"), (1, &right, "10.2.0.2:53")] {
        peer.send_to(b"where?", to).expect("room");
        net.turns(10);
        let received = middle.recv_with_info(&mut room).expect("it has come");
        assert_eq!((received.link, received.to), (link, at(to)));
        assert_eq!(received.from, peer.local_addr().expect("open"));
        middle.send_to(b"here", received.from).expect("room");
        net.turns(10);
        assert_eq!(peer.recv_from(&mut room).expect("an answer"), (4, at(to)));
    }
    // From an address that the program says, by its link.
    let told = SendTo {
        to: Some(at("203.0.113.7:9")),
        from: Some(Ipv4Addr::new(10, 1, 0, 2).into()),
        ..SendTo::default()
    };
    assert_eq!(
        kind(middle.send_as(b"x", &told)),
        ErrorKind::NetworkUnreachable
    );
    assert!(middle.send(b"x").is_err(), "nobody is its peer");
    // With a peer it is of one link.
    middle.connect("10.2.0.1:9").expect("a way");
    assert_eq!(middle.local_addr().expect("open"), at("10.2.0.2:53"));
    left.send_to(b"too late", "10.1.0.2:53").expect("room");
    right.send_to(b"heard", "10.2.0.2:53").expect("room");
    net.turns(10);
    assert_eq!(middle.recv(&mut room).expect("it has come"), 5);
    assert_eq!(kind(middle.recv(&mut room)), ErrorKind::WouldBlock);
    middle.send(b"back").expect("room");
    net.turns(10);
    assert_eq!(right.recv(&mut room).expect("it has come"), 4);
    let elsewhere = middle.connect("10.1.0.1:9");
    assert!(elsewhere.is_ok(), "by the gateway, since that is its way");
    drop(middle);
    assert_eq!(net.middle.usage().sockets, 0);
}

#[test]
fn groups_are_heard_on_both_links() {
    let net = Net::new();
    let middle = datagrams(&net.middle, "0.0.0.0:5353");
    let group: IpAddr = Ipv4Addr::new(239, 1, 2, 3).into();
    middle.join_multicast(group).expect("a group");
    assert!(middle.join_multicast(group).is_err(), "it is in it");
    let mut room = [0; 16];
    for (link, from, own) in [(0, &net.left, "10.1.0.1:0"), (1, &net.right, "10.2.0.1:0")] {
        let sender = datagrams(from, own);
        sender.send_to(b"all", "239.1.2.3:5353").expect("room");
        net.turns(10);
        assert_eq!(middle.recv_with_info(&mut room).expect("heard").link, link);
    }
    middle.leave_multicast(group).expect("it was in it");
    assert!(middle.leave_multicast(group).is_err());
    // By the way to everything else, or where the program says.
    let heard = datagrams(&net.right, "0.0.0.0:5353");
    heard.join_multicast(group).expect("a group");
    middle.send_to(b"all", "239.1.2.3:5353").expect("room");
    net.turns(10);
    assert_eq!(heard.recv(&mut room).expect("heard"), 3);
    let heard = datagrams(&net.left, "0.0.0.0:5353");
    heard.join_multicast(group).expect("a group");
    let told = SendTo {
        to: Some(at("239.1.2.3:5353")),
        from: Some(Ipv4Addr::new(10, 1, 0, 2).into()),
        ..SendTo::default()
    };
    middle.send_as(b"some", &told).expect("room");
    net.turns(10);
    assert_eq!(heard.recv(&mut room).expect("heard"), 4);
}

#[test]
fn tasks_wait_for_both_links() {
    let net = Net::new();
    let served = Rc::new(RefCell::new(Vec::new()));
    let (listener, told) = (listen(&net.middle, "0.0.0.0:80"), served.clone());
    let here = net.middle.clone();
    net.middle.spawn(async move {
        while let Ok((stream, from)) = listener.accept_async().await {
            told.borrow_mut().push(from.ip());
            here.spawn(async move { stream.write_all_async(b"hello").await });
        }
    });
    let socket = datagrams(&net.middle, "0.0.0.0:53");
    net.middle.spawn(async move {
        let mut room = [0; 64];
        while let Ok((len, from)) = socket.recv_from_async(&mut room).await {
            let _ = socket.send_to_async(&room[..len], from).await;
        }
    });
    for (from, to, own) in [
        (&net.left, "10.1.0.2", "10.1.0.1"),
        (&net.right, "10.2.0.2", "10.2.0.1"),
        (&net.left, "10.1.0.2", "10.1.0.1"),
    ] {
        let mut client = begin(from, &format!("{to}:80")).expect("a way");
        let asks = datagrams(from, &format!("{own}:0"));
        asks.send_to(b"echo", (to, 53)).expect("room");
        net.turns(20);
        client.read_exact(&mut [0; 5]).expect("greeted");
        assert_eq!(asks.recv(&mut [0; 8]).expect("an answer"), 4);
    }
    let expected = [[10, 1, 0, 1], [10, 2, 0, 1], [10, 1, 0, 1]].map(IpAddr::from);
    assert_eq!(*served.borrow(), expected);
    // Their sockets are closed on both links.
    net.middle.cancel_tasks();
    listen(&net.middle, "0.0.0.0:80");
    datagrams(&net.middle, "0.0.0.0:53");
}

/// A link whose device is gone, or whose queue is full for ever.
struct Broken {
    gone: bool,
}

impl Port for Broken {
    fn receive(&mut self, _: &mut [u8]) -> io::Result<Option<RxMeta>> {
        match self.gone {
            true => Err(io::Error::from_raw_os_error(19)),
            false => Ok(None),
        }
    }

    fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> io::Result<bool> {
        match self.gone {
            true => Err(io::Error::from_raw_os_error(19)),
            false => Ok(false),
        }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(Mac([2, 0, 0, 0, 0, 9]), 1500)
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

#[test]
fn a_link_that_is_dead_or_full_does_not_stop_the_other() {
    for gone in [true, false] {
        let (one, other) = Link::pair(1500);
        let broken = Link::custom(vec![Box::new(Broken { gone })]);
        let middle = Builder::new()
            .link(broken)
            .address(Ipv4Addr::new(10, 1, 0, 2), 24)
            .link(one)
            .address(Ipv4Addr::new(10, 2, 0, 2), 24)
            .manual_clock();
        let net = Net {
            left: Builder::new().build().expect("a host"),
            middle: middle.build().expect("a host"),
            right: host(other, 2).build().expect("a host"),
            now: Cell::new(0),
        };
        let listener = listen(&net.middle, "0.0.0.0:80");
        let lost = begin(&net.middle, "10.1.0.1:80").expect("a way, it thinks");
        let socket = datagrams(&net.middle, "0.0.0.0:53");
        for _ in 0..100 {
            let _ = socket.send_to(&[0; 1000], "10.1.0.1:53");
        }
        let (mut client, mut server) = net.connect(&net.right, &listener, "10.2.0.2:80");
        net.carries((&mut client, &mut server));
        assert_eq!(net.middle.link_errors().refused > 0, gone);
        let errors = |link| net.middle.on_link(link).expect("it is there").link_errors();
        assert_eq!(errors(0), net.middle.link_errors());
        assert_eq!(errors(1), millrace::LinkErrors::default());
        drop(lost);
    }
}

#[test]
fn sockets_outlive_the_handles_and_the_listener() {
    let net = Net::new();
    let listener = listen(&net.middle, "0.0.0.0:80");
    let (mut client, mut server) = net.connect(&net.right, &listener, "10.2.0.2:80");
    let waits = begin(&net.left, "10.1.0.2:80").expect("a way");
    net.turns(20);
    assert_eq!(net.middle.usage().sockets, 4);
    drop(listener);
    net.carries((&mut client, &mut server));
    let Net {
        left,
        middle,
        right,
        ..
    } = net;
    assert_eq!(middle.usage().sockets, 1);
    drop(middle);
    // The last of it ends the stack, and says so on its link.
    drop(server);
    right.poll_at(Instant::from_millis(10_000));
    assert_eq!((&client).read(&mut [0; 1]).expect("the end"), 0);
    drop((waits, left));
}

#[test]
fn what_is_said_of_links_has_to_fit() {
    let two = |second: Ipv4Addr, bits| {
        Builder::new()
            .address(Ipv4Addr::new(10, 1, 0, 2), 24)
            .link(Link::pair(1500).0)
            .link(Link::pair(9000).0)
            .address(second, bits)
    };
    let error = |builder: Builder| builder.build().expect_err("it does not fit");
    let same = error(two(Ipv4Addr::new(10, 1, 0, 2), 32));
    assert!(matches!(same, BuildError::SameAddress(_)), "{same}");
    let same = error(two(Ipv4Addr::new(10, 1, 0, 9), 24));
    assert!(
        matches!(same, BuildError::SamePrefix { bits: 24, .. }),
        "{same}"
    );
    // The longer prefix wins; MTUs are each link's.
    let within = two(Ipv4Addr::new(10, 1, 0, 129), 25).mtu(9000);
    let within = within.build().expect("a host");
    let near = begin(&within, "10.1.0.200:7").expect("a way");
    assert_eq!(
        near.local_addr().expect("open").ip(),
        IpAddr::from([10, 1, 0, 129])
    );
    let bare = error(two(Ipv4Addr::new(10, 2, 0, 1), 24).link(Link::packets(1500)));
    assert!(matches!(bare, BuildError::NoAddress), "{bare}");
    let large = error(
        Builder::new()
            .link(Link::pair(9000).0)
            .address(Ipv4Addr::new(10, 2, 0, 1), 24)
            .link(Link::pair(1500).0)
            .address(Ipv4Addr::new(10, 3, 0, 1), 24)
            .mtu(9000),
    );
    assert!(matches!(large, BuildError::Mtu { most: 1500, .. }));
    let queues = two(Ipv4Addr::new(10, 2, 0, 1), 24).parts(2);
    let queues = queues.expect_err("one queue each");
    assert!(matches!(
        queues,
        BuildError::Queues {
            shards: 2,
            queues: 1
        }
    ));
    let many = (0..65).fold(Builder::new(), |builder, link| {
        let link: u8 = link;
        builder
            .link(Link::packets(1500))
            .address(Ipv4Addr::new(10, link, 0, 1), 24)
    });
    assert!(matches!(
        error(many),
        BuildError::Links {
            links: 65,
            most: 64
        }
    ));
    // No link is none.
    let one = Builder::new()
        .link(Link::packets(1500))
        .link(Link::none())
        .address(Ipv4Addr::new(10, 0, 0, 1), 24);
    assert_eq!(one.build().expect("a host").links(), 1);
}

#[test]
fn a_link_local_address_says_its_link() {
    let ((one, left), (two, right)) = (Link::pair(1500), Link::pair(1500));
    let v6 = |net: u16, last| Ipv6Addr::new(0xfd00 + net, 0, 0, 0, 0, 0, 0, last);
    let middle = Builder::new()
        .link(one)
        .address(v6(1, 2), 64)
        .link(two)
        .address(v6(2, 2), 64)
        .manual_clock();
    let peer = |link, net| {
        let peer = Builder::new().link(link).address(v6(net, 1), 64);
        peer.manual_clock().build().expect("a host")
    };
    let net = Net {
        left: peer(left, 1),
        middle: middle.build().expect("a host"),
        right: peer(right, 2),
        now: Cell::new(0),
    };
    // Until the addresses have stood the test for duplicates (RFC 4862 5.4).
    net.turns(3000);
    let middle = datagrams(&net.middle, "[::]:53");
    let mut room = [0; 16];
    let group: IpAddr = "ff02::1234".parse().expect("a group");
    middle.join_multicast(group).expect("a group");
    for (link, stack) in [(0, &net.left), (1, &net.right)] {
        // What goes to a group of the link is from its link-local address.
        let asks = datagrams(stack, "[::]:0");
        asks.send_to(b"where?", "[ff02::1234]:53").expect("room");
        net.turns(10);
        let received = middle.recv_with_info(&mut room).expect("heard");
        let SocketAddr::V6(from) = received.from else {
            panic!("{received:?}");
        };
        assert!(from.ip().is_unicast_link_local());
        assert_eq!(
            (received.link, from.scope_id()),
            (link, link as u32 + 1),
            "{received:?}"
        );
        middle.send_to(b"here", received.from).expect("room");
        net.turns(50);
        assert_eq!(asks.recv(&mut room).expect("an answer"), 4);
    }
}

#[test]
fn who_stands_for_everybody_answers_where_it_was_asked() {
    let ((one, left), (two, right)) = (Link::pair(1500), Link::pair(1500));
    let peer = |link, net: u8| {
        let gateway = Ipv4Addr::new(10, net, 0, 2);
        host(link, net).gateway(gateway).build().expect("a host")
    };
    let middle = Builder::new()
        .any_address(true)
        .link(one)
        .address(Ipv4Addr::new(10, 1, 0, 2), 24)
        .link(two)
        .address(Ipv4Addr::new(10, 2, 0, 2), 24)
        .manual_clock();
    let net = Net {
        left: peer(left, 1),
        middle: middle.build().expect("a host"),
        right: peer(right, 2),
        now: Cell::new(0),
    };
    let listener = TcpListener::anywhere(&net.middle, TcpOptions::new()).expect("the first");
    listener.set_nonblocking(true);
    let anybody = UdpSocket::anywhere(&net.middle).expect("the first");
    anybody.set_nonblocking(true);
    let mut room = [0; 16];
    // One that any link may stand for is heard on all of them.
    let bound = listen(&net.middle, "192.0.2.9:81");
    for (link, peer) in [(0, &net.left), (1, &net.right)] {
        let (mut client, mut server) = net.connect(peer, &listener, "192.0.2.7:80");
        net.carries((&mut client, &mut server));
        net.connect(peer, &bound, "192.0.2.9:81");
        let asks = UdpSocket::connected(peer, at("192.0.2.8:53")).expect("a way");
        asks.set_nonblocking(true);
        asks.send(b"where?").expect("room");
        net.turns(10);
        let received = anybody.recv_with_info(&mut room).expect("heard");
        assert_eq!((received.link, received.to), (link, at("192.0.2.8:53")));
        let answers = UdpSocket::answering(&net.middle, &received).expect("room");
        answers.send(b"here").expect("room");
        net.turns(10);
        assert_eq!(asks.recv(&mut room).expect("an answer"), 4);
    }
    listener.set_asking(true).expect("open");
    let task = net.middle.spawn(async move {
        listener
            .request_async()
            .await
            .expect("open")
            .accept_async()
            .await
    });
    let client = begin(&net.right, "192.0.2.7:80").expect("a way");
    net.turns(50);
    assert!(task.is_finished());
    let accepted = net.middle.block_on(task).expect("wanted");
    assert_eq!(
        accepted.peer_addr().expect("open"),
        client.local_addr().expect("open")
    );
}
