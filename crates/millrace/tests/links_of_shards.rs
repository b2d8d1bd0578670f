//! Two shards that have a queue each of two devices. The devices' choice of a queue is bad: all
//! comes to the first of one, and to the last of the other.

use std::net::{Ipv4Addr, SocketAddr};

use millrace::{Builder, Instant, Link, Stack, TcpListener, TcpOptions, TcpStream};

use queue::{Frames, port};

mod queue;

struct World {
    shards: Vec<Stack>,
    /// 10.1.0.1 and 10.2.0.1.
    remotes: Vec<Stack>,
    now_us: u64,
}

fn own(net: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, net, 0, 2)
}

impl World {
    fn new() -> World {
        let mut builder = Builder::new().manual_clock();
        let mut remotes = Vec::new();
        for (net, chosen) in [(1, 0), (2, 1)] {
            let there = Frames::default();
            let queues: Vec<Frames> = (0..2).map(|_| Frames::default()).collect();
            let ports = queues.iter().map(|queue| port(queue, &there, 1, 2));
            builder = builder
                .link(Link::custom(ports.collect()))
                .address(own(net), 24);
            let remote = Builder::new()
                .link(Link::custom(vec![port(&there, &queues[chosen], 2, 1)]))
                .address(Ipv4Addr::new(10, net, 0, 1), 24)
                .manual_clock();
            remotes.push(remote.build().expect("a stack"));
        }
        let parts = builder.parts(2).expect("two shards");
        World {
            shards: parts
                .into_iter()
                .map(|part| part.stack().expect("descriptors"))
                .collect(),
            remotes,
            now_us: 0,
        }
    }

    /// Lets all of them do what there is to do, for `steps` steps of 1 ms.
    fn pass(&mut self, steps: u64) {
        for _ in 0..steps {
            self.now_us += 1000;
            for stack in self.shards.iter().chain(&self.remotes) {
                stack.poll_at(Instant::from_micros(self.now_us));
            }
        }
    }
}

fn listen(stack: &Stack, address: Ipv4Addr) -> TcpListener {
    let listener = TcpListener::bind(stack, (address, 80)).expect("free");
    listener.set_nonblocking(true);
    listener
}

#[test]
fn each_shard_accepts_its_own_of_both_links() {
    const EACH: usize = 20;
    let mut world = World::new();
    let listen = |stack| listen(stack, Ipv4Addr::UNSPECIFIED);
    let listeners: Vec<_> = world.shards.iter().map(listen).collect();
    let mut clients = Vec::new();
    for (net, remote) in (1..).zip(&world.remotes) {
        let to = SocketAddr::from((own(net), 80));
        let begin =
            |_| TcpStream::connect_nonblocking(remote, to, TcpOptions::new()).expect("a way");
        clients.extend((0..EACH).map(begin));
    }
    world.pass(30);
    let mut seen: Vec<SocketAddr> = Vec::new();
    for listener in &listeners {
        let before = seen.len();
        seen.extend(std::iter::from_fn(|| Some(listener.accept().ok()?.1)));
        assert!(seen.len() > before, "each has some");
    }
    let mut ends: Vec<_> = clients
        .iter()
        .map(|client| client.local_addr().expect("open"))
        .collect();
    ends.sort();
    seen.sort();
    assert_eq!(seen, ends);
}

#[test]
fn connections_from_any_port_come_back_on_both_links() {
    let mut world = World::new();
    let listen = |(net, remote)| listen(remote, Ipv4Addr::new(10, net, 0, 1));
    let listeners: Vec<_> = (1..).zip(&world.remotes).map(listen).collect();
    for shard in 0..2 {
        for (net, listener) in (1..).zip(&listeners) {
            for port in 3000..3008 {
                let stack = world.shards[shard].clone();
                let (from, to) = ((own(net), port + 100 * shard as u16), ([10, net, 0, 1], 80));
                let asked = world.shards[shard].spawn(async move {
                    let options = TcpOptions::new();
                    TcpStream::connect_from_async(&stack, from.into(), to.into(), options).await
                });
                world.pass(20);
                assert!(asked.is_finished(), "shard {shard}, net {net}, port {port}");
                let stream = world.shards[shard].block_on(asked).expect("connected");
                let (_, peer) = listener.accept().expect("it has come");
                assert_eq!(peer, stream.local_addr().expect("open"));
            }
        }
    }
}
