//! AF_XDP: a port on a network device that the kernel goes on using, past the kernel's own stack.
//!
//! The stack has a link-layer address of its own on the device. A program in the driver gives the
//! frames to that address to a socket for each hardware queue, and passes all others to the kernel
//! as before. What goes to groups and to everybody passes, too; the first port hears of it by a
//! packet socket. A burst of frames costs no call into the kernel to receive, and one to send.
//! Program, sockets and addresses go with the process, however it ends.
//!
//! Or the stack has the kernel's own addresses: then what goes to ports that the stack holds
//! ([`Held`]) is its own, and everything else, ARP and neighbours included, the kernel's, whose
//! table the stack asks.
//!
//! Or everything that the device receives is ours, for frames that are relayed ([`open_relay`]).

mod busy_poll;
mod config;
mod error;
pub(crate) mod gauge;
mod held;
mod neighbours;
mod poller;
mod program;
mod queue;
mod relay;
mod ring;
mod socket;
mod sockopt;
mod unfinished;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_wire::ethernet::{self, Mac};
use rustix::event::epoll;

pub use config::{Config, SHARED_MAX};
pub use error::Error;
pub use gauge::{Gauge, Statistics, missed};
pub use held::{Held, Transport};

pub use crate::spec::{BusyPoll, Mode};

use config::Ours;
use neighbours::Neighbours;
use program::Program;
use queue::Queue;
use socket::{Binding, Socket};

use crate::packet::socket::{Device, find, open_groups, promiscuous};
use crate::spec::check_device_name;
use crate::{
    Capabilities, ChecksumState, Counters, MTU_MIN, Offload, Port, RxMeta, device, packet,
    random_mac,
};

/// The largest MTU at which each frame fits one chunk of memory, with all that drivers want beside
/// it: what veth allows.
const WHOLE_MTU_MAX: u16 = 3498;
const _: () = assert!(WHOLE_MTU_MAX as usize + ethernet::HEADER_LEN + 4 <= socket::SINGLE_MAX);
/// How often the end of a burst is reached before what comes beside is heard although there are
/// always frames.
const BESIDE_TURN: u32 = 64;

/// What was opened.
#[derive(Debug)]
pub struct Opened {
    /// The ports, as many as were asked for.
    pub ports: Vec<Xdp>,
    /// What a person should know: why it is not the fastest that there is.
    pub notes: Vec<String>,
    /// The ports of shared addresses that are the stack's; none when it has addresses of its own.
    pub held: Option<Arc<Held>>,
}

/// Some queues of a device.
#[derive(Debug)]
pub struct Xdp {
    queues: Vec<Queue>,
    /// The one that is asked first.
    next: usize,
    /// What comes beside the frames of its own: from groups, or of neighbours.
    beside: Option<Beside>,
    /// Readable when one of several descriptors is.
    all: Option<OwnedFd>,
    capabilities: Capabilities,
    counters: Counters,
    /// At the other end of the device is a kernel that may leave checksums undone.
    is_local: bool,
    /// While it is there the device takes frames to other stations, too.
    promiscuous: Option<OwnedFd>,
    /// The program goes with the last port.
    _program: Arc<Program>,
}

/// What comes by a descriptor of the kernel's own stack.
#[derive(Debug)]
struct Beside {
    source: Source,
    /// Nothing has come since it was looked at last.
    idle: bool,
    ends: u32,
}

#[derive(Debug)]
enum Source {
    /// What goes to more than one station.
    Groups(crate::queue::Queue),
    /// The kernel's neighbours.
    Neighbours(Neighbours),
}

