//! The network: hosts, time, and what happens in which order.

mod stations;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::{Ipv4Addr, SocketAddr};

use millrace_shard::{Config, HeapMemory, Shard, Usage};
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header, Mac};
use millrace_wire::offload::ChecksumState;

use crate::end::End;
use crate::host::{Host, HostId, Tuning};
use crate::link::{Fate, Kind, Line, Link, LinkCounters};
use crate::nic::{Nic, OnWire};
use crate::program::Program;
use crate::rng::Rng;
use crate::router;
use crate::station::Station;
use crate::trace::Trace;

/// How long nothing may be achieved before the run has failed: longer than it takes a stack to give
/// up, or to try again at the slowest.
const STALL: Duration = Duration::from_secs(400);
/// How many frames may be sent in the same time.
const STORM: u64 = 400_000;
/// How long a network is left alone in [`Network::settle`]: longer than any timer that is left
/// after all programs are done.
const SETTLE: Duration = Duration::from_secs(2_000);
/// Bytes of receive rings on each host.
const MEMORY: u64 = 1 << 30;

/// Hosts 10.0.0.1, 10.0.0.2, ... on one Ethernet, each with a [`Link`] to it.
pub struct Network {
    now: Instant,
    pub(crate) rng: Rng,
    pub(crate) hosts: Vec<Host>,
    pub(crate) stations: Vec<Station>,
    events: BinaryHeap<Reverse<Event>>,
    /// Counts events, so that those of one time happen in the order in which they were decided on.
    decided: u64,
    trace: Trace,
    achieved: Achieved,
}

/// The last time that a program achieved something.
struct Achieved {
    at: Instant,
    progress: u64,
    frames_since: u64,
}

struct Event {
    at: Instant,
    order: u64,
    end: End,
    /// `None`: the host has something to do.
    arrives: Option<OnWire>,
}

impl Network {
    /// A network without hosts.
    pub fn new(seed: u64) -> Network {
        let start = Instant::from_millis(1_000);
        Network {
            now: start,
            rng: Rng::new(seed),
            hosts: Vec::new(),
            stations: Vec::new(),
            events: BinaryHeap::new(),
            decided: 0,
            trace: Trace::new(),
            achieved: Achieved {
                at: start,
                progress: 0,
                frames_since: 0,
            },
        }
    }

    /// Adds a host with the stack's default configuration.
    pub fn add_host(&mut self, nic: Nic, link: Link) -> HostId {
        self.add_host_with(nic, link, |_| {})
    }

    /// Adds a host whose configuration `adjust` has changed.
    pub fn add_host_with(
        &mut self,
        nic: Nic,
        link: Link,
        adjust: impl FnOnce(&mut Config),
    ) -> HostId {
        let number = self.hosts.len() as u8 + 1;
        let mac = Mac([2, 0, 0, 0, 0, number]);
        let mut secret = [0; 32];
        secret.fill_with(|| self.rng.next() as u8);
        let mut config = Config::new(Ipv4Addr::new(10, 0, 0, number), 24, mac, secret);
        adjust(&mut config);
        let stack = Shard::new(config, HeapMemory::new(MEMORY), self.now);
        let line = Line::new(link, self.rng.fork());
        self.hosts
            .push(Host::new(stack, mac, nic, line, self.rng.fork()));
        HostId(self.hosts.len() - 1)
    }

    /// Changes how a host works.
    pub fn tune(&mut self, host: HostId, tuning: Tuning) {
        self.hosts[host.0].tuning = tuning;
    }

    /// The address of a port on a host.
    pub fn address_of(&self, host: HostId, port: u16) -> SocketAddr {
        SocketAddr::new(self.hosts[host.0].stack.config().address().into(), port)
    }

    /// The same with the host's first address of IPv6.
    ///
    /// # Panics
    /// When its configuration has none.
    pub fn address_v6_of(&self, host: HostId, port: u16) -> SocketAddr {
        let config = self.hosts[host.0].stack.config();
        let ipv6 = config.ipv6.as_ref().expect("a host with IPv6");
        SocketAddr::new(ipv6.addresses[0].0.into(), port)
    }

