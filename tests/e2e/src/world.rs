//! A place for a scenario: the program under test at one address, the kernel's own stack as its
//! peer at another.
//!
//! On the kernel the two are namespaces joined by a veth pair; on millrace they are one namespace
//! with a TAP device between the kernel in it and the engine, or likewise two, and the engine is on
//! the subject's device by AF_XDP or macvtap beside the kernel. A scenario sees no difference.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::directory::Directory;
use crate::namespace::Namespace;
use crate::process::{Ended, Process, command};
use crate::scenario::{seconds, wait_until};

/// Address of the program under test.
pub const SUBJECT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Address of its peer, always on the kernel.
pub const PEER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// Device of millrace's link.
pub const DEVICE: &str = "mr0";

/// The stack under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stack {
    /// The kernel's own, over veth.
    Kernel,
    /// Ours.
    Millrace,
}

/// What our stack's engines are on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A TAP device.
    Tap,
    /// A veth device, by AF_XDP sockets. The kernel has it too, with the address [`NEIGHBOUR`].
    Xdp,
    /// Likewise, by a macvtap device on top of it.
    Macvtap,
}

/// Address of the kernel beside the program under test, where it has one on the same device.
pub const NEIGHBOUR: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 3);

/// Two hosts and a directory.
#[derive(Debug)]
pub struct World {
    /// Which stack the subject runs on.
    pub stack: Stack,
    /// How many shards its engines have.
    pub shards: u16,
    /// What they are on.
    pub link: Link,
    /// How many I/O threads own the queues of their link; none: the shards do.
    pub io_threads: u16,
    /// Whether some shards own queues beside them.
    pub mixed: bool,
    /// Namespace of the subject where that is not the peer's.
    subject: Option<Namespace>,
    peer: Namespace,
    directory: Directory,
}

impl World {
    /// Both hosts with their link. On millrace the link comes with the first program.
    pub fn create(stack: Stack) -> Result<World> {
        World::create_on(stack, Link::Tap, 1)
    }

    /// Likewise, with engines of so many shards on a link of this kind.
    pub fn create_on(stack: Stack, link: Link, shards: u16) -> Result<World> {
        ensure!(
            stack == Stack::Kernel || millrace().exists(),
            "{} is missing: run `make build`, or set MILLRACE_BIN",
            millrace().display()
        );
        let peer = Namespace::create()?;
        let own = match (stack, link) {
            (Stack::Kernel, _) => Some(SUBJECT),
            (Stack::Millrace, Link::Xdp | Link::Macvtap) => Some(NEIGHBOUR),
            (Stack::Millrace, Link::Tap) => None,
        };
        let subject = match own {
            Some(own) => {
                let subject = Namespace::create()?;
                subject.link_with(
                    &format!("{own}/24"),
                    &peer,
                    &format!("{PEER}/24"),
                    &format!("numrxqueues {shards} numtxqueues {shards}"),
                )?;
                Some(subject)
            }
            None => None,
        };
        for namespace in subject.iter().chain([&peer]) {
            // A client that opens tens of thousands of connections in a row must not run out of
            // ports.
            namespace.set("ipv4.ip_local_port_range", "1024 65535")?;
            namespace.set("ipv4.tcp_tw_reuse", "1")?;
        }
        Ok(World {
            stack,
            shards,
            link,
            io_threads: 0,
            mixed: false,
            subject,
            peer,
            directory: Directory::create()?,
        })
    }

    /// Turns off what the devices of a veth pair do for a stack, at both ends: it is as a wire
    /// then.
    pub fn turn_offloads_off(&self) -> Result<()> {
        let line = "ethtool -K veth0 tso off gso off gro off tx off rx off";
        let words: Vec<&str> = line.split(' ').collect();
        let at_subject = self.start_on_subject(command(&words))?;
        at_subject.wait(seconds(10))?.success()?;
        self.run_on_peer(&words, seconds(10))?;
        Ok(())
    }

    /// Files of this world; removed with it.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The peer's namespace.
    pub fn peer_namespace(&self) -> &Namespace {
        &self.peer
    }

    /// The namespace in which the subject's program runs.
    pub fn subject_namespace(&self) -> &Namespace {
        self.subject.as_ref().unwrap_or(&self.peer)
    }

