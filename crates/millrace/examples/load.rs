//! The core of a load generator: connections that send 64 bytes and wait for them to come back,
//! each a task; the server's latencies, and what it cost here.
//!
//! ```text
//! load IP:PORT [CONNECTIONS] [SECONDS]
//! # as root: a TAP device; the kernel is 10.77.0.1, this is 10.77.0.2
//! ```
//!
//! `millrace load` is a whole one: rates, HTTP, many addresses, several shards.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace::{Builder, Link, LinkOptions, Stack, TcpOptions, TcpStream};

/// What all connections share: nothing else runs on their thread, so it needs no lock.
#[derive(Default)]
struct Tally {
    latencies_us: RefCell<Vec<u32>>,
    failures: RefCell<Vec<io::Error>>,
    over: Cell<bool>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: load IP:PORT [CONNECTIONS] [SECONDS]";
    let server: SocketAddr = arguments.next().ok_or(usage)?.parse()?;
    let connections: usize = arguments.next().map_or(Ok(64), |text| text.parse())?;
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let options = LinkOptions::new().host(Ipv4Addr::new(10, 77, 0, 1), 24);
    let link = Link::open(&"tap".parse()?, &options)?;
    let stack = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .build()?;
    let tally = Rc::<Tally>::default();
    let tasks: Vec<_> = (0..connections)
        .map(|_| {
            let (here, tally) = (stack.clone(), tally.clone());
            stack.spawn(async move {
                if let Err(error) = exchange(&here, server, &tally).await {
                    tally.failures.borrow_mut().push(error);
                }
            })
        })
        .collect();
    let before = cpu();
    stack.block_on(stack.sleep(Duration::from_secs(seconds)));
    let used = cpu() - before;
    // Each ends with its answer; one that gets none is not waited for.
    tally.over.set(true);
    let all = async {
        for task in tasks {
            task.await;
        }
    };
    let _ = stack.block_on(stack.timeout(Duration::from_secs(1), all));
    report(&tally, seconds, used)
}

/// One connection, until it is over.
async fn exchange(stack: &Stack, server: SocketAddr, tally: &Tally) -> io::Result<()> {
    let stream = TcpStream::connect_nonblocking(stack, server, TcpOptions::new().nodelay(true))?;
    stream.connected_async().await?;
    let mut message = [b'x'; 64];
    while !tally.over.get() {
        let begun = Instant::now();
        stream.write_all_async(&message).await?;
        stream.read_exact_async(&mut message).await?;
        let took = begun.elapsed().as_micros();
        let took = u32::try_from(took).unwrap_or(u32::MAX);
        tally.latencies_us.borrow_mut().push(took);
    }
    Ok(())
}

fn report(tally: &Tally, seconds: u64, used: Duration) -> Result<(), Box<dyn Error>> {
    let mut latencies = tally.latencies_us.borrow_mut();
    latencies.sort_unstable();
    if let Some(first) = tally.failures.borrow().first() {
        eprintln!("{} failed: {first}", tally.failures.borrow().len());
    }
    let count = latencies.len();
    if count == 0 {
        return Err("nothing was answered".into());
    }
    let at = |part: f64| latencies[((count - 1) as f64 * part) as usize];
    println!(
        "{} per second, {:.2} us of CPU here each; latency in us: 50 % {}, 99 % {}, largest {}",
        count as u64 / seconds.max(1),
        used.as_secs_f64() * 1e6 / count as f64,
        at(0.5),
        at(0.99),
        at(1.0),
    );
    Ok(())
}

/// What this process has used.
fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
