//! Our stack, a shard in virtual time.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use millrace_shard::{
    Config, Egress, Error, HeapMemory, How, Options, Owner, Reuse, Shard, SocketId,
};
use millrace_tcp::{Duration, Instant, State};
use millrace_wire::arp;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};

use super::answer::Status;
use super::script::{Do, Subject};

const OURS: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 1]), Ipv4Addr::new(10, 9, 0, 1));
const PEER: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 9, 0, 2));
const OWNER: Owner = Owner(1);

/// A shard, its link and its programs.
pub struct Ours {
    shard: Shard<HeapMemory>,
    link: Link,
    now: Instant,
    /// The listener of each script, and its connection.
    listeners: BTreeMap<usize, SocketId>,
    connections: BTreeMap<usize, SocketId>,
}

/// Keeps what is sent.
#[derive(Default)]
struct Link(Vec<Vec<u8>>);

impl Egress for Link {
    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: Offload) -> bool {
        self.0.push([head, payload[0], payload[1]].concat());
        true
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(OURS.0, 1500)
    }
}

impl Ours {
    /// A shard that knows its neighbour.
    pub fn new() -> Ours {
        let now = Instant::from_micros(1_000_000);
        let mut config = Config::new(OURS.1, 24, OURS.0, [7; 32]);
        // Each answer counts; none is left out because there was another one lately.
        config.tcp.challenge_interval = Duration::ZERO;
        let mut ours = Ours {
            shard: Shard::new(config, HeapMemory::new(1 << 30), now),
            link: Link::default(),
            now,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
        };
        let mut frame = vec![0; ethernet::HEADER_LEN + arp::LEN];
        ethernet::Header {
            dst: OURS.0,
            src: PEER.0,
            ethertype: EtherType::ARP,
        }
        .emit(&mut frame);
        let question = arp::Packet {
            operation: arp::Operation::REQUEST,
            sender_mac: PEER.0,
            sender_ip: PEER.1,
            target_mac: Mac([0; 6]),
            target_ip: OURS.1,
        };
        question.emit(&mut frame[ethernet::HEADER_LEN..]);
        ours.input(&frame);
        ours
    }

    fn input(&mut self, frame: &[u8]) {
        let frame = Frame {
            bytes: frame,
            checksum: ChecksumState::Unchecked,
            segment_size: 0,
        };
        self.shard.input(&frame, self.now);
        self.shard.transmit(&mut self.link, self.now);
    }
}

impl Default for Ours {
    fn default() -> Ours {
        Ours::new()
    }
}

impl Subject for Ours {
    fn ends(&self) -> [(Mac, Ipv4Addr); 2] {
        [OURS, PEER]
    }

    fn act(&mut self, script: usize, local: u16, remote: u16, act: Do) -> Result<()> {
        let now = self.now;
        let connection = self.connections.get(&script).copied();
        match (act, connection) {
            (Do::Listen, _) => {
                let local = SocketAddr::new(OURS.1.into(), local);
                let id = self.shard.listen(OWNER, local, 8, Reuse::default())?;
                self.listeners.insert(script, id);
            }
            (Do::Accept, _) => {
                if let Some(&listener) = self.listeners.get(&script)
                    && let Ok(id) = self.shard.accept(listener)
                {
                    self.connections.insert(script, id);
                }
            }
            (Do::Connect, _) => {
                let remote = SocketAddr::new(PEER.1.into(), remote);
                let options = Options::default();
                let id = self.shard.connect(OWNER, None, remote, &options, now)?;
                self.connections.insert(script, id);
            }
            (Do::Write(len), Some(id)) => drop(self.shard.send(id, &vec![b'y'; len], true)),
            (Do::Read, Some(id)) => drop(self.shard.recv(id, &mut vec![0; 1 << 20], now)),
            (Do::Shutdown, Some(id)) => drop(self.shard.shutdown(id, How::Write, now)),
            (Do::Close, Some(id)) => {
                self.connections.remove(&script);
                self.shard.close(id, now)?;
            }
            (Do::Write(_) | Do::Read | Do::Shutdown | Do::Close, None) => {}
        }
        self.shard.transmit(&mut self.link, now);
        Ok(())
    }

    fn hear(&mut self, frame: &[u8]) -> Result<()> {
        self.input(frame);
        Ok(())
    }

    fn pause(&mut self) -> Result<Vec<Vec<u8>>> {
        let end = self.now + Duration::from_millis(150);
        while let Some(next) = self.shard.deadline().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.shard.advance(self.now);
            self.shard.transmit(&mut self.link, self.now);
        }
        self.now = end;
        Ok(std::mem::take(&mut self.link.0))
    }

    fn status(&mut self, script: usize) -> Status {
        let Some(&id) = self.connections.get(&script) else {
            return Status::default();
        };
        let state = match self.shard.view(id).and_then(|view| view.state) {
            Some(state) => name(state),
            None => "CLOSE",
        };
        let mut buffer = vec![0; 1 << 20];
        let mut read = 0;
        let then = loop {
            match self.shard.recv(id, &mut buffer, self.now) {
                Ok(0) => break "end".to_string(),
                Ok(len) => read += len,
                Err(Error::WouldBlock) => break "more".to_string(),
                Err(error) => break error.errno().to_string(),
            }
        };
        Status { state, read, then }
    }
}

/// A state as Linux calls it.
fn name(state: State) -> &'static str {
    match state {
        State::SynSent => "SYN-SENT",
        State::SynReceived => "SYN-RECV",
        State::Established => "ESTAB",
        State::FinWait1 => "FIN-WAIT-1",
        State::FinWait2 => "FIN-WAIT-2",
        State::CloseWait => "CLOSE-WAIT",
        State::Closing => "CLOSING",
        State::LastAck => "LAST-ACK",
        // Linux keeps TIME-WAIT apart from the socket, which is closed.
        State::TimeWait | State::Closed => "CLOSE",
    }
}
