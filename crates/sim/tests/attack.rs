//! Stations that keep to nothing: random segments to a host, and random segments into other hosts'
//! connections.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use common::for_seeds;
use millrace_shard::{How, Options, Owner, Reuse, SocketId};
use millrace_sim::{
    Client, Context, HostId, Link, Network, Nic, Pace, Plan, Program, Rng, Server, StationId,
};
use millrace_tcp::{Duration, Instant};
use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::icmpv4::Message;
use millrace_wire::tcp::{self, Flags, Header, SackBlocks, Segment, Seq, Timestamps};
use millrace_wire::{icmpv4, ipv4};

const TCP_AT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

/// The flags that a peer sends, as often as it sends them; any flags now and then.
fn some_flags(rng: &mut Rng) -> Flags {
    let (ack, fin, rst) = (Flags::ACK, Flags::FIN | Flags::ACK, Flags::RST);
    let usual = [
        ack,
        ack,
        ack,
        ack,
        ack,
        ack | Flags::PSH,
        fin,
        rst,
        Flags::SYN,
        Flags::SYN | ack,
        rst | ack,
    ];
    if rng.chance(0.05) {
        Flags::from_bits_retain(rng.next() as u8)
    } else {
        pick(rng, &usual)
    }
}

/// Options as they come in a SYN, and selective acknowledgements near `acknowledged`.
fn some_options(rng: &mut Rng, flags: Flags, acknowledged: Seq, any: u32) -> tcp::Options {
    let mut options = tcp::Options::default();
    if flags.contains(Flags::SYN) {
        options.mss = rng
            .chance(0.8)
            .then(|| pick(rng, &[0, 1, 48, 536, 1460, 65_535]));
        options.window_scale = rng.chance(0.5).then(|| pick(rng, &[0, 7, 14, 255]));
        options.sack_permitted = rng.chance(0.7);
    }
    if rng.chance(0.2) {
        let mut sack = SackBlocks::default();
        for _ in 0..rng.between(1, 4) {
            let start = acknowledged + pick(rng, &[0, 1, 1448, 2896, any]);
            sack.push(start, start + pick(rng, &[0, 1, 1448, 3000, any]));
        }
        options.sack = sack;
    }
    options
}

/// A program that does anything to its sockets, until a time comes at which it closes them all.
struct Fickle {
    local: SocketAddr,
    target: Ipv4Addr,
    end: Instant,
    listener: Option<SocketId>,
    open: BTreeSet<SocketId>,
    done: bool,
}

impl Fickle {
    fn tend(&mut self, context: &mut Context<'_>, id: SocketId) {
        let view = context.stack.view(id).expect("it is open");
        assert!(
            view.received >= view.consumed && view.queued >= view.acked,
            "{view:?}"
        );
        let mut buffer = [0; 3000];
        let len = context.rng.below(buffer.len() as u64) as usize;
        // Whether these work is the stack's to say; that they do no harm is what is tested.
        let gone = match context.rng.below(60) {
            0 => context.stack.shutdown(id, How::Write, context.now).is_err(),
            1 => context.stack.shutdown(id, How::Read, context.now).is_err(),
            2 => context.stack.close(id, context.now).is_ok(),
            3 => context.stack.abort(id, context.now).is_ok(),
            4..30 => context.stack.send(id, &buffer[..len], true).is_err() && view.error != 0,
            _ => {
                context
                    .stack
                    .recv(id, &mut buffer[..len.max(1)], context.now)
                    == Ok(0)
                    && context.rng.chance(0.5)
            }
        };
        if gone {
            self.open.remove(&id);
            // The socket may still be there: it failed, or was shut by the peer.
            let _gone_already = context.stack.close(id, context.now);
        }
    }
}

