//! Two smoltcp stacks joined in memory, both ends together; what it is asked and what it prints is
//! in `bench/peers/README.md`.
//!
//! Configured as its users would for speed: Nagle off, acknowledgements delayed as they come (10
//! ms, every second segment at once), no congestion control and no timestamps (its defaults), 4 KB
//! buffers for messages and 256 KB for bulk, to which it scales its windows. Ethernet frames of
//! 1,514 bytes lie in buffers that are used again. It makes and checks all checksums itself.
//!
//! smoltcp has neither a backlog nor events: there are as many listening sockets as connections at
//! a time, and who uses it looks at every socket after every poll. It looks through all of its
//! sockets for each segment, so a server's socket that waits in TIME-WAIT listens again at once, as
//! in pools of sockets; with the ten seconds that it would keep it the cost would grow with the
//! connections that have been.

mod wire;

use std::process::ExitCode;
use std::time::Instant as Clock;

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

use wire::Wire;

const MESSAGE: [u8; 64] = [0x5a; 64];
const MESSAGE_BUFFER: usize = 4 << 10;
const BULK_BUFFER: usize = 256 << 10;
const PORT: u16 = 80;
/// Ports of the client: this one and those above it.
const FIRST_PORT: u16 = 1024;
const PORTS: usize = 60_000;
/// Of idle connections: how many open, or send, at a time.
const TOGETHER: usize = 64;
/// Virtual time that one exchange takes.
const ROUND_US: i64 = 10;
/// How fast bulk data passes in virtual time: 4 GB/s.
const LINK_BYTES_PER_US: usize = 4096;
/// So much virtual time without progress is a failure: longer than ARP and several retransmissions
/// take.
const STUCK_US: i64 = 100_000_000;

/// One end: an interface, its sockets and its link.
struct Host {
    interface: Interface,
    sockets: SocketSet<'static>,
    handles: Vec<SocketHandle>,
    wire: Wire,
}

impl Host {
    fn new(last: u8, sockets: usize, buffer: usize) -> Host {
        let mut wire = Wire::default();
        let address = EthernetAddress([2, 0, 0, 0, 0, last]);
        let mut config = Config::new(HardwareAddress::Ethernet(address));
        config.random_seed = u64::from(last);
        let mut interface = Interface::new(config, &mut wire, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(IpAddress::v4(10, 0, 0, last), 24))
                .expect("there is room for one");
        });
        let mut set = SocketSet::new(Vec::with_capacity(sockets));
        let handles = (0..sockets)
            .map(|_| {
                let space = || SocketBuffer::new(vec![0; buffer]);
                let mut socket = Socket::new(space(), space());
                socket.set_nagle_enabled(false);
                set.add(socket)
            })
            .collect();
        Host {
            interface,
            sockets: set,
            handles,
            wire,
        }
    }

    fn socket(&mut self, at: usize) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handles[at])
    }

    fn poll(&mut self, now: Instant) {
        self.interface.poll(now, &mut self.wire, &mut self.sockets);
    }
}

struct World {
    client: Host,
    server: Host,
    now_us: i64,
    /// When something was last finished.
    progress_us: i64,
    next_port: usize,
}

impl World {
    /// `parallel` sockets at each end; the server's listen.
    fn new(parallel: usize, buffer: usize) -> Result<World, String> {
        let mut world = World {
            client: Host::new(1, parallel, buffer),
            server: Host::new(2, parallel, buffer),
            now_us: 1_000_000,
            progress_us: 1_000_000,
            next_port: 0,
        };
        for at in 0..parallel {
            world.listen(at)?;
        }
        Ok(world)
    }

    fn listen(&mut self, at: usize) -> Result<(), String> {
        let listened = self.server.socket(at).listen(PORT);
        listened.map_err(|error| format!("listen: {error}"))
    }

    fn connect(&mut self, at: usize) -> Result<(), String> {
        let port = FIRST_PORT + self.next_port as u16;
        self.next_port = (self.next_port + 1) % PORTS;
        let client = &mut self.client;
        let socket = client.sockets.get_mut::<Socket<'_>>(client.handles[at]);
        socket
            .connect(
                client.interface.context(),
                (IpAddress::v4(10, 0, 0, 2), PORT),
                port,
            )
            .map_err(|error| format!("connect: {error}"))
    }

    /// What the client has to say reaches the server, and is taken in.
    fn deliver_there(&mut self) {
        let now = Instant::from_micros(self.now_us);
        self.client.poll(now);
        self.client.wire.carry_to(&mut self.server.wire);
        self.server.poll(now);
    }

    /// And the other way. Time passes.
    fn deliver_back(&mut self) {
        let now = Instant::from_micros(self.now_us);
        self.server.poll(now);
        self.server.wire.carry_to(&mut self.client.wire);
        self.client.poll(now);
        self.now_us += ROUND_US;
    }

