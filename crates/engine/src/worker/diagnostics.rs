//! Sockets, counters and memory use as JSON, for `millrace ss`.

use crate::server::ShardServer;
use millrace_context::{Bypass, Region};
use millrace_shard::{SocketInfo, SocketState};
use serde::Serialize;

use crate::links::drop_warnings::queues_json;
use crate::programs::owners::IN_FLIGHT;

/// One socket, as `ss` shows it.
#[derive(Debug, Serialize)]
pub struct SocketRow {
    shard: u32,
    protocol: &'static str,
    state: &'static str,
    local: String,
    remote: String,
    receive_queue: u64,
    send_queue: u64,
    pids: Vec<u32>,
    /// Datagrams dropped for want of room.
    dropped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tcp: Option<TcpRow>,
}

#[derive(Debug, Serialize)]
struct TcpRow {
    cwnd: u32,
    ssthresh: Option<u32>,
    rtt_us: u32,
    rttvar_us: u32,
    rto_us: u32,
    mss: u16,
    in_flight: u32,
    retransmits: u32,
    bytes_acked: u64,
    bytes_received: u64,
    send_window: u32,
    receive_window: u32,
}

#[derive(Serialize)]
struct ProgramRow {
    pids: Vec<u32>,
    sockets: usize,
    receive_memory: u64,
    receive_memory_failures: u64,
}

#[derive(Serialize)]
struct Description {
    sockets: usize,
    programs: Vec<ProgramRow>,
    worker: crate::worker::counters::WorkerCounters,
    /// The counters of the device's queues, with AF_XDP.
    queues: Vec<serde_json::Value>,
    shard: serde_json::Map<String, serde_json::Value>,
}

/// How often the programs of these regions went past the engine, by kind.
pub(crate) fn bypasses_json<'a>(regions: impl Iterator<Item = &'a Region>) -> serde_json::Value {
    let mut counts = [0u64; Bypass::ALL.len()];
    for region in regions {
        for (count, kind) in counts.iter_mut().zip(Bypass::ALL) {
            *count += u64::from(region.header().bypasses.get(kind));
        }
    }
    let named = Bypass::ALL.iter().zip(counts);
    named
        .map(|(kind, count)| (kind.name().to_owned(), count.into()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

/// All shards' sockets as JSON, listeners first.
pub(crate) fn sockets_json(shards: Vec<Vec<SocketRow>>) -> Result<String, serde_json::Error> {
    let mut rows: Vec<SocketRow> = shards.into_iter().flatten().collect();
    rows.sort_by(|a, b| {
        let key = |row: &SocketRow| row.state != "LISTEN";
        (key(a), &a.local, &a.remote).cmp(&(key(b), &b.local, &b.remote))
    });
    serde_json::to_string(&rows)
}

impl ShardServer {
    /// The state of a socket, as `ss` calls it.
    fn state_name(state: SocketState) -> &'static str {
        use millrace_tcp::State;
        match state {
            SocketState::Unconnected | SocketState::Udp { connected: false } => "UNCONN",
            SocketState::Udp { connected: true } => "ESTAB",
            SocketState::Listen => "LISTEN",
            SocketState::Tcp(state) => match state {
                State::Closed => "CLOSED",
                State::SynSent => "SYN-SENT",
                State::SynReceived => "SYN-RECV",
                State::Established => "ESTAB",
                State::FinWait1 => "FIN-WAIT-1",
                State::FinWait2 => "FIN-WAIT-2",
                State::CloseWait => "CLOSE-WAIT",
                State::Closing => "CLOSING",
                State::LastAck => "LAST-ACK",
                State::TimeWait => "TIME-WAIT",
            },
        }
    }

    fn pids(&self, socket: &SocketInfo) -> Vec<u32> {
        let Some(place) = socket.id.and_then(|id| self.slot_of(id)) else {
            return Vec::new();
        };
        let Some(program) = self.programs.get(place.program) else {
            return Vec::new();
        };
        program.entries[place.slot]
            .owners
            .holders()
            .iter()
            .filter(|holder| **holder != IN_FLIGHT)
            .map(|holder| program.pid(*holder))
            .collect()
    }

    /// Whether a socket is a replica. Its home shows it.
    fn is_replica(&self, socket: &SocketInfo) -> bool {
        self.peers
            .as_ref()
            .zip(socket.id)
            .is_some_and(|(peers, id)| peers.replicas.original_of(id).is_some())
    }

    /// All sockets of this shard.
    pub(crate) fn socket_rows(&mut self) -> Vec<SocketRow> {
        let mut rows = Vec::new();
        self.shard.for_each_socket(self.now, |socket| {
            if self.is_replica(socket) {
                return;
            }
            rows.push(SocketRow {
                shard: self.own,
                protocol: match socket.state {
                    SocketState::Udp { .. } => "udp",
                    _ => "tcp",
                },
                state: ShardServer::state_name(socket.state),
                local: socket.local.to_string(),
                remote: socket.remote.to_string(),
                receive_queue: socket.receive_queue,
                send_queue: socket.send_queue,
                pids: self.pids(socket),
                dropped: socket.dropped,
                tcp: socket.tcp.as_ref().map(|tcp| TcpRow {
                    cwnd: tcp.cwnd,
                    ssthresh: (tcp.ssthresh != u32::MAX).then_some(tcp.ssthresh),
                    rtt_us: tcp.srtt_us,
                    rttvar_us: tcp.rttvar_us,
                    rto_us: tcp.rto_us,
                    mss: tcp.send_mss,
                    in_flight: tcp.in_flight,
                    retransmits: tcp.segments_retransmitted,
                    bytes_acked: tcp.bytes_acked,
                    bytes_received: tcp.bytes_received,
                    send_window: tcp.send_window,
                    receive_window: tcp.receive_window,
                }),
            });
        });
        rows
    }

    /// The counters of this shard and the memory use of its programs.
    pub(crate) fn describe_json(&mut self) -> String {
        let programs = self.programs.iter().map(|program| {
            let (receive_memory, receive_memory_failures) =
                self.shard.memory().usage(program.owner);
            ProgramRow {
                pids: program
                    .processes
                    .iter()
                    .map(|process| process.pid)
                    .collect(),
                sockets: program.open_slots(),
                receive_memory,
                receive_memory_failures,
            }
        });
        let mut sockets = 0;
        let programs = programs.collect();
        self.shard.for_each_socket(self.now, |socket| {
            sockets += usize::from(!self.is_replica(socket));
        });
        let description = Description {
            sockets,
            programs,
            worker: self.link.complete(self.counters),
            queues: queues_json(&self.link.gauges()),
            shard: self
                .shard
                .counters()
                .iter()
                .map(|(name, count)| (name.to_owned(), count.into()))
                .collect(),
        };
        serde_json::to_string(&description)
            .unwrap_or_else(|error| format!("{{\"error\":\"{error}\"}}"))
    }
}
