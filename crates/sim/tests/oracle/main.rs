//! Our stack beside smoltcp, in one network: what one of them says the other must understand, byte
//! for byte, whoever asks and whoever serves.
//!
//! Two of our own ends might agree on a mistake; these two share no code.

#[path = "../common/mod.rs"]
mod common;
mod smol;
mod talk;

use std::net::{Ipv6Addr, SocketAddr};

use common::for_seeds;
use millrace_shard::{Ipv6, Options, Owner, SocketId, SocketState};
use millrace_sim::{
    Client, Context, Ending, HostId, Link, Network, Nic, Pace, Peer, Plan, Program, Rng, Server,
};
use millrace_tcp::{Duration, Keepalive, Settings};
use smol::{Choice, Smol};
use smoltcp::socket::tcp::{CongestionControl, State};
use talk::Role;

const ENDINGS: [Ending; 4] = [
    Ending::HalfClose,
    Ending::ClientCloses,
    Ending::ServerCloses,
    Ending::BothClose,
];

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// Which of the two connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Asks {
    Ours,
    Smol,
}

/// Everything about a run that is not the plan.
#[derive(Clone, Copy, Debug)]
struct Setting {
    asks: Asks,
    v6: bool,
    link: Link,
    /// Of our host, and of the other.
    mtus: [u16; 2],
    /// Receive and send buffer of ours.
    buffers: [u32; 2],
    options: Settings,
    choice: Choice,
    connections: usize,
}

impl Setting {
    /// A link without mishaps, and nothing small.
    fn plain(asks: Asks) -> Setting {
        Setting {
            asks,
            v6: false,
            link: Link {
                delay: Duration::from_millis(3),
                spare_arp: true,
                ..Link::default()
            },
            mtus: [1500; 2],
            buffers: [64 << 10; 2],
            options: Settings::default(),
            choice: Choice::default(),
            connections: 1,
        }
    }

    /// Both hosts.
    fn hosts(&self, network: &mut Network) -> (HostId, Smol) {
        let ours = network.add_host_with(Nic::Plain, self.link, |config| {
            config.mtu = self.mtus[0];
            config.buffers.receive_default = self.buffers[0];
            config.buffers.receive_max = self.buffers[0] * 4;
            config.buffers.send_default = self.buffers[1];
            config.buffers.send_max = self.buffers[1] * 4;
            config.tcp.timestamps = self.choice.timestamps;
            // One unlucky retransmission after the other, and the next one would be 120 s away.
            config.tcp.rto_max = Duration::from_secs(8);
            config.ipv6 = self.v6.then(|| Ipv6 {
                addresses: vec![(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1), 64)],
                routes: Vec::new(),
                probes: 0,
            });
        });
        let smol = Smol::new(network, self.link, self.mtus[1].into(), self.v6);
        (ours, smol)
    }

    /// The options of our sockets.
    fn options(&self) -> Options {
        Options {
            tcp: self.options,
            ..Options::default()
        }
    }

    /// Both hosts with their programs, from the first segment to the last timer.
    fn run(&self, network: &mut Network, plan: Plan) -> Smol {
        let (ours, mut smol) = self.hosts(network);
        let options = self.options();
        match self.asks {
            Asks::Ours => {
                for _ in 0..self.connections {
                    smol.serve(80, plan, &self.choice);
                }
                let client = Client::new(smol.at(80), plan, self.connections, self.connections);
                network.run_program(ours, client.options(options));
            }
            Asks::Smol => {
                let address = match self.v6 {
                    true => network.address_v6_of(ours, 80),
                    false => network.address_of(ours, 80),
                };
                let server = Server::new(address, plan, self.connections).options(options);
                network.run_program(ours, server);
                for _ in 0..self.connections {
                    smol.connect(address, plan, &self.choice);
                }
            }
        }
        smol.converse(network);
        smol
    }
}

fn both(run: impl Fn(Asks)) {
    run(Asks::Ours);
    run(Asks::Smol);
}

/// What may differ, at random.
fn any_setting(rng: &mut Rng, asks: Asks) -> Setting {
    let v6 = rng.chance(0.3);
    let mtus = match v6 {
        true => [1280, 1500, 9000],
        false => [576, 1500, 9000],
    };
    let mtu = pick(rng, &mtus);
    Setting {
        v6,
        mtus: [mtu; 2],
        buffers: [
            pick(rng, &[4096, 16 << 10, 256 << 10]),
            pick(rng, &[4096, 16 << 10, 256 << 10]),
        ],
        options: Settings {
            nodelay: rng.chance(0.3),
            congestion: Some(pick(rng, &millrace_sim::goodput::ALGORITHMS).1),
            interactive: rng.chance(0.2),
            ..Settings::default()
        },
        choice: Choice {
            receive: pick(rng, &[2000, 10_000, 65_535, 300_000]),
            send: pick(rng, &[2000, 10_000, 65_535, 300_000]),
            congestion: pick(
                rng,
                &[
                    CongestionControl::None,
                    CongestionControl::Reno,
                    CongestionControl::Cubic,
                ],
            ),
            timestamps: rng.chance(0.5),
            nagle: rng.chance(0.7),
            ack_delay_ms: pick(rng, &[None, Some(10), Some(100)]),
            keep_alive_ms: None,
        },
        connections: rng.between(1, 3) as usize,
        ..Setting::plain(asks)
    }
}

