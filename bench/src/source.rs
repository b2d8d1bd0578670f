//! A wire that is never the limit: TCP senders in the thread of who receives from it, which make
//! each segment when it is asked for.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_port::{Capabilities, Counters, Offload, Port, Relay, Relayed, RxMeta};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Options, Segment, Seq};
use millrace_wire::vnet::VnetHeader;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};

/// Payload of a segment.
pub const SEGMENT: usize = 1460;
const TCP_AT: usize = ethernet::HEADER_LEN + ipv4::HEADER_LEN;
const HEADERS: usize = TCP_AT + tcp::HEADER_LEN;
/// Shift of our own window, which is of no matter.
const OUR_SHIFT: u8 = 0;
/// What is not acknowledged for so long is sent again.
const PATIENCE: Duration = Duration::from_millis(50);
/// How many segments later a late one comes.
const LATE: u32 = 3;
/// Ports of senders, and of newcomers.
const FIRST_PORT: u16 = 40_000;
const FIRST_NEWCOMER: u16 = 50_000;
/// One sender.
#[derive(Debug)]
struct Sender {
    port: u16,
    /// The headers of its segments, and the sum of all that is the same in each; made when it is
    /// open.
    template: [u8; HEADERS],
    sum: Sum,
    state: State,
    /// Not acknowledged, next to be sent, and how far the receiver allows.
    una: Seq,
    next: Seq,
    limit: Seq,
    shift: u8,
    ack: Seq,
    duplicates: u32,
    progress: Instant,
    /// A segment that is to come late, and after how many more.
    late: Option<(Seq, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A SYN is to be sent.
    Closed,
    SynSent,
    /// The acknowledgement of the handshake is to be sent.
    Answered,
    Open,
}

/// When somebody comes who wants a connection: told from outside, as an interrupt tells of a frame.
#[derive(Debug)]
pub struct Bell {
    start: Instant,
    /// Nanoseconds from the start; 0: nobody.
    at: AtomicU64,
    rung: OwnedFd,
}

impl Bell {
    /// One that was not rung.
    pub fn new() -> io::Result<Bell> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell {
            start: Instant::now(),
            at: AtomicU64::new(0),
            rung: rustix::event::eventfd(0, flags)?,
        })
    }

    /// Somebody comes, unless the one before is still waiting.
    pub fn ring(&self) -> io::Result<()> {
        if self.at.load(Ordering::Relaxed) == 0 {
            let at = self.start.elapsed().as_nanos() as u64;
            self.at.store(at.max(1), Ordering::Relaxed);
            rustix::io::write(&self.rung, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Sleeps until it is rung, or for a moment.
    pub fn wait(&self) -> io::Result<()> {
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        let mut set = [PollFd::new(&self.rung, PollFlags::IN)];
        if rustix::event::poll(&mut set, Some(&moment))? > 0 {
            rustix::io::read(&self.rung, &mut [0; 8])?;
        }
        Ok(())
    }
}

/// Clients that ask for a connection, one after the other, and break it off when they are answered.
#[derive(Debug)]
struct Newcomers {
    port: u16,
    bell: Arc<Bell>,
    asked: bool,
    /// What is to be broken off.
    answered: Option<Seq>,
    waits: Vec<f64>,
}

impl Newcomers {
    /// Port, number and flags of what is to be sent now.
    fn segment(&mut self) -> Option<(u16, Seq, Flags)> {
        if let Some(seq) = self.answered.take() {
            let port = self.port;
            self.port = self.port.wrapping_add(1).max(FIRST_NEWCOMER);
            return Some((port, seq, Flags::RST));
        }
        if self.asked || self.bell.at.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.asked = true;
        Some((self.port, Seq(0), Flags::SYN))
    }

    fn take(&mut self, segment: &Segment<'_>) {
        if segment.dst_port != self.port || !segment.flags.contains(Flags::SYN) || !self.asked {
            return;
        }
        let now = self.bell.start.elapsed().as_nanos() as u64;
        let wait = now - self.bell.at.load(Ordering::Relaxed);
        self.waits.push(wait as f64 / 1e3);
        self.answered = Some(segment.ack);
        self.asked = false;
        self.bell.at.store(0, Ordering::Relaxed);
    }
}

/// The wire.
#[derive(Debug)]
pub struct Source {
    own: (Mac, Ipv4Addr),
    peer: (Mac, Ipv4Addr),
    peer_port: u16,
    senders: Vec<Sender>,
    turn: usize,
    newcomers: Option<Newcomers>,
    payload: Vec<u8>,
    payload_sum: Sum,
    /// One of so many segments is late; 0: none.
    late_every: u32,
    count: u32,
    counters: Counters,
    /// Segments sent again.
    pub again: u64,
}

impl Source {
    /// So many senders to a listener of the kernel's; one of `late_every` segments comes three
    /// later than it should.
    pub fn new(
        peer: (Mac, Ipv4Addr),
        peer_port: u16,
        own: Ipv4Addr,
        senders: u16,
        late_every: u32,
    ) -> Source {
        let payload: Vec<u8> = (0..SEGMENT).map(|i| i as u8).collect();
        let sender = |index: u16| Sender {
            port: FIRST_PORT + index,
            template: [0; HEADERS],
            sum: Sum::ZERO,
            state: State::Closed,
            una: Seq(1),
            next: Seq(1),
            limit: Seq(1),
            shift: 0,
            ack: Seq(0),
            duplicates: 0,
            progress: Instant::now(),
            late: None,
        };
        Source {
            own: (Mac([2, 0, 0, 0, 9, 9]), own),
            peer,
            peer_port,
            senders: (0..senders).map(sender).collect(),
            turn: 0,
            newcomers: None,
            payload_sum: Sum::of(&payload),
            payload,
            late_every,
            count: 0,
            counters: Counters::default(),
            again: 0,
        }
    }

    /// The link-layer address of all senders.
    pub fn mac(&self) -> Mac {
        self.own.0
    }

    /// Has somebody else ask for a connection whenever the bell is rung; how long each waits for an
    /// answer is kept.
    pub fn with_newcomers(self, bell: Arc<Bell>) -> Source {
        Source {
            newcomers: Some(Newcomers {
                port: FIRST_NEWCOMER,
                bell,
                asked: false,
                answered: None,
                waits: Vec::new(),
            }),
            ..self
        }
    }

    /// What newcomers waited for their answers, in microseconds.
    pub fn waits(&self) -> &[f64] {
        self.newcomers
            .as_ref()
            .map_or(&[], |newcomers| &newcomers.waits)
    }

    /// A segment without payload.
    fn bare(&self, buffer: &mut [u8], port: u16, seq: Seq, ack: Seq, flags: Flags) -> usize {
        let syn = flags.contains(Flags::SYN);
        let options = Options {
            mss: syn.then_some(SEGMENT as u16),
            window_scale: syn.then_some(OUR_SHIFT),
            ..Options::default()
        };
        self.headers(buffer, (port, seq, ack, flags, options), None)
    }

    /// Headers for what follows them, whose length and sum are known; says how long they are.
    fn headers(
        &self,
        buffer: &mut [u8],
        (src_port, seq, ack, flags, options): (u16, Seq, Seq, Flags, Options),
        payload: Option<(usize, Sum)>,
    ) -> usize {
        let header = tcp::Header {
            src_port,
            dst_port: self.peer_port,
            seq,
            ack,
            flags,
            window: 60_000,
            urgent: 0,
            options,
        };
        let (payload_len, payload_sum) = payload.unwrap_or((0, Sum::ZERO));
        let header_len = header.header_len();
        ethernet::Header {
            dst: self.peer.0,
            src: self.own.0,
            ethertype: EtherType::IPV4,
        }
        .emit(buffer);
        let ip = ipv4::Header::new(
            self.own.1,
            self.peer.1,
            tcp::PROTOCOL,
            (header_len + payload_len) as u16,
        );
        ip.emit(&mut buffer[ethernet::HEADER_LEN..]);
        header.emit(&mut buffer[TCP_AT..]);
        let sum = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, ip.payload_len)
            + Sum::of(&buffer[TCP_AT..TCP_AT + header_len])
            + payload_sum;
        let at = TCP_AT + tcp::CHECKSUM_OFFSET;
        buffer[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        TCP_AT + header_len
    }

    /// What is the same in all segments of a sender.
    fn prepare(&mut self, index: usize) {
        let sender = &self.senders[index];
        let mut head = [0; HEADERS];
        let fields = (
            sender.port,
            Seq(0),
            sender.ack,
            Flags::ACK,
            Options::default(),
        );
        self.headers(&mut head, fields, Some((SEGMENT, self.payload_sum)));
        let at = TCP_AT + tcp::CHECKSUM_OFFSET;
        let sum = Sum::word(!u16::from_be_bytes([head[at], head[at + 1]]));
        let sender = &mut self.senders[index];
        (sender.template, sender.sum) = (head, sum);
    }

    /// A full segment. Its payload is put into a buffer only once, and found there the next time: a
    /// wire's frames are in memory without the processor's doing.
    fn full(&self, buffer: &mut [u8], sender: &Sender, seq: Seq) -> usize {
        let (head, rest) = buffer.split_at_mut(HEADERS);
        head.copy_from_slice(&sender.template);
        head[TCP_AT + 4..TCP_AT + 8].copy_from_slice(&seq.0.to_be_bytes());
        let sum = sender.sum + Sum::of(&seq.0.to_be_bytes());
        let at = TCP_AT + tcp::CHECKSUM_OFFSET;
        head[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        let (first, last) = (8, SEGMENT - 8);
        let there = rest[..first] == self.payload[..first]
            && rest[last..SEGMENT] == self.payload[last..SEGMENT];
        if !there {
            rest[..SEGMENT].copy_from_slice(&self.payload);
        }
        HEADERS + SEGMENT
    }

    /// The next segment of a sender, if it may send one.
    fn segment(&mut self, index: usize, buffer: &mut [u8]) -> Option<usize> {
        let sender = &mut self.senders[index];
        let seq = match sender.state {
            State::Closed => {
                sender.state = State::SynSent;
                let port = sender.port;
                return Some(self.bare(buffer, port, Seq(0), Seq(0), Flags::SYN));
            }
            State::SynSent => return None,
            State::Answered => {
                sender.state = State::Open;
                sender.progress = Instant::now();
                let (port, next, ack) = (sender.port, sender.next, sender.ack);
                self.prepare(index);
                return Some(self.bare(buffer, port, next, ack, Flags::ACK));
            }
            State::Open => {
                if let Some((seq, left)) = &mut sender.late {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        let seq = *seq;
                        sender.late = None;
                        return Some(self.full(buffer, &self.senders[index], seq));
                    }
                }
                let fits = |next: Seq, limit: Seq| limit - next >= SEGMENT as i32;
                if !fits(sender.next, sender.limit) {
                    // What is late must not wait for what cannot come.
                    let (seq, _) = sender.late.take()?;
                    return Some(self.full(buffer, &self.senders[index], seq));
                }
                self.count = self.count.wrapping_add(1);
                let is_late = self.late_every > 0
                    && self.count.is_multiple_of(self.late_every)
                    && sender.late.is_none()
                    && fits(sender.next + SEGMENT as u32, sender.limit);
                if is_late {
                    sender.late = Some((sender.next, LATE));
                    sender.next += SEGMENT as u32;
                }
                let seq = sender.next;
                sender.next += SEGMENT as u32;
                seq
            }
        };
        Some(self.full(buffer, &self.senders[index], seq))
    }

    fn take(&mut self, frame: &[u8]) {
        let Some(packet) = frame.get(ethernet::HEADER_LEN..) else {
            return;
        };
        let Ok((ip, _, payload)) = ipv4::Header::parse(packet) else {
            return;
        };
        let Ok(segment) = Segment::parse(payload) else {
            return;
        };
        if ip.protocol != tcp::PROTOCOL {
            return;
        }
        if let Some(newcomers) = &mut self.newcomers
            && segment.dst_port >= FIRST_NEWCOMER
        {
            return newcomers.take(&segment);
        }
        let index = usize::from(segment.dst_port.wrapping_sub(FIRST_PORT));
        let Some(sender) = self.senders.get_mut(index) else {
            return;
        };
        if segment.flags.contains(Flags::SYN) {
            sender.shift = segment.options.window_scale.unwrap_or(0);
            sender.ack = segment.seq + 1;
            sender.limit = segment.ack + u32::from(segment.window);
            sender.state = State::Answered;
            return;
        }
        let limit = segment.ack + (u32::from(segment.window) << sender.shift);
        if segment.ack.after(sender.una) {
            sender.una = segment.ack;
            sender.duplicates = 0;
            sender.progress = Instant::now();
            if sender.next.before(sender.una) {
                sender.next = sender.una;
            }
        } else if segment.ack == sender.una && limit == sender.limit {
            sender.duplicates += 1;
            // Far more than reordering makes: something was dropped.
            if sender.duplicates == 100 {
                self.again += 1;
                sender.next = sender.una;
                sender.late = None;
            }
        }
        // Acknowledgements of two cores may have overtaken each other.
        if limit.after(sender.limit) {
            sender.limit = limit;
        }
    }

    fn made(&mut self, len: usize) -> Relayed {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        Relayed {
            start: 0,
            len,
            rest: 0,
            vnet: VnetHeader::default(),
        }
    }

    fn send_again(&mut self, index: usize) {
        let sender = &mut self.senders[index];
        if sender.state == State::Open
            && sender.next != sender.una
            && sender.progress.elapsed() > PATIENCE
        {
            sender.next = sender.una;
            sender.late = None;
            sender.progress = Instant::now();
            self.again += 1;
        }
    }
}

impl Port for Source {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let received = self.receive_parts(buffer, &mut [])?;
        Ok(received.map(|frame| RxMeta {
            len: frame.len,
            ..RxMeta::default()
        }))
    }

    fn send(&mut self, head: &[u8], _payload: [&[u8]; 2], _offload: Offload) -> io::Result<bool> {
        self.take(head);
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            tx_checksum: true,
            tx_segmentation_max: u32::from(u16::MAX),
            ..Capabilities::plain(self.own.0, 1500)
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Relay for Source {
    fn receive_parts(
        &mut self,
        buffer: &mut [u8],
        _rest: &mut [u8],
    ) -> io::Result<Option<Relayed>> {
        let newcomer = self.newcomers.as_mut().and_then(Newcomers::segment);
        if let Some((port, seq, flags)) = newcomer {
            let len = self.bare(buffer, port, seq, Seq(0), flags);
            return Ok(Some(self.made(len)));
        }
        for _ in 0..self.senders.len() {
            self.turn = (self.turn + 1) % self.senders.len();
            if let Some(len) = self.segment(self.turn, buffer) {
                return Ok(Some(self.made(len)));
            }
        }
        // Nobody may send: the time to see whether somebody waits in vain.
        for index in 0..self.senders.len() {
            self.send_again(index);
        }
        Ok(None)
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        _payload: &[&[u8]],
        _vnet: &VnetHeader,
    ) -> io::Result<bool> {
        self.counters.tx_frames += 1;
        self.take(head);
        Ok(true)
    }
}
