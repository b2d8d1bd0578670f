//! One connection, and a peer that a script plays line by line.

use millrace_tcp::{
    Algorithm, Config, Connection, Duration, Events, HalfOpen, HalfOpenVerdict, IcmpError, Instant,
    Limits, MtuProbing, Open, Outgoing, ReceiveBuffer, Settings, State,
};
use millrace_wire::tcp::{Options, Segment, Seq, Timestamps};

use super::notation::Line;

/// The peer's timestamp clock when the script begins.
pub const PEER_CLOCK: u32 = 700_000;
/// The peer's window unless a line says otherwise.
pub const PEER_WINDOW: u16 = 60_000;

/// Received bytes; each may be written once.
#[derive(Default)]
pub struct Received {
    pub bytes: Vec<Option<u8>>,
    pub full: bool,
}

impl ReceiveBuffer for Received {
    fn store(&mut self, offset: u64, data: &[u8]) -> bool {
        if self.full {
            return false;
        }
        let (from, to) = (offset as usize, offset as usize + data.len());
        if self.bytes.len() < to {
            self.bytes.resize(to, None);
        }
        for (place, byte) in self.bytes[from..to].iter_mut().zip(data) {
            assert!(place.is_none(), "a byte was stored twice");
            *place = Some(*byte);
        }
        true
    }

    fn forget_beyond(&mut self, next: u64, _: u64) {
        self.bytes.truncate(next as usize);
    }
}

/// A connection under a script.
pub struct Script {
    pub config: Config,
    pub connection: Connection,
    pub received: Received,
    pub now: Instant,
    pub limits: Limits,
    pub iss: Seq,
    pub irs: Seq,
    /// TSval of the last segment that we sent, which the peer echoes.
    echo: u32,
    timestamps: bool,
    /// How far the peer's clock is set back.
    pub peer_clock_back: u32,
    /// The value of the next payload bytes; `None`: the low byte of their number.
    pub fill: Option<u8>,
}

/// Socket options with TCP_NODELAY.
pub const NODELAY: Settings = Settings {
    nodelay: true,
    ..Settings::UNSET
};

pub fn open() -> Open {
    Open {
        iss: Seq(0xffff_ff00),
        timestamp_offset: 12_345,
        mss: 1_460,
        default_mss: 536,
        receive_limit: 65_535,
    }
}

impl Script {
    /// After `connect`; nothing was sent.
    pub fn connecting(config: Config, settings: Settings) -> Script {
        let now = Instant::from_millis(1_000_000);
        let connection = Connection::connect(&config, &settings.into(), open(), now);
        Script::new(config, connection, now)
    }

    /// An active open that is complete, with these options on the peer's SYN-ACK.
    pub fn active(config: Config, mut settings: Settings, syn_ack_options: &str) -> Script {
        // The windows are easy to compute with.
        settings.congestion.get_or_insert(Algorithm::NewReno);
        let mut script = Script::connecting(config, settings);
        script.expect("S 0:0(0)");
        script.pass(Duration::from_millis(10));
        script.inject(&format!(
            "S. 0:0(0) ack 1 win {PEER_WINDOW} {syn_ack_options}"
        ));
        script.expect(". 1:1(0) ack 1");
        assert_eq!(script.connection.take_events(), Events::ESTABLISHED);
        script
    }

    /// A connection in ESTABLISHED without timestamps or window scaling, with SACK; MSS 1,000;
    /// round trip 10 ms.
    pub fn established() -> Script {
        Script::active(base_config(), Settings::default(), "mss 1000 sackOK")
    }

    /// As [`Script::established`], with these socket options.
    pub fn with(settings: Settings) -> Script {
        Script::active(base_config(), settings, "mss 1000 sackOK")
    }

    /// As [`Script::established`], after the segments that are acknowledged one by one.
    pub fn past_quickack() -> Script {
        let config = Config {
            quick_ack_segments: 0,
            ..base_config()
        };
        Script::active(config, Settings::default(), "mss 1000 sackOK")
    }

