//! smoltcp as a host of the network: a stack that shares no code with ours, and holds the same
//! conversations.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use millrace_sim::{Link, Network, Plan, Rng, StationId};
use millrace_tcp::Duration;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{CongestionControl, Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};

use crate::talk::{Role, Talk};

/// How often it looks at its link, and when nothing came for [`QUIET`] looks.
const STEP: Duration = Duration::from_micros(500);
const SLOW_STEP: Duration = Duration::from_millis(10);
const QUIET: u32 = 1_000;
/// In this much virtual time every conversation is over.
const LIMIT: Duration = Duration::from_secs(3_000);
/// Longer than any timer of either stack after the last conversation.
const AFTER: Duration = Duration::from_secs(300);

/// What is chosen for its sockets.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Receive buffer in bytes: the largest window.
    pub receive: usize,
    /// Send buffer in bytes.
    pub send: usize,
    /// Whether it slows down when it loses, and how.
    pub congestion: CongestionControl,
    /// Whether it offers timestamps.
    pub timestamps: bool,
    /// Whether it holds short segments back.
    pub nagle: bool,
    /// How long an acknowledgement may wait, in milliseconds.
    pub ack_delay_ms: Option<u64>,
    /// How often it asks a silent peer, and after how much silence it gives up, in milliseconds.
    pub keep_alive_ms: Option<(u64, u64)>,
}

impl Default for Choice {
    fn default() -> Choice {
        Choice {
            receive: 64 << 10,
            send: 64 << 10,
            congestion: CongestionControl::Cubic,
            timestamps: true,
            nagle: true,
            ack_delay_ms: Some(10),
            keep_alive_ms: None,
        }
    }
}

impl Choice {
    fn socket(&self) -> Socket<'static> {
        let buffer = |len| SocketBuffer::new(vec![0; len]);
        let mut socket = Socket::new(buffer(self.receive), buffer(self.send));
        let duration = smoltcp::time::Duration::from_millis;
        socket.set_congestion_control(self.congestion);
        socket.set_nagle_enabled(self.nagle);
        socket.set_ack_delay(self.ack_delay_ms.map(duration));
        if self.timestamps {
            socket.set_tsval_generator(Some(|| 1));
        }
        if let Some((interval, limit)) = self.keep_alive_ms {
            socket.set_keep_alive(Some(duration(interval)));
            socket.set_timeout(Some(duration(limit)));
        }
        socket
    }
}

/// The host.
pub struct Smol {
    station: StationId,
    wire: Wire,
    interface: Interface,
    sockets: SocketSet<'static>,
    talks: Vec<(SocketHandle, Talk)>,
    address: IpAddr,
    rng: Rng,
    next_port: u16,
    quiet: u32,
    /// Every state in which one of its sockets was seen.
    pub seen: Vec<State>,
}

