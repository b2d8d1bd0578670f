//! Two stacks in memory that say 64 bytes to each other in turn: what tasks cost beside direct
//! calls.
//!
//! ```text
//! pingpong direct 100000
//! pingpong tasks 100000
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null pingpong tasks 10000
//! ```
//! For instructions of one exchange subtract the counts of two runs of different length.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use millrace::{
    Builder, Capabilities, ChecksumState, Egress, Frame, Instant, Link, Mac, Offload, Stack, State,
    TcpListener, TcpOptions, TcpStream,
};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

/// Frames on their way, in buffers that are used again.
#[derive(Default)]
struct Wire {
    frames: Vec<Vec<u8>>,
    used: usize,
}

impl Egress for Wire {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        if self.used == self.frames.len() {
            self.frames.push(Vec::with_capacity(2048));
        }
        let frame = &mut self.frames[self.used];
        frame.clear();
        frame.extend_from_slice(head);
        frame.extend_from_slice(payload[0]);
        frame.extend_from_slice(payload[1]);
        self.used += 1;
        true
    }

    fn capabilities(&self) -> Capabilities {
        capabilities([2, 0, 0, 0, 0, 0])
    }
}

/// What the wire can do: nothing but carry frames.
fn capabilities(mac: [u8; 6]) -> Capabilities {
    Capabilities::plain(Mac(mac), 1500)
}

/// Two hosts, what is on its way between them, and the time.
struct World {
    client: Stack,
    server: Stack,
    wire: Wire,
    now_us: u64,
}

impl World {
    fn new() -> Result<World, Box<dyn Error>> {
        let host = |last: u8| {
            Builder::new()
                .link(Link::manual(capabilities([2, 0, 0, 0, 0, last])))
                .address(Ipv4Addr::new(10, 0, 0, last), 24)
                .secret([last; 32])
                .manual_clock()
                .build()
        };
        Ok(World {
            client: host(1)?,
            server: host(2)?,
            wire: Wire::default(),
            now_us: 0,
        })
    }

    /// What one has to say reaches the other. Tasks run before that.
    fn deliver(&mut self, there: bool) {
        self.now_us += 5;
        let (from, to) = match there {
            true => (&self.client, &self.server),
            false => (&self.server, &self.client),
        };
        let now = Instant::from_micros(self.now_us);
        from.set_now(now);
        to.set_now(now);
        self.wire.used = 0;
        from.transmit(&mut self.wire);
        for bytes in &self.wire.frames[..self.wire.used] {
            to.input(&Frame {
                bytes,
                checksum: ChecksumState::Unchecked,
                segment_size: 0,
            });
        }
    }

    fn there_and_back(&mut self) {
        self.deliver(true);
        self.deliver(false);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: pingpong direct|tasks EXCHANGES";
    let (way, count) = (
        arguments.next().ok_or(usage)?,
        arguments.next().ok_or(usage)?,
    );
    let count: u64 = count.parse()?;
    let mut world = World::new()?;
    let address = SocketAddr::from((SERVER, 7));
    let listener = TcpListener::bind(&world.server, address)?;
    listener.set_nonblocking(true);
    let client = TcpStream::connect_nonblocking(&world.client, address, TcpOptions::new())?;
    while client
        .info()
        .is_none_or(|info| info.state != State::Established)
    {
        world.there_and_back();
    }
    world.there_and_back();
    let (server, _) = listener.accept()?;
    let begin = std::time::Instant::now();
    match &*way {
        "direct" => direct(&mut world, &client, &server, count)?,
        "tasks" => tasks(&mut world, client, server, count),
        _ => return Err(usage.into()),
    }
    let each = begin.elapsed().as_nanos() / u128::from(count.max(1));
    println!("{count} exchanges, {each} ns each");
    Ok(())
}

fn direct(
    world: &mut World,
    client: &TcpStream,
    server: &TcpStream,
    count: u64,
) -> std::io::Result<()> {
    let mut buffer = [0; 64];
    for _ in 0..count {
        client.try_write(&buffer)?;
        world.deliver(true);
        server.try_read(&mut buffer)?;
        server.try_write(&buffer)?;
        world.deliver(false);
        client.try_read(&mut buffer)?;
    }
    Ok(())
}

fn tasks(world: &mut World, client: TcpStream, server: TcpStream, count: u64) {
    world.server.spawn(async move {
        let mut buffer = [0; 64];
        while let Ok(1..) = server.read_async(&mut buffer).await {
            server.write_all_async(&buffer).await.expect("connected");
        }
    });
    let asking = world.client.spawn(async move {
        let mut buffer = [0; 64];
        for _ in 0..count {
            client.write_all_async(&buffer).await.expect("connected");
            client.read_async(&mut buffer).await.expect("connected");
        }
    });
    while !asking.is_finished() {
        world.there_and_back();
    }
}
