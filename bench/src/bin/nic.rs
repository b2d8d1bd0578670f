//! What receive offload in front of the kernel's stack gains, with aggregation on and off in turns:
//! bulk from a wire that is not the limit, bulk and small messages over veth pairs. And what
//! joining segments gains in an engine.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Parser;
use millrace_bench::card::{self, KERNEL, OWN, PORT, Wire};
use millrace_bench::cpu::used_by;
use millrace_bench::figures::Spread;
use millrace_bench::machine;
use millrace_bench::source::{Bell, Source};
use millrace_e2e::Process;
use millrace_e2e::namespace::Namespace;
use millrace_e2e::scenario::{prepare, seconds};
use millrace_nic::Shard;
use millrace_port::tap::{self, Tap};
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

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
    /// The largest packet handed to the kernel in one piece when aggregation is on, in bytes
    #[arg(long, default_value_t = u16::MAX)]
    aggregate: u16,
    /// Only what has this in its name: bulk, handshake, message, wire, engine
    #[arg(long, default_value = "")]
    only: String,
}

/// What one measurement of bulk gave.
#[derive(Clone, Copy, Debug)]
struct Bulk {
    gbits: f64,
    /// CPU seconds of this process per GB received: the wire, the card, the reader, and the
    /// kernel's work for them, which TAP does in the writer.
    cpu_per_gb: f64,
    segments_per_unit: f64,
    /// The part of the rounds in which the card found nothing to do: the window was used up.
    idle: f64,
    again: u64,
    /// Median of what newcomers waited for the answer to their SYN, in microseconds, when there
    /// were some.
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
    /// Whether the card looks for frames all the time though there are none.
    awake: bool,
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
    if "wire".contains(&arguments.only) {
        for means in ["packet", "xdp"] {
            compare_wires(&arguments, means)?;
        }
    }
    if "engine".contains(&arguments.only) {
        compare_engines(&arguments)?;
    }
    Ok(())
}