    /// Sends `count` segments of 1,000 bytes, and lets a round trip pass.
    pub fn send_flight(mut self, count: usize) -> Script {
        self.write(count as u64 * 1_000);
        assert_eq!(self.drain().len(), count);
        self.pass(Duration::from_millis(10));
        self
    }

    /// As [`Script::established`], without SACK.
    pub fn without_sack() -> Script {
        Script::active(
            base_config(),
            Settings {
                nodelay: true,
                ..Settings::default()
            },
            "mss 1000",
        )
    }

    /// As [`Script::established`], with timestamps.
    pub fn with_timestamps() -> Script {
        Script::active(
            Config {
                timestamps: true,
                ..base_config()
            },
            Settings {
                nodelay: true,
                ..Settings::default()
            },
            "mss 1012 sackOK",
        )
    }

    /// After a passive open with these options on the peer's SYN.
    pub fn passive(config: Config, settings: Settings, syn_options: &str) -> Script {
        let now = Instant::from_millis(1_000_000);
        let line = Line::parse(&format!("S 0:0(0) win {PEER_WINDOW} {syn_options}"));
        let irs = Seq(5_000);
        let stamps = config.timestamps.then_some(Timestamps {
            value: PEER_CLOCK,
            echo: 0,
        });
        let syn = segment(&line, open().iss, irs, stamps, &[]);
        let mut half_open = HalfOpen::new(&config, &settings, open(), &syn, now);
        let now = now + Duration::from_millis(10);
        let ack = Line::parse(&format!(". 1:1(0) ack 1 win {PEER_WINDOW}"));
        let ack = segment(&ack, open().iss, irs, stamps, &[]);
        assert_eq!(
            half_open.on_segment(&config, &ack, now),
            HalfOpenVerdict::Establish
        );
        let connection = half_open.establish(&config, &settings.into(), now);
        let mut script = Script::new(config, connection, now);
        script.timestamps = script.config.timestamps;
        script.inject(&format!(". 1:1(0) ack 1 win {PEER_WINDOW}"));
        assert_eq!(script.state(), State::Established);
        script
    }

    fn new(config: Config, connection: Connection, now: Instant) -> Script {
        Script {
            timestamps: config.timestamps,
            config,
            connection,
            received: Received::default(),
            now,
            limits: Limits { max_payload: 1 },
            iss: open().iss,
            irs: Seq(5_000),
            echo: 0,
            peer_clock_back: 0,
            fill: None,
        }
    }