    /// Notes whether anything was finished; an error when nothing was for long.
    fn progress(&mut self, anything: bool) -> Result<(), String> {
        if anything {
            self.progress_us = self.now_us;
        } else if self.now_us > self.progress_us + STUCK_US {
            return Err("nothing has moved for 100 s of virtual time".into());
        }
        Ok(())
    }

    /// Connects every socket, so many at a time.
    fn establish(&mut self, together: usize) -> Result<(), String> {
        let parallel = self.client.handles.len();
        for first in (0..parallel).step_by(together) {
            let some = first..parallel.min(first + together);
            for at in some.clone() {
                self.connect(at)?;
            }
            let is_open = |host: &mut Host, at| host.socket(at).state() == State::Established;
            while !some.clone().all(|at| is_open(&mut self.client, at)) {
                self.deliver_there();
                self.deliver_back();
                self.progress(false)?;
            }
            self.progress(true)?;
        }
        // What the last have to say, which may be any of the server's.
        self.deliver_there();
        let server = &mut self.server;
        match (0..parallel).all(|at| server.socket(at).state() == State::Established) {
            true => Ok(()),
            false => Err("the server has fewer connections than the client".into()),
        }
    }

    /// The server: answers every message; if `once` it closes after the first, and listens again.
    fn serve(&mut self, once: bool) -> Result<(), String> {
        for at in 0..self.server.handles.len() {
            let socket = self.server.socket(at);
            if socket.can_recv() {
                take_message(socket)?;
                send_message(socket)?;
                if once {
                    socket.close();
                }
            } else if once && socket.state() == State::TimeWait {
                // Nothing is sent: it listens before the next poll.
                socket.abort();
                self.listen(at)?;
            }
        }
        Ok(())
    }
}

fn send_message(socket: &mut Socket<'_>) -> Result<(), String> {
    match socket.send_slice(&MESSAGE) {
        Ok(len) if len == MESSAGE.len() => Ok(()),
        other => Err(format!("sent {other:?} of a message")),
    }
}

fn take_message(socket: &mut Socket<'_>) -> Result<(), String> {
    let mut buffer = [0; 256];
    match socket.recv_slice(&mut buffer) {
        Ok(len) if buffer[..len] == MESSAGE => Ok(()),
        other => Err(format!("received {other:?} instead of a message")),
    }
}

/// Connect, a message, an answer, the server closes, the client closes.
fn short(count: u64, parallel: usize) -> Result<f64, String> {
    let parallel = parallel.min(usize::try_from(count).unwrap_or(usize::MAX));
    let mut world = World::new(parallel, MESSAGE_BUFFER)?;
    let start = Clock::now();
    let mut started = 0;
    let mut done = 0;
    for at in 0..parallel {
        world.connect(at)?;
        started += 1;
    }
    let mut has_sent = vec![false; parallel];
    while done < count {
        world.deliver_there();
        world.serve(true)?;
        world.deliver_back();
        let before = done;
        for (at, has_sent) in has_sent.iter_mut().enumerate() {
            let socket = world.client.socket(at);
            match socket.state() {
                State::Established | State::CloseWait => {
                    if !*has_sent {
                        send_message(socket)?;
                        *has_sent = true;
                    }
                    if socket.can_recv() {
                        take_message(socket)?;
                    }
                    if socket.state() == State::CloseWait {
                        socket.close();
                    }
                }
                State::Closed if *has_sent => {
                    *has_sent = false;
                    done += 1;
                    if started < count {
                        world.connect(at)?;
                        started += 1;
                    }
                }
                State::Closed if started < count => return Err("a connection was refused".into()),
                _ => {}
            }
        }
        world.progress(done > before)?;
    }
    Ok(start.elapsed().as_secs_f64())
}

/// A message there and back on open connections.
fn ping(count: u64, parallel: usize) -> Result<(u64, f64), String> {
    let mut world = World::new(parallel, MESSAGE_BUFFER)?;
    world.establish(parallel)?;
    let start = Clock::now();
    for at in 0..parallel {
        send_message(world.client.socket(at))?;
    }
    let mut done = 0;
    while done < count {
        world.deliver_there();
        world.serve(false)?;
        world.deliver_back();
        let before = done;
        for at in 0..parallel {
            let socket = world.client.socket(at);
            if socket.can_recv() {
                take_message(socket)?;
                send_message(socket)?;
                done += 1;
            }
        }
        world.progress(done > before)?;
    }
    Ok((done, start.elapsed().as_secs_f64()))
}

