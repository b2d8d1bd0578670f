//! What is sent and done, and how a stack is taken through it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use millrace_wire::checksum::{Sum, pseudo_v4};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Header, Segment, Seq, Timestamps};
use std::net::Ipv4Addr;

use super::answer::{Answer, Outcome, Status};

/// Our first sequence number, and the first value of our timestamps.
const FIRST: u32 = 50_000;
/// The stack's port of the first script, and ours.
const PORTS: (u16, u16) = (10_000, 30_000);

/// A place among sequence numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum At {
    /// So far from what comes next.
    Next(i32),
    /// So far from the right edge of the windows that the stack has announced.
    Edge(i32),
}

/// A segment to the stack.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Send {
    /// Its flags.
    pub flags: Flags,
    /// Its sequence number.
    pub seq: At,
    /// Its acknowledgement, relative to all that the stack has sent.
    pub ack: i32,
    /// Bytes of payload.
    pub len: usize,
    /// Its window.
    pub window: u16,
    /// Its urgent pointer.
    pub urgent: u16,
    /// Options as they stand in the header, instead of those of the connection.
    pub options: Option<&'static [u8]>,
    /// What is added to the timestamp, where the connection has timestamps.
    pub clock: i32,
    /// Whether its checksum is wrong.
    pub damaged: bool,
}

impl Send {
    /// A segment without payload, in order, that acknowledges all.
    pub fn new(flags: Flags) -> Send {
        Send {
            flags,
            seq: At::Next(0),
            ack: 0,
            len: 0,
            window: 10_000,
            urgent: 0,
            options: None,
            clock: 1,
            damaged: false,
        }
    }
}

/// What the program does.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Do {
    /// Makes a listener.
    Listen,
    /// Takes the connection from it.
    Accept,
    /// Connects to us.
    Connect,
    /// Writes so many bytes.
    Write(usize),
    /// Reads all there is.
    Read,
    /// Shuts its side for writing.
    Shutdown,
    /// Closes the connection.
    Close,
}

/// One step of a script.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// The program's turn.
    Do(Do),
    /// Ours.
    Send(Send),
}

/// A conversation.
#[derive(Clone, PartialEq, Debug)]
pub struct Script {
    /// What it is called: state, and what is sent then.
    pub name: String,
    /// Whether both offer timestamps.
    pub timestamps: bool,
    /// What happens.
    pub steps: Vec<Step>,
}

/// A stack under test. Scripts are told apart by their numbers.
pub trait Subject {
    /// The link-layer and network addresses of the stack, and ours.
    fn ends(&self) -> [(Mac, Ipv4Addr); 2];
    /// The program of a script does something; `local` and `remote` are the ports.
    ///
    /// # Errors
    /// When the harness fails; not when the stack refuses.
    fn act(&mut self, script: usize, local: u16, remote: u16, act: Do) -> Result<()>;
    /// A frame to the stack.
    ///
    /// # Errors
    /// When the link fails.
    fn hear(&mut self, frame: &[u8]) -> Result<()>;
    /// Lets time pass, long enough for an acknowledgement that was put off, too short for a
    /// retransmission; what the stack sent.
    ///
    /// # Errors
    /// When the link fails.
    fn pause(&mut self) -> Result<Vec<Vec<u8>>>;
    /// How the program's socket stands. Reads what there is.
    fn status(&mut self, script: usize) -> Status;
}

/// What is known of a connection while a script runs.
struct Talk {
    /// What we send next; the stack's first number, the next after all that it sent, and the right
    /// edge of its window.
    next: Seq,
    first: Option<Seq>,
    theirs: Seq,
    edge: Seq,
    scale: u8,
    local: u16,
    clock: u32,
    echo: u32,
    /// Where and how long what it sent was, of what takes numbers.
    sent: BTreeSet<(i32, usize)>,
    outcome: Outcome,
}

/// Takes a stack through all scripts at once, step by step.
///
/// # Errors
/// Those of the harness.
pub fn run(subject: &mut impl Subject, scripts: &[Script]) -> Result<Vec<Outcome>> {
    let mut talks: Vec<Talk> = (0..scripts.len())
        .map(|number| Talk {
            next: Seq(FIRST),
            first: None,
            theirs: Seq(0),
            edge: Seq(FIRST),
            scale: 0,
            local: PORTS.0 + number as u16,
            clock: FIRST,
            echo: 0,
            sent: BTreeSet::new(),
            outcome: Outcome::default(),
        })
        .collect();
    let by_port: BTreeMap<u16, usize> = (0..scripts.len())
        .map(|number| (PORTS.1 + number as u16, number))
        .collect();
    let longest = scripts.iter().map(|script| script.steps.len()).max();
    for index in 0..longest.unwrap_or(0) {
        for (number, script) in scripts.iter().enumerate() {
            let (talk, remote) = (&mut talks[number], PORTS.1 + number as u16);
            match script.steps.get(index) {
                Some(Step::Do(act)) => subject.act(number, talk.local, remote, *act)?,
                Some(Step::Send(send)) => {
                    let frame = talk.frame(script, send, remote, subject.ends());
                    subject.hear(&frame)?;
                }
                None => continue,
            }
            talk.outcome.answers.push(Vec::new());
        }
        for frame in subject.pause()? {
            let Some((_, packet)) = ethernet::Header::parse(&frame).ok() else {
                continue;
            };
            if let Ok((header, _, payload)) = ipv4::Header::parse(packet)
                && header.protocol == tcp::PROTOCOL
                && let Ok(segment) = Segment::parse(payload)
                && let Some(&number) = by_port.get(&segment.dst_port)
            {
                talks[number].hear(&segment);
            }
        }
    }
    let status = |(number, mut talk): (usize, Talk)| {
        talk.outcome.status = subject.status(number);
        talk.outcome
    };
    Ok(talks.into_iter().enumerate().map(status).collect())
}

