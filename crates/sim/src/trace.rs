//! What was on the links lately, for whoever must find out what went wrong.

use std::collections::VecDeque;
use std::fmt;

use millrace_tcp::Instant;
use millrace_wire::ethernet::{EtherType, HEADER_LEN, Header as Ethernet};
use millrace_wire::tcp::Segment;
use millrace_wire::{arp, icmpv4, ipv4, tcp};

use crate::end::End;
use crate::link::Fate;
use crate::rng::mix;

/// How many frames are remembered.
const LINES: usize = 400;
/// How many bytes of each: all headers.
const HEAD: usize = 96;

/// The latest frames, and a digest of all.
pub struct Trace {
    lines: VecDeque<Line>,
    digest: u64,
}

struct Line {
    at: Instant,
    from: End,
    fate: Fate,
    len: usize,
    head: [u8; HEAD],
}

impl Trace {
    pub(crate) fn new() -> Trace {
        Trace {
            lines: VecDeque::with_capacity(LINES),
            digest: 0,
        }
    }

    pub(crate) fn record(&mut self, at: Instant, from: End, frame: &[u8], fate: Fate) {
        let mut head = [0; HEAD];
        let kept = frame.len().min(HEAD);
        head[..kept].copy_from_slice(&frame[..kept]);
        self.digest = mix(self.digest ^ at.as_micros());
        for word in head.as_chunks::<8>().0 {
            self.digest = mix(self.digest ^ u64::from_le_bytes(*word));
        }
        if self.lines.len() == LINES {
            self.lines.pop_front();
        }
        self.lines.push_back(Line {
            at,
            from,
            fate,
            len: frame.len(),
            head,
        });
    }

    pub(crate) fn digest(&self) -> u64 {
        self.digest
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.at.as_micros();
        write!(f, "{:5}.{:06} ", micros / 1_000_000, micros % 1_000_000)?;
        match self.from {
            End::Host(host) => write!(f, "host {host} ")?,
            End::Station(station) => write!(f, "station {station} ")?,
        }
        match self.fate {
            Fate::Lost => f.write_str("LOST      ")?,
            Fate::Overflowed => f.write_str("OVERFLOW  ")?,
            Fate::Arrives {
                at, again, corrupt, ..
            } => {
                let mark = if corrupt {
                    '!'
                } else if again.is_some() {
                    '2'
                } else {
                    ' '
                };
                write!(f, "+{:<7}{mark} ", (at - self.at).as_micros())?;
            }
        }
        self.write_frame(f)
    }
}

impl Line {
    fn write_frame(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = &self.head[..self.len.min(HEAD)];
        let Ok((link, rest)) = Ethernet::parse(bytes) else {
            return write!(f, "{} bytes", self.len);
        };
        if link.ethertype == EtherType::ARP
            && let Ok(packet) = arp::Packet::parse(rest)
        {
            return write!(
                f,
                "ARP {} {} > {}",
                packet.operation.0, packet.sender_ip, packet.target_ip
            );
        }
        // The frame is cut short here, so that its header is read as if it were quoted.
        let Ok(quoted) = icmpv4::Quoted::parse(rest) else {
            return write!(f, "{} bytes: {rest:02x?}", self.len);
        };
        let parsed = Segment::parse(quoted.payload);
        let (tcp::PROTOCOL, Ok(segment)) = (quoted.protocol, parsed) else {
            return write!(
                f,
                "{} > {} protocol {}",
                quoted.src, quoted.dst, quoted.protocol
            );
        };
        let header_len =
            HEADER_LEN + ipv4::HEADER_LEN + quoted.payload.len() - segment.payload.len();
        write!(
            f,
            "{}:{} > {}:{} {:?} seq {} ack {} len {} win {}",
            quoted.src,
            segment.src_port,
            quoted.dst,
            segment.dst_port,
            segment.flags,
            segment.seq.0,
            segment.ack.0,
            self.len.saturating_sub(header_len),
            segment.window,
        )?;
        if let Some(mss) = segment.options.mss {
            write!(
                f,
                " mss {mss} scale {:?} sackok {}",
                segment.options.window_scale, segment.options.sack_permitted
            )?;
        }
        if let Some(timestamps) = segment.options.timestamps {
            write!(f, " ts {}/{}", timestamps.value, timestamps.echo)?;
        }
        for (start, end) in segment.options.sack.iter() {
            write!(f, " sack {}-{}", start.0, end.0)?;
        }
        Ok(())
    }
}
