//! What receive offload in front of the kernel's stack gains, with aggregation on and off in turns: bulk from a wire that is not the limit, and small messages over
//! a real one.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_bench::cpu::used_by;
use millrace_bench::figures::{Spread, short};
use millrace_bench::machine;
use millrace_bench::source::{Bell, Source};
use millrace_e2e::directory::Directory;
use millrace_e2e::namespace::Namespace;
use millrace_e2e::scenario::{prepare, seconds, wait_until};
use millrace_e2e::{Process, command, world};
use millrace_nic::Shard;
use millrace_port::tap;
use rustix::process::Signal;
use rustix::thread::CpuSet;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
const PORT: u16 = 5001;
/// Between two newcomers.
const PAUSE: Duration = Duration::from_micros(1_700);

/// Measures receive offload in front of the kernel's stack: on, off, on, off, at least five times.
#[derive(Debug, Parser)]
struct Arguments {
    /// How often each is measured
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// How many connections carry bulk
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64")]
    connections: Vec<u16>,
    /// Only what has this in its name: bulk, handshake, message
    #[arg(long, default_value = "")]
    only: String,
}

/// What one measurement of bulk gave.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    gbits: f64,
    /// CPU seconds of this process per GB received: the wire, the card, the reader, and the kernel's work for them, which TAP does in the writer.
    cpu_per_gb: f64,
    segments_per_unit: f64,
    again: u64,
    /// Median of what newcomers waited for the answer to their SYN, in microseconds, when there were some.
    wait: Option<f64>,
}

/// What a measurement of bulk is of.
#[derive(Clone, Copy, Debug)]
struct Load {
    seconds: f64,
    aggregate: u16,
    connections: u16,
    late_every: u32,
    newcomers: bool,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    prepare()?;
    println!("{}", machine::describe());
    if let Some(warning) = machine::warning() {
        println!("{warning}");
    }
    if "bulk".contains(&arguments.only) {
        for late_every in [0, 100] {
            for &connections in &arguments.connections {
                compare_bulk(&arguments, connections, late_every)?;
            }
        }
    }
    if "handshake".contains(&arguments.only) {
        compare_handshakes(&arguments)?;
    }
    if "message".contains(&arguments.only) {
        compare_messages(&arguments)?;
    }
    Ok(())
}

fn compare_bulk(arguments: &Arguments, connections: u16, late_every: u32) -> Result<()> {
    let mut results: [Vec<Bulk>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (aggregate, results) in [u16::MAX, 0].into_iter().zip(&mut results) {
            results.push(bulk(Load {
                seconds: arguments.seconds,
                aggregate,
                connections,
                late_every,
                newcomers: false,
            })?);
        }
    }
    let of = |index: usize, field: fn(&Bulk) -> f64| -> Vec<f64> {
        results[index].iter().map(field).collect()
    };
    let spread = |values| Spread::of(values).expect("at least one round");
    let (on, off) = (of(0, |b| b.gbits), of(1, |b| b.gbits));
    let ratio = Spread::of_ratios(&on, &off).expect("at least one round");
    let late = if late_every > 0 { ", 1 % late" } else { "" };
    println!("bulk, {connections} connections{late}");
    println!(
        "  on    Gbit/s {}, s of CPU per GB {}, segments per unit {}, sent again {}",
        spread(on),
        spread(of(0, |b| b.cpu_per_gb)),
        spread(of(0, |b| b.segments_per_unit)),
        results[0].iter().map(|b| b.again).sum::<u64>()
    );
    println!(
        "  off   Gbit/s {}, s of CPU per GB {}, sent again {}",
        spread(off),
        spread(of(1, |b| b.cpu_per_gb)),
        results[1].iter().map(|b| b.again).sum::<u64>()
    );
    println!("  ratio {ratio}");
    Ok(())
}

/// How long a newcomer waits for the answer to a SYN, from when it is told of: beside 64 connections that carry bulk, and without them, when the card sleeps.
fn compare_handshakes(arguments: &Arguments) -> Result<()> {
    let mut results: [Vec<f64>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (connections, results) in [64, 0].into_iter().zip(&mut results) {
            let measured = bulk(Load {
                seconds: arguments.seconds,
                aggregate: u16::MAX,
                connections,
                late_every: 0,
                newcomers: true,
            })?;
            results.push(measured.wait.context("nobody was answered")?);
        }
    }
    let ratio = Spread::of_ratios(&results[0], &results[1]).expect("at least one round");
    let [beside, alone] = results.map(|values| Spread::of(values).expect("at least one round"));
    println!(
        "handshake, median: beside 64 bulk connections {beside} us, alone {alone} us, ratio {ratio}"
    );
    Ok(())
}

