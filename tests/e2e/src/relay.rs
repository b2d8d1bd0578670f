//! A path between two namespaces that is as slow, long and lossy as one likes: the simulator's
//! links, in real time.
//!
//! A TAP device in each namespace, and a thread that carries the frames of one to the other when
//! the [`Line`] says that they arrive. So the kernel's stack and ours meet the same path as in
//! simulation. Frames are no larger than the MTU: the devices have no offloads.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use millrace_port::tap::{self, Tap};
use millrace_port::{FRAME_MAX, Offload, Port};
use millrace_sim::{Fate, Kind, Line, Link, LinkCounters, Rng};
use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::namespace::Namespace;

/// The device's name, in either namespace.
pub const DEVICE: &str = "relay";
/// How long the thread may not look whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Frames that are taken from one end before the other has its turn.
const BATCH: usize = 64;

/// A running path.
pub struct Relay {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<[LinkCounters; 2]>>>,
}

impl Relay {
    /// Makes a device with its address (with prefix length) in each of two namespaces. `links[0]`
    /// is the way from the first to the second.
    ///
    /// # Errors
    /// Those of the system; nothing is left behind.
    pub fn start(ends: [(&Namespace, &str); 2], links: [Link; 2], seed: u64) -> Result<Relay> {
        let mut rng = Rng::new(seed);
        let lines = links.map(|link| Line::new(link, rng.fork()));
        let [first, second] = ends.map(|(namespace, address)| device(namespace, address));
        let mut carrier = Carrier {
            lines,
            waiting: BinaryHeap::new(),
            order: 0,
        };
        let mut taps = [first?, second?];
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            carry(&mut taps, &mut carrier, &stopped)?;
            Ok(carrier.lines.map(|line| line.counters))
        });
        Ok(Relay {
            stop,
            thread: Some(thread),
        })
    }

    /// Ends it; what each of the ways did.
    ///
    /// # Errors
    /// What the thread met.
    pub fn stop(mut self) -> Result<[LinkCounters; 2]> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().context("it runs until it is stopped")?;
        thread
            .join()
            .map_err(|_| anyhow!("the relay's thread has panicked"))?
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// An address with the bits of its prefix.
fn parse(text: &str) -> Result<(IpAddr, u8)> {
    let (address, len) = text.split_once('/').context("ADDRESS/BITS")?;
    Ok((address.parse()?, len.parse()?))
}

/// A device in a namespace, without offloads.
fn device(namespace: &Namespace, address: &str) -> Result<Tap> {
    let config = tap::Config {
        name: Some(DEVICE.into()),
        hosts: vec![parse(address)?],
        tx_queue_len: 10_000,
        ..tap::Config::default()
    };
    let tap = namespace
        .enter(|| tap::open(&config))?
        .pop()
        .context("a device has a queue")?;
    let words = [
        "netns",
        "exec",
        namespace.name(),
        "ethtool",
        "-K",
        DEVICE,
        "tx",
        "off",
        "tso",
        "off",
        "gso",
        "off",
    ];
    let output = Command::new("ip").args(words).output()?;
    ensure!(
        output.status.success(),
        "ethtool: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(tap)
}

/// Carries frames until it is told to stop.
fn carry(taps: &mut [Tap; 2], carrier: &mut Carrier, stop: &AtomicBool) -> Result<()> {
    let start = Instant::now();
    let mut buffer = vec![0; FRAME_MAX];
    while !stop.load(Ordering::Relaxed) {
        let now = || millrace_tcp::Instant::from_micros(start.elapsed().as_micros() as u64);
        for (from, tap) in taps.iter_mut().enumerate() {
            for _ in 0..BATCH {
                let Some(meta) = tap.receive(&mut buffer)? else {
                    break;
                };
                carrier.take(from, &mut buffer[..meta.len], now());
            }
        }
        while let Some((to, frame)) = carrier.due(now()) {
            // What the device has no room for is lost, as on any link.
            taps[to].send(&frame, [&[], &[]], Offload::None)?;
        }
        let next = carrier.next().map_or(LOOK, |next| {
            let micros = next.as_micros().saturating_sub(now().as_micros());
            Duration::from_micros(micros).min(LOOK)
        });
        let [first, second] = &*taps;
        let (first, second) = (first.descriptor(), second.descriptor());
        let (first, second) = first.zip(second).context("a device has a descriptor")?;
        let mut watched = [
            PollFd::new(&first, PollFlags::IN),
            PollFd::new(&second, PollFlags::IN),
        ];
        poll(&mut watched, Some(&Timespec::try_from(next)?))?;
    }
    Ok(())
}

/// What is on its way, and how it fares: no clock and no device in it.
struct Carrier {
    lines: [Line; 2],
    waiting: BinaryHeap<Reverse<Waiting>>,
    order: u64,
}

/// A frame on its way. Of those that arrive at one time the first that was sent is the first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    at_us: u64,
    order: u64,
    to: usize,
    frame: Vec<u8>,
}