/// Megabytes one way, in equal parts on every connection.
fn bulk(megabytes: u64, parallel: usize) -> Result<(u64, f64), String> {
    let total = megabytes << 20;
    let share = total.div_ceil(parallel as u64);
    let mut world = World::new(parallel, BULK_BUFFER)?;
    world.establish(parallel)?;
    let chunk = vec![0x5a; 64 << 10];
    let mut buffer = vec![0; 64 << 10];
    let mut left = vec![share; parallel];
    let mut received = 0;
    let start = Clock::now();
    while received < share * parallel as u64 {
        for (at, left) in left.iter_mut().enumerate() {
            let socket = world.client.socket(at);
            while *left > 0 && socket.can_send() {
                let len = chunk
                    .len()
                    .min(usize::try_from(*left).unwrap_or(usize::MAX));
                let sent = socket.send_slice(&chunk[..len]);
                *left -= sent.map_err(|error| format!("send: {error}"))? as u64;
            }
        }
        world.deliver_there();
        let before = received;
        for at in 0..parallel {
            let socket = world.server.socket(at);
            while socket.can_recv() {
                let taken = socket.recv_slice(&mut buffer);
                received += taken.map_err(|error| format!("receive: {error}"))? as u64;
            }
        }
        world.deliver_back();
        world.now_us += ((received - before) as usize / LINK_BYTES_PER_US) as i64;
        world.progress(received > before)?;
    }
    Ok((received, start.elapsed().as_secs_f64()))
}

/// Bytes resident of this process.
fn resident() -> Result<f64, String> {
    let statm = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    Ok(pages.ok_or("/proc/self/statm")? * 4096.0)
}

/// Bytes of each end of a connection that does nothing, buffers included; and what each connection
/// takes more, both ends, with a message that waits to be read.
fn idle(count: usize) -> Result<(f64, f64), String> {
    let before = resident()?;
    let mut world = World::new(count, MESSAGE_BUFFER)?;
    world.establish(TOGETHER)?;
    let established = resident()?;
    for first in (0..count).step_by(TOGETHER) {
        for at in first..count.min(first + TOGETHER) {
            send_message(world.client.socket(at))?;
        }
        world.deliver_there();
        world.deliver_back();
    }
    let waits = |server: &mut Host, at| server.socket(at).recv_queue() == MESSAGE.len();
    if !(0..count).all(|at| waits(&mut world.server, at)) {
        return Err("not every message has arrived".into());
    }
    // The lists of them are not to be counted.
    let listed = (2 * count * size_of::<SocketHandle>()) as f64;
    let each = |bytes: f64| bytes / count as f64;
    Ok((
        each(established - before - listed) / 2.0,
        each(resident()? - established),
    ))
}

/// Why there is no figure.
enum Trouble {
    /// More is asked for than goes.
    TooMuch(String),
    Failed(String),
}

impl From<String> for Trouble {
    fn from(message: String) -> Trouble {
        Trouble::Failed(message)
    }
}

/// The rest of the line that is printed.
fn run(arguments: &[String]) -> Result<String, Trouble> {
    const USAGE: &str = "usage: millrace-peer-smoltcp short|ping|bulk COUNT PARALLEL, or millrace-peer-smoltcp idle COUNT";
    let usage = || Trouble::Failed(USAGE.to_owned());
    let (mode, numbers) = arguments.split_first().ok_or_else(usage)?;
    let number = |text: &String| text.parse::<u64>().ok().filter(|number| *number > 0);
    let numbers: Option<Vec<u64>> = numbers.iter().map(number).collect();
    let numbers = numbers.ok_or_else(usage)?;
    let (count, parallel) = match (mode.as_str(), &numbers[..]) {
        ("idle", &[count]) => (count, count),
        ("short" | "ping" | "bulk", &[count, parallel]) => (count, parallel),
        _ => return Err(usage()),
    };
    if parallel > PORTS as u64 {
        return Err(Trouble::TooMuch(format!(
            "{parallel} connections: {PORTS} are the most, a port each"
        )));
    }
    let parallel = parallel as usize;
    let (operations, seconds) = match mode.as_str() {
        "idle" => {
            let (idle, active) = idle(parallel)?;
            return Ok(format!(
                r#""connections":{count},"idle":{idle:.0},"active":{active:.0}"#
            ));
        }
        "short" => (count, short(count, parallel)?),
        "ping" => ping(count, parallel)?,
        _ => bulk(count, parallel)?,
    };
    Ok(format!(
        r#""operations":{operations},"seconds":{seconds:.6}"#
    ))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (status, message) = match run(&arguments) {
        Ok(figures) => {
            println!(r#"{{"stack":"smoltcp 0.14",{figures}}}"#);
            return ExitCode::SUCCESS;
        }
        Err(Trouble::Failed(message)) => (1, message),
        Err(Trouble::TooMuch(message)) => (2, message),
    };
    eprintln!("millrace-peer-smoltcp: {message}");
    ExitCode::from(status)
}
