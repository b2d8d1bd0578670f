use millrace::{Builder, Instant, Link, Stack, TcpListener};

use super::*;
use crate::epoll::{Control, Set};
use void::Void;

// That of the library's own tests.
#[path = "../../../millrace/tests/void/mod.rs"]
mod void;

// Likewise.
#[path = "../../../millrace/tests/queue/mod.rs"]
mod queue;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Two shards of a host, and another host that listens at port 80, in virtual time. All that comes
/// goes to the first queue.
struct World {
    hosts: Vec<Host>,
    remote: Stack,
    listener: TcpListener,
    now_us: u64,
}

impl World {
    fn new() -> World {
        let [there, first, second] = [(); 3].map(|()| queue::Frames::default());
        let parts = Builder::new()
            .link(Link::custom(vec![
                queue::port(&first, &there, 1, 2),
                queue::port(&second, &there, 1, 2),
            ]))
            .address(OWN, 24)
            .manual_clock()
            .parts(2)
            .expect("two shards");
        let stacks = parts.into_iter().map(|part| part.stack());
        let remote = Builder::new()
            .link(Link::custom(vec![queue::port(&there, &first, 2, 1)]))
            .address(REMOTE, 24)
            .manual_clock()
            .build()
            .expect("a stack");
        let listener = TcpListener::bind(&remote, (REMOTE, 80)).expect("free");
        listener.set_nonblocking(true);
        World {
            hosts: stacks
                .map(|stack| Host::new(stack.expect("descriptors"), true, None))
                .collect(),
            remote,
            listener,
            now_us: 0,
        }
    }

    /// Lets those shards work, and the other host, for `steps` steps of 1 ms.
    fn pass_with(&mut self, shards: &[usize], steps: u64) {
        for _ in 0..steps {
            self.now_us += 1000;
            let now = Instant::from_micros(self.now_us);
            for &shard in shards {
                self.hosts[shard].stack.set_now(now);
                self.hosts[shard].work();
            }
            self.remote.poll_at(now);
        }
    }

    fn pass(&mut self, steps: u64) {
        self.pass_with(&[0, 1], steps);
    }

    /// A socket of a shard's that is bound to a port.
    fn bound(&self, shard: usize, port: u16) -> u32 {
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
        let key = self.hosts[shard].socket(libc::AF_INET, kind, 0);
        let key = key.expect("room");
        let bound = self.hosts[shard].bind(key, (OWN, port).into());
        bound.expect("a free port");
        key
    }

    fn connect(&self, shard: usize, key: u32) -> Outcome<()> {
        self.hosts[shard].connect(key, Some((REMOTE, 80).into()))
    }

    /// A port from which answers to shard 0 would come to shard 1, bound in shard 0.
    fn bound_to_the_other(&self) -> u32 {
        let mut ports = 1000..1100;
        let found = ports.find_map(|port| {
            let key = self.bound(0, port);
            let id = self.hosts[0].look(key, |socket| socket.id).expect("open");
            let elsewhere = self.hosts[0]
                .stack
                .with_sockets(|sockets| sockets.leads_elsewhere(id, (REMOTE, 80).into()));
            elsewhere.then_some(key)
        });
        found.expect("one in two")
    }

    /// What `SO_ERROR` says.
    fn error(&self, key: u32) -> c_int {
        let mut out = [0; crate::options::VALUE_MAX];
        let len = self.hosts[0].option(key, libc::SOL_SOCKET, libc::SO_ERROR, &mut out);
        assert_eq!(len, Ok(4));
        c_int::from_ne_bytes([out[0], out[1], out[2], out[3]])
    }

    fn pinned(&self) -> usize {
        let stacks = self.hosts.iter().map(|host| &host.stack);
        stacks.map(|stack| stack.usage().pinned).sum()
    }
}