fn any_plan(rng: &mut Rng) -> Plan {
    let pace = |rng: &mut Rng| Pace {
        chunk: pick(rng, &[100, 1460, 20_000]),
        stall_every: pick(rng, &[u64::MAX, u64::MAX, 20_000]),
        stall: Duration::from_millis(rng.below(300)),
        ..Pace::default()
    };
    Plan {
        ending: pick(rng, &ENDINGS),
        client_pace: pace(rng),
        server_pace: pace(rng),
        ..Plan::exchange(
            pick(rng, &[0, 1, 1000, 30_000, 150_000]),
            pick(rng, &[0, 1, 1000, 30_000, 150_000]),
        )
    }
}

#[test]
fn a_good_link_carries_anything() {
    for_seeds("a_good_link_carries_anything", 60, |network| {
        let mut rng = network.rng().fork();
        let asks = pick(&mut rng, &[Asks::Ours, Asks::Smol]);
        let setting = any_setting(&mut rng, asks);
        setting.run(network, any_plan(&mut rng));
    });
}

#[test]
fn a_bad_link_carries_anything() {
    for_seeds("a_bad_link_carries_anything", 60, |network| {
        let mut rng = network.rng().fork();
        let asks = pick(&mut rng, &[Asks::Ours, Asks::Smol]);
        let mut setting = any_setting(&mut rng, asks);
        let mut some = |most: u64| rng.below(most) as f64 / 1_000.0;
        setting.link.loss = some(50);
        setting.link.reorder = some(50);
        setting.link.duplicate = some(50);
        setting.link.corrupt = some(20);
        setting.run(network, any_plan(&mut rng));
    });
}

#[test]
fn every_ending_is_understood() {
    for ending in ENDINGS.into_iter().chain([Ending::ClientAborts]) {
        both(|asks| {
            for_seeds("every_ending_is_understood", 3, |network| {
                let plan = Plan {
                    ending,
                    ..Plan::exchange(20_000, 10_000)
                };
                Setting::plain(asks).run(network, plan);
            });
        });
    }
}

/// RFC 9293 figure 13: FINs that cross.
#[test]
fn both_may_close_at_once() {
    for_seeds("both_may_close_at_once", 3, |network| {
        // The server hears the end of what the client says half a round trip before the client's
        // FIN.
        let pause = Pace {
            chunk: 400,
            stall_every: 900,
            stall: Duration::from_millis(22),
            ..Pace::default()
        };
        let plan = Plan {
            ending: Ending::BothClose,
            server_pace: pause,
            ..Plan::exchange(1_400, 1)
        };
        let mut setting = Setting::plain(pick(network.rng(), &[Asks::Ours, Asks::Smol]));
        setting.link.delay = Duration::from_millis(30);
        let smol = setting.run(network, plan);
        assert!(smol.seen.contains(&State::Closing), "{:?}", smol.seen);
    });
}

/// RFC 9293 figure 7: SYNs that cross.
#[test]
fn both_may_open_at_once() {
    for_seeds("both_may_open_at_once", 5, |network| {
        let setting = Setting::plain(Asks::Ours);
        let (ours, mut smol) = setting.hosts(network);
        let (here, there) = (network.address_of(ours, 80), smol.at(80));
        let plan = Plan::exchange(5_000, 5_000);
        // Each must know where the other is first, or a SYN waits for that.
        smol.connect_from(
            79,
            network.address_of(ours, 79),
            Role::Server,
            plan,
            &setting.choice,
        );
        network.run_program(
            ours,
            Peer::new(
                network.address_of(ours, 79),
                smol.at(79),
                plan,
                Duration::from_micros(1),
            ),
        );
        smol.run_for(network, Duration::from_secs(30));
        smol.connect_from(80, here, Role::Server, plan, &setting.choice);
        network.run_program(ours, Peer::new(here, there, plan, Duration::from_micros(1)));
        smol.converse(network);
    });
}

/// RFC 9293 3.8.6.1: the reader is away for longer than it takes to probe more than once.
#[test]
fn a_window_that_shuts_opens_again() {
    both(|asks| {
        for_seeds("a_window_that_shuts_opens_again", 6, |network| {
            let rng = network.rng();
            let away = Pace {
                stall_every: 30_000,
                stall: Duration::from_millis(rng.between(3_000, 40_000)),
                ..Pace::default()
            };
            let plan = Plan {
                ending: pick(rng, &[Ending::ClientCloses, Ending::ServerCloses]),
                client_pace: away,
                server_pace: away,
                ..Plan::exchange(100_000, 100_000)
            };
            let mut setting = Setting::plain(asks);
            setting.choice.receive = 10_000;
            setting.buffers[0] = 4096;
            setting.link.loss = 0.02;
            setting.run(network, plan);
        });
    });
}

