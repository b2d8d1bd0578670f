//! What a stack answers, without what differs by chance.

use std::fmt;

use millrace_wire::tcp::{Flags, Segment, Seq};

/// What came of a script.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Outcome {
    /// What the stack sent after each step.
    pub answers: Vec<Vec<Answer>>,
    /// How its program's socket stands in the end.
    pub status: Status,
}

/// A segment of the stack's.
#[derive(Clone, PartialEq)]
pub struct Answer {
    /// Its flags but PSH, with which stacks may do as they like (RFC 9293 3.9.1).
    pub flags: Flags,
    /// Relative to the stack's first number.
    pub seq: i32,
    /// Relative to ours; of what acknowledges nothing, none.
    pub ack: Option<i32>,
    /// Bytes of payload.
    pub len: usize,
    /// Whether the window is open. How far is each stack's own affair. Of a reset it means nothing.
    pub open: bool,
    /// Whether there are an MSS, a window scale, leave to send SACK, and timestamps.
    pub options: [bool; 4],
    /// Of the timestamps, which value of ours is echoed, relative to the first.
    pub echo: Option<i32>,
    /// Relative to our first number.
    pub sack: Vec<(i32, i32)>,
}

/// How a socket stands.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Status {
    /// The state by its name; empty where the program has no connection.
    pub state: &'static str,
    /// Bytes that the program could read.
    pub read: usize,
    /// What came after them: `end`, `more` when there may be more, or an error's number.
    pub then: String,
}

impl Answer {
    pub(super) fn new(segment: &Segment<'_>, first: Seq, ours: Seq) -> Answer {
        let reset = segment.flags.contains(Flags::RST);
        let options = &segment.options;
        let has_ack = segment.flags.contains(Flags::ACK);
        let sack = options.sack.iter();
        Answer {
            flags: segment.flags - Flags::PSH,
            seq: segment.seq - first,
            ack: has_ack.then(|| segment.ack - ours),
            len: segment.payload.len(),
            open: !reset && segment.window > 0,
            options: [
                options.mss.is_some(),
                options.window_scale.is_some(),
                options.sack_permitted,
                options.timestamps.is_some(),
            ],
            echo: options
                .timestamps
                .filter(|timestamps| !reset && timestamps.echo != 0)
                .map(|timestamps| timestamps.echo.wrapping_sub(ours.0) as i32),
            sack: sack
                .map(|(start, end)| (start - ours, end - ours))
                .collect(),
        }
    }
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} seq {}", self.flags, self.seq)?;
        if let Some(ack) = self.ack {
            write!(f, " ack {ack}")?;
        }
        if self.len > 0 {
            write!(f, " len {}", self.len)?;
        }
        if !self.open && !self.flags.contains(Flags::RST) {
            f.write_str(" window 0")?;
        }
        for (name, _) in ["mss", "scale", "sackok", "ts"]
            .iter()
            .zip(self.options)
            .filter(|(_, there)| *there)
        {
            write!(f, " {name}")?;
        }
        if let Some(echo) = self.echo {
            write!(f, " echo {echo}")?;
        }
        for (start, end) in &self.sack {
            write!(f, " sack {start}-{end}")?;
        }
        Ok(())
    }
}