/// From whichever port: where the answers come to the other shard, that one hands them over, and
/// what waits for the connection is told when it is made.
#[test]
fn a_bound_port_does_whose_answers_go_elsewhere() {
    let mut world = World::new();
    let mut pinned = 0;
    for port in 1000..1020 {
        let key = world.bound(0, port);
        let set = world.hosts[0].things.borrow_mut();
        let set = { set }.insert(Thing::Set(Set::default()));
        let watch = Control::Add((libc::EPOLLOUT | libc::EPOLLET) as u32, 7);
        world.hosts[0].control(set, key, watch).expect("a socket");
        // As Linux has it for one that is not connected.
        assert_eq!(world.hosts[0].wait_for(set, 1, 0, |_| ()), Ok(1));
        assert_eq!(world.connect(0, key), Err(libc::EINPROGRESS));
        assert_eq!(world.connect(0, key), Err(libc::EALREADY));
        assert_eq!(world.hosts[0].wait_for(set, 1, 0, |_| ()), Ok(0));
        world.pass(20);
        let mut told = 0;
        let events = world.hosts[0].wait_for(set, 1, 0, |event| told = event.events);
        assert_eq!(
            (events, told),
            (Ok(1), libc::EPOLLOUT as u32),
            "port {port}"
        );
        assert_eq!(world.error(key), 0);
        assert_eq!(world.connect(0, key), Ok(()));
        pinned += world.pinned();
        let (local, _) = world.hosts[0].name(key, false).expect("an address");
        assert_eq!(local, (OWN, port).into());
        let (server, from) = world.listener.accept().expect("one was made");
        assert_eq!(from, local);
        server.try_write(b"hello").expect("connected");
        world.pass(5);
        let mut out = [0; 8];
        let read = world.hosts[0].receive(key, &mut out, Receive::default());
        assert_eq!(read.map(|(len, _)| len), Ok(5));
        server.abort();
        world.pass(5);
        world.hosts[0].close(key).expect("open");
        world.hosts[0].close(set).expect("open");
        world.pass(5);
        assert_eq!(world.pinned(), 0, "port {port}");
    }
    assert!((1..20).contains(&pinned), "{pinned} of 20");
}

/// Until the other shard has answered, the socket is one that is connecting: calls would wait, and
/// nothing has been sent.
#[test]
fn a_connection_waits_for_the_other_shard() {
    let mut world = World::new();
    let key = world.bound_to_the_other();
    assert_eq!(world.connect(0, key), Err(libc::EINPROGRESS));
    world.pass_with(&[0], 20);
    assert_eq!(world.connect(0, key), Err(libc::EALREADY));
    let host = &world.hosts[0];
    let would_wait = Err(libc::EAGAIN);
    let mut out = [0; 8];
    let read = host.receive(key, &mut out, Receive::default());
    assert_eq!(read.map(|(len, _)| len), would_wait);
    assert_eq!(host.send(key, &[b"hello"], Send::default()), would_wait);
    assert_eq!(host.peek(key).map(|_| 0), would_wait);
    assert_eq!(host.reserve(key, 8).map(|_| 0), would_wait);
    assert_eq!(host.listen(key, 1), Err(libc::EINVAL));
    assert_eq!(host.name(key, true).map(drop), Err(libc::ENOTCONN));
    assert_eq!(world.error(key), 0);
    world.listener.accept().expect_err("nobody was asked");
    world.pass(20);
    assert_eq!(world.connect(0, key), Ok(()));
    world.listener.accept().expect("one was made");
}

/// Closed or shut while it waits, it leaves nothing in the other shard; shut, it may be connected
/// anew.
#[test]
fn a_connection_is_given_up_before_the_other_shard_has_answered() {
    for shut in [true, false] {
        let mut world = World::new();
        let key = world.bound_to_the_other();
        assert_eq!(world.connect(0, key), Err(libc::EINPROGRESS));
        match shut {
            true => assert_eq!(world.hosts[0].shutdown(key, libc::SHUT_RDWR), Ok(())),
            false => assert_eq!(world.hosts[0].close(key), Ok(())),
        }
        world.pass(20);
        assert_eq!(world.pinned(), 0);
        world.listener.accept().expect_err("nobody was asked");
        if shut {
            assert_eq!(world.connect(0, key), Err(libc::EINPROGRESS));
            world.pass(20);
            assert_eq!(world.connect(0, key), Ok(()));
            world.listener.accept().expect("one was made").0.abort();
            world.pass(20);
            world.hosts[0].close(key).expect("open");
            world.pass(20);
        }
    }
}