    /// Starts a program.
    pub fn run_program(&mut self, host: HostId, program: impl Program + 'static) {
        self.hosts[host.0].add_program(Box::new(program), self.now);
        self.call_on(host.0, self.now);
    }

    /// The link of a host, to change it. What is on the way stays so.
    pub fn link_mut(&mut self, host: HostId) -> &mut Link {
        &mut self.hosts[host.0].line.link
    }

    /// What the link of a host did.
    pub fn link_counters(&self, host: HostId) -> LinkCounters {
        self.hosts[host.0].line.counters
    }

    /// The stack of a host.
    pub fn stack(&self, host: HostId) -> &Shard<HeapMemory> {
        &self.hosts[host.0].stack
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Chance, for what is decided about the network from its seed.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// The latest frames.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// A number that two runs share only if all their frames were the same at the same times.
    pub fn digest(&self) -> u64 {
        self.trace.digest()
    }

    /// Lets time pass until all programs are done.
    ///
    /// # Panics
    /// When they achieve nothing for long, or a program or a stack does what it must not.
    pub fn run_until_done(&mut self) {
        while !self.is_done() {
            assert!(
                self.step(Instant::NEVER),
                "nothing is left to happen, and not all is done\n{}",
                self.situation()
            );
            self.check_progress();
        }
    }

    /// Lets this much time pass. Nothing need be achieved in it.
    ///
    /// # Panics
    /// When a program or a stack does what it must not, or frames never cease.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        self.achieved.frames_since = 0;
        while self.step(end) {
            assert!(
                self.achieved.frames_since < STORM,
                "a storm of frames\n{}",
                self.situation()
            );
        }
        self.now = end;
        self.achieved.at = end;
    }

    /// Lets time pass until all is quiet, and checks that nothing is left on any host.
    ///
    /// # Panics
    /// When something is.
    pub fn settle(&mut self) {
        self.run_for(SETTLE);
        for (index, host) in self.hosts.iter().enumerate() {
            // Knowing one's neighbours is no leftover.
            let usage = Usage {
                neighbours: 0,
                ..host.stack.usage()
            };
            assert_eq!(
                usage,
                Usage::default(),
                "host {index} keeps something\n{}",
                self.situation()
            );
            assert_eq!(
                host.stack.memory().in_use(),
                0,
                "host {index} keeps receive rings"
            );
            let mut sockets = Vec::new();
            host.stack
                .for_each_socket(self.now, |socket| sockets.push(socket.clone()));
            assert!(sockets.is_empty(), "host {index} keeps {sockets:?}");
        }
    }

    /// Whether all programs are done.
    pub fn is_done(&self) -> bool {
        self.hosts
            .iter()
            .flat_map(|host| &host.programs)
            .all(|program| program.is_done())
    }

    /// The next event, if it comes no later than `end`.
    fn step(&mut self, end: Instant) -> bool {
        if self
            .events
            .peek()
            .is_none_or(|Reverse(event)| event.at > end)
        {
            return false;
        }
        let Some(Reverse(event)) = self.events.pop() else {
            return false;
        };
        assert!(event.at >= self.now, "time runs backwards");
        self.now = event.at;
        match (event.end, event.arrives) {
            (End::Host(host), Some(frame)) => {
                self.hosts[host].arrived.push_back(frame);
                let at = self.hosts[host].batch_end(self.now);
                self.call_on(host, at);
            }
            (End::Host(host), None) if self.hosts[host].scheduled == self.now => {
                self.hosts[host].scheduled = Instant::NEVER;
                let (frames, next) = self.hosts[host].work(self.now);
                self.hosts[host].sleep();
                for frame in frames {
                    self.send(event.end, &frame);
                }
                if let Some(next) = next {
                    self.call_on(host, next);
                }
            }
            (End::Station(station), Some(frame)) => self.arrive_at_station(station, frame.bytes),
            // The host was called on for an earlier time since.
            (_, None) => {}
        }
        true
    }

    /// The host is to work at `at`, or before.
    fn call_on(&mut self, host: usize, at: Instant) {
        let at = at + self.hosts[host].lateness;
        if at < self.hosts[host].scheduled {
            self.hosts[host].scheduled = at;
            self.decide(at, End::Host(host), None);
        }
    }