impl Talk {
    /// The frame of a segment of ours.
    fn frame(
        &mut self,
        script: &Script,
        send: &Send,
        remote: u16,
        [to, from]: [(Mac, Ipv4Addr); 2],
    ) -> Vec<u8> {
        let base = match send.seq {
            At::Next(_) => self.next,
            At::Edge(_) => self.edge,
        };
        let (At::Next(offset) | At::Edge(offset)) = send.seq;
        let is_syn = send.flags.contains(Flags::SYN);
        let mut options = tcp::Options::default();
        if is_syn {
            options.mss = Some(1_000);
            options.window_scale = Some(0);
            options.sack_permitted = true;
        }
        if script.timestamps {
            self.clock = self.clock.wrapping_add_signed(send.clock.max(0));
            options.timestamps = Some(Timestamps {
                value: self.clock.wrapping_add_signed(send.clock.min(0)),
                echo: self.echo,
            });
        }
        let is_ack = send.flags.contains(Flags::ACK);
        let header = Header {
            src_port: remote,
            dst_port: self.local,
            seq: Seq(base.0.wrapping_add_signed(offset)),
            ack: match is_ack {
                true => Seq(self.theirs.0.wrapping_add_signed(send.ack)),
                false => Seq(0),
            },
            flags: send.flags,
            window: send.window,
            urgent: send.urgent,
            options,
        };
        let mut segment = vec![0; header.header_len()];
        header.emit(&mut segment);
        if let Some(options) = send.options {
            segment.truncate(tcp::HEADER_LEN);
            segment.extend_from_slice(options);
            segment[12] = ((segment.len() / 4) as u8) << 4;
        }
        segment.resize(segment.len() + send.len, b'x');
        let sum = pseudo_v4(from.1, to.1, tcp::PROTOCOL, segment.len() as u16) + Sum::of(&segment);
        let checksum = sum.finish() ^ u16::from(send.damaged);
        segment[tcp::CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
        // What came in order moves on what comes next; whether the stack took it is its own affair.
        if send.seq == At::Next(0) && !send.flags.contains(Flags::RST) && !send.damaged {
            let fin = send.flags.contains(Flags::FIN);
            self.next += send.len as u32 + u32::from(is_syn) + u32::from(fin);
        }

        let mut frame = vec![0; ethernet::HEADER_LEN + ipv4::HEADER_LEN];
        ethernet::Header {
            dst: to.0,
            src: from.0,
            ethertype: EtherType::IPV4,
        }
        .emit(&mut frame);
        ipv4::Header::new(from.1, to.1, tcp::PROTOCOL, segment.len() as u16)
            .emit(&mut frame[ethernet::HEADER_LEN..]);
        frame.extend_from_slice(&segment);
        frame
    }

    /// A segment of the stack's.
    fn hear(&mut self, segment: &Segment<'_>) {
        let (is_syn, is_ack) = (
            segment.flags.contains(Flags::SYN),
            segment.flags.contains(Flags::ACK),
        );
        // A reset that is no part of a connection has the number that we gave it.
        let first = match self.first {
            None if !is_syn => segment.seq,
            None => *self.first.insert(segment.seq),
            Some(first) => first,
        };
        self.local = segment.src_port;
        if is_syn {
            self.scale = segment.options.window_scale.unwrap_or(0);
        }
        let end = segment.seq + segment.sequence_len();
        let is_reset = segment.flags.contains(Flags::RST);
        if self.first.is_some() && !is_reset && (is_syn || end.after(self.theirs)) {
            self.theirs = end;
        }
        if is_ack {
            let scale = if is_syn { 0 } else { self.scale };
            // It does not come back when a scaled window is rounded down.
            let edge = segment.ack + (u32::from(segment.window) << scale);
            self.edge = if edge.after(self.edge) {
                edge
            } else {
                self.edge
            };
        }
        if let Some(timestamps) = segment.options.timestamps {
            self.echo = timestamps.value;
        }
        let mut answer = Answer::new(segment, first, Seq(FIRST));
        if is_reset && self.first.is_some() {
            // The number makes a reset of a connection believed; whether it acknowledges besides is
            // all one.
            answer.flags.remove(Flags::ACK);
            (answer.ack, answer.options) = (None, [false; 4]);
        }
        // What was not acknowledged is sent again; when is another matter.
        let takes_numbers = segment.sequence_len() > 0 && segment.flags != Flags::SYN | Flags::ACK;
        let is_again = takes_numbers && !self.sent.insert((answer.seq, answer.len));
        if let Some(answers) = self.outcome.answers.last_mut()
            && !is_again
            && !answers.contains(&answer)
        {
            answers.push(answer);
        }
    }
}
