//! A shard that answers every message with one of the same length, and the clients whose
//! connections it has: these are where its frames arrive.

use std::net::{IpAddr, SocketAddr};

use millrace_shard::{Config, Egress, HeapMemory, Owner, Reuse, Shard, SocketId};
use millrace_tcp::Instant;
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};

use crate::client::{CLIENT_MAC, Client, FRAME_MAX, MESSAGE_MAX, SERVER, SERVER_MAC};

/// A shard with its program and its clients.
pub struct Server {
    shard: Shard<HeapMemory>,
    listener: SocketId,
    changed: Vec<SocketId>,
    message: usize,
    buffer: Box<[u8; MESSAGE_MAX]>,
    clients: Clients,
}

/// Clients by their ports.
struct Clients {
    clients: Vec<Client>,
    /// Where each port's client is.
    at: Box<[u16]>,
    /// What one of them sends.
    out: Box<[u8; FRAME_MAX]>,
}

impl Server {
    /// One whose clients have these ports and send messages of so many bytes.
    pub fn new(ports: &[u16], message: usize) -> Server {
        let (address, port) = SERVER;
        let mut config = Config::new(address, 24, SERVER_MAC, [2; 32]);
        config.only_station = Some(CLIENT_MAC);
        let mut shard = Shard::new(config, HeapMemory::new(1 << 30), Instant::from_micros(0));
        let local = SocketAddr::new(IpAddr::V4(address), port);
        let listener = shard
            .listen(Owner(1), local, 4096, Reuse::default())
            .expect("the port is free");
        let most = ports.iter().max().map_or(0, |&port| usize::from(port));
        let mut at = vec![0; most + 1].into_boxed_slice();
        for (place, &port) in ports.iter().enumerate() {
            at[usize::from(port)] = place as u16;
        }
        Server {
            shard,
            listener,
            changed: Vec::with_capacity(1024),
            message: message.min(MESSAGE_MAX),
            clients: Clients {
                clients: ports
                    .iter()
                    .map(|&port| Client::new(port, message))
                    .collect(),
                at,
                out: Box::new([0; FRAME_MAX]),
            },
            buffer: Box::new([0; MESSAGE_MAX]),
        }
    }

    /// Has every client send its SYN.
    pub fn open(&mut self, mut emit: impl FnMut(&[u8])) {
        let Clients { clients, out, .. } = &mut self.clients;
        for client in clients {
            let len = client.open(out);
            emit(&out[..len]);
        }
    }

    /// Takes in a frame of a client's.
    pub fn input(&mut self, bytes: &[u8], now: Instant) {
        let frame = Frame {
            bytes,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        };
        self.shard.input(&frame, now);
    }

    /// Does what there is to do after frames came in, and gives what clients send then. Returns how
    /// many messages were answered.
    pub fn serve(&mut self, now: Instant, emit: impl FnMut(&[u8])) -> u64 {
        if self.shard.deadline().is_some_and(|at| at <= now) {
            self.shard.advance(now);
        }
        let mut answered = 0;
        self.changed.clear();
        self.shard.take_changed(&mut self.changed);
        for at in 0..self.changed.len() {
            let id = self.changed[at];
            if id == self.listener {
                while let Ok(accepted) = self.shard.accept(id) {
                    answered += self.answer(accepted, now);
                }
            } else {
                answered += self.answer(id, now);
            }
        }
        let mut link = Link {
            clients: &mut self.clients,
            emit,
        };
        self.shard.transmit(&mut link, now);
        answered
    }

    fn answer(&mut self, id: SocketId, now: Instant) -> u64 {
        let message = &mut self.buffer[..self.message];
        match self.shard.recv(id, message, now) {
            Ok(len) if len > 0 => {
                let sent = self.shard.send(id, &message[..len], true);
                assert_eq!(sent.ok(), Some(len), "one message at a time has room");
                1
            }
            _ => 0,
        }
    }
}

/// The shard's frames reach their clients at once.
struct Link<'a, F> {
    clients: &'a mut Clients,
    emit: F,
}

impl<F: FnMut(&[u8])> Egress for Link<'_, F> {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        let port = usize::from(u16::from_be_bytes([head[36], head[37]]));
        let Clients { clients, at, out } = &mut *self.clients;
        let client = &mut clients[usize::from(at[port])];
        assert_eq!(
            usize::from(client.port),
            port,
            "a frame of its own connections"
        );
        let payload = payload[0].len() + payload[1].len();
        if let Some(len) = client_turn(client, head, payload, out) {
            (self.emit)(&out[..len]);
        }
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(SERVER_MAC, 1500)
    }
}

/// The load's part. By itself, so that callgrind can tell it from the rest.
#[inline(never)]
fn client_turn(
    client: &mut Client,
    head: &[u8],
    payload: usize,
    out: &mut [u8; FRAME_MAX],
) -> Option<usize> {
    client.on_segment(head, payload, out)
}
