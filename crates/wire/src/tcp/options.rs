//! TCP options (RFC 9293 section 3.2, RFC 7323, RFC 2018).

use super::Seq;
use crate::bytes::{get16, get32, put16, put32};

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;
const FAST_OPEN: u8 = 34;

/// Space for options in a header, in bytes.
const SPACE: usize = 40;
/// Two NOPs, kind and length of a timestamps option: how almost every segment of a connection with
/// timestamps begins (RFC 7323, appendix A).
const ALIGNED_TIMESTAMPS: [u8; 4] = [NOP, NOP, TIMESTAMPS, 10];
const ALIGNED_TIMESTAMPS_LEN: usize = 12;

/// The largest shift of a window; more is taken as this (RFC 7323 section 2.3).
const WINDOW_SCALE_MAX: u8 = 14;

/// The timestamps option (RFC 7323 section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: the sender's clock.
    pub value: u32,
    /// TSecr: the peer's clock, as last seen; significant with ACK.
    pub echo: u32,
}

/// Blocks of a SACK option: first sequence number, and the one after the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    len: u8,
    /// SYN alone has a cookie, and no blocks: its length, plus 1, in whose place the cookie then
    /// is.
    cookie: u8,
    blocks: [(Seq, Seq); 4],
}

/// The cookie of TCP Fast Open (RFC 7413 2): 4 to 16 bytes, or none, which asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    len: u8,
    bytes: [u8; 16],
}

impl Cookie {
    /// Asks for a cookie.
    pub const REQUEST: Cookie = Cookie {
        len: 0,
        bytes: [0; 16],
    };

    /// A cookie of these bytes; `None` for a length that no cookie has: 4 to 16, and even.
    pub fn new(bytes: &[u8]) -> Option<Cookie> {
        let good = (4..=16).contains(&bytes.len()) && bytes.len().is_multiple_of(2);
        let mut cookie = Cookie::REQUEST;
        cookie.len = bytes.len() as u8;
        good.then(|| {
            cookie.bytes[..bytes.len()].copy_from_slice(bytes);
            cookie
        })
    }

    /// Its bytes; none for a request.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Whether it is one, and not a request for one.
    pub fn is_some(&self) -> bool {
        self.len > 0
    }
}

impl SackBlocks {
    /// The blocks in the order of the option. What they say is not checked.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Seq, Seq)> + '_ {
        self.as_slice().iter().copied()
    }

    /// Appends a block; `false` when there is no room, which four blocks leave.
    pub fn push(&mut self, start: Seq, end: Seq) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.len)) else {
            return false;
        };
        *free = (start, end);
        self.len += 1;
        true
    }

    /// How many blocks there are, 0 to 4.
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether there is no block.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn as_slice(&self) -> &[(Seq, Seq)] {
        &self.blocks[..self.len()]
    }
}

/// The options that are spoken here. Others are skipped when parsing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The largest segment that the sender takes, in payload bytes. As on the wire: any value, 0
    /// too. On SYN alone.
    pub mss: Option<u16>,
    /// The shift of the sender's windows, 0 to 14. On SYN alone.
    pub window_scale: Option<u8>,
    /// Whether the sender takes SACK options. On SYN alone.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// What arrived beyond the acknowledgement. Never on SYN.
    pub sack: SackBlocks,
}

impl Options {
    /// Parses the bytes between header and payload; `syn` says whether the segment has SYN.
    ///
    /// Anything is taken: parsing stops at an option that is shorter than its own two bytes or
    /// longer than what is left, and keeps what came before. An option of the wrong length, or one
    /// that has no business on the segment (MSS, window scale and SACK-permitted without SYN: RFC
    /// 7323 2.2, RFC 2018 2), is skipped. Of several of a kind the first counts.
    pub fn parse(bytes: &[u8], syn: bool) -> Options {
        if bytes.is_empty() {
            return Options::default();
        }
        if bytes.len() == ALIGNED_TIMESTAMPS_LEN && bytes[..4] == ALIGNED_TIMESTAMPS {
            return Options {
                timestamps: Some(parse_timestamps(&bytes[4..])),
                ..Options::default()
            };
        }
        if syn
            && let Some(bytes) = bytes.as_array()
            && let Some(options) = Options::parse_usual_syn(bytes)
        {
            return options;
        }
        Options::parse_any(bytes, syn)
    }