impl Program for Fickle {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        if Some(id) == self.listener {
            while let Ok(accepted) = context.stack.accept(id) {
                context.adopt(accepted);
                self.open.insert(accepted);
                self.tend(context, accepted);
            }
        } else if self.open.contains(&id) {
            self.tend(context, id);
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.listener.is_none() && !self.done {
            let id = context
                .stack
                .listen(Owner(0), self.local, 5, Reuse::default())
                .expect("the port is free");
            context.adopt(id);
            self.listener = Some(id);
        }
        if context.now >= self.end {
            for id in self
                .listener
                .take()
                .into_iter()
                .chain(std::mem::take(&mut self.open))
            {
                context.stack.close(id, context.now).expect("it is open");
            }
            self.done = true;
            return;
        }
        for id in self.open.clone() {
            self.tend(context, id);
        }
        if context.rng.chance(0.3) {
            let remote = SocketAddr::new(self.target.into(), context.rng.between(1, 5) as u16);
            if let Ok(id) =
                context
                    .stack
                    .connect(Owner(0), None, remote, &Options::default(), context.now)
            {
                context.adopt(id);
                self.open.insert(id);
            }
        }
        let pause = Duration::from_millis(context.rng.between(1, 300));
        context.wake_at((context.now + pause).min(self.end));
    }

    fn progress(&self) -> u64 {
        u64::from(self.done)
    }

    fn is_done(&self) -> bool {
        self.done
    }
}

/// Where a connection stands, seen from the station.
#[derive(Clone, Copy, Default)]
struct Known {
    /// What the host expects next of us, and what comes next from it.
    theirs: Seq,
    ours: Seq,
    timestamp: Option<Timestamps>,
}

/// The station's side.
struct Attacker {
    station: StationId,
    rng: Rng,
    source: (Mac, Ipv4Addr),
    target: (Mac, Ipv4Addr),
    /// By the ports of the host and of the station.
    known: BTreeMap<(u16, u16), Known>,
    last: Vec<u8>,
}

impl Attacker {
    fn new(network: &mut Network, host: HostId) -> Attacker {
        let station = network.add_station(Link::default());
        let config = network.stack(host).config();
        let target = (config.mac, config.address());
        let source = network.station_address(station);
        Attacker {
            station,
            rng: network.rng().fork(),
            source,
            target,
            known: BTreeMap::new(),
            last: Vec::new(),
        }
    }

    /// Learns from what the host sent.
    fn look(&mut self, network: &mut Network) {
        for frame in network.take_received(self.station) {
            let datagram = frame.get(ethernet::HEADER_LEN..).unwrap_or_default();
            if let Ok((header, _, payload)) = ipv4::Header::parse(datagram)
                && let Ok(segment) = Segment::parse(payload)
                && header.protocol == tcp::PROTOCOL
            {
                let known = self
                    .known
                    .entry((segment.src_port, segment.dst_port))
                    .or_default();
                known.ours = segment.seq + segment.sequence_len();
                if segment.flags.contains(Flags::ACK) {
                    known.theirs = segment.ack;
                }
                known.timestamp = segment.options.timestamps;
                if segment.flags.contains(Flags::RST) {
                    self.known.remove(&(segment.src_port, segment.dst_port));
                }
                self.last = datagram.to_vec();
            }
        }
    }

    /// Sends something.
    fn attack(&mut self, network: &mut Network) {
        let mut frame = match self.rng.below(20) {
            0 => self.noise(),
            1 => self.icmp(),
            _ => self.segment(),
        };
        if self.rng.chance(0.05) && !frame.is_empty() {
            let at = self.rng.below(frame.len().min(70) as u64) as usize;
            frame[at] = self.rng.next() as u8;
        }
        if self.rng.chance(0.02) {
            frame.truncate(self.rng.below(frame.len() as u64 + 1) as usize);
        }
        network.send_from(self.station, frame);
    }