    /// Lets time pass. Timers run as they fall due; what they send is left for the next
    /// expectation.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        while let Some(deadline) = self.connection.deadline().filter(|&at| at <= end) {
            self.now = self.now.max(deadline);
            self.connection.on_timer(&self.config, self.now);
            if self.connection.deadline() == Some(deadline) {
                break;
            }
        }
        self.now = end;
    }

    /// Advances to the next timer and runs it. Returns how long that took.
    pub fn tick(&mut self) -> Duration {
        let deadline = self.connection.deadline().expect("a timer runs");
        let waited = deadline - self.now;
        self.now = self.now.max(deadline);
        self.connection.on_timer(&self.config, self.now);
        waited
    }

    /// A segment of the peer arrives.
    pub fn inject(&mut self, text: &str) {
        let line = Line::parse(text);
        let value = (PEER_CLOCK + (self.now - Instant::from_millis(1_000_000)).as_millis() as u32)
            - self.peer_clock_back;
        let stamps = Timestamps {
            value,
            echo: self.echo,
        };
        let stamps = (self.timestamps && !line.no_timestamps).then_some(stamps);
        let payload: Vec<u8> = (0..line.len)
            .map(|i| {
                self.fill
                    .unwrap_or((line.start as u64).wrapping_add(i) as u8)
            })
            .collect();
        let segment = segment(&line, self.iss, self.irs, stamps, &payload);
        self.connection
            .on_segment(&self.config, &segment, &mut self.received, self.now);
    }

    pub fn poll(&mut self) -> Option<Outgoing> {
        // The fast path first, as owners do. `pair` takes the general path alone, and both must
        // agree.
        let fast = self.connection.poll_transmit_fast(&self.config, self.now);
        let outgoing = fast.map(Outgoing::from).or_else(|| {
            self.connection
                .poll_transmit(&self.config, &self.limits, self.now)
        });
        if let Some(stamps) = outgoing
            .as_ref()
            .and_then(|outgoing| outgoing.options.timestamps)
        {
            self.echo = stamps.value;
        }
        outgoing
    }

    /// The next segment matches this line.
    pub fn expect(&mut self, text: &str) {
        let wanted = Line::parse(text);
        let Some(outgoing) = self.poll() else {
            panic!("nothing is sent; wanted {wanted}")
        };
        let actual = Line::of(&outgoing, self.iss, self.irs);
        assert!(wanted.admits(&actual), "sent   {actual}\nwanted {wanted}");
    }

    /// Nothing is sent now.
    pub fn silent(&mut self) {
        if let Some(outgoing) = self.poll() {
            panic!("sent {}", Line::of(&outgoing, self.iss, self.irs));
        }
    }

    /// Everything that is sent now, as text.
    pub fn drain(&mut self) -> Vec<String> {
        let (iss, irs) = (self.iss, self.irs);
        std::iter::from_fn(|| self.poll())
            .map(|outgoing| Line::of(&outgoing, iss, irs).to_string())
            .collect()
    }

    /// The program writes `len` bytes more.
    pub fn write(&mut self, len: u64) {
        let end = self.queued() + len;
        self.connection.enqueue(end, true);
    }

    fn queued(&self) -> u64 {
        let info = self.connection.info(self.now);
        info.unsent + info.bytes_acked + u64::from(info.in_flight)
    }

    /// The program reads all there is.
    pub fn read(&mut self) -> Vec<u8> {
        let upto = self.connection.received();
        self.connection.consumed(upto, self.now);
        self.text()
    }

    /// All bytes received in order so far.
    pub fn text(&self) -> Vec<u8> {
        let upto = self.connection.received() as usize;
        self.received.bytes[..upto]
            .iter()
            .map(|byte| byte.expect("received means stored"))
            .collect()
    }

    pub fn state(&self) -> State {
        self.connection.state()
    }

    pub fn events(&mut self) -> Events {
        self.connection.take_events()
    }

    pub fn icmp(&mut self, error: IcmpError, quoted: i64) {
        let quoted = Seq(self.iss.0.wrapping_add(quoted as u32));
        self.connection
            .on_icmp(&self.config, error, quoted, self.now);
    }
}

/// The engine's defaults without timestamps and window scaling, which only lengthen the lines, and
/// with segments of one size.
pub fn base_config() -> Config {
    Config {
        mtu_probing: MtuProbing::Off,
        timestamps: false,
        window_scaling: false,
        ..Config::default()
    }
}

fn segment<'a>(
    line: &Line,
    iss: Seq,
    irs: Seq,
    stamps: Option<Timestamps>,
    payload: &'a [u8],
) -> Segment<'a> {
    let at = |base: Seq, number: i64| Seq(base.0.wrapping_add(number as u32));
    let mut options = Options {
        mss: line.mss,
        window_scale: line.scale,
        sack_permitted: line.sack_permitted,
        timestamps: line
            .timestamps
            .map(|(value, echo)| Timestamps { value, echo })
            .or(stamps),
        ..Options::default()
    };
    for &(start, end) in line.sack.iter().flatten() {
        options.sack.push(at(iss, start), at(iss, end));
    }
    Segment {
        src_port: 80,
        dst_port: 40_000,
        seq: at(irs, line.start),
        ack: line.ack.map_or(Seq(0), |ack| at(iss, ack)),
        flags: line.flags,
        window: line.window.unwrap_or(PEER_WINDOW),
        urgent: line.urgent.unwrap_or(0),
        marked: line.marked,
        options,
        payload,
    }
}
