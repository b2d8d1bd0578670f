//! Segments in the notation of tcpdump and packetdrill: `P. 1:101(100) ack 1 win 500 sack 201:301`.
//!
//! Numbers are relative to the initial sequence numbers: SYN is 0, the first byte of payload 1.
//! Flags are `S`, `F`, `R`, `P`, `U`, `E` (ECE), `C` (CWR) and `.` for ACK; `-` for none at all.

use millrace_tcp::Outgoing;
use millrace_wire::tcp::{Flags, Seq};

/// The fields of a line; `None` for one that the line leaves out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    pub flags: Flags,
    pub start: i64,
    pub len: u64,
    pub ack: Option<i64>,
    pub window: Option<u16>,
    pub mss: Option<u16>,
    pub scale: Option<u8>,
    pub sack_permitted: bool,
    /// TSval and TSecr.
    pub timestamps: Option<(u32, u32)>,
    pub no_timestamps: bool,
    pub sack: Option<Vec<(i64, i64)>>,
    /// `ce`: the network has marked the segment.
    pub marked: bool,
    /// The urgent pointer.
    pub urgent: Option<u16>,
}

impl Line {
    pub fn parse(text: &str) -> Line {
        let mut words = text.split_whitespace().peekable();
        let mut line = Line {
            flags: flags(words.next().expect("flags")),
            ..Line::default()
        };
        let range = words.next().expect("a range");
        let (numbers, len) = range.split_once('(').expect("start:end(len)");
        line.start = number(numbers.split_once(':').expect("start:end").0);
        line.len = len.trim_end_matches(')').parse().expect("a length");
        assert_eq!(
            number(numbers.split_once(':').expect("start:end").1) - line.start,
            line.len as i64,
            "{text}"
        );
        while let Some(word) = words.next() {
            let mut value = || words.next().expect("a value");
            match word {
                "ack" => line.ack = Some(number(value())),
                "win" => line.window = Some(value().parse().expect("a window")),
                "ce" => line.marked = true,
                "urg" => line.urgent = Some(value().parse().expect("a pointer")),
                "mss" => line.mss = Some(value().parse().expect("a size")),
                "wscale" => line.scale = Some(value().parse().expect("a shift")),
                "sackOK" => line.sack_permitted = true,
                "nots" => line.no_timestamps = true,
                "ts" => {
                    let (stamp, echo) = value().split_once(':').expect("value:echo");
                    line.timestamps = Some((
                        stamp.parse().expect("a stamp"),
                        echo.parse().expect("an echo"),
                    ));
                }
                "sack" => {
                    let mut blocks = Vec::new();
                    while let Some((start, end)) =
                        words.peek().and_then(|word| word.split_once(':'))
                    {
                        blocks.push((number(start), number(end)));
                        words.next();
                    }
                    line.sack = Some(blocks);
                }
                _ => panic!("{word}? in {text}"),
            }
        }
        line
    }

    /// The line for a segment of ours; `iss` is our initial sequence number, `irs` the peer's.
    pub fn of(outgoing: &Outgoing, iss: Seq, irs: Seq) -> Line {
        let options = &outgoing.options;
        let relative = |seq: Seq, base: Seq| i64::from(seq - base);
        Line {
            flags: outgoing.flags,
            start: relative(outgoing.seq, iss),
            len: outgoing.payload.end - outgoing.payload.start,
            ack: outgoing
                .flags
                .contains(Flags::ACK)
                .then(|| relative(outgoing.ack, irs)),
            window: Some(outgoing.window),
            mss: options.mss,
            scale: options.window_scale,
            sack_permitted: options.sack_permitted,
            timestamps: options.timestamps.map(|stamps| (stamps.value, stamps.echo)),
            no_timestamps: options.timestamps.is_none(),
            urgent: Some(outgoing.urgent),
            marked: outgoing.may_mark,
            sack: Some(
                options
                    .sack
                    .iter()
                    .map(|(start, end)| (relative(start, irs), relative(end, irs)))
                    .collect(),
            ),
        }
    }

    /// Whether `actual` matches this line. A field that the line leaves out may have any value, but
    /// SACK blocks are always compared.
    pub fn admits(&self, actual: &Line) -> bool {
        fn agrees<T: PartialEq>(wanted: &Option<T>, actual: &Option<T>) -> bool {
            wanted.is_none() || wanted == actual
        }
        self.flags == actual.flags
            && self.start == actual.start
            && self.len == actual.len
            && agrees(&self.ack, &actual.ack)
            && agrees(&self.window, &actual.window)
            && agrees(&self.urgent, &actual.urgent)
            && agrees(&self.mss, &actual.mss)
            && agrees(&self.scale, &actual.scale)
            && agrees(&self.timestamps, &actual.timestamps)
            && (!self.sack_permitted || actual.sack_permitted)
            && (!self.no_timestamps || actual.no_timestamps)
            && self.sack.clone().unwrap_or_default() == actual.sack.clone().unwrap_or_default()
    }
}

impl std::fmt::Display for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (flag, letter) in LETTERS {
            if self.flags.contains(flag) {
                write!(f, "{letter}")?;
            }
        }
        write!(
            f,
            " {}:{}({})",
            self.start,
            self.start + self.len as i64,
            self.len
        )?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if let Some(window) = self.window {
            write!(f, " win {window}")?;
        }
        if let Some((stamp, echo)) = self.timestamps {
            write!(f, " ts {stamp}:{echo}")?;
        }
        if let Some(blocks) = self.sack.as_ref().filter(|blocks| !blocks.is_empty()) {
            write!(f, " sack")?;
            for (start, end) in blocks {
                write!(f, " {start}:{end}")?;
            }
        }
        Ok(())
    }
}

const LETTERS: [(Flags, char); 8] = [
    (Flags::SYN, 'S'),
    (Flags::FIN, 'F'),
    (Flags::RST, 'R'),
    (Flags::PSH, 'P'),
    (Flags::URG, 'U'),
    (Flags::ECE, 'E'),
    (Flags::CWR, 'C'),
    (Flags::ACK, '.'),
];

fn flags(text: &str) -> Flags {
    text.chars()
        .filter(|&letter| letter != '-')
        .fold(Flags::empty(), |flags, letter| {
            let known = LETTERS.iter().find(|(_, l)| *l == letter);
            flags | known.unwrap_or_else(|| panic!("flag {letter}?")).0
        })
}

fn number(text: &str) -> i64 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text} is no number"))
}
