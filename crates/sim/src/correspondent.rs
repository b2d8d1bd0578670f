//! Programs that send datagrams to each other, and the book in which every one of them stands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use millrace_shard::{Error, Options, Owner, SendTo, SocketId, errno};
use millrace_tcp::{Duration, Instant};

use crate::context::Context;
use crate::network::Network;
use crate::pattern::Pattern;
use crate::program::Program;

/// Bytes at the start of each datagram, which number it.
const NUMBER_LEN: usize = 8;
/// Receive memory that a socket may hold: its buffer is 212,992 bytes and one datagram, in blocks
/// of powers of two.
const MEMORY_MAX: u64 = 512 << 10;

/// All datagrams that were sent, by source, destination and number.
#[derive(Default)]
pub struct Book {
    sent: BTreeMap<(SocketAddr, SocketAddr, u64), Entry>,
}

struct Entry {
    len: usize,
    arrived: u64,
}

impl Book {
    /// Checks that what did not arrive was dropped by somebody who counted it, and that what
    /// arrived more often was doubled by a link. Returns how many datagrams arrived.
    ///
    /// # Panics
    /// When it was not.
    pub fn check(&self, network: &Network) -> u64 {
        let (mut dropped, mut doubled) = (0, 0);
        for host in &network.hosts {
            let (link, counters) = (host.line.counters, host.stack.counters());
            doubled += link.duplicated;
            dropped += link.lost + link.overflowed + link.corrupted;
            dropped += counters.neighbour_queue_dropped
                + counters.ip_fragments_refused
                + counters.ip_fragments_condemned
                + counters.udp_receive_full
                + counters.udp_no_port;
        }
        let lost = self.sent.values().filter(|entry| entry.arrived == 0);
        let lost = lost.count() as u64;
        assert!(lost <= dropped, "{lost} are gone, {dropped} were dropped");
        let again = |entry: &Entry| entry.arrived.saturating_sub(1);
        let again: u64 = self.sent.values().map(again).sum();
        assert!(
            again <= doubled,
            "{again} arrived again, {doubled} were doubled"
        );
        self.sent.len() as u64 - lost
    }
}

/// Sends datagrams to others from time to time, and checks what it gets.
pub struct Correspondent {
    local: SocketAddr,
    others: Vec<SocketAddr>,
    book: Rc<RefCell<Book>>,
    /// The only one that it speaks to and hears.
    peer: Option<SocketAddr>,
    /// Whether it reads only when it sends.
    lazy: bool,
    sizes: Vec<usize>,
    gap: Duration,
    left: u64,
    next_at: Instant,
    socket: Option<SocketId>,
    progress: u64,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Sends,
    Listens,
    Done,
}

/// How long it listens after its last datagram.
const PATIENCE: Duration = Duration::from_secs(60);

impl Correspondent {
    /// At `local`, with `total` datagrams to any of `others`, of one of these `sizes` (8 bytes at
    /// least), up to `gap` apart.
    pub fn new(
        local: SocketAddr,
        others: Vec<SocketAddr>,
        (total, sizes, gap): (u64, Vec<usize>, Duration),
        book: Rc<RefCell<Book>>,
    ) -> Correspondent {
        Correspondent {
            local,
            others,
            book,
            peer: None,
            lazy: false,
            sizes,
            gap,
            left: total,
            next_at: Instant::from_micros(0),
            socket: None,
            progress: 0,
            phase: Phase::Sends,
        }
    }

    /// Connected to `peer`.
    #[must_use]
    pub fn connected(self, peer: SocketAddr) -> Correspondent {
        Correspondent {
            peer: Some(peer),
            ..self
        }
    }

    /// Reads only when it sends.
    #[must_use]
    pub fn lazy(self) -> Correspondent {
        Correspondent { lazy: true, ..self }
    }