    /// The subject's address with a port.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddrV4::new(SUBJECT, port).into()
    }

    /// The command that runs `words` on the stack under test, with an engine of its own.
    pub fn on_subject<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        match self.stack {
            Stack::Kernel => command(words),
            Stack::Millrace => {
                let mut command = self.millrace(&["run"]);
                command.args(self.link_arguments()).arg("--").args(words);
                command
            }
        }
    }

    /// What an engine is told of its link.
    pub fn link_arguments(&self) -> Vec<String> {
        let words = match self.link {
            Link::Tap => format!("--link tap:{DEVICE} --host-addr {PEER}/24"),
            Link::Xdp => "--link xdp:veth0".to_owned(),
            Link::Macvtap => "--link macvtap:veth0".to_owned(),
        };
        let threads = match self.io_threads {
            0 => String::new(),
            io if self.mixed => format!(" --topology mixed --io-threads {io}"),
            io => format!(" --topology pipeline --io-threads {io}"),
        };
        format!(
            "{words} --addr {SUBJECT}/24 --shards {}{threads}",
            self.shards
        )
        .split(' ')
        .map(String::from)
        .collect()
    }

    /// The `millrace` command with these arguments.
    pub fn millrace<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = command(&[millrace()]);
        command.args(arguments);
        command
    }

    /// Starts a program on the stack under test.
    pub fn subject<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Process> {
        self.start_on_subject(self.on_subject(words))
    }

    /// Starts a command beside the subject, as it is.
    pub fn start_on_subject(&self, command: Command) -> Result<Process> {
        Process::spawn(self.subject_namespace(), &self.directory, command)
    }

    /// Starts a program on the peer.
    pub fn peer<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<Process> {
        self.start_on_peer(command(words))
    }

    /// Starts a command on the peer.
    pub fn start_on_peer(&self, command: Command) -> Result<Process> {
        Process::spawn(&self.peer, &self.directory, command)
    }

    /// Runs a program on the peer to a good end.
    pub fn run_on_peer<S: AsRef<OsStr>>(&self, words: &[S], limit: Duration) -> Result<Ended> {
        self.peer(words)?.wait(limit)?.success()
    }

    /// Runs a program on the stack under test to a good end.
    pub fn run_on_subject<S: AsRef<OsStr>>(&self, words: &[S], limit: Duration) -> Result<Ended> {
        self.subject(words)?.wait(limit)?.success()
    }

    /// Starts a server on the stack under test and waits until a connection from the peer is taken.
    pub fn serve<S: AsRef<OsStr>>(&self, words: &[S], port: u16) -> Result<Process> {
        let mut server = self.subject(words)?;
        self.wait_for_port(&mut server, port)?;
        Ok(server)
    }

    /// Waits until the subject takes connections on `port`.
    pub fn wait_for_port(&self, server: &mut Process, port: u16) -> Result<()> {
        let address = self.at(port);
        // Where others may have its address the engine asks for seven seconds.
        wait_until(
            &format!("{} listens on {address}", server.name()),
            seconds(20),
            || {
                server.ensure_not_failed()?;
                Ok(self
                    .peer
                    .enter(|| TcpStream::connect_timeout(&address, seconds(1)).is_ok()))
            },
        )
    }

    /// Starts a server on the peer and waits until it takes connections there.
    pub fn serve_on_peer<S: AsRef<OsStr>>(&self, words: &[S], port: u16) -> Result<Process> {
        let mut server = self.peer(words)?;
        wait_until(&format!("{} listens", server.name()), seconds(10), || {
            server.ensure_not_failed()?;
            Ok(self
                .peer
                .enter(|| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()))
        })?;
        Ok(server)
    }

    /// Fails if a program has left a process, a device or a control socket behind.
    pub fn finish(self) -> Result<()> {
        let namespace = self.subject_namespace();
        let left = || -> Result<String> {
            let processes: Vec<String> = namespace
                .processes()?
                .into_iter()
                .map(|pid| format!("process {pid} {}", name_of(pid)))
                .collect();
            let devices = namespace
                .devices()?
                .into_iter()
                .filter(|name| name != "veth0");
            let sockets = namespace
                .enter(|| std::fs::read_to_string("/proc/thread-self/net/unix"))
                .context("listing Unix sockets")?;
            let sockets = sockets
                .lines()
                .filter_map(|line| line.split('@').nth(1))
                .filter(|name| name.starts_with("millrace"))
                .map(String::from);
            Ok(processes
                .into_iter()
                .chain(devices)
                .chain(sockets)
                .collect::<Vec<_>>()
                .join(", "))
        };
        wait_until("nothing is left", seconds(5), || Ok(left()?.is_empty()))
            .with_context(|| format!("left behind: {}", left().unwrap_or_default()))
    }
}

/// The name of a process, if it still has one.
fn name_of(pid: rustix::process::Pid) -> String {
    std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
        .unwrap_or_default()
        .trim()
        .to_string()
}

/// The `millrace` binary: what `MILLRACE_BIN` names, or the one beside this program, or the release
/// build of this checkout.
pub fn millrace() -> PathBuf {
    if let Some(path) = std::env::var_os("MILLRACE_BIN") {
        return path.into();
    }
    let beside = std::env::current_exe().map(|path| path.with_file_name("millrace"));
    if let Ok(path) = beside
        && path.exists()
    {
        return path;
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| checkout().join("target"), PathBuf::from);
    target.join("release/millrace")
}

/// An example of the library's, built beside the `millrace` binary.
pub fn example(name: &str) -> Result<String> {
    let path = millrace().with_file_name("examples").join(name);
    ensure!(
        path.exists(),
        "{} is missing: run `make e2e`, which builds it",
        path.display()
    );
    Ok(path.display().to_string())
}

/// The root of the checkout.
pub fn checkout() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/e2e lies two below the root")
}