impl Carrier {
    /// A frame has left one of the ends.
    fn take(&mut self, from: usize, frame: &mut [u8], now: millrace_tcp::Instant) {
        let kind = match Header::parse(frame) {
            Ok((header, _)) if header.ethertype == EtherType::ARP => Kind::Discovery,
            Ok((header, _)) if header.ethertype == EtherType::IPV4 => Kind::Checked,
            _ => Kind::Unchecked,
        };
        let line = &mut self.lines[from];
        let Fate::Arrives {
            at, again, corrupt, ..
        } = line.carry(frame.len(), kind, now)
        else {
            return;
        };
        if corrupt {
            line.damage(frame, HEADER_LEN);
        }
        for at in [Some(at), again].into_iter().flatten() {
            self.order += 1;
            self.waiting.push(Reverse(Waiting {
                at_us: at.as_micros(),
                order: self.order,
                to: 1 - from,
                frame: frame.to_vec(),
            }));
        }
    }

    /// The next frame that has arrived by now, and at which end.
    fn due(&mut self, now: millrace_tcp::Instant) -> Option<(usize, Vec<u8>)> {
        self.next().filter(|next| *next <= now)?;
        let Reverse(waiting) = self.waiting.pop()?;
        Some((waiting.to, waiting.frame))
    }

    /// When the next one arrives.
    fn next(&self) -> Option<millrace_tcp::Instant> {
        let Reverse(waiting) = self.waiting.peek()?;
        Some(millrace_tcp::Instant::from_micros(waiting.at_us))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_tcp::Instant as Time;

    /// Both ways alike.
    fn carrier(link: Link) -> Carrier {
        let mut rng = Rng::new(1);
        Carrier {
            lines: [(); 2].map(|()| Line::new(link, rng.fork())),
            waiting: BinaryHeap::new(),
            order: 0,
        }
    }

    fn frame(mark: u8) -> Vec<u8> {
        let mut frame = vec![mark; 1_250];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame
    }

    /// Everything that arrives, as time, end and mark.
    fn arrivals(carrier: &mut Carrier) -> Vec<(u64, usize, u8)> {
        let mut all = Vec::new();
        while let Some(next) = carrier.next() {
            let before = Time::from_micros(next.as_micros() - 1);
            assert!(carrier.due(before).is_none());
            let (to, frame) = carrier.due(next).expect("it is due");
            all.push((next.as_micros(), to, frame[20]));
        }
        all
    }

    #[test]
    fn frames_arrive_at_the_other_end_in_time() {
        let link = Link {
            rate: Some(10_000_000),
            delay: millrace_tcp::Duration::from_millis(50),
            ..Link::default()
        };
        let mut carrier = carrier(link);
        for mark in 1..=3 {
            carrier.take(0, &mut frame(mark), Time::from_micros(0));
        }
        carrier.take(1, &mut frame(9), Time::from_micros(500));
        let expected = [
            (51_000, 1, 1),
            (51_500, 0, 9),
            (52_000, 1, 2),
            (53_000, 1, 3),
        ];
        assert_eq!(arrivals(&mut carrier), expected);
    }

    #[test]
    fn mishaps_happen_to_one_way_each() {
        let mut carrier = carrier(Link::default());
        carrier.lines[0].link.loss = 1.0;
        carrier.lines[1].link.duplicate = 1.0;
        carrier.take(0, &mut frame(1), Time::from_micros(0));
        carrier.take(1, &mut frame(2), Time::from_micros(0));
        let ends: Vec<_> = arrivals(&mut carrier)
            .into_iter()
            .map(|(_, to, mark)| (to, mark))
            .collect();
        assert_eq!(ends, [(0, 2), (0, 2)]);
        assert_eq!(carrier.lines[0].counters.lost, 1);
    }
}