/// RFC 9293 3.8.6.2: windows of less than a segment still carry a stream.
#[test]
fn small_windows_carry_a_stream() {
    for receive in [1, 10, 100, 535, 1459, 1460, 1461, 3000] {
        both(|asks| {
            for_seeds("small_windows_carry_a_stream", 2, |network| {
                let mut setting = Setting::plain(asks);
                setting.choice.receive = receive;
                setting.choice.send = receive.max(50);
                setting.buffers = [2304; 2];
                let bytes = (receive as u64 * 30).min(20_000);
                setting.run(network, Plan::exchange(bytes, bytes));
            });
        });
    }
}

/// RFC 9293 3.7.1: neither sends more than the other takes, whichever link is the narrower.
#[test]
fn any_two_mss_fit() {
    for mtus in [
        [576, 1500],
        [1500, 576],
        [9000, 1500],
        [1500, 9000],
        [600, 9000],
    ] {
        both(|asks| {
            for max_segment in [None, Some(88), Some(500), Some(1_000)] {
                for_seeds("any_two_mss_fit", 1, |network| {
                    let mut setting = Setting::plain(asks);
                    setting.mtus = mtus;
                    setting.options.max_segment = max_segment;
                    setting.run(network, Plan::exchange(40_000, 40_000));
                });
            }
        });
    }
}

/// RFC 9293 3.8.4: each asks while nothing is said for minutes, and each is answered.
#[test]
fn keepalive_finds_who_is_there() {
    both(|asks| {
        for_seeds("keepalive_finds_who_is_there", 2, |network| {
            let away = Pace {
                stall_every: 1_400,
                stall: Duration::from_secs(60),
                ..Pace::default()
            };
            let plan = Plan {
                client_pace: away,
                ..Plan::requests(2, 1_000, 1_000)
            };
            let setting = with_keepalive(asks);
            setting.run(network, plan);
        });
    });
}

/// RFC 9293 3.8.4: each notices that the other is gone.
#[test]
fn keepalive_finds_who_is_gone() {
    both(|asks| {
        for_seeds("keepalive_finds_who_is_gone", 2, |network| {
            let setting = with_keepalive(asks);
            let (ours, mut smol) = setting.hosts(network);
            let socket = match asks {
                Asks::Ours => smol.listen(80, &setting.choice),
                Asks::Smol => smol.dial(network.address_of(ours, 80), &setting.choice),
            };
            let holder = Holder::new(network, &setting, ours, smol.at(80));
            network.run_program(ours, holder);
            let open = |network: &Network| {
                let mut states = Vec::new();
                let stack = network.stack(ours);
                stack.for_each_socket(network.now(), |socket| states.push(socket.state));
                states.contains(&SocketState::Tcp(millrace_tcp::State::Established))
            };
            smol.run_for(network, Duration::from_secs(60));
            assert_eq!(
                (smol.state(socket), open(network)),
                (State::Established, true)
            );
            network.link_mut(ours).cut = true;
            smol.run_for(network, Duration::from_secs(20));
            assert_eq!((smol.state(socket), open(network)), (State::Closed, false));
        });
    });
}

/// A program that has a connection and says nothing.
struct Holder {
    asks: Asks,
    local: SocketAddr,
    remote: SocketAddr,
    options: Options,
    listener: Option<SocketId>,
    started: bool,
}

impl Holder {
    fn new(network: &Network, setting: &Setting, ours: HostId, remote: SocketAddr) -> Holder {
        Holder {
            asks: setting.asks,
            local: network.address_of(ours, 80),
            remote,
            options: setting.options(),
            listener: None,
            started: false,
        }
    }
}

impl Program for Holder {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        if Some(id) == self.listener {
            while let Ok(accepted) = context.stack.accept(id) {
                context.adopt(accepted);
            }
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.started {
            return;
        }
        self.started = true;
        let (stack, owner) = (&mut *context.stack, Owner(0));
        let id = match self.asks {
            Asks::Ours => stack.connect(owner, None, self.remote, &self.options, context.now),
            Asks::Smol => stack
                .bind_with(owner, self.local, &self.options)
                .and_then(|id| stack.listen_bound(id, 1, None).map(|()| id)),
        };
        let id = id.expect("the port is free");
        context.adopt(id);
        self.listener = (self.asks == Asks::Smol).then_some(id);
    }

    fn progress(&self) -> u64 {
        0
    }

    fn is_done(&self) -> bool {
        true
    }
}

fn with_keepalive(asks: Asks) -> Setting {
    let mut setting = Setting::plain(asks);
    setting.choice.keep_alive_ms = Some((2_000, 7_000));
    setting.options.keepalive = Some(Keepalive {
        idle_s: 3,
        interval_s: 1,
        probes: 4,
    });
    setting
}
