//! Two connections over a wire, in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use millrace_tcp::{
    Config, Connection, Duration, Events, HalfOpen, HalfOpenVerdict, Instant, Limits, Open,
    Outgoing, ReceiveBuffer, Settings, State, TimeWait, TimeWaitVerdict, refuse,
};
use millrace_wire::tcp::{Flags, Options, Segment, Seq};

/// How the wire treats a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    Deliver,
    Drop,
    /// It arrives this much later.
    Delay(Duration),
    /// It arrives, and again this much later.
    Twice(Duration),
}

/// A segment on the wire.
#[derive(Clone, Debug)]
pub struct Packet {
    /// 0: from the client; 1: from the server.
    pub from: usize,
    /// Packets that this end sent before.
    pub index: usize,
    pub seq: Seq,
    pub ack: Seq,
    pub flags: Flags,
    pub window: u16,
    pub options: Options,
    pub payload: Vec<u8>,
}

/// One end.
pub struct End {
    pub config: Config,
    pub settings: Settings,
    pub open: Open,
    pub limits: Limits,
    pub half_open: Option<HalfOpen>,
    pub connection: Option<Connection>,
    pub time_wait: Option<TimeWait>,
    pub listening: bool,
    pub events: Events,
    /// Bytes read by the program; reading follows arrival unless `lazy`.
    pub read: u64,
    pub lazy: bool,
    /// Bytes queued.
    pub written: u64,
    /// The program has closed: it neither reads nor writes.
    pub closed: bool,
    /// The program closes as soon as the peer has.
    pub close_on_end: bool,
    pub sent: Vec<Packet>,
    store: Store,
    pub last_error: Option<millrace_tcp::Error>,
    pub final_state: Option<State>,
}

/// Checks each byte against the stream of the other end, and that none is stored twice.
#[derive(Default)]
struct Store {
    other: u64,
    held: Vec<bool>,
    limit: u64,
}

impl ReceiveBuffer for Store {
    fn store(&mut self, offset: u64, data: &[u8]) -> bool {
        assert!(
            offset + data.len() as u64 <= self.limit,
            "stored beyond the buffer"
        );
        for (i, byte) in data.iter().enumerate() {
            let at = offset + i as u64;
            assert_eq!(*byte, stream_byte(self.other, at), "byte {at} is wrong");
            if self.held.len() <= at as usize {
                self.held.resize(at as usize + 1, false);
            }
            assert!(!self.held[at as usize], "byte {at} was stored twice");
            self.held[at as usize] = true;
        }
        true
    }
}

