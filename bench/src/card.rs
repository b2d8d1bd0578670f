//! A veth pair as a wire, without offloads: a sender at one end, and at the other `millrace nic` in
//! front of the kernel's stack, or an engine.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use millrace_e2e::directory::Directory;
use millrace_e2e::namespace::Namespace;
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::{Process, command, compile, world};

use crate::cpu::{Sample, used_by};

/// The sender's address, and the receiver's.
pub const OWN: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 1);
/// The receiver's.
pub const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
/// Where it listens.
pub const PORT: u16 = 5001;
/// Connections that carry bulk.
const CONNECTIONS: usize = 4;
const WARM: Duration = Duration::from_millis(500);

/// The wire, and who stands at its near end.
pub struct Wire {
    /// The sender's end.
    pub far: Namespace,
    /// The receiver's.
    pub near: Namespace,
    directory: Directory,
}

/// What bulk over the wire gave.
#[derive(Clone, Debug)]
pub struct Bulk {
    /// Payload.
    pub gbits: f64,
    /// CPU seconds of the machine per GB.
    pub cpu_per_gb: f64,
    /// Those of who receives the frames: the card alone; nothing where it was not asked.
    pub own_per_gb: f64,
    /// What each core did.
    pub cores: String,
}

impl Wire {
    /// A pair of devices, up.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> Result<Wire> {
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
        Ok(Wire {
            far,
            near,
            directory,
        })
    }

    /// Starts `millrace nic` by `means`, `packet` or `xdp`, in front of the kernel.
    ///
    /// # Errors
    /// It does not start.
    pub fn card(&self, means: &str, aggregate: &str) -> Result<Process> {
        let millrace = world::millrace();
        let line = format!(
            "{} nic --wire {means}:wire0 --host tap:nic0 --aggregate {aggregate}",
            millrace.display()
        );
        let card = self.start(&line)?;
        self.near.ip(&format!("addr add {KERNEL}/24 dev nic0"))?;
        self.near.ip("link set nic0 up")?;
        Ok(card)
    }

    /// Starts a program that reads all that comes, on an engine of its own over AF_XDP.
    ///
    /// # Errors
    /// It does not start.
    pub fn engine(&self, more: &str) -> Result<Process> {
        let millrace = world::millrace();
        self.start(&format!(
            "{} run --quiet --link xdp:wire0 --addr {KERNEL}/24 {more} -- {} sink {KERNEL} {PORT}",
            millrace.display(),
            compile::program("server")?
        ))
    }

    fn start(&self, line: &str) -> Result<Process> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let process = Process::spawn(&self.near, &self.directory, command(&words))?;
        wait_until("it is ready", seconds(20), || {
            Ok(process.stdout().contains("ready"))
        })?;
        Ok(process)
    }

    /// Connections that send as much as they can, from core 0, to who listens. `own` is whose CPU
    /// is to be told apart.
    ///
    /// # Errors
    /// Nobody listens, or the system's.
    pub fn bulk(&self, time: f64, own: Option<&Process>) -> Result<Bulk> {
        let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
        let address = SocketAddrV4::new(KERNEL, PORT);
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            let stream = self.far.enter(|| TcpStream::connect(address))?;
            stream.set_write_timeout(Some(Duration::from_millis(200)))?;
            streams.push(stream);
        }
        thread::scope(|scope| {
            for mut stream in streams {
                let (stop, sent) = (&stop, &sent);
                scope.spawn(move || {
                    let bytes = vec![7; 128 << 10];
                    while !stop.load(Ordering::Relaxed) {
                        match stream.write(&bytes) {
                            Ok(len) => sent.fetch_add(len as u64, Ordering::Relaxed),
                            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
                            Err(_) => return,
                        };
                    }
                });
            }
            thread::sleep(WARM);
            let used = || own.map_or(Ok(0.0), |process| used_by(process.pid()));
            let (sample, before, own_before) =
                (Sample::take()?, sent.load(Ordering::Relaxed), used()?);
            thread::sleep(Duration::from_secs_f64(time));
            let interval = sample.until_now()?;
            let bytes = (sent.load(Ordering::Relaxed) - before) as f64;
            let own_used = used()? - own_before;
            stop.store(true, Ordering::Relaxed);
            Ok(Bulk {
                gbits: bytes * 8.0 / 1e9 / interval.seconds,
                cpu_per_gb: interval.busy() / (bytes / 1e9),
                own_per_gb: own_used / (bytes / 1e9),
                cores: interval.describe(),
            })
        })
    }

    /// A socket of the kernel behind the card that listens.
    ///
    /// # Errors
    /// The system's.
    pub fn listen(&self) -> Result<TcpListener> {
        let address = SocketAddrV4::new(KERNEL, PORT);
        let listener = self.near.enter(|| TcpListener::bind(address));
        listener.context("listening behind the card")
    }
}