    fn noise(&mut self) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..self.rng.below(2000))
            .map(|_| self.rng.next() as u8)
            .collect();
        if frame.len() >= TCP_AT {
            let ethertype = pick(
                &mut self.rng,
                &[EtherType::IPV4, EtherType::ARP, EtherType::IPV6],
            );
            ethernet::Header {
                dst: self.target.0,
                src: self.source.0,
                ethertype,
            }
            .emit(&mut frame);
            frame[14] = pick(&mut self.rng, &[0x45, 0x46, 0x4f, 0x40]);
        }
        frame
    }

    /// An ICMP error about the host's latest segment, or whatever.
    fn icmp(&mut self) -> Vec<u8> {
        let original = &self.last[..self.last.len().min(28 + self.rng.below(40) as usize)];
        let next_hop_mtu = pick(&mut self.rng, &[0, 1, 67, 68, 300, 576, 1400, 1500, 65535]);
        let code = self.rng.below(16) as u8;
        let message = match self.rng.below(6) {
            0 => Message::TimeExceeded {
                code: code % 2,
                original,
            },
            1 => Message::Other {
                kind: self.rng.next() as u8,
                code,
                rest: [0; 4],
                data: original,
            },
            2 => Message::EchoRequest {
                id: 1,
                sequence: 2,
                data: original,
            },
            _ => Message::Unreachable {
                code,
                next_hop_mtu,
                original,
            },
        };
        let mut payload = vec![0; message.encoded_len()];
        message.emit(&mut payload);
        let mut frame = self.headers(ipv4::PROTOCOL_ICMP, payload.len());
        frame.extend_from_slice(&payload);
        frame
    }

    /// A segment that fits a connection, more or less; or a new one.
    fn segment(&mut self) -> Vec<u8> {
        let rng = &mut self.rng;
        let tuples: Vec<_> = self.known.keys().copied().collect();
        let (host_port, our_port) = if tuples.is_empty() || rng.chance(0.15) {
            (80, rng.between(1000, 1010) as u16)
        } else {
            pick(rng, &tuples)
        };
        let known = self.known.get(&(host_port, our_port)).copied();
        let fresh = known.is_none() || rng.chance(0.05);
        let known = known.unwrap_or_default();
        let flags = if fresh { Flags::SYN } else { some_flags(rng) };
        let any = rng.next() as u32;
        // Mostly right, so that connections get somewhere.
        let odd = pick(
            rng,
            &[
                1,
                0u32.wrapping_sub(1),
                0u32.wrapping_sub(1448),
                1448,
                5000,
                65_535,
                any,
            ],
        );
        let seq = known.theirs + if rng.chance(0.2) { odd } else { 0 };
        let odd = pick(
            rng,
            &[
                1,
                0u32.wrapping_sub(1),
                0u32.wrapping_sub(1448),
                10_000,
                any,
            ],
        );
        let acknowledged = known.ours + if rng.chance(0.2) { odd } else { 0 };
        let mut options = some_options(rng, flags, acknowledged, any);
        if fresh && rng.chance(0.5) || (known.timestamp.is_some() && rng.chance(0.9)) {
            let last = known.timestamp.unwrap_or_default();
            let value = last
                .echo
                .wrapping_add(pick(rng, &[0, 1, 100, 0u32.wrapping_sub(1), 1 << 31]));
            options.timestamps = Some(Timestamps {
                value,
                echo: last.value,
            });
        }
        let window = pick(rng, &[0, 1, 512, 512, 65_535, 65_535, any as u16]);
        let payload = vec![any as u8; pick(rng, &[0, 0, 0, 1, 100, 1448, 3000])];
        let urgent = pick(rng, &[0, 1, 1000, 65_535]);
        let (src_port, dst_port) = (our_port, host_port);
        let header = Header {
            src_port,
            dst_port,
            seq,
            ack: acknowledged,
            flags,
            window,
            urgent,
            options,
        };
        self.finish(&header, &payload)
    }

    /// The frame of a segment, with checksums.
    fn finish(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let len = header.header_len() + payload.len();
        let mut frame = self.headers(tcp::PROTOCOL, len);
        frame.resize(TCP_AT + header.header_len(), 0);
        header.emit(&mut frame[TCP_AT..]);
        frame.extend_from_slice(payload);
        let sum = pseudo_v4(self.source.1, self.target.1, tcp::PROTOCOL, len as u16)
            + Sum::of(&frame[TCP_AT..]);
        frame[TCP_AT + tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&sum.finish().to_be_bytes());
        frame
    }

    fn headers(&mut self, protocol: u8, len: usize) -> Vec<u8> {
        let mut head = vec![0; TCP_AT];
        ethernet::Header {
            dst: self.target.0,
            src: self.source.0,
            ethertype: EtherType::IPV4,
        }
        .emit(&mut head);
        let header = ipv4::Header {
            tos: pick(&mut self.rng, &[0, 0, 1, 2, 3]),
            more_fragments: self.rng.chance(0.01),
            ..ipv4::Header::new(self.source.1, self.target.1, protocol, len as u16)
        };
        header.emit(&mut head[ethernet::HEADER_LEN..]);
        head
    }
}