impl Beside {
    fn new(source: Source) -> Beside {
        Beside {
            source,
            idle: true,
            ends: 0,
        }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.source {
            Source::Groups(queue) => queue.descriptor.as_fd(),
            Source::Neighbours(neighbours) => neighbours.descriptor(),
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        match &mut self.source {
            Source::Groups(queue) => queue.receive(buffer),
            Source::Neighbours(neighbours) => Ok(neighbours.receive(buffer).map(|len| RxMeta {
                len,
                ..RxMeta::default()
            })),
        }
    }
}

/// Opens ports on a device.
///
/// # Errors
/// Each says what it met and what can be done; nothing is left behind.
pub fn open(config: &Config) -> Result<Opened, Error> {
    let mac = match config.shared.is_empty() {
        false => device::mac(&config.device),
        true => config.mac.map_or_else(random_mac, Ok),
    };
    let mac =
        mac.map_err(|error| Error::system("get a link-layer address for", &config.device, error))?;
    match config.shared.is_empty() {
        true => open_for(config, mac, Ours::Station(mac)),
        false => open_for(config, mac, Ours::Shared(&config.shared)),
    }
}

/// Opens ports on a device for frames that are relayed: all that it receives, whomever they are
/// for. The kernel receives nothing by it meanwhile. Of the configuration, addresses are of no
/// matter.
///
/// # Errors
/// As [`open`].
pub fn open_relay(config: &Config) -> Result<Opened, Error> {
    let mac = device::mac(&config.device)
        .map_err(|error| Error::system("get the address of", &config.device, error))?;
    open_for(config, mac, Ours::Everything)
}

fn open_for(config: &Config, mac: Mac, ours: Ours<'_>) -> Result<Opened, Error> {
    let name = &config.device;
    check_device_name(name).map_err(packet::Error::from)?;
    let found = find(name)?;
    if found.mtu < MTU_MIN {
        let (device, mtu) = (name.clone(), found.mtu);
        return Err(packet::Error::Mtu { device, mtu }.into());
    }
    let queues = choose_queues(config)?;
    let pieces = found.mtu > WHOLE_MTU_MAX;
    let mut notes = Vec::new();
    let mut program = Program::load(name, &ours, pieces)?;
    let generic = attach(&mut program, config, &found, &mut notes)?;
    if device::hides_tags(name) && !matches!(ours, Ours::Everything) {
        notes.push(format!(
            "{name} takes the tags of virtual LANs off what it receives before the XDP program sees it, so that packets of the LANs on it could be taken for the engine's: \
             `ethtool -K {name} rxvlan off`"
        ));
    }
    let is_local = device::driver(name).is_ok_and(|driver| driver == "veth");
    let window = match is_local {
        true => socket::WINDOW_VETH,
        false => socket::WINDOW_MAX,
    };
    let mut sockets = open_sockets(config, &found, queues, window, generic, &mut notes)?;
    busy_poll::set_up(config.busy_poll, name, generic, &mut sockets, &mut notes)?;
    for (queue, socket) in (0..).zip(&sockets) {
        program
            .connect(queue, socket.as_fd().as_raw_fd())
            .map_err(|error| Error::system("give the program the sockets of", name, error))?;
    }
    let capabilities = Capabilities {
        tx_checksum: sockets.iter().all(|socket| socket.finishes),
        queues,
        ..Capabilities::plain(mac, found.mtu)
    };
    let held = match ours {
        Ours::Station(_) | Ours::Everything => None,
        Ours::Shared(shared) => {
            let maps = program
                .ports()
                .and_then(|ports| Ok((ports, program.addresses()?)));
            let held = maps.and_then(|(ports, addresses)| Held::new(shared, ports, addresses));
            let held = held.map_err(|error| Error::system("reserve ports on", name, error))?;
            Some(Arc::new(held))
        }
    };
    let program = Arc::new(program);
    let mut ports: Vec<Xdp> = (0..config.ports)
        .map(|_| Xdp {
            queues: Vec::new(),
            next: 0,
            beside: None,
            all: None,
            capabilities,
            counters: Counters::default(),
            is_local,
            promiscuous: None,
            _program: program.clone(),
        })
        .collect();
    for (at, socket) in sockets.into_iter().enumerate() {
        let port = at % ports.len();
        ports[port].queues.push(Queue::new(socket, window));
    }
    for (number, port) in ports.iter_mut().enumerate() {
        hear_beside(port, number == 0, &ours, &found, name)?;
    }
    Ok(Opened { ports, notes, held })
}

/// Gives a port the source of what comes beside its own frames. The first port hears it for all.
fn hear_beside(
    port: &mut Xdp,
    is_first: bool,
    ours: &Ours<'_>,
    found: &Device,
    name: &str,
) -> Result<(), Error> {
    let source = match ours {
        Ours::Shared(_) => {
            let neighbours = Neighbours::open(found.index, port.capabilities.mac);
            Some(Source::Neighbours(neighbours.map_err(|error| {
                Error::system("read the neighbours of", name, error)
            })?))
        }
        Ours::Station(mac) if is_first => {
            let socket = open_groups(name, found, *mac)?;
            Some(Source::Groups(crate::queue::Queue::new(socket)))
        }
        Ours::Everything if is_first => {
            port.promiscuous = Some(promiscuous(name, found)?);
            None
        }
        Ours::Station(_) | Ours::Everything => None,
    };
    port.beside = source.map(Beside::new);
    port.wait_for_all()
        .map_err(|error| Error::system("wait for frames of", name, error))
}

/// How many queues are used: one at least for each port.
fn choose_queues(config: &Config) -> Result<u16, Error> {
    let there = device::queues(&config.device);
    let device = config.device.clone();
    let queues = match config.queues {
        None => there,
        Some(wanted) if (1..=there).contains(&wanted) => wanted,
        Some(wanted) => {
            return Err(Error::Queues {
                device,
                wanted,
                queues: there,
            });
        }
    };
    let wanted = config.ports;
    if queues < wanted {
        return Err(Error::TooFewQueues {
            device,
            wanted,
            queues,
        });
    }
    Ok(queues)
}

/// Attaches the program as the mode says. Whether it is behind the driver.
fn attach(
    program: &mut Program,
    config: &Config,
    found: &Device,
    notes: &mut Vec<String>,
) -> Result<bool, Error> {
    let device = &config.device;
    let operation = "attach an XDP program to";
    let fail = |error| match Error::of_program(operation, device, error) {
        Error::System { device, source, .. }
            if matches!(source.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) =>
        {
            Error::Occupied { device }
        }
        other => other,
    };
    let mut generic = config.mode == Mode::Generic;
    let mut attached = program.attach(found.index, generic).map_err(fail);
    if let Err(Error::System { source, .. }) = &attached
        && !generic
    {
        if config.mode != Mode::Auto {
            let (device, source) = (
                device.clone(),
                io::Error::from_raw_os_error(source.raw_os_error().unwrap_or(0)),
            );
            return Err(Error::NoDriver { device, source });
        }
        notes.push(format!(
            "the driver of {device} does not take XDP programs ({source}): frames pass through the kernel's buffers first, which is slower (mode=generic)"
        ));
        generic = true;
        attached = program.attach(found.index, generic).map_err(fail);
    }
    attached.map(|()| generic)
}

/// A socket for each queue, of the best kind that is to be had.
fn open_sockets(
    config: &Config,
    found: &Device,
    queues: u16,
    window: u32,
    generic: bool,
    notes: &mut Vec<String>,
) -> Result<Vec<Socket>, Error> {
    let name = &config.device;
    let binding = |queue: u16, zero_copy| Binding {
        device: found.index,
        queue: queue.into(),
        zero_copy,
        pieces: found.mtu > WHOLE_MTU_MAX,
        window,
    };
    let all = |zero_copy| -> Result<Vec<Socket>, (u16, io::Error)> {
        let open = |queue| Socket::open(binding(queue, zero_copy)).map_err(|error| (queue, error));
        (0..queues).map(open).collect()
    };
    if !generic && matches!(config.mode, Mode::Auto | Mode::ZeroCopy) {
        match all(true) {
            Ok(sockets) => return Ok(sockets),
            Err((queue, error)) if is_final(&error) => return Err(refused(config, found, queue, error)),
            Err((_, source)) if config.mode == Mode::ZeroCopy => {
                let device = name.clone();
                return Err(Error::NoZeroCopy { device, source });
            }
            Err((_, error)) => notes.push(format!(
                "the driver of {name} does not share its memory with AF_XDP sockets ({error}): frames are copied once more (mode=copy)"
            )),
        }
    }
    all(false).map_err(|(queue, error)| refused(config, found, queue, error))
}

/// Whether another mode would not help.
fn is_final(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EBUSY | libc::EPERM | libc::EACCES | libc::ENETDOWN | libc::ENODEV)
    )
}