    /// The options of a SYN as nearly all systems have them, this one among them: MSS,
    /// SACK-permitted, timestamps, NOP, window scale.
    fn parse_usual_syn(bytes: &[u8; 20]) -> Option<Options> {
        let &[
            MSS,
            4,
            m0,
            m1,
            SACK_PERMITTED,
            2,
            TIMESTAMPS,
            10,
            ..,
            NOP,
            WINDOW_SCALE,
            3,
            shift,
        ] = bytes
        else {
            return None;
        };
        Some(Options {
            mss: Some(u16::from_be_bytes([m0, m1])),
            window_scale: Some(shift.min(WINDOW_SCALE_MAX)),
            sack_permitted: true,
            timestamps: Some(parse_timestamps(&bytes[8..])),
            sack: SackBlocks::default(),
        })
    }

    fn parse_any(mut bytes: &[u8], syn: bool) -> Options {
        let mut options = Options::default();
        while let &[kind, ref rest @ ..] = bytes {
            match kind {
                END => break,
                NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let Some(&len) = rest.first() else { break };
            let len = usize::from(len);
            if len < 2 || len > bytes.len() {
                break;
            }
            options.take(kind, &bytes[2..len], syn);
            bytes = &bytes[len..];
        }
        options
    }

    fn take(&mut self, kind: u8, value: &[u8], syn: bool) {
        match (kind, value.len()) {
            (MSS, 2) if syn && self.mss.is_none() => self.mss = Some(get16(value, 0)),
            (WINDOW_SCALE, 1) if syn && self.window_scale.is_none() => {
                self.window_scale = Some(value[0].min(WINDOW_SCALE_MAX));
            }
            (SACK_PERMITTED, 0) if syn => self.sack_permitted = true,
            (TIMESTAMPS, 8) if self.timestamps.is_none() => {
                self.timestamps = Some(parse_timestamps(value));
            }
            (SACK, 8 | 16 | 24 | 32) if !syn && self.sack.is_empty() => {
                for block in value.chunks_exact(8) {
                    self.sack.push(Seq(get32(block, 0)), Seq(get32(block, 4)));
                }
            }
            (FAST_OPEN, 0) if syn && self.sack.cookie == 0 => self.set_fast_open(Cookie::REQUEST),
            (FAST_OPEN, _) if syn && self.sack.cookie == 0 => {
                if let Some(cookie) = Cookie::new(value) {
                    self.set_fast_open(cookie);
                }
            }
            _ => {}
        }
    }

    /// The option of TCP Fast Open on a SYN: a cookie, or a request for one.
    pub fn fast_open(&self) -> Option<Cookie> {
        let len = self.sack.cookie.checked_sub(1)?;
        let mut cookie = Cookie {
            len,
            bytes: [0; 16],
        };
        let words = self.sack.blocks[..2].iter().flat_map(|(a, b)| [a.0, b.0]);
        for (to, word) in cookie.bytes.chunks_exact_mut(4).zip(words) {
            put32(to, 0, word);
        }
        Some(cookie)
    }

    /// Sets the option of TCP Fast Open, of a segment with SYN. There is room for it beside all
    /// others that a SYN has.
    pub fn set_fast_open(&mut self, cookie: Cookie) {
        self.sack.cookie = cookie.len + 1;
        for (at, block) in self.sack.blocks[..2].iter_mut().enumerate() {
            let bytes = &cookie.bytes[8 * at..];
            *block = (Seq(get32(bytes, 0)), Seq(get32(bytes, 4)));
        }
    }

    /// Length of that option with its padding.
    fn fast_open_len(&self) -> usize {
        match self.sack.cookie {
            0 => 0,
            len => (1 + usize::from(len)).next_multiple_of(4),
        }
    }

    /// Length on the wire in bytes, padding included: a multiple of 4, up to 40.
    pub fn encoded_len(&self) -> usize {
        let sack = self.sack_fitting();
        let sack_len = if sack == 0 { 0 } else { 4 + 8 * sack };
        self.len_without_sack() + sack_len + self.fast_open_len()
    }

    fn len_without_sack(&self) -> usize {
        let timestamps = if self.timestamps.is_some() {
            ALIGNED_TIMESTAMPS_LEN
        } else {
            0
        };
        let mss = if self.mss.is_some() { 4 } else { 0 };
        let window_scale = if self.window_scale.is_some() { 4 } else { 0 };
        // With timestamps, SACK-permitted takes the place of their two NOPs.
        let sack_permitted = if self.sack_permitted && self.timestamps.is_none() {
            4
        } else {
            0
        };
        timestamps + mss + window_scale + sack_permitted
    }

    /// How many SACK blocks fit beside the other options: three with timestamps, else four (RFC
    /// 2018 section 3).
    fn sack_fitting(&self) -> usize {
        if self.sack.is_empty() {
            return 0;
        }
        self.sack
            .len()
            .min((SPACE - self.len_without_sack() - 4) / 8)
    }

    /// Writes the options to the start of `out`; panics when that is shorter than
    /// [`Options::encoded_len`]. SACK blocks that do not fit are left out.
    pub fn emit(&self, out: &mut [u8]) {
        let mut at = 0;
        if let Some(mss) = self.mss {
            out[at..at + 2].copy_from_slice(&[MSS, 4]);
            put16(out, at + 2, mss);
            at += 4;
        }
        if self.sack_permitted && self.timestamps.is_none() {
            out[at..at + 4].copy_from_slice(&[NOP, NOP, SACK_PERMITTED, 2]);
            at += 4;
        }
        if let Some(timestamps) = self.timestamps {
            let out = &mut out[at..at + ALIGNED_TIMESTAMPS_LEN];
            out[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
            if self.sack_permitted {
                out[..2].copy_from_slice(&[SACK_PERMITTED, 2]);
            }
            put32(out, 4, timestamps.value);
            put32(out, 8, timestamps.echo);
            at += ALIGNED_TIMESTAMPS_LEN;
        }
        if let Some(shift) = self.window_scale {
            out[at..at + 4].copy_from_slice(&[NOP, WINDOW_SCALE, 3, shift]);
            at += 4;
        }
        if let Some(cookie) = self.fast_open() {
            let len = self.fast_open_len();
            let value = cookie.as_bytes();
            out[at..at + len].fill(NOP);
            out[at..at + 2].copy_from_slice(&[FAST_OPEN, 2 + value.len() as u8]);
            out[at + 2..at + 2 + value.len()].copy_from_slice(value);
            at += len;
        }
        let sack = self.sack_fitting();
        if sack > 0 {
            out[at..at + 4].copy_from_slice(&[NOP, NOP, SACK, (2 + 8 * sack) as u8]);
            at += 4;
            for &(start, end) in &self.sack.as_slice()[..sack] {
                put32(out, at, start.0);
                put32(out, at + 4, end.0);
                at += 8;
            }
        }
    }
}

/// The timestamps that are where almost every segment of a connection with timestamps has them.
#[inline(always)]
pub(super) fn aligned_timestamps(bytes: &[u8; ALIGNED_TIMESTAMPS_LEN]) -> Option<Timestamps> {
    let (kind, value) = bytes.split_first_chunk()?;
    (*kind == ALIGNED_TIMESTAMPS).then(|| parse_timestamps(value))
}

/// The value of a timestamps option; `bytes` has at least eight.
#[inline(always)]
fn parse_timestamps(bytes: &[u8]) -> Timestamps {
    Timestamps {
        value: get32(bytes, 0),
        echo: get32(bytes, 4),
    }
}
