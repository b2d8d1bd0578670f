//! Two ports on two threads, both polling: latency of 64-byte messages, their rate, and 64 KB
//! messages against memcpy.
//!
//! cargo run --release -p millrace-fabric --example fabric_bench

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use millrace_fabric::shm::{Directory, Port};
use millrace_fabric::{Channel, Limits, Payload, PortName};

const A: PortName = PortName::new(0, 1);
const B: PortName = PortName::new(0, 2);
const ROUND_TRIPS: u32 = 200_000;
const MESSAGES: u32 = 20_000_000;
const LARGE: usize = 64 << 10;
const LARGE_MESSAGES: u32 = 50_000;

fn receive(port: &mut Port) -> usize {
    let mut count = 0;
    while let Some(message) = port.poll_received() {
        std::hint::black_box(port.message(&message).expect("a message")[0]);
        match message.channel {
            Channel::System => port.free(message.buffer),
            channel => port.post(channel, message.buffer),
        }
        .expect("ours");
        count += 1;
    }
    count
}

fn ping(port: &mut Port) -> f64 {
    let begin = Instant::now();
    for _ in 0..ROUND_TRIPS {
        port.send(B, Channel::System, 0, Payload::Inline(&[1; 64]), 0)
            .expect("room");
        while receive(port) == 0 {
            port.poll();
        }
        while port.poll_sent().is_some() {}
    }
    begin.elapsed().as_nanos() as f64 / f64::from(ROUND_TRIPS) / 2.0
}

fn pong(port: &mut Port) {
    let mut left = ROUND_TRIPS;
    while left > 0 {
        port.poll();
        while receive(port) > 0 {
            port.send(A, Channel::System, 0, Payload::Inline(&[2; 64]), 0)
                .expect("room");
            left -= 1;
        }
        while port.poll_sent().is_some() {}
    }
    port.poll();
}

/// Sends so many messages, and returns when all have departed.
fn send(port: &mut Port, count: u32, channel: Channel, payload: Payload<'_>) {
    let (mut asked, mut departed) = (0, 0);
    while departed < count {
        for _ in 0..64 {
            if asked == count || port.send(B, channel, 0, payload, 0).is_err() {
                break;
            }
            asked += 1;
        }
        port.poll();
        while let Some(sent) = port.poll_sent() {
            sent.result.expect("delivered");
            departed += 1;
        }
    }
}

/// Processor time of this thread, in seconds: what others do on the machine does not count.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Both sides on one thread: what a message costs when no core waits for another one. Seconds for
/// each message.
fn cost(a: &mut Port, b: &mut Port, count: u32, channel: Channel, payload: Payload<'_>) -> f64 {
    let begin = cpu_time();
    let (mut asked, mut received) = (0, 0);
    while received < count {
        for _ in 0..64 {
            if asked == count || a.send(B, channel, 0, payload, 0).is_err() {
                break;
            }
            asked += 1;
        }
        a.poll();
        b.poll();
        received += receive(b) as u32;
        while a.poll_sent().is_some() {}
    }
    (cpu_time() - begin) / f64::from(count)
}

/// Both sides on one thread, beside memcpy.
fn costs(a: &mut Port, b: &mut Port) {
    let small = Payload::Inline(&[1; 64]);
    cost(a, b, 100_000, Channel::System, small);
    let seconds = cost(a, b, MESSAGES / 4, Channel::System, small);
    println!(
        "64 B, both sides: {:.1} ns of processor time",
        seconds * 1e9
    );
    let from = a.register(LARGE).expect("memory");
    a.bytes_mut(from).expect("ours").fill(1);
    let large = Payload::Buffer(from, LARGE);
    let ours = cost(a, b, LARGE_MESSAGES / 4, Channel::Normal(0), large);
    let (source, mut into) = (vec![1u8; LARGE], vec![vec![0u8; LARGE]; 4]);
    let begin = cpu_time();
    for round in 0..LARGE_MESSAGES as usize / 4 {
        into[round % 4].copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&into);
    }
    let memcpy = (cpu_time() - begin) / f64::from(LARGE_MESSAGES / 4);
    println!(
        "64 KB, both sides: {:.0} ns of processor time, {:.2} times that of memcpy",
        ours * 1e9,
        ours / memcpy
    );
}

fn main() {
    let path = std::env::temp_dir().join(format!("millrace-fabric-bench-{}", std::process::id()));
    let directory = Directory::at(&path);
    let open = |name| Port::open_in(&directory, name, Limits::default()).expect("a port");
    let (mut a, mut b) = (open(A), open(B));
    let is_over = AtomicBool::new(false);
    for _ in 0..4 {
        let buffer = b.register(LARGE).expect("memory");
        b.post(Channel::Normal(0), buffer).expect("ours");
    }
    costs(&mut a, &mut b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pong(&mut b);
            while !is_over.load(Ordering::Relaxed) {
                b.poll();
                receive(&mut b);
            }
        });
        println!("64 B, one way: {:.0} ns", ping(&mut a));
        let begin = Instant::now();
        send(&mut a, MESSAGES, Channel::System, Payload::Inline(&[1; 64]));
        let rate = f64::from(MESSAGES) / begin.elapsed().as_secs_f64() / 1e6;
        println!("64 B: {rate:.1} million messages a second");

        let from = a.register(LARGE).expect("memory");
        a.bytes_mut(from).expect("ours").fill(1);
        let begin = Instant::now();
        let payload = Payload::Buffer(from, LARGE);
        send(&mut a, LARGE_MESSAGES, Channel::Normal(0), payload);
        let ours = begin.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);

        // Between buffers in turn, as the receiver's are.
        let (source, mut into) = (vec![1u8; LARGE], vec![vec![0u8; LARGE]; 4]);
        let begin = Instant::now();
        for round in 0..LARGE_MESSAGES as usize {
            into[round % 4].copy_from_slice(std::hint::black_box(&source));
            std::hint::black_box(&into);
        }
        let memcpy = begin.elapsed().as_secs_f64();
        let bytes = LARGE as f64 * f64::from(LARGE_MESSAGES) / 1e9;
        let (rate, best) = (bytes / ours, bytes / memcpy);
        println!(
            "64 KB: {rate:.1} GB/s; memcpy in one core's cache {best:.1} GB/s: {:.0} %",
            100.0 * rate / best
        );
    });
    std::fs::remove_dir_all(path).expect("ours");
}