    fn open(&self, context: &mut Context<'_>) -> SocketId {
        let owner = Owner(context.program() as u32);
        let options = Options::default();
        let stack = &mut *context.stack;
        let id = stack.datagram(owner, &options, 0).expect("a socket");
        stack
            .bind_datagram(id, self.local, &options)
            .expect("the port is free");
        if let Some(peer) = self.peer {
            stack
                .connect_datagram(id, peer)
                .expect("a peer on the link");
        }
        context.adopt(id);
        id
    }

    fn send(&mut self, context: &mut Context<'_>, id: SocketId) {
        self.left -= 1;
        let any = self.others[context.rng.below(self.others.len() as u64) as usize];
        let to = self.peer.unwrap_or(any);
        let len = self.sizes[context.rng.below(self.sizes.len() as u64) as usize];
        let (number, from) = (self.left, self.local);
        let what = SendTo {
            to: self.peer.is_none().then_some(to),
            ..SendTo::default()
        };
        let fill = |out: &mut [u8]| {
            let (head, rest) = out.split_at_mut(NUMBER_LEN);
            head.copy_from_slice(&number.to_be_bytes());
            Pattern::between(from, to).fill(number << 32, rest);
        };
        match context.stack.send_to(id, &what, len, fill, context.now) {
            Ok(()) => {
                let entry = Entry { len, arrived: 0 };
                self.book
                    .borrow_mut()
                    .sent
                    .insert((from, to, number), entry);
            }
            Err(error) => check_error(error),
        }
    }

    fn read(&mut self, context: &mut Context<'_>, id: SocketId) {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let record = match context.stack.recv_from(id, &mut bytes, false) {
                Ok(record) => record,
                Err(Error::WouldBlock) => return,
                Err(error) => {
                    check_error(error);
                    continue;
                }
            };
            let to = SocketAddr::new(record.to, record.to_port);
            assert_eq!(to, self.local, "a datagram for another socket");
            assert!(
                self.peer.is_none_or(|peer| peer == record.from),
                "heard {} beside its peer",
                record.from
            );
            let len = record.payload_len as usize;
            let (head, rest) = bytes[..len]
                .split_first_chunk()
                .expect("a datagram cut short");
            let number = u64::from_be_bytes(*head);
            let mut book = self.book.borrow_mut();
            let entry = book
                .sent
                .get_mut(&(record.from, to, number))
                .expect("a datagram that nobody sent");
            assert_eq!(len, entry.len, "a datagram of another length");
            let differs = Pattern::between(record.from, to).first_difference(number << 32, rest);
            assert_eq!(differs, None, "another byte than was sent");
            entry.arrived += 1;
            assert!(entry.arrived <= 2, "a link doubles, it does no more");
            self.progress += 1;
        }
    }
}

/// The network may say that somebody does not listen.
fn check_error(error: Error) {
    let told = matches!(
        error,
        Error::WouldBlock | Error::Connection(errno::ECONNREFUSED | errno::EHOSTUNREACH)
    );
    assert!(told, "{error}");
}

impl Program for Correspondent {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        let stack = &context.stack;
        let most = stack.usage().sockets as u64 * MEMORY_MAX;
        assert!(stack.memory().in_use() <= most, "receive memory runs over");
        if !self.lazy {
            self.read(context, id);
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.is_done() || context.now < self.next_at {
            return;
        }
        let id = match self.socket {
            Some(id) => id,
            None => self.open(context),
        };
        self.socket = Some(id);
        self.progress += 1;
        self.read(context, id);
        let wait = match self.phase {
            Phase::Sends if self.left > 0 => {
                self.send(context, id);
                Duration::from_micros(context.rng.between(1, self.gap.as_micros()))
            }
            Phase::Sends => {
                self.phase = Phase::Listens;
                PATIENCE
            }
            Phase::Listens | Phase::Done => {
                self.phase = Phase::Done;
                let closed = context.stack.close(id, context.now);
                closed.expect("the socket is open");
                return;
            }
        };
        self.next_at = context.now + wait;
        context.wake_at(self.next_at);
    }

    fn progress(&self) -> u64 {
        self.progress
    }

    fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }
}
