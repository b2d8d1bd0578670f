//! A wire that is never the limit: TCP senders in the thread of who receives from it, which make each segment when it is asked for.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use millrace_port::{Capabilities, Counters, Offload, Port, Relay, Relayed, RxMeta};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::ipv4;
use millrace_wire::tcp::{self, Flags, Options, Segment, Seq};
use millrace_wire::vnet::VnetHeader;

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

/// One sender.
#[derive(Debug)]
struct Sender {
    port: u16,
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

/// The wire.
#[derive(Debug)]
pub struct Source {
    own: (Mac, Ipv4Addr),
    peer: (Mac, Ipv4Addr),
    peer_port: u16,
    senders: Vec<Sender>,
    turn: usize,
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
    /// So many senders to a listener of the kernel's; one of `late_every` segments comes three later than it should.
    pub fn new(
        peer: (Mac, Ipv4Addr),
        peer_port: u16,
        own: Ipv4Addr,
        senders: u16,
        late_every: u32,
    ) -> Source {
        let payload: Vec<u8> = (0..SEGMENT).map(|i| i as u8).collect();
        let sender = |index: u16| Sender {
            port: 40_000 + index,
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

    fn emit(
        &self,
        buffer: &mut [u8],
        sender: &Sender,
        seq: Seq,
        flags: Flags,
        data: bool,
    ) -> usize {
        let syn = flags.contains(Flags::SYN);
        let header = tcp::Header {
            src_port: sender.port,
            dst_port: self.peer_port,
            seq,
            ack: sender.ack,
            flags,
            window: 60_000,
            urgent: 0,
            options: Options {
                mss: syn.then_some(SEGMENT as u16),
                window_scale: syn.then_some(OUR_SHIFT),
                ..Options::default()
            },
        };
        let header_len = header.header_len();
        let payload_len = if data { SEGMENT } else { 0 };
        ethernet::Header {
            dst: self.peer.0,
            src: self.own.0,
            ethertype: EtherType::IPV4,
        }
        .emit(buffer);
        let ip = ipv4::Header {
            src: self.own.1,
            dst: self.peer.1,
            protocol: tcp::PROTOCOL,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            payload_len: (header_len + payload_len) as u16,
        };
        ip.emit(&mut buffer[ethernet::HEADER_LEN..]);
        header.emit(&mut buffer[TCP_AT..]);
        let mut sum = checksum::pseudo_v4(ip.src, ip.dst, ip.protocol, ip.payload_len)
            + Sum::of(&buffer[TCP_AT..TCP_AT + header_len]);
        if data {
            buffer[HEADERS..HEADERS + SEGMENT].copy_from_slice(&self.payload);
            sum += self.payload_sum;
        }
        let at = TCP_AT + tcp::CHECKSUM_OFFSET;
        buffer[at..at + 2].copy_from_slice(&sum.finish().to_be_bytes());
        TCP_AT + header_len + payload_len
    }

    /// The next segment of a sender, if it may send one.
    fn segment(&mut self, index: usize, buffer: &mut [u8]) -> Option<usize> {
        let sender = &mut self.senders[index];
        let (seq, flags, data) = match sender.state {
            State::Closed => {
                sender.state = State::SynSent;
                (Seq(0), Flags::SYN, false)
            }
            State::SynSent => return None,
            State::Answered => {
                sender.state = State::Open;
                sender.progress = Instant::now();
                (sender.next, Flags::ACK, false)
            }
            State::Open => {
                if let Some((seq, left)) = &mut sender.late {
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        let seq = *seq;
                        sender.late = None;
                        return Some(self.emit(
                            buffer,
                            &self.senders[index],
                            seq,
                            Flags::ACK,
                            true,
                        ));
                    }
                }
                let fits = |next: Seq, limit: Seq| limit - next >= SEGMENT as i32;
                if !fits(sender.next, sender.limit) {
                    // What is late must not wait for what cannot come.
                    let (seq, _) = sender.late.take()?;
                    return Some(self.emit(buffer, &self.senders[index], seq, Flags::ACK, true));
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
                (seq, Flags::ACK, true)
            }
        };
        Some(self.emit(buffer, &self.senders[index], seq, flags, data))
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
        let index = usize::from(segment.dst_port.wrapping_sub(40_000));
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
            mac: self.own.0,
            mtu: 1500,
            tx_checksum: true,
            tx_segmentation_max: u32::from(u16::MAX),
            rx_aggregated: false,
            trusted_checksum: false,
            queues: 1,
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
        for _ in 0..self.senders.len() {
            self.turn = (self.turn + 1) % self.senders.len();
            if let Some(len) = self.segment(self.turn, buffer) {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += len as u64;
                return Ok(Some(Relayed {
                    start: 0,
                    len,
                    rest: 0,
                    vnet: VnetHeader::default(),
                }));
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