fn refused(config: &Config, found: &Device, queue: u16, error: io::Error) -> Error {
    let device = config.device.clone();
    match error.raw_os_error() {
        Some(libc::EBUSY) => Error::Busy {
            device,
            queue: queue.into(),
        },
        Some(libc::ENETDOWN) => packet::Error::Down { device }.into(),
        Some(libc::EINVAL | libc::EOPNOTSUPP) if found.mtu > WHOLE_MTU_MAX => Error::Mtu {
            device,
            mtu: found.mtu,
            max: WHOLE_MTU_MAX,
        },
        _ => Error::system("bind an AF_XDP socket to", &device, error),
    }
}

impl Xdp {
    /// Makes one descriptor of several.
    fn wait_for_all(&mut self) -> io::Result<()> {
        let descriptors = self.queues.iter().map(|queue| queue.socket.as_fd());
        let beside = self.beside.iter().map(Beside::descriptor);
        let descriptors: Vec<_> = descriptors.chain(beside).collect();
        if descriptors.len() > 1 {
            let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for descriptor in descriptors {
                epoll::add(
                    &all,
                    descriptor,
                    epoll::EventData::new_u64(0),
                    epoll::EventFlags::IN,
                )?;
            }
            self.all = Some(all);
        }
        Ok(())
    }