/// Pins the calling thread to a core, if there is such a one.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Senders, card and shard on core 0; the kernel's reader on core 1.
fn bulk(load: Load) -> Result<Bulk> {
    let namespace = Namespace::create()?;
    let result = thread::scope(|scope| {
        scope
            .spawn(|| bulk_inside(&namespace, load))
            .join()
            .expect("measuring does not panic")
    });
    drop(namespace);
    result
}

fn bulk_inside(namespace: &Namespace, load: Load) -> Result<Bulk> {
    let Load {
        seconds: time,
        aggregate,
        connections,
        late_every,
        newcomers,
    } = load;
    namespace.join_thread()?;
    pin(0);
    let host = tap::open(&tap::Config {
        name: Some("nic0".to_owned()),
        ..tap::Config::default()
    })?
    .remove(0);
    let mac = host.kernel_mac()?;
    let mut source = Source::new((mac, KERNEL), PORT, OWN, connections, late_every);
    let start = Instant::now();
    let warm = Duration::from_secs_f64(0.4);
    let (bell, done) = (Arc::new(Bell::new()?), Arc::new(AtomicBool::new(false)));
    if newcomers {
        source = source.with_newcomers(Arc::clone(&bell));
        let (bell, done) = (Arc::clone(&bell), Arc::clone(&done));
        thread::spawn(move || {
            pin(1);
            while !done.load(Ordering::Relaxed) && bell.ring().is_ok() {
                thread::sleep(PAUSE);
            }
        });
    }
    namespace.ip(&format!("addr add {KERNEL}/24 dev nic0"))?;
    namespace.ip("link set nic0 up")?;
    namespace.ip(&format!("neigh add {OWN} lladdr {} dev nic0", source.mac()))?;
    let listener = TcpListener::bind(SocketAddrV4::new(KERNEL, PORT))?;
    let received = Arc::new(AtomicU64::new(0));
    let reader = {
        let received = Arc::clone(&received);
        let listener = listener.try_clone()?;
        thread::spawn(move || read_all(&listener, connections, &received))
    };
    let mut shard = Shard::new(
        source,
        host,
        millrace_offload::Config {
            aggregate,
            hash_key: [3, 4],
            ..millrace_offload::Config::default()
        },
    );
    let own = rustix::process::getpid();
    let mut from: Option<(Instant, u64, f64)> = None;
    loop {
        let elapsed = start.elapsed();
        let round = shard.round(millrace_offload::Instant(elapsed.as_nanos() as u64))?;
        if newcomers && connections == 0 && round.is_idle() {
            // Like a card that has nothing to do.
            bell.wait()?;
        }
        if from.is_none() && elapsed > warm {
            from = Some((
                Instant::now(),
                received.load(Ordering::Relaxed),
                used_by(own)?,
            ));
        }
        if elapsed > warm + Duration::from_secs_f64(time) {
            break;
        }
    }
    done.store(true, Ordering::Relaxed);
    let (since, before, used) = from.context("the measurement was too short")?;
    let bytes = (received.load(Ordering::Relaxed) - before) as f64;
    let busy = used_by(own)? - used;
    let gbits = bytes * 8.0 / since.elapsed().as_secs_f64() / 1e9;
    let counters = *shard.counters();
    let again = shard.wire().again;
    let mut waits = shard.wire().waits().to_vec();
    waits.sort_by(f64::total_cmp);
    // The device goes, and with it the connections: the reader is told by the end of the namespace's device.
    drop(shard);
    reader.join().expect("reading does not panic")?;
    ensure!(
        connections == 0 || bytes > 0.0,
        "nothing was received: {counters:?}"
    );
    Ok(Bulk {
        gbits,
        cpu_per_gb: busy / (bytes / 1e9),
        segments_per_unit: counters.segments as f64 / counters.units.max(1) as f64,
        again,
        wait: waits.get(waits.len() / 2).copied(),
    })
}

