//! Segments of one flow that come one behind the other, joined where they lie: for a stack of our
//! own, to which one segment costs little.
//!
//! A frame is received so that its payload comes to lie behind the payload before it; the few bytes
//! that its headers fall on are kept and put back. So nothing is copied, and no flow is looked up:
//! whatever does not continue the train ends it.

use millrace_wire::bytes::{get16, get32};
use millrace_wire::checksum::{Sum, verify_v4, verify_v6};
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::offload::{ChecksumState, Frame};
use millrace_wire::tcp::{self, Flags, Seq};
use millrace_wire::{ipv4, ipv6};

use crate::facts::Facts;
use crate::seen::Seen;
use crate::unit::set_length;

/// The largest frame: 64 KB of IP and an Ethernet header, with room for a tag.
const FRAME_MAX: usize = 65_536 + 64;
/// The largest IP packet.
const PACKET_MAX: usize = 0xffff;
/// Room for trains to begin one behind the other before the place is used anew.
const ROOM: usize = 4 * FRAME_MAX;
/// Words that the longest headers take.
const WORDS: usize = (ethernet::HEADER_LEN + ipv6::HEADER_LEN + tcp::MAX_HEADER_LEN).div_ceil(8);
const HEADS_MAX: usize = WORDS * 8;
/// Frames that are shorter are not worth joining.
const SHORT: usize = 128;
const IP_AT: usize = ethernet::HEADER_LEN;

/// What became of segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrainCounters {
    /// Segments that were joined with others.
    pub segments: u64,
    /// What they became.
    pub units: u64,
}

/// A train that may grow. Segments are joined that differ in nothing but their numbers, so that
/// what a stack does is what it would do without, but for answers to several that become one; and
/// none that is out of order: while there is a hole the stack sees each segment (RFC 5681 4.2).
#[derive(Debug)]
pub struct Train {
    bytes: Box<[u8]>,
    /// Where the first frame is, and the end of the last payload; the same when there is none.
    at: usize,
    end: usize,
    /// Of the first frame: where its TCP header and its payload are, its checksum's state, and the
    /// frame's end.
    tcp_at: usize,
    heads: usize,
    checksum: ChecksumState,
    first_end: usize,
    /// Segments, the largest payload of one, and the number after the last.
    count: u32,
    segment_size: u16,
    next: Seq,
    /// The headers of the first frame, and which of their bits others must have as well.
    like: [u64; WORDS],
    mask: [u64; WORDS],
    /// What the headers of the frame that is received fall on.
    kept: [u8; HEADS_MAX],
    seen: Seen,
    counters: TrainCounters,
}

impl Default for Train {
    fn default() -> Self {
        Train {
            bytes: vec![0; ROOM].into_boxed_slice(),
            at: 0,
            end: 0,
            tcp_at: 0,
            heads: 0,
            checksum: ChecksumState::Unchecked,
            first_end: 0,
            count: 0,
            segment_size: 0,
            next: Seq(0),
            like: [0; WORDS],
            mask: [0; WORDS],
            kept: [0; HEADS_MAX],
            seen: Seen::default(),
            counters: TrainCounters::default(),
        }
    }
}

impl Train {
    /// Where the next frame is to be received: room for the largest.
    pub fn buffer(&mut self) -> &mut [u8] {
        let at = self.place();
        if self.count > 0 {
            self.kept.copy_from_slice(&self.bytes[at..at + HEADS_MAX]);
        }
        &mut self.bytes[at..at + FRAME_MAX]
    }

    /// Where the next frame lies.
    fn place(&self) -> usize {
        if self.count == 0 {
            self.at
        } else {
            self.end - self.heads
        }
    }