impl Smol {
    /// A host on `link` whose largest datagram is `mtu`, with an address of one family.
    pub fn new(network: &mut Network, link: Link, mtu: usize, v6: bool) -> Smol {
        let station = network.add_station(link);
        let (mac, v4) = network.station_address(station);
        let mut rng = network.rng().fork();
        let mut config = Config::new(HardwareAddress::Ethernet(EthernetAddress(mac.0)));
        config.random_seed = rng.next();
        let mut wire = Wire {
            mtu,
            arrived: VecDeque::new(),
            sent: Vec::new(),
        };
        let mut interface = Interface::new(config, &mut wire, now(network));
        let (address, len) = match v6 {
            true => (Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0xc9).into(), 64),
            false => (IpAddr::from(v4), 24),
        };
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(address.into(), len))
                .expect("there is room for one");
        });
        let next_port = 20_000 + rng.below(20_000) as u16;
        Smol {
            station,
            wire,
            interface,
            sockets: SocketSet::new(Vec::new()),
            talks: Vec::new(),
            address,
            rng,
            next_port,
            quiet: 0,
            seen: Vec::new(),
        }
    }

    /// The address of one of its ports.
    pub fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.address, port)
    }

    /// Waits for one connection on `port`, and converses. For several, call it as often.
    pub fn serve(&mut self, port: u16, plan: Plan, choice: &Choice) {
        let handle = self.listen(port, choice);
        self.talks.push((handle, Talk::new(Role::Server, plan)));
    }

    /// Connects to `remote`, and converses.
    pub fn connect(&mut self, remote: SocketAddr, plan: Plan, choice: &Choice) {
        self.next_port += 1;
        self.connect_from(self.next_port, remote, Role::Client, plan, choice);
    }

    /// Connects from a certain port.
    pub fn connect_from(
        &mut self,
        port: u16,
        remote: SocketAddr,
        role: Role,
        plan: Plan,
        choice: &Choice,
    ) {
        let handle = self.dial_from(port, remote, choice);
        self.talks.push((handle, Talk::new(role, plan)));
    }

    /// Lets time pass until all conversations are over, on its side and on the hosts'; and then
    /// until nothing of them is left.
    pub fn converse(&mut self, network: &mut Network) {
        let end = network.now() + LIMIT;
        while !(network.is_done() && self.is_done()) {
            assert!(
                network.now() < end,
                "not done in time: ours {}, {:?}",
                network.is_done(),
                self.talks
            );
            self.step(network);
        }
        self.run_for(network, AFTER);
        for (_, socket) in self.sockets.iter() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            assert_eq!(socket.state(), State::Closed);
        }
        network.settle();
    }

    /// Lets so much time pass.
    pub fn run_for(&mut self, network: &mut Network, time: Duration) {
        let end = network.now() + time;
        while network.now() < end {
            self.step(network);
        }
    }

    /// A socket that waits for a connection on `port`, and says nothing.
    pub fn listen(&mut self, port: u16, choice: &Choice) -> SocketHandle {
        let mut socket = choice.socket();
        socket.listen((self.address, port)).expect("it is closed");
        self.sockets.add(socket)
    }

    /// A socket that connects to `remote`, and says nothing.
    pub fn dial(&mut self, remote: SocketAddr, choice: &Choice) -> SocketHandle {
        self.next_port += 1;
        self.dial_from(self.next_port, remote, choice)
    }

    fn dial_from(&mut self, port: u16, remote: SocketAddr, choice: &Choice) -> SocketHandle {
        let mut socket = choice.socket();
        let (remote, local) = ((remote.ip(), remote.port()), (self.address, port));
        socket
            .connect(self.interface.context(), remote, local)
            .expect("it is closed");
        self.sockets.add(socket)
    }

    /// The state of one of them.
    pub fn state(&self, socket: SocketHandle) -> State {
        self.sockets.get::<Socket<'_>>(socket).state()
    }

    fn is_done(&self) -> bool {
        self.talks.iter().all(|(_, talk)| talk.is_done())
    }

    fn step(&mut self, network: &mut Network) {
        let is_quiet = self.quiet > QUIET;
        network.run_for(if is_quiet { SLOW_STEP } else { STEP });
        let arrived = network.take_received(self.station);
        self.quiet = if arrived.is_empty() {
            self.quiet + 1
        } else {
            0
        };
        self.wire.arrived.extend(arrived);
        let at = now(network);
        for _ in 0..2 {
            self.interface.poll(at, &mut self.wire, &mut self.sockets);
            for (handle, talk) in &mut self.talks {
                let socket = self.sockets.get_mut::<Socket<'_>>(*handle);
                if !self.seen.contains(&socket.state()) {
                    self.seen.push(socket.state());
                }
                talk.step(socket, network.now(), &mut self.rng);
            }
        }
        for frame in self.wire.sent.drain(..) {
            network.send_from(self.station, frame);
        }
    }
}

fn now(network: &Network) -> Instant {
    Instant::from_micros(network.now().as_micros() as i64)
}

/// What it sends and receives.
struct Wire {
    mtu: usize,
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<Vec<u8>>,
}

struct Arrived(Vec<u8>);
struct Sending<'a>(&'a mut Vec<Vec<u8>>);

impl Device for Wire {
    type RxToken<'a> = Arrived;
    type TxToken<'a> = Sending<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Arrived, Sending<'_>)> {
        let frame = self.arrived.pop_front()?;
        Some((Arrived(frame), Sending(&mut self.sent)))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_>> {
        Some(Sending(&mut self.sent))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.mtu + 14;
        capabilities
    }
}

impl RxToken for Arrived {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl TxToken for Sending<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let result = fill(&mut frame);
        self.0.push(frame);
        result
    }
}