    /// Takes a frame from one of the queues: each has its turn until it has no more. Says how long
    /// it is.
    fn take(&mut self, buffer: &mut [u8], more: &mut [u8]) -> Option<usize> {
        let count = self.queues.len();
        for _ in 0..count {
            if let Some(len) = self.queues[self.next].receive(buffer, more) {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += len as u64;
                return Some(len);
            }
            self.next = (self.next + 1) % count;
        }
        None
    }

    /// Counts a frame that was taken, or was refused.
    fn sent(&mut self, sent: bool, len: usize) {
        if sent {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += len as u64;
        } else {
            self.counters.tx_refused += 1;
        }
    }

    /// What comes beside. It is looked at where nothing else has come since, or after many bursts:
    /// that costs a call.
    fn receive_beside(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let Some(beside) = &mut self.beside else {
            return Ok(None);
        };
        beside.ends += 1;
        if !beside.idle && beside.ends < BESIDE_TURN {
            beside.idle = true;
            return Ok(None);
        }
        let received = beside.receive(buffer)?;
        if received.is_none() {
            beside.ends = 0;
        }
        Ok(received)
    }
}

impl Port for Xdp {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        if let Some(len) = self.take(buffer, &mut []) {
            if let Some(beside) = &mut self.beside {
                beside.idle = false;
            }
            let checksum = match self.is_local && unfinished::find(&buffer[..len]).is_some() {
                true => ChecksumState::Partial,
                false => ChecksumState::Unchecked,
            };
            return Ok(Some(RxMeta {
                len,
                checksum,
                segment_size: 0,
            }));
        }
        let received = self.receive_beside(buffer)?;
        if let Some(meta) = &received {
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += meta.len as u64;
        }
        Ok(received)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        let len = head.len() + payload[0].len() + payload[1].len();
        let is_offered = match offload {
            Offload::None => true,
            Offload::Checksum { .. } => self.capabilities.tx_checksum,
            Offload::Segment { .. } => false,
        };
        if len > ethernet::HEADER_LEN + usize::from(self.capabilities.mtu) || !is_offered {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "frame of {len} bytes with {offload:?} on {:?}",
                    self.capabilities
                ),
            ));
        }
        if let Some(Beside {
            source: Source::Neighbours(neighbours),
            idle,
            ..
        }) = &mut self.beside
            && neighbours::concerns(head)
        {
            neighbours.sent(head);
            *idle = true;
            return Ok(true);
        }
        let parts = [head, payload[0], payload[1]];
        let sent = self.queues[0].send(parts.into_iter(), len, offload)?;
        self.sent(sent, len);
        Ok(sent)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.queues[0].flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        let own = self.queues.first().map(|queue| queue.socket.as_fd());
        self.all.as_ref().map(|all| all.as_fd()).or(own)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        let dropped = self.queues.iter().map(|queue| queue.dropped);
        Counters {
            tx_dropped: dropped.sum(),
            ..self.counters
        }
    }

    fn gauges(&self) -> Vec<Gauge> {
        let gauges = self.queues.iter().map(|queue| queue.socket.gauge());
        gauges.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of a socket that the kernel refuses on a device of this MTU.
    fn said(mtu: u16, number: i32) -> String {
        let config = Config {
            device: "eth7".into(),
            queues: None,
            mode: Mode::Auto,
            ports: 1,
            busy_poll: BusyPoll::Auto,
            mac: None,
            shared: Vec::new(),
        };
        let found = Device { index: 7, mtu };
        refused(&config, &found, 3, io::Error::from_raw_os_error(number)).to_string()
    }

    #[test]
    fn what_a_kernel_or_driver_cannot_do_is_told_from_what_is_in_use() {
        for number in [libc::EINVAL, libc::EOPNOTSUPP] {
            let large = said(9000, number);
            assert!(large.contains("`eth7` has an MTU of 9000"), "{large}");
            assert!(large.contains("ip link set dev eth7 mtu 3498"), "{large}");
            assert!(!said(WHOLE_MTU_MAX, number).contains("MTU"));
        }
        let busy = said(9000, libc::EBUSY);
        assert!(busy.contains("queue 3 of `eth7` is in use"), "{busy}");
        let down = said(1500, libc::ENETDOWN);
        assert!(down.contains("ip link set eth7 up"), "{down}");
    }
}
