//! Connections from ports that the program chose, of a host with two shards: the answers come to
//! the queue of either.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use millrace::{Builder, Instant, JoinHandle, Link, Stack, TcpListener, TcpOptions, TcpStream};

use queue::{Frames, port};

mod queue;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// A host with two shards, the one that it talks to, and the device's choice of a queue, which is
/// bad: all comes to one.
struct World {
    shards: Vec<Stack>,
    remote: Stack,
    listener: Rc<TcpListener>,
    now_us: u64,
}

impl World {
    /// All that comes goes to the queue of the shard `wrong`.
    fn new(wrong: usize) -> World {
        let there = Frames::default();
        let queues: Vec<Frames> = (0..2).map(|_| Frames::default()).collect();
        let parts = Builder::new()
            .link(Link::custom(vec![
                port(&queues[0], &there, 1, 2),
                port(&queues[1], &there, 1, 2),
            ]))
            .address(OWN, 24)
            .manual_clock()
            .parts(2)
            .expect("two shards");
        let remote = Builder::new()
            .link(Link::custom(vec![port(&there, &queues[wrong], 2, 1)]))
            .address(REMOTE, 24)
            .manual_clock()
            .build()
            .expect("a stack");
        World {
            shards: parts
                .into_iter()
                .map(|part| part.stack().expect("descriptors"))
                .collect(),
            listener: Rc::new(TcpListener::bind(&remote, (REMOTE, 80)).expect("a free port")),
            remote,
            now_us: 0,
        }
    }

    /// Lets all of them do what there is to do, for `steps` steps of 1 ms.
    fn pass(&mut self, steps: u64) {
        for _ in 0..steps {
            self.now_us += 1000;
            for stack in self.shards.iter().chain([&self.remote]) {
                stack.poll_at(Instant::from_micros(self.now_us));
            }
        }
    }

    /// What becomes of a connection from a shard and a port.
    fn connect(&mut self, shard: usize, port: u16) -> io::Result<TcpStream> {
        let asked = self.ask(shard, port);
        self.pass(20);
        assert!(asked.is_finished(), "shard {shard}, port {port}");
        self.shards[shard].block_on(asked)
    }

    fn ask(&self, shard: usize, port: u16) -> JoinHandle<io::Result<TcpStream>> {
        let stack = self.shards[shard].clone();
        let ends: [SocketAddr; 2] = [(OWN, port).into(), (REMOTE, 80).into()];
        self.shards[shard].spawn(async move {
            TcpStream::connect_from_async(&stack, ends[0], ends[1], TcpOptions::new()).await
        })
    }

    /// The other end of the connection that was made last.
    fn accepted(&self) -> TcpStream {
        self.listener.set_nonblocking(true);
        self.listener.accept().expect("one was made").0
    }

    /// Flows that are handed over.
    fn pinned(&self) -> usize {
        self.shards.iter().map(|stack| stack.usage().pinned).sum()
    }

    /// A port from which answers to shard 0 would come to shard 1.
    fn port_of_the_other(&mut self) -> u16 {
        let mut ports = 1000..2000;
        ports
            .find(|&port| self.leads_elsewhere(0, port))
            .expect("one in two")
    }

    fn leads_elsewhere(&mut self, shard: usize, port: u16) -> bool {
        let (local, remote) = ((OWN, port).into(), (REMOTE, 80).into());
        let begun = TcpStream::connect_nonblocking_from(
            &self.shards[shard],
            Some(local),
            remote,
            TcpOptions::new(),
        );
        let kind = begun.map(TcpStream::abort).map_err(|error| error.kind());
        // What was begun is gone with the next round, before it has said anything.
        self.pass(1);
        match kind {
            Ok(()) => false,
            Err(ErrorKind::AddrNotAvailable) => true,
            Err(other) => panic!("{other:?}"),
        }
    }
}

/// Its answers come by the queue of either, and the shard that they belong to by their tag hands
/// them over until it is over.
#[test]
fn a_connection_from_any_port_is_the_shards_that_asked() {
    for wrong in 0..2 {
        let mut world = World::new(wrong);
        let mut pinned = 0;
        for port in 1000..1020u16 {
            let shard = usize::from(port % 2);
            let elsewhere = world.leads_elsewhere(shard, port);
            pinned += usize::from(elsewhere);
            let client = world.connect(shard, port).expect("it is connected");
            assert_eq!(client.local_addr().expect("open"), (OWN, port).into());
            let server = world.accepted();
            server.try_write(b"hello").expect("connected");
            world.pass(5);
            assert_eq!(client.try_read(&mut [0; 8]).expect("it came"), 5);
            // It is nobody else's meanwhile.
            let other = world.connect(1 - shard, port).map(drop);
            let error = other.expect_err("the ends are taken").kind();
            assert_eq!(error, ErrorKind::AddrNotAvailable, "port {port}");
            server.abort();
            world.pass(5);
            drop(client);
            world.pass(5);
            // Nor is it afterwards: whoever asks gets it.
            let again = world.connect(1 - shard, port).expect("it is free");
            world.accepted().abort();
            world.pass(5);
            drop(again);
            world.pass(5);
            assert_eq!(world.pinned(), 0, "port {port}");
        }
        assert!((1..20).contains(&pinned), "{pinned} of 20");
    }
}

/// TIME-WAIT is no end yet (RFC 9293 3.6.1).
#[test]
fn a_pin_lasts_as_long_as_time_wait() {
    let mut world = World::new(1);
    let port = world.port_of_the_other();
    let client = world.connect(0, port).expect("it is connected");
    let server = world.accepted();
    drop(client);
    world.pass(5);
    drop(server);
    world.pass(5);
    assert_eq!(world.pinned(), 1);
    // Two minutes, as most take it to be at most.
    for _ in 0..120 {
        world.now_us += 1_000_000;
        world.pass(1);
    }
    assert_eq!(world.pinned(), 0);
}

/// Who gives up before the other shard has answered leaves nothing there, and a shard that is no
/// more refuses.
#[test]
fn asking_ends_with_the_task_and_with_the_shard() {
    let mut world = World::new(0);
    let port = world.port_of_the_other();
    let asked = world.ask(0, port);
    world.shards[0].poll();
    assert!(!asked.is_finished());
    world.shards[0].cancel_tasks();
    world.pass(5);
    assert_eq!(world.pinned(), 0);
    world.shards.truncate(1);
    let outcome = world.connect(0, port).map(drop);
    let error = outcome.expect_err("nobody hands over").kind();
    assert_eq!(error, ErrorKind::AddrNotAvailable);
}