fn compare_bulk(arguments: &Arguments, connections: u16, late_every: u32) -> Result<()> {
    let mut results: [Vec<Bulk>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (aggregate, results) in [arguments.aggregate, 0].into_iter().zip(&mut results) {
            results.push(bulk(Load {
                seconds: arguments.seconds,
                aggregate,
                connections,
                late_every,
                newcomers: false,
                awake: true,
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
        "  on    Gbit/s {}, s of CPU per GB {}, idle {}, segments per unit {}, sent again {}",
        spread(on),
        spread(of(0, |b| b.cpu_per_gb)),
        spread(of(0, |b| b.idle)),
        spread(of(0, |b| b.segments_per_unit)),
        results[0].iter().map(|b| b.again).sum::<u64>()
    );
    println!(
        "  off   Gbit/s {}, s of CPU per GB {}, idle {}, sent again {}",
        spread(off),
        spread(of(1, |b| b.cpu_per_gb)),
        spread(of(1, |b| b.idle)),
        results[1].iter().map(|b| b.again).sum::<u64>()
    );
    println!("  ratio {ratio}");
    Ok(())
}

/// How long a newcomer waits for the answer to a SYN, from when it is told of: beside 64
/// connections that carry bulk, so that the card never sleeps; without them by a card that looks
/// for frames all the time, as it does then; and without them by one that sleeps.
fn compare_handshakes(arguments: &Arguments) -> Result<()> {
    let mut results: [Vec<f64>; 3] = Default::default();
    for _ in 0..arguments.rounds {
        let states = [(64, true), (0, true), (0, false)];
        for ((connections, awake), results) in states.into_iter().zip(&mut results) {
            let measured = bulk(Load {
                seconds: arguments.seconds,
                aggregate: arguments.aggregate,
                connections,
                late_every: 0,
                newcomers: true,
                awake,
            })?;
            results.push(measured.wait.context("nobody was answered")?);
        }
    }
    let ratio = |alone: &[f64]| Spread::of_ratios(&results[0], alone).expect("at least one round");
    let (to_awake, to_asleep) = (ratio(&results[1]), ratio(&results[2]));
    let [beside, awake, asleep] =
        results.map(|values| Spread::of(values).expect("at least one round"));
    println!("handshake, median: beside 64 bulk connections {beside} us");
    println!("  alone, the card awake  {awake} us, ratio {to_awake}");
    println!("  alone, the card asleep {asleep} us, ratio {to_asleep}");
    Ok(())
}

/// Pins the calling thread to a core, if there is such a one.
fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

/// Has all threads of a process that runs stay on a core.
fn pin_all(process: &Process, core: usize) -> Result<()> {
    for thread in std::fs::read_dir(format!("/proc/{}/task", process.pid()))? {
        let name = thread?.file_name();
        let id = name.to_str().and_then(|name| name.parse().ok());
        let thread = id.and_then(Pid::from_raw).context("a thread's number")?;
        let mut set = CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(Some(thread), &set)?;
    }
    Ok(())
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
        awake,
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
    let (bell, done) = (Arc::new(Bell::new()?), Arc::new(AtomicBool::new(false)));
    if newcomers {
        source = source.with_newcomers(Arc::clone(&bell));
        ring_until_done(Arc::clone(&bell), Arc::clone(&done));
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
    let sleeps_on = (!awake).then_some(&*bell);
    let rounds = serve(&mut shard, &received, time, sleeps_on)?;
    done.store(true, Ordering::Relaxed);
    let Rounds { bytes, .. } = rounds;
    let counters = *shard.counters();
    let again = shard.wire().again;
    let mut waits = shard.wire().waits().to_vec();
    waits.sort_by(f64::total_cmp);
    // The device goes, and with it the connections: the reader is told by the end of the
    // namespace's device.
    drop(shard);
    reader.join().expect("reading does not panic")?;
    ensure!(
        connections == 0 || bytes > 0.0,
        "nothing was received: {counters:?}"
    );
    Ok(Bulk {
        gbits: bytes * 8.0 / rounds.seconds / 1e9,
        cpu_per_gb: rounds.cpu_seconds / (bytes / 1e9),
        idle: rounds.idle_seconds / rounds.seconds,
        segments_per_unit: counters.segments as f64 / counters.units.max(1) as f64,
        again,
        wait: waits.get(waits.len() / 2).copied(),
    })
}

/// Has a newcomer connect every now and then, until it is done.
fn ring_until_done(bell: Arc<Bell>, done: Arc<AtomicBool>) {
    thread::spawn(move || {
        pin(1);
        while !done.load(Ordering::Relaxed) && bell.ring().is_ok() {
            thread::sleep(PAUSE);
        }
    });
}

/// The rounds of a card that were measured.
struct Rounds {
    /// Bytes that the kernel's reader received meanwhile.
    bytes: f64,
    seconds: f64,
    /// CPU seconds of this process.
    cpu_seconds: f64,
    idle_seconds: f64,
}

/// Does the card's work for `seconds` after a warm-up. A card that sleeps waits for the bell when
/// it has nothing to do.
fn serve(
    shard: &mut Shard<Source, Tap>,
    received: &AtomicU64,
    seconds: f64,
    sleeps_on: Option<&Bell>,
) -> Result<Rounds> {
    let start = Instant::now();
    let warm = Duration::from_secs_f64(0.4);
    let own = rustix::process::getpid();
    let mut from: Option<(Instant, u64, f64)> = None;
    let mut idle = Duration::ZERO;
    loop {
        let elapsed = start.elapsed();
        let round = shard.round(millrace_offload::Instant(elapsed.as_nanos() as u64))?;
        if round.is_idle() && from.is_some() {
            idle += start.elapsed() - elapsed;
        }
        if let Some(bell) = sleeps_on.filter(|_| round.is_idle()) {
            bell.wait()?;
        }
        if from.is_none() && elapsed > warm {
            from = Some((
                Instant::now(),
                received.load(Ordering::Relaxed),
                used_by(own)?,
            ));
        }
        if elapsed > warm + Duration::from_secs_f64(seconds) {
            break;
        }
    }
    let (since, before, used) = from.context("the measurement was too short")?;
    Ok(Rounds {
        bytes: (received.load(Ordering::Relaxed) - before) as f64,
        seconds: since.elapsed().as_secs_f64(),
        cpu_seconds: used_by(own)? - used,
        idle_seconds: idle.as_secs_f64(),
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
        let mut ready: Vec<bool> = set.iter().map(|fd| !fd.revents().is_empty()).collect();
        for (stream, ready) in streams
            .iter_mut()
            .zip(&mut ready)
            .filter(|(_, ready)| **ready)
        {
            match stream.read(&mut buffer) {
                // What has ended is not looked at again.
                Ok(0) => continue,
                Ok(len) => {
                    received.fetch_add(len as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            *ready = false;
        }
        let mut ended = ready.into_iter();
        streams.retain(|_| !ended.next().unwrap_or(false));
    }
    Ok(())
}

/// Round trips of 64 bytes over veth and `millrace nic`, in microseconds: median and 99th of a
/// hundred. Both cards are there all the time, and take turns of a few milliseconds, so that what
/// else happens on the machine meets both alike; the two ends are on core 0 and the card on core 1,
/// since where the scheduler happens to put the three makes more than the card.
fn compare_messages(arguments: &Arguments) -> Result<()> {
    let mut results: [Vec<(f64, f64)>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        // A thread of its own, since it stays on its core.
        let round = thread::scope(|scope| scope.spawn(|| round_of_messages(arguments)).join());
        let round = round.map_err(|_| anyhow!("the thread that sends has panicked"))??;
        for (figures, results) in round.into_iter().zip(&mut results) {
            results.push(figures);
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

/// With aggregation on, and off.
fn round_of_messages(arguments: &Arguments) -> Result<[(f64, f64); 2]> {
    pin(0);
    let [mut on, mut off] = [Messages::start("64K")?, Messages::start("0")?];
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < 2.0 * arguments.seconds {
        on.turn()?;
        off.turn()?;
    }
    Ok([on.end()?, off.end()?])
}

/// A connection through a card of its own, whose other end sends back what comes.
struct Messages {
    stream: TcpStream,
    times: Vec<f64>,
    echo: thread::JoinHandle<()>,
    card: Process,
    _wire: Wire,
}

impl Messages {
    /// Messages in a turn: a few milliseconds.
    const TURN: usize = 100;
    /// The first ones of a turn find sleeping cores and cold caches. They are not counted.
    const WARMING: usize = 10;

    fn start(aggregate: &str) -> Result<Messages> {
        let wire = Wire::new()?;
        let card = wire.card("packet", aggregate)?;
        pin_all(&card, 1)?;
        let listener = wire.listen()?;
        let echo = thread::spawn(move || {
            pin(0);
            let Ok((mut stream, _)) = listener.accept() else {
                return;
            };
            let mut message = [0; 64];
            // Until the other end is closed.
            while stream.read_exact(&mut message).is_ok() && stream.write_all(&message).is_ok() {}
        });
        let address = SocketAddrV4::new(KERNEL, PORT);
        let stream = wire.far.enter(|| TcpStream::connect(address))?;
        stream.set_nodelay(true)?;
        Ok(Messages {
            stream,
            times: Vec::new(),
            echo,
            card,
            _wire: wire,
        })
    }

    fn turn(&mut self) -> Result<()> {
        let mut message = [7; 64];
        for i in 0..Messages::TURN {
            let sent = Instant::now();
            self.stream.write_all(&message)?;
            self.stream.read_exact(&mut message)?;
            if i >= Messages::WARMING {
                self.times.push(sent.elapsed().as_secs_f64() * 1e6);
            }
        }
        Ok(())
    }

    /// Median and 99th of a hundred, in microseconds.
    fn end(mut self) -> Result<(f64, f64)> {
        drop(self.stream);
        let ended = self.echo.join();
        ended.map_err(|_| anyhow!("the thread that answers has panicked"))?;
        self.card.stop(Signal::TERM, seconds(10))?;
        self.times.sort_by(f64::total_cmp);
        let at = |part: f64| self.times[(self.times.len() as f64 * part) as usize];
        Ok((at(0.5), at(0.99)))
    }
}

/// Prints bulk of two kinds, in pairs.
fn print_pairs(name: &str, kinds: [&str; 2], results: &[Vec<card::Bulk>; 2]) {
    let of = |index: usize, field: fn(&card::Bulk) -> f64| -> Vec<f64> {
        results[index].iter().map(field).collect()
    };
    let spread = |values| Spread::of(values).expect("at least one round");
    let ratio = Spread::of_ratios(&of(0, |b| b.gbits), &of(1, |b| b.gbits));
    println!("{name}");
    for (index, kind) in kinds.into_iter().enumerate() {
        println!(
            "  {kind:<8} Gbit/s {}, s of CPU of the machine per GB {}, of the card {}; cores {}",
            spread(of(index, |b| b.gbits)),
            spread(of(index, |b| b.cpu_per_gb)),
            spread(of(index, |b| b.own_per_gb)),
            results[index][0].cores,
        );
    }
    println!("  ratio {}", ratio.expect("at least one round"));
}

/// Bulk over a veth pair and the card.
fn compare_wires(arguments: &Arguments, means: &str) -> Result<()> {
    let mut results: [Vec<card::Bulk>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (aggregate, results) in ["64K", "0"].into_iter().zip(&mut results) {
            let wire = Wire::new()?;
            let card = wire.card(means, aggregate)?;
            let listener = wire.listen()?;
            let received = AtomicU64::new(0);
            let bulk = thread::scope(|scope| {
                scope.spawn(|| read_all(&listener, 4, &received));
                wire.bulk(arguments.seconds, Some(&card))
            });
            card.stop(Signal::TERM, seconds(10))?;
            results.push(bulk?);
        }
    }
    print_pairs(
        &format!("4 connections over veth, {means}"),
        ["on", "off"],
        &results,
    );
    Ok(())
}

/// Bulk over a veth pair and AF_XDP to an engine that joins segments, and to one that does not.
fn compare_engines(arguments: &Arguments) -> Result<()> {
    let mut results: [Vec<card::Bulk>; 2] = Default::default();
    for _ in 0..arguments.rounds {
        for (more, results) in ["", "--no-join"].into_iter().zip(&mut results) {
            let wire = Wire::new()?;
            let engine = wire.engine(more)?;
            let bulk = wire.bulk(arguments.seconds, None);
            engine.stop(Signal::TERM, seconds(15))?;
            results.push(bulk?);
        }
    }
    print_pairs(
        "4 connections over veth to an engine, AF_XDP",
        ["joined", "apart"],
        &results,
    );
    Ok(())
}