/// A shard that is no more hands nothing over. That is the connection's error, once, for whoever
/// asks first.
#[test]
fn a_connection_is_refused_by_the_other_shard() {
    for asks in 0..4 {
        let mut world = World::new();
        let key = world.bound_to_the_other();
        let set = world.hosts[0].things.borrow_mut();
        let set = { set }.insert(Thing::Set(Set::default()));
        let watch = Control::Add(libc::EPOLLIN as u32, 7);
        world.hosts[0].control(set, key, watch).expect("a socket");
        assert_eq!(world.connect(0, key), Err(libc::EINPROGRESS));
        world.hosts.truncate(1);
        let mut told = 0;
        let events = world.hosts[0].wait_for(set, 1, 0, |event| told = event.events as c_int);
        let wanted = libc::EPOLLIN | libc::EPOLLERR | libc::EPOLLHUP;
        assert_eq!((events, told), (Ok(1), wanted));
        let (host, mut out) = (&world.hosts[0], [0; 8]);
        let error = match asks {
            0 => world.connect(0, key),
            1 => host.receive(key, &mut out, Receive::default()).map(drop),
            2 => host.send(key, &[b"hello"], Send::default()).map(drop),
            _ => Err(world.error(key)),
        };
        assert_eq!(error, Err(libc::EADDRNOTAVAIL));
        assert_eq!(world.error(key), 0);
        // As on Linux, connect itself is told that there is no connection if another call was told
        // why; then it may be tried anew.
        if asks > 0 {
            assert_eq!(world.connect(0, key), Err(libc::ECONNABORTED));
        }
        assert_eq!(world.connect(0, key), Err(libc::EADDRNOTAVAIL));
    }
}

/// One that the program left to the stack is chosen anew if need be, and the address stays.
#[test]
fn a_port_that_was_not_named_leads_back() {
    let address = Ipv4Addr::new(10, 0, 0, 1);
    let parts = Builder::new()
        .link(Link::custom(vec![
            Box::new(Void { floods: false }),
            Box::new(Void { floods: false }),
        ]))
        .address(address, 24)
        .parts(2)
        .expect("two shards");
    for part in parts {
        let host = Host::new(part.stack().expect("descriptors"), false, None);
        let mut kept = 0;
        for remote in 0..40u16 {
            let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK;
            let key = host.socket(libc::AF_INET, kind, 0).expect("room");
            host.bind(key, (address, 0).into()).expect("a free port");
            let (bound, _) = host.name(key, false).expect("an address");
            let remote = SocketAddr::from(([10, 0, 0, 2], 1000 + remote));
            assert_eq!(host.connect(key, Some(remote)), Err(libc::EINPROGRESS));
            let (local, _) = host.name(key, false).expect("an address");
            assert!(local.ip() == address && local.port() != 0, "{local}");
            kept += u16::from(local == bound);
            let mut out = [0; crate::options::VALUE_MAX];
            let (level, name) = (libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT);
            assert_eq!(host.option(key, level, name, &mut out), Ok(4));
            assert_eq!(out[0], 0);
        }
        assert!((1..40).contains(&kept), "{kept}");
    }
}

/// Under traffic that never pauses a wait ends when it is to end, and what is there by then is
/// told.
#[test]
fn a_wait_ends_under_a_flood() {
    let parts = Builder::new()
        .link(Link::custom(vec![Box::new(Void { floods: true })]))
        .address(Ipv4Addr::new(10, 0, 0, 1), 24)
        .parts(1);
    let part = parts.expect("a shard").pop().expect("a shard");
    let host = Host::new(part.stack().expect("descriptors"), false, None);
    let key = host.socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
    let key = key.expect("room");
    host.bind(key, ([10, 0, 0, 1], 53).into()).expect("free");
    let set = host.things.borrow_mut().insert(Thing::Set(Set::default()));
    let watch = Control::Add(libc::EPOLLIN as u32, 7);
    host.control(set, key, watch).expect("a socket");
    assert_eq!(host.wait_for(set, 1, 2, |_| ()), Ok(0));
    let mut out = [0; 8];
    host.look(key, |socket| socket.patience = [2000; 2])
        .expect("a socket");
    let read = host.receive(key, &mut out, Receive::default());
    assert_eq!(read, Err(libc::EAGAIN));
    host.end(2);
}