/// Accepts, and reads until nothing has come for a while.
fn read_all(listener: &TcpListener, connections: u16, received: &AtomicU64) -> Result<()> {
    use rustix::event::{PollFd, PollFlags, Timespec};
    pin(1);
    let mut streams = Vec::new();
    for _ in 0..connections {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        streams.push(stream);
    }
    let mut buffer = vec![0; 256 << 10];
    let patience = Timespec {
        tv_sec: 0,
        tv_nsec: 500_000_000,
    };
    while !streams.is_empty() {
        let mut set: Vec<_> = streams
            .iter()
            .map(|stream| PollFd::new(stream, PollFlags::IN))
            .collect();
        if rustix::event::poll(&mut set, Some(&patience))? == 0 {
            return Ok(());
        }
        let ready: Vec<bool> = set.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (stream, _) in streams.iter_mut().zip(ready).filter(|(_, ready)| *ready) {
            match stream.read(&mut buffer) {
                Ok(len) => {
                    received.fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Round trips of 64 bytes over veth and `millrace nic`, in microseconds: median and 99th of a hundred.
fn compare_messages(arguments: &Arguments) -> Result<()> {
    let mut results: [Vec<(f64, f64)>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (aggregate, results) in ["64K", "0"].into_iter().zip(&mut results) {
            results.push(messages(arguments.seconds, aggregate)?);
        }
    }
    for (name, field) in [
        ("p50", (|r: &(f64, f64)| r.0) as fn(&(f64, f64)) -> f64),
        ("p99", |r| r.1),
    ] {
        let [on, off] = [0, 1].map(|i: usize| results[i].iter().map(field).collect::<Vec<_>>());
        let ratio = Spread::of_ratios(&on, &off).expect("at least one round");
        let [on, off] = [on, off].map(|values| Spread::of(values).expect("at least one round"));
        println!("message of 64 B there and back, {name}: on {on} us, off {off} us, ratio {ratio}");
    }
    Ok(())
}

fn messages(time: f64, aggregate: &str) -> Result<(f64, f64)> {
    let (far, near) = (Namespace::create()?, Namespace::create()?);
    let directory = Directory::create()?;
    far.ip(&format!(
        "link add veth0 type veth peer name wire0 netns {}",
        near.name()
    ))?;
    far.ip(&format!("addr add {OWN}/24 dev veth0"))?;
    far.ip("link set veth0 up")?;
    near.ip("link set wire0 up")?;
    near.set("ipv4.conf.wire0.arp_ignore", "1")?;
    for (on, device) in [(&far, "veth0"), (&near, "wire0")] {
        let words = format!("ethtool -K {device} tso off gso off gro off tx off rx off");
        let words: Vec<&str> = words.split(' ').collect();
        let ended = Process::spawn(on, &directory, command(&words))?;
        ended.wait(seconds(10))?.success()?;
    }
    let millrace = world::millrace();
    let millrace = millrace.to_string_lossy();
    let words = [
        &*millrace,
        "nic",
        "--wire",
        "packet:wire0",
        "--host",
        "tap:nic0",
        "--aggregate",
        aggregate,
    ];
    let card = Process::spawn(&near, &directory, command(&words))?;
    wait_until("the card is ready", seconds(10), || {
        Ok(card.stdout().contains("ready"))
    })?;
    near.ip(&format!("addr add {KERNEL}/24 dev nic0"))?;
    near.ip("link set nic0 up")?;
    let address = SocketAddrV4::new(KERNEL, PORT);
    let stop = AtomicBool::new(false);
    let listener = near.enter(|| TcpListener::bind(address))?;
    let figures = thread::scope(|scope| -> Result<(f64, f64)> {
        scope.spawn(|| -> Result<()> {
            let (mut stream, _) = listener.accept()?;
            stream.set_nodelay(true)?;
            let mut message = [0; 64];
            while !stop.load(Ordering::Relaxed) && stream.read_exact(&mut message).is_ok() {
                stream.write_all(&message)?;
            }
            Ok(())
        });
        let mut stream = far.enter(|| TcpStream::connect(address))?;
        stream.set_nodelay(true)?;
        let (mut message, mut times) = ([7; 64], Vec::new());
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < time {
            let sent = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            times.push(sent.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[(times.len() as f64 * part) as usize];
        ensure!(
            times.len() > 100,
            "only {} round trips",
            short(times.len() as f64)
        );
        Ok((at(0.5), at(0.99)))
    })?;
    card.stop(Signal::TERM, seconds(10))?;
    Ok(figures)
}