/// The byte at `offset` of the stream of end `who`.
pub fn stream_byte(who: u64, offset: u64) -> u8 {
    let mixed = (offset ^ (who << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Two ends and the wire between them.
pub struct Pair {
    pub now: Instant,
    pub ends: [End; 2],
    /// Delay of one direction.
    pub delay: Duration,
    pub wire: Box<dyn FnMut(&Packet) -> Fate>,
    queue: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    flying: Vec<Option<Packet>>,
    serial: u64,
    /// Bits per second of each direction; 0 is infinite.
    pub rate: u64,
    /// The longest wait in the queue. A packet that would wait longer is dropped (drop-tail queue).
    pub patience: Duration,
    free_at: [Instant; 2],
}

pub const CLIENT: usize = 0;
pub const SERVER: usize = 1;

impl Pair {
    /// A client that has connected and a server that listens, 5 ms apart.
    pub fn new(config: &Config, client: Settings, server: Settings) -> Pair {
        let now = Instant::from_millis(1_000_000);
        let end = |who: u64, settings: Settings| End {
            config: config.clone(),
            settings,
            open: Open {
                iss: Seq(0xffff_0000 + 7 * who as u32),
                timestamp_offset: 0xffff_ff00 + who as u32,
                mss: 1_460,
                default_mss: 536,
                receive_limit: 256 << 10,
            },
            limits: Limits {
                max_payload: 65_000,
            },
            half_open: None,
            connection: None,
            time_wait: None,
            listening: false,
            events: Events::empty(),
            read: 0,
            lazy: false,
            written: 0,
            closed: false,
            close_on_end: true,
            sent: Vec::new(),
            store: Store {
                other: 1 - who,
                ..Store::default()
            },
            last_error: None,
            final_state: None,
        };
        let mut pair = Pair {
            now,
            ends: [end(0, client), end(1, server)],
            delay: Duration::from_millis(5),
            wire: Box::new(|_| Fate::Deliver),
            queue: BinaryHeap::new(),
            flying: Vec::new(),
            serial: 0,
            rate: 0,
            patience: Duration::from_secs(3_600),
            free_at: [now, now],
        };
        pair.ends[SERVER].listening = true;
        pair
    }

    /// As [`Pair::new`], with defaults.
    pub fn with_defaults() -> Pair {
        Pair::new(&Config::default(), Settings::default(), Settings::default())
    }

    /// The client connects.
    pub fn connect(&mut self) {
        self.connect_from(CLIENT);
    }

    pub fn connect_from(&mut self, who: usize) {
        let end = &mut self.ends[who];
        end.connection = Some(Connection::connect(
            &end.config,
            &end.settings.into(),
            end.open,
            self.now,
        ));
        self.flush(who);
    }

    /// An end's program writes `len` bytes more.
    pub fn write(&mut self, who: usize, len: u64) {
        let end = &mut self.ends[who];
        end.written += len;
        if let Some(connection) = &mut end.connection {
            connection.enqueue(end.written, true);
        }
        self.flush(who);
    }

    pub fn close(&mut self, who: usize) {
        let end = &mut self.ends[who];
        end.closed = true;
        if let Some(connection) = &mut end.connection {
            connection.close(self.now);
        }
        self.flush(who);
    }

    pub fn shutdown(&mut self, who: usize) {
        if let Some(connection) = &mut self.ends[who].connection {
            connection.shutdown_write(self.now);
        }
        self.flush(who);
    }

    pub fn connection(&self, who: usize) -> &Connection {
        self.ends[who].connection.as_ref().expect("a connection")
    }

    pub fn state(&self, who: usize) -> State {
        let end = &self.ends[who];
        match (&end.connection, &end.half_open, &end.time_wait) {
            (Some(connection), ..) => connection.state(),
            (None, Some(_), _) => State::SynReceived,
            (None, None, Some(_)) => State::TimeWait,
            (None, None, None) => State::Closed,
        }
    }

    /// Runs until `done` holds. Returns `false` if `limit` passes first, or nothing more will
    /// happen.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Pair) -> bool) -> bool {
        let end = self.now + limit;
        while !done(self) {
            if !self.step(end) {
                return false;
            }
        }
        true
    }

    /// Lets time pass.
    pub fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
        self.now = end;
    }

    /// The next arrival or timer, if it comes by `end`.
    fn step(&mut self, end: Instant) -> bool {
        let arrival = self.queue.peek().map(|Reverse((at, ..))| *at);
        let timer = (0..2)
            .filter_map(|who| Some((self.deadline(who)?, who)))
            .min();
        match (arrival, timer) {
            (Some(at), timer) if at <= end && timer.is_none_or(|(due, _)| at <= due) => {
                self.now = self.now.max(at);
                // All packets that arrive at one end at one time are one batch.
                let mut touched = [false; 2];
                while let Some(Reverse((_, _, slot))) = self
                    .queue
                    .peek()
                    .copied()
                    .filter(|Reverse((next, ..))| *next == at)
                {
                    self.queue.pop();
                    let packet = self.flying[slot].take().expect("in flight");
                    touched[1 - packet.from] = true;
                    self.deliver(&packet);
                }
                for (who, _) in touched
                    .into_iter()
                    .enumerate()
                    .filter(|(_, touched)| *touched)
                {
                    self.flush(who);
                }
                true
            }
            (_, Some((due, who))) if due <= end => {
                self.now = self.now.max(due);
                self.on_timer(who);
                self.flush(who);
                true
            }
            _ => false,
        }
    }

    fn deadline(&self, who: usize) -> Option<Instant> {
        let end = &self.ends[who];
        let connection = end
            .connection
            .as_ref()
            .and_then(|connection| connection.deadline());
        let half_open = end.half_open.as_ref().map(|half_open| half_open.deadline());
        let time_wait = end.time_wait.as_ref().map(|time_wait| time_wait.deadline());
        [connection, half_open, time_wait]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_timer(&mut self, who: usize) {
        let now = self.now;
        let end = &mut self.ends[who];
        if let Some(connection) = end
            .connection
            .as_mut()
            .filter(|it| it.deadline().is_some_and(|at| at <= now))
        {
            connection.on_timer(&end.config, now);
        }
        if let Some(half_open) = &mut end.half_open {
            match half_open.on_timer(&end.config, now) {
                HalfOpenVerdict::Reply(reply) => self.put(who, &reply),
                HalfOpenVerdict::Drop => self.ends[who].half_open = None,
                _ => {}
            }
        }
        let end = &mut self.ends[who];
        if end
            .time_wait
            .as_ref()
            .is_some_and(|it| it.deadline() <= now)
        {
            end.time_wait = None;
        }
    }

    fn deliver(&mut self, packet: &Packet) {
        let who = 1 - packet.from;
        let now = self.now;
        let segment = Segment {
            src_port: 1,
            dst_port: 2,
            seq: packet.seq,
            ack: packet.ack,
            flags: packet.flags,
            window: packet.window,
            urgent: 0,
            marked: false,
            options: packet.options,
            payload: &packet.payload,
        };
        let end = &mut self.ends[who];
        end.store.limit = end.read + u64::from(end.open.receive_limit);
        if let Some(half_open) = &mut end.half_open {
            match half_open.on_segment(&end.config, &segment, now) {
                HalfOpenVerdict::Ignore => {}
                HalfOpenVerdict::Reply(reply) => self.put(who, &reply),
                HalfOpenVerdict::Drop => end.half_open = None,
                HalfOpenVerdict::Establish => {
                    let mut connection =
                        half_open.establish(&end.config, &end.settings.into(), now);
                    end.half_open = None;
                    connection.enqueue(end.written, true);
                    connection.on_segment(&end.config, &segment, &mut end.store, now);
                    end.connection = Some(connection);
                }
            }
        } else if let Some(connection) = &mut end.connection {
            connection.on_segment(&end.config, &segment, &mut end.store, now);
        } else if let Some(time_wait) = &mut end.time_wait {
            if let TimeWaitVerdict::Reply(reply) = time_wait.on_segment(&end.config, &segment, now)
            {
                self.put(who, &reply);
            }
        } else if end.listening
            && packet.flags & (Flags::SYN | Flags::ACK | Flags::RST | Flags::FIN) == Flags::SYN
        {
            let half_open = HalfOpen::new(&end.config, &end.settings, end.open, &segment, now);
            let reply = half_open.reply(now);
            end.half_open = Some(half_open);
            self.put(who, &reply);
        } else if let Some(reset) = refuse(&segment) {
            self.put(who, &reset);
        }
    }

    /// The program of an end acts, and segments that may leave do.
    fn flush(&mut self, who: usize) {
        let now = self.now;
        let end = &mut self.ends[who];
        let Some(connection) = &mut end.connection else {
            return;
        };
        let events = connection.take_events();
        end.events |= events;
        if !end.lazy && !end.closed && connection.received() > end.read {
            end.read = connection.received();
            connection.consumed(end.read, now);
        }
        if end.close_on_end && !end.closed && events.contains(Events::PEER_CLOSED) {
            end.closed = true;
            connection.close(now);
        }
        loop {
            let end = &mut self.ends[who];
            let Some(connection) = &mut end.connection else {
                return;
            };
            let Some(outgoing) = connection.poll_transmit(&end.config, &end.limits, now) else {
                break;
            };
            check(connection, &outgoing, now);
            self.put(who, &outgoing);
        }
        let end = &mut self.ends[who];
        let Some(connection) = &mut end.connection else {
            return;
        };
        let events = connection.take_events();
        end.events |= events;
        match connection.state() {
            State::TimeWait => {
                end.time_wait = connection.time_wait(&end.config, now);
                end.final_state = Some(State::TimeWait);
                end.read = end.read.max(connection.received());
                end.connection = None;
            }
            State::Closed => {
                end.last_error = connection.error();
                end.final_state = Some(State::Closed);
                end.connection = None;
            }
            _ => {}
        }
    }

    /// Puts a segment on the wire, cut as a NIC would cut it.
    fn put(&mut self, who: usize, outgoing: &Outgoing) {
        let mut at = outgoing.payload.start;
        loop {
            let to = outgoing
                .payload
                .end
                .min(at + u64::from(outgoing.segment_size));
            let last = to == outgoing.payload.end;
            let mut flags = outgoing.flags;
            if !last {
                flags.remove(Flags::FIN | Flags::PSH);
            }
            let packet = Packet {
                from: who,
                index: self.ends[who].sent.len(),
                seq: outgoing.seq + (at - outgoing.payload.start) as u32,
                ack: outgoing.ack,
                flags,
                window: outgoing.window,
                options: outgoing.options,
                payload: (at..to)
                    .map(|offset| stream_byte(who as u64, offset))
                    .collect(),
            };
            assert!(
                packet.payload.len() + option_len(&packet.options) <= 1_460,
                "larger than the link carries"
            );
            self.launch(&packet);
            at = to;
            if last {
                return;
            }
        }
    }

    fn launch(&mut self, packet: &Packet) {
        let who = packet.from;
        self.ends[who].sent.push(packet.clone());
        let fate = (self.wire)(packet);
        if fate == Fate::Drop {
            return;
        }
        if self.free_at[who] - self.now > self.patience {
            return;
        }
        let bits = (packet.payload.len() as u64 + 60) * 8;
        let leaves = match (bits * 1_000_000).checked_div(self.rate) {
            Some(micros) => self.now.max(self.free_at[who]) + Duration::from_micros(micros),
            None => self.now,
        };
        self.free_at[who] = leaves;
        let arrival = leaves + self.delay;
        let times = match fate {
            Fate::Deliver | Fate::Drop => vec![arrival],
            Fate::Delay(by) => vec![arrival + by],
            Fate::Twice(by) => vec![arrival, arrival + by],
        };
        for at in times {
            self.serial += 1;
            self.flying.push(Some(packet.clone()));
            self.queue
                .push(Reverse((at, self.serial, self.flying.len() - 1)));
        }
    }
}

fn option_len(options: &Options) -> usize {
    options.encoded_len()
}

/// The invariants after each transmission.
fn check(connection: &Connection, outgoing: &Outgoing, now: Instant) {
    let info = connection.info(now);
    assert!(outgoing.segment_size > 0);
    if outgoing.payload.start < outgoing.payload.end {
        assert!(
            outgoing.payload.end <= info.bytes_acked + u64::from(info.in_flight),
            "sent beyond SND.NXT"
        );
    }
    assert!(
        info.sacked + info.lost <= info.in_flight,
        "more marked than in flight"
    );
    assert!(info.retransmitted <= info.lost);
    assert!(
        connection.state() == State::Closed
            || info.in_flight == 0
            || connection.deadline().is_some(),
        "in flight without a timer"
    );
}