    fn decide(&mut self, at: Instant, end: End, arrives: Option<OnWire>) {
        self.decided += 1;
        self.events.push(Reverse(Event {
            at,
            order: self.decided,
            end,
            arrives,
        }));
    }

    /// Puts a frame on the link of `from`.
    pub(crate) fn send(&mut self, from: End, frame: &OnWire) {
        self.achieved.frames_since += 1;
        // What has no header goes to all.
        let (dst, ethertype) = match Header::parse(&frame.bytes) {
            Ok((header, _)) => (header.dst, header.ethertype),
            Err(_) => (Mac::BROADCAST, EtherType(0)),
        };
        let kind = match (ethertype, frame.checksum) {
            (EtherType::ARP, _) => Kind::Discovery,
            (EtherType::IPV6, _) if router::is_discovery(&frame.bytes) => Kind::Discovery,
            (EtherType::IPV4, ChecksumState::Unchecked) => Kind::Checked,
            _ => Kind::Unchecked,
        };
        let line = match from {
            End::Host(host) => &mut self.hosts[host].line,
            End::Station(station) => &mut self.stations[station].line,
        };
        if let Some(mtu) = line.link.path_mtu
            && router::is_too_large(&frame.bytes, mtu)
        {
            let at = self.now + line.link.delay + line.link.delay;
            self.trace.record(self.now, from, &frame.bytes, Fate::Lost);
            if !line.link.silent
                && let Some(bytes) = router::refuse(&frame.bytes, mtu)
            {
                let checksum = ChecksumState::Unchecked;
                self.decide(
                    at,
                    from,
                    Some(OnWire {
                        bytes,
                        checksum,
                        segment_size: 0,
                    }),
                );
            }
            return;
        }
        let fate = line.carry(frame.bytes.len(), kind, self.now);
        let mut arriving = frame.clone();
        if let Fate::Arrives { corrupt: true, .. } = fate {
            line.damage(&mut arriving.bytes, HEADER_LEN);
        }
        if let Fate::Arrives { marked: true, .. } = fate {
            line.counters.marked += u64::from(router::mark(&mut arriving.bytes));
        }
        self.trace.record(self.now, from, &frame.bytes, fate);
        let Fate::Arrives { at, again, .. } = fate else {
            return;
        };
        let hosts = self
            .hosts
            .iter()
            .enumerate()
            .map(|(index, host)| (End::Host(index), host.mac));
        let stations = self
            .stations
            .iter()
            .enumerate()
            .map(|(index, station)| (End::Station(index), station.mac));
        let takes = |&(end, mac): &(End, Mac)| end != from && (dst == mac || dst.is_multicast());
        for (to, _) in hosts.chain(stations).filter(takes).collect::<Vec<_>>() {
            self.decide(at, to, Some(arriving.clone()));
            if let Some(again) = again {
                self.decide(again, to, Some(frame.clone()));
            }
        }
    }

    fn check_progress(&mut self) {
        let progress = self
            .hosts
            .iter()
            .flat_map(|host| &host.programs)
            .map(|program| program.progress())
            .sum();
        if progress != self.achieved.progress {
            self.achieved = Achieved {
                at: self.now,
                progress,
                frames_since: 0,
            };
            return;
        }
        let idle = self.now - self.achieved.at;
        assert!(
            idle < STALL,
            "nothing was achieved for {} s\n{}",
            idle.as_secs(),
            self.situation()
        );
        assert!(
            self.achieved.frames_since < STORM,
            "frames, and nothing achieved\n{}",
            self.situation()
        );
    }

    /// How things stand, for the message of a failure.
    fn situation(&self) -> String {
        let mut text = format!("at {} us\n", self.now.as_micros());
        for (index, host) in self.hosts.iter().enumerate() {
            text += &format!(
                "host {index}: {:?}, deadline {:?}\n",
                host.stack.usage(),
                host.stack.deadline()
            );
            for program in &host.programs {
                text += &format!(
                    "  program: done {}, progress {}\n",
                    program.is_done(),
                    program.progress()
                );
            }
            host.stack
                .for_each_socket(self.now, |socket| text += &format!("  {socket:?}\n"));
        }
        text
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Event) -> bool {
        self.order == other.order
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Event) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Event) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}