    /// Takes the frame of `len` bytes that was received into [`Train::buffer`]; `checksum` and
    /// `segment_size` are as in [`Frame`]. `input` is given what is not held any longer.
    ///
    /// # Panics
    /// When the buffer has not so many bytes.
    pub fn frame(
        &mut self,
        len: usize,
        checksum: ChecksumState,
        segment_size: u16,
        input: &mut impl FnMut(&Frame<'_>),
    ) {
        let at = self.place();
        let frame = &self.bytes[at..at + len];
        if self.count == 0 && self.seen.is_empty() && !may_begin(frame) {
            return input(&Frame {
                bytes: frame,
                checksum,
                segment_size,
            });
        }
        let segment = Headers::of(frame);
        if self.count > 0 {
            if let Some(headers) = &segment
                && segment_size == 0
                && self.continues(at, headers, checksum)
            {
                return self.take(at, headers, input);
            }
            // What is in the way of the train's end is put aside while that is handed on.
            let mut own = [0; HEADS_MAX];
            let own = &mut own[..self.heads];
            own.copy_from_slice(&self.bytes[at..at + self.heads]);
            self.bytes[at..at + self.heads].copy_from_slice(&self.kept[..self.heads]);
            self.hand_on(input);
            self.bytes[at..at + self.heads].copy_from_slice(own);
        }
        let begins = segment.filter(|headers| {
            let frame = &self.bytes[at..at + len];
            self.seen.is_next(&headers.facts(frame)) && segment_size == 0
        });
        let Some(headers) = begins else {
            input(&Frame {
                bytes: &self.bytes[at..at + len],
                checksum,
                segment_size,
            });
            self.at = 0;
            self.end = 0;
            return;
        };
        self.at = at;
        if at + 2 * FRAME_MAX > ROOM {
            self.bytes.copy_within(at..at + len, 0);
            self.at = 0;
        }
        self.end = self.at + headers.end;
        self.first_end = self.at + len;
        self.tcp_at = headers.tcp_at;
        self.heads = headers.payload_at;
        self.checksum = checksum;
        self.count = 1;
        self.segment_size = (headers.end - headers.payload_at) as u16;
        self.next = headers.seq + u32::from(self.segment_size);
        self.note_headers();
    }

    /// The burst has ended: nothing is held after it.
    pub fn end_of_burst(&mut self, input: &mut impl FnMut(&Frame<'_>)) {
        if self.count > 0 {
            self.hand_on(input);
        }
    }

    /// What happened.
    pub fn counters(&self) -> TrainCounters {
        self.counters
    }

    /// Whether the frame at `at` continues the train.
    fn continues(&mut self, at: usize, headers: &Headers, checksum: ChecksumState) -> bool {
        let len = headers.end - headers.payload_at;
        let shape = (headers.payload_at, headers.tcp_at, headers.seq);
        if shape != (self.heads, self.tcp_at, self.next)
            || self.end - self.at - IP_AT + len > PACKET_MAX
        {
            return false;
        }
        let frame = &self.bytes[at..at + headers.end];
        let end = headers.flags - Flags::PSH;
        if len == 0 || end != Flags::ACK || !self.is_like(at) {
            return false;
        }
        if !is_sound(frame, headers, checksum) {
            return false;
        }
        if self.count > 1 {
            return true;
        }
        // The first one is looked at when there is something to join it with.
        let mut whole = [0; HEADS_MAX];
        let kept = &mut whole[..self.heads];
        kept.copy_from_slice(&self.bytes[at..at + self.heads]);
        self.bytes[at..at + self.heads].copy_from_slice(&self.kept[..self.heads]);
        let frame = &self.bytes[self.at..self.end];
        let sound =
            Headers::of(frame).is_some_and(|headers| is_sound(frame, &headers, self.checksum));
        self.bytes[at..at + self.heads].copy_from_slice(kept);
        if !sound {
            // A hole, as the stack will see it.
            self.next = self.next - u32::from(self.segment_size);
        }
        sound
    }

    /// Whether the headers differ from those of the train's first frame only in what every segment
    /// has of its own.
    fn is_like(&self, at: usize) -> bool {
        let heads = &self.bytes[at..at + HEADS_MAX];
        let (words, _) = heads.as_chunks::<8>();
        let words = words.iter().zip(&self.like).zip(&self.mask);
        let count = self.heads.div_ceil(8);
        words.take(count).fold(0, |all, ((word, like), mask)| {
            all | (u64::from_ne_bytes(*word) ^ like) & mask
        }) == 0
    }

    /// Takes note of what others must be like: all of the headers but length, identification,
    /// number and checksums, and PSH, with which a train ends.
    fn note_headers(&mut self) {
        let mut mask = [0; HEADS_MAX];
        mask[..self.heads].fill(0xff);
        let ip = &mut mask[IP_AT..];
        if self.tcp_at == IP_AT + ipv4::HEADER_LEN {
            ip[2..6].fill(0);
            ip[10..12].fill(0);
        } else {
            ip[4..6].fill(0);
        }
        let tcp = &mut mask[self.tcp_at..];
        tcp[4..8].fill(0);
        tcp[tcp::CHECKSUM_OFFSET..][..2].fill(0);
        mask[self.tcp_at + 13] = !Flags::PSH.bits();
        let words = |bytes: &[u8]| -> [u64; WORDS] {
            let (words, _) = bytes.as_chunks::<8>();
            std::array::from_fn(|index| u64::from_ne_bytes(words[index]))
        };
        self.mask = words(&mask);
        self.like = words(&self.bytes[self.at..self.at + HEADS_MAX]);
    }

    /// Takes the frame at `at`, which continues the train, into it.
    fn take(&mut self, at: usize, headers: &Headers, input: &mut impl FnMut(&Frame<'_>)) {
        let len = headers.end - headers.payload_at;
        self.bytes[at..at + self.heads].copy_from_slice(&self.kept[..self.heads]);
        self.end += len;
        self.first_end = self.end;
        self.count += 1;
        self.segment_size = self.segment_size.max(len as u16);
        self.next += len as u32;
        if headers.flags.contains(Flags::PSH) {
            let flags = &mut self.bytes[self.at + self.tcp_at + 13];
            *flags |= Flags::PSH.bits();
            self.hand_on(input);
        }
    }

    /// Hands on what is held.
    fn hand_on(&mut self, input: &mut impl FnMut(&Frame<'_>)) {
        let train = &mut self.bytes[self.at..self.first_end];
        let mut frame = Frame {
            bytes: &[],
            checksum: self.checksum,
            segment_size: 0,
        };
        if self.count > 1 {
            set_length(
                &mut train[IP_AT..self.tcp_at],
                self.end - self.at - self.tcp_at,
            );
            // Each was verified, or somebody had vouched for it.
            frame.checksum = ChecksumState::Valid;
            frame.segment_size = self.segment_size;
            self.counters.segments += u64::from(self.count);
            self.counters.units += 1;
        }
        self.seen.expect(train, self.tcp_at, self.next);
        frame.bytes = train;
        input(&frame);
        (self.at, self.end, self.count) = (0, 0, 0);
    }
}

/// Where things are in a frame whose segment could be part of a train.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    tcp_at: usize,
    payload_at: usize,
    end: usize,
    seq: Seq,
    flags: Flags,
}

impl Headers {
    /// Of a TCP segment over IPv4 without options or plain IPv6.
    fn of(frame: &[u8]) -> Option<Headers> {
        let ip = frame.get(IP_AT..)?;
        let (ip_len, total) = match EtherType(get16(frame, 12)) {
            EtherType::IPV4
                if ip.len() >= ipv4::HEADER_LEN
                    && ip[0] == 0x45
                    && get16(ip, 6) & 0x3fff == 0
                    && ip[9] == tcp::PROTOCOL =>
            {
                (ipv4::HEADER_LEN, usize::from(get16(ip, 2)))
            }
            EtherType::IPV6
                if ip.len() >= ipv6::HEADER_LEN && ip[0] >> 4 == 6 && ip[6] == tcp::PROTOCOL =>
            {
                let payload = usize::from(get16(ip, 4));
                (ipv6::HEADER_LEN, ipv6::HEADER_LEN + payload)
            }
            _ => return None,
        };
        let segment = ip.get(ip_len..total)?;
        if segment.len() < tcp::HEADER_LEN {
            return None;
        }
        let header_len = usize::from(segment[12] >> 4) * 4;
        if header_len < tcp::HEADER_LEN || header_len > segment.len() {
            return None;
        }
        Some(Headers {
            tcp_at: IP_AT + ip_len,
            payload_at: IP_AT + ip_len + header_len,
            end: IP_AT + total,
            seq: Seq(get32(segment, 4)),
            flags: Flags::from_bits_retain(segment[13]),
        })
    }

    fn facts(&self, frame: &[u8]) -> Facts {
        Facts {
            tag: tag(frame, self.tcp_at),
            seq: self.seq,
            end: self.seq + (self.end - self.payload_at) as u32,
            flags: self.flags,
        }
    }
}

/// Whether a frame may be one that begins a train, seen from little.
fn may_begin(frame: &[u8]) -> bool {
    const FLAGS_AT: usize = 13;
    let at = match frame.get(IP_AT) {
        Some(0x45) => IP_AT + ipv4::HEADER_LEN + FLAGS_AT,
        _ => IP_AT + ipv6::HEADER_LEN + FLAGS_AT,
    };
    frame.len() >= SHORT && frame[at] == Flags::ACK.bits()
}

/// What tells flows apart well enough to remember them by: ports, and parts of the addresses.
fn tag(frame: &[u8], tcp_at: usize) -> u64 {
    let ports = get32(frame, tcp_at);
    let addresses = if tcp_at == IP_AT + ipv4::HEADER_LEN {
        get32(frame, IP_AT + 12).wrapping_add(get32(frame, IP_AT + 16).rotate_left(16))
    } else {
        get32(frame, IP_AT + 20).wrapping_add(get32(frame, IP_AT + 36).rotate_left(16))
    };
    u64::from(ports) << 32 | u64::from(addresses)
}

impl Seen {
    /// A train of the flow of this frame was handed on.
    fn expect(&mut self, frame: &[u8], tcp_at: usize, next: Seq) {
        self.note(tag(frame, tcp_at), next);
    }
}

/// Whether both checksums are right, or need not be looked at.
fn is_sound(frame: &[u8], headers: &Headers, checksum: ChecksumState) -> bool {
    let (ip, segment) = (
        &frame[IP_AT..headers.tcp_at],
        &frame[headers.tcp_at..headers.end],
    );
    let is_v4 = ip.len() == ipv4::HEADER_LEN;
    if is_v4 && !Sum::of(ip).is_valid() {
        return false;
    }
    if checksum != ChecksumState::Unchecked {
        return true;
    }
    if is_v4 {
        let address = |at: usize| get32(ip, at).into();
        verify_v4(address(12), address(16), tcp::PROTOCOL, segment)
    } else {
        let address = |at: usize| -> [u8; 16] { std::array::from_fn(|index| ip[at + index]) };
        verify_v6(
            address(8).into(),
            address(24).into(),
            tcp::PROTOCOL,
            segment,
        )
    }
}