#[test]
fn a11_anything_may_come_at_any_time() {
    for_seeds("a11_anything_may_come_at_any_time", 100, |network| {
        let host = network.add_host(Nic::Segment, Link::default());
        let mut attacker = Attacker::new(network, host);
        let end = network.now() + Duration::from_secs(60);
        let (local, target) = (network.address_of(host, 80), attacker.source.1);
        network.run_program(
            host,
            Fickle {
                local,
                target,
                end,
                listener: None,
                open: BTreeSet::new(),
                done: false,
            },
        );
        while !network.is_done() {
            for _ in 0..network.rng().between(1, 5) {
                attacker.attack(network);
            }
            let pause = network.rng().between(1, 100_000);
            network.run_for(Duration::from_micros(pause));
            attacker.look(network);
        }
        // The station says nothing more.
        network.settle();
    });
}

#[test]
fn a2_a5_f3_a_blind_attacker_disturbs_nothing() {
    for_seeds(
        "a2_a5_f3_a_blind_attacker_disturbs_nothing",
        20,
        |network| {
            let link = Link {
                rate: Some(50_000_000),
                delay: Duration::from_millis(5),
                ..Link::default()
            };
            let [client, server] = [(); 2].map(|()| network.add_host(Nic::Segment, link));
            let address = network.address_of(server, 80);
            let pace = Pace {
                stall_every: 200_000,
                stall: Duration::from_millis(100),
                ..Pace::default()
            };
            let plan = Plan {
                client_pace: pace,
                server_pace: pace,
                ..Plan::exchange(2_000_000, 2_000_000)
            };
            network.run_program(server, Server::new(address, plan, 1));
            network.run_program(client, Client::new(address, plan, 1, 1));
            network.run_for(Duration::from_millis(50));

            // It knows addresses and ports, and guesses the numbers.
            let mut attacker = Attacker::new(network, server);
            let mut port = 0;
            network
                .stack(client)
                .for_each_socket(network.now(), |socket| port = socket.local.port());
            attacker.source.1 = network.stack(client).config().address();
            let rng = network.rng().fork();
            let mut guesses = rng;
            while !network.is_done() {
                for _ in 0..3 {
                    let known = Known {
                        theirs: Seq(guesses.next() as u32),
                        ours: Seq(guesses.next() as u32),
                        timestamp: Some(Timestamps {
                            value: guesses.next() as u32,
                            echo: guesses.next() as u32,
                        }),
                    };
                    attacker.known = BTreeMap::from([((80, port), known)]);
                    attacker.last = quote(&mut guesses, attacker.target.1, attacker.source.1, port);
                    attacker.attack(network);
                }
                network.run_for(Duration::from_millis(1));
            }
            network.settle();
        },
    );
}

/// The start of a segment that the server may have sent, but for its sequence number.
fn quote(rng: &mut Rng, src: Ipv4Addr, dst: Ipv4Addr, port: u16) -> Vec<u8> {
    let header = ipv4::Header {
        ttl: 60,
        ..ipv4::Header::new(src, dst, tcp::PROTOCOL, 1480)
    };
    let mut bytes = vec![0; ipv4::HEADER_LEN + icmpv4::HEADER_LEN];
    header.emit(&mut bytes);
    bytes[20..22].copy_from_slice(&80u16.to_be_bytes());
    bytes[22..24].copy_from_slice(&port.to_be_bytes());
    bytes[24..28].copy_from_slice(&(rng.next() as u32).to_be_bytes());
    bytes
}
