//! Runs a protocol in virtual time. The same seed gives the same frames at the same times.
//!
//! ```text
//! simulate 100          # seeds 0 to 99, each twice; the first that fails is named
//! ```
//!
//! The protocol adds numbers: a request is an identity and an amount (8 bytes each), the answer is
//! the sum so far. A client without an answer asks again, so the server remembers (`known`).

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use millrace::{
    Builder, Capabilities, ChecksumState, Egress, Frame, Instant, Link, Mac, Offload, Stack,
    TcpListener, TcpStream,
};
use millrace_sim::{Fate, Kind, Line, Link as Path, Rng};

/// Requests of a run.
const REQUESTS: u64 = 200;
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
const SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)), 7);

/// Frames that leave a host.
struct Out(Vec<Vec<u8>>);

impl Egress for Out {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        self.0.push([head, payload[0], payload[1]].concat());
        true
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(0)
    }
}

/// An interface that does nothing for anybody.
fn capabilities(last: u8) -> Capabilities {
    Capabilities::plain(Mac([2, 0, 0, 0, 0, last]), 1500)
}

/// Two hosts, the way from each, and what is on it.
struct World {
    hosts: [Stack; 2],
    ways: [Line; 2],
    /// By the time of arrival: for whom, and what.
    arriving: BTreeMap<Instant, Vec<(usize, Vec<u8>)>>,
    digest: DefaultHasher,
}

impl World {
    fn new(mut rng: Rng) -> Result<World, Box<dyn Error>> {
        let mut host = |last: u8| {
            let link = Link::manual(capabilities(last));
            let builder = Builder::new().link(link).manual_clock();
            let builder = builder.secret([rng.next() as u8; 32]);
            builder.address(Ipv4Addr::new(10, 0, 0, last), 24).build()
        };
        let hosts = [host(1)?, host(2)?];
        // Some frames are lost, some are late, and now and then there is silence for seconds.
        let path = Path {
            delay: millrace::Duration::from_millis(5),
            loss: 0.02,
            reorder: 0.02,
            burst_loss: 0.005,
            burst: millrace::Duration::from_secs(4),
            ..Path::default()
        };
        Ok(World {
            hosts,
            ways: [Line::new(path, rng.fork()), Line::new(path, rng.fork())],
            arriving: BTreeMap::new(),
            digest: DefaultHasher::new(),
        })
    }

    /// Delivers what arrives now. Returns when to call again, or nothing at the end.
    fn step(&mut self, now: Instant) -> Option<Instant> {
        for host in &self.hosts {
            host.set_now(now);
        }
        for (to, bytes) in self.arriving.remove(&now).unwrap_or_default() {
            self.hosts[to].input(&Frame {
                bytes: &bytes,
                checksum: ChecksumState::Unchecked,
                segment_size: 0,
            });
        }
        for from in 0..2 {
            let mut out = Out(Vec::new());
            self.hosts[from].transmit(&mut out);
            for bytes in out.0 {
                (from, now.as_micros(), &bytes).hash(&mut self.digest);
                let fate = self.ways[from].carry(bytes.len(), Kind::Checked, now);
                if let Fate::Arrives { at, .. } = fate {
                    let then = self.arriving.entry(at).or_default();
                    then.push((1 - from, bytes));
                }
            }
        }
        let arrival = self.arriving.first_key_value().map(|(&at, _)| at);
        let timers = self.hosts.iter().filter_map(Stack::deadline);
        timers.chain(arrival).min().map(|next| next.max(now))
    }
}

/// What the server has added up, and what it has answered to whom.
type Sum = (u64, HashMap<u64, u64>);

async fn serve(stream: TcpStream, sum: Rc<RefCell<Sum>>) -> io::Result<()> {
    let mut words = [[0; 8]; 2];
    loop {
        stream.read_exact_async(words.as_flattened_mut()).await?;
        let [id, amount] = words.map(u64::from_be_bytes);
        let answer = {
            let (total, known) = &mut *sum.borrow_mut();
            *known.entry(id).or_insert_with(|| {
                *total += amount;
                *total
            })
        };
        stream.write_all_async(&answer.to_be_bytes()).await?;
    }
}

async fn ask(stack: &Stack, open: &mut Option<TcpStream>, number: u64) -> io::Result<u64> {
    if open.is_none() {
        *open = Some(TcpStream::connect_async(stack, SERVER).await?);
    }
    let stream = open.as_ref().ok_or(io::ErrorKind::NotConnected)?;
    let request = [number.to_be_bytes(); 2];
    stream.write_all_async(request.as_flattened()).await?;
    let mut answer = [0; 8];
    stream.read_exact_async(&mut answer).await?;
    Ok(u64::from_be_bytes(answer))
}

/// Adds one number after the other. Each answer must be right; how often it was asked for again.
async fn client(stack: Stack) -> u64 {
    let (mut open, mut again) = (None, 0);
    for number in 1..=REQUESTS {
        loop {
            let answer = stack.timeout(PATIENCE, ask(&stack, &mut open, number));
            if let Some(Ok(answer)) = answer.await {
                assert_eq!(answer, number * (number + 1) / 2, "the sum to {number}");
                break;
            }
            (open, again) = (None, again + 1);
        }
    }
    again
}

/// One run: a digest of all frames, when it was over, and how often a request was repeated.
fn run(seed: u64) -> Result<(u64, Instant, u64), Box<dyn Error>> {
    let mut world = World::new(Rng::new(seed))?;
    let (sum, server) = (Rc::default(), world.hosts[1].clone());
    let listener = TcpListener::bind(&server, SERVER)?;
    world.hosts[1].spawn(async move {
        while let Ok((stream, _)) = listener.accept_async().await {
            server.spawn(serve(stream, Rc::clone(&sum)));
        }
    });
    let client = world.hosts[0].spawn(client(world.hosts[0].clone()));
    let mut now = Instant::from_micros(0);
    while !client.is_finished() {
        now = world.step(now).ok_or("nothing will happen any more")?;
    }
    let again = world.hosts[0].block_on(client);
    Ok((world.digest.finish(), now, again))
}

fn main() -> Result<(), Box<dyn Error>> {
    let seeds = std::env::args()
        .nth(1)
        .map_or(Ok(10), |text| text.parse())?;
    for seed in 0..seeds {
        let (once, twice) = (run(seed)?, run(seed)?);
        assert_eq!(once, twice, "seed {seed} is not the same again");
        println!("seed {seed}: {} s, {} again", once.1.as_secs(), once.2);
    }
    Ok(())
}
