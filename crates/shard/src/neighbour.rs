//! The hosts on the link: from an IPv4 address to a hardware address (ARP, RFC 826), with reachability as in RFC 4861 7.3.
//!
//! An entry is created when a packet wants to go there, or when the neighbour asks for us. Until the answer comes, sockets wait
//! (nothing of theirs is copied), and a few answers that belong to no socket wait too. An entry that was not confirmed for a while is
//! asked again, first directly, while it goes on being used. Forward progress of TCP confirms it without asking.

use std::collections::VecDeque;
use std::net::Ipv4Addr;

use hashbrown::HashTable;
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

use crate::counters::Counters;
use crate::reply::Reply;
use crate::slab::Slab;
use crate::wheel::Wheel;

/// Time without confirmation after which an address is asked for again.
const REACHABLE: Duration = Duration::from_secs(60);
/// Time between two requests for one neighbour.
const RETRY: Duration = Duration::from_secs(1);
/// Requests before a neighbour has failed: this many to the known hardware address, this many to all.
const TRIES: u8 = 3;
/// Time without use after which an entry is forgotten.
const UNUSED: Duration = Duration::from_secs(600);
/// A different hardware address is not believed so soon after the last one (Linux's `locktime`).
const LOCK: Duration = Duration::from_secs(1);
/// Answers that wait for one neighbour; the oldest gives way.
const WAITING_MAX: usize = 8;
/// Requests that wait to be sent.
const REQUESTS_MAX: usize = 4096;
/// Entries looked at to find one that can be evicted.
const EVICT_SAMPLE: u32 = 16;

/// Names an entry; goes stale when the entry is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    index: u32,
    generation: u32,
}

impl Handle {
    /// Names nothing.
    pub const NONE: Handle = Handle {
        index: u32::MAX,
        generation: 0,
    };
}

/// What is known of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Send there.
    Known(Mac),
    /// It has been asked for; wait.
    Wait,
    /// The handle is stale: look the address up again.
    Gone,
}

/// An ARP request that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who is asked for.
    pub target: Ipv4Addr,
    /// Where to: the known address that is to be confirmed, or everybody.
    pub to: Mac,
}

/// Those that waited for a neighbour, and how it ended.
pub struct Settled {
    /// The neighbour's address when it answered, `None` when it did not.
    pub mac: Option<Mac>,
    /// Sockets (indices) that waited.
    pub sockets: Vec<u32>,
    /// Answers that waited.
    pub replies: VecDeque<Reply>,
}

/// The cache.
pub struct Neighbours {
    entries: Slab<Neighbour>,
    index: HashTable<u32>,
    wheel: Wheel,
    requests: VecDeque<Request>,
    settled: Vec<Settled>,
    hand: u32,
    key: u64,
}

struct Neighbour {
    address: Ipv4Addr,
    mac: Mac,
    state: State,
    /// Requests sent since the last answer.
    tries: u8,
    confirmed: Instant,
    used: Instant,
    /// When the last request was sent.
    asked: Option<Instant>,
    sockets: Vec<u32>,
    replies: VecDeque<Reply>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Asked for, not known.
    Incomplete,
    /// Known.
    Reachable,
    /// Known, and being asked for again.
    Probe,
    /// Did not answer; asked again when somebody wants it.
    Failed,
}

impl Neighbours {
    /// An empty cache of at most `limit` entries, with a key for its hash.
    pub fn new(limit: u32, key: u64, now: Instant) -> Neighbours {
        Neighbours {
            entries: Slab::new(limit),
            index: HashTable::new(),
            wheel: Wheel::new(now),
            requests: VecDeque::new(),
            settled: Vec::new(),
            hand: 0,
            key: key | 1,
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hardware address behind a handle, as the next packet needs it.
    #[inline]
    pub fn resolve(&mut self, handle: Handle, now: Instant) -> Lookup {
        let Some(entry) = self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
        else {
            return Lookup::Gone;
        };
        entry.used = now;
        match entry.state {
            State::Reachable if now - entry.confirmed < REACHABLE => Lookup::Known(entry.mac),
            State::Reachable => {
                entry.state = State::Probe;
                entry.tries = 0;
                let mac = entry.mac;
                self.ask(handle.index, now);
                Lookup::Known(mac)
            }
            State::Probe => Lookup::Known(entry.mac),
            State::Incomplete => Lookup::Wait,
            State::Failed => {
                entry.state = State::Incomplete;
                entry.tries = 0;
                self.ask(handle.index, now);
                Lookup::Wait
            }
        }
    }

    /// Finds the entry for `address`, or makes one and asks for it; `None` when the cache is full of those in use.
    pub fn find(
        &mut self,
        address: Ipv4Addr,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<Handle> {
        if let Some(index) = self.index_of(address) {
            return Some(Handle {
                index,
                generation: self.entries.generation(index),
            });
        }
        let handle = self.insert(address, now, counters)?;
        self.ask(handle.index, now);
        Some(handle)
    }

    /// TCP made progress with this neighbour: a segment came from `mac` that acknowledged something new (RFC 4861 7.3.1).
    #[inline]
    pub fn confirm(&mut self, handle: Handle, mac: Mac, now: Instant) {
        if let Some(entry) = self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
            && entry.mac == mac
            && matches!(entry.state, State::Reachable | State::Probe)
        {
            entry.confirmed = now;
            entry.state = State::Reachable;
        }
    }

    /// A socket wants to send there when the address is known; it is told through [`Neighbours::take_settled`].
    pub fn wait_socket(&mut self, handle: Handle, socket: u32) {
        if let Some(entry) = self.entries.get_mut(handle.index) {
            entry.sockets.push(socket);
        }
    }

    /// An answer is to be sent there when the address is known. Returns the answer that gave way to it.
    pub fn wait_reply(&mut self, handle: Handle, reply: Reply) -> Option<Reply> {
        let Some(entry) = self.entries.get_mut(handle.index) else {
            return Some(reply);
        };
        let oldest = if entry.replies.len() == WAITING_MAX {
            entry.replies.pop_front()
        } else {
            None
        };
        entry.replies.push_back(reply);
        oldest
    }

    /// A neighbour said who it is. `create`: it asked for us, so that it is worth remembering (RFC 826: "merge flag" or target).
    pub fn learn(
        &mut self,
        address: Ipv4Addr,
        mac: Mac,
        create: bool,
        now: Instant,
        counters: &mut Counters,
    ) {
        let index = match self.index_of(address) {
            Some(index) => index,
            None if create => match self.insert(address, now, counters) {
                Some(handle) => handle.index,
                None => return,
            },
            None => return,
        };
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let known = matches!(entry.state, State::Reachable | State::Probe);
        if known && entry.mac != mac && now - entry.confirmed < LOCK {
            return;
        }
        entry.mac = mac;
        entry.state = State::Reachable;
        entry.confirmed = now;
        entry.tries = 0;
        self.settle(index, Some(mac));
    }

    /// Asks again, gives up and forgets, as far as it is time.
    pub fn advance(&mut self, now: Instant, counters: &mut Counters) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(entry) = self.entries.get_mut(index) else {
                continue;
            };
            match entry.state {
                State::Incomplete | State::Probe => {
                    // A probe goes to the known address first, then to everybody.
                    let tries = if entry.state == State::Probe {
                        2 * TRIES
                    } else {
                        TRIES
                    };
                    if entry.asked.is_some_and(|asked| now - asked < RETRY) || entry.tries < tries {
                        self.ask(index, now);
                        continue;
                    }
                    entry.state = State::Failed;
                    counters.neighbours_failed += 1;
                    self.settle(index, None);
                    self.wheel.arm(index, now + UNUSED);
                }
                State::Reachable | State::Failed if now - entry.used >= UNUSED => {
                    self.forget(index);
                }
                State::Reachable | State::Failed => {
                    let at = entry.used + UNUSED;
                    self.wheel.arm(index, at);
                }
            }
        }
    }

    /// When [`Neighbours::advance`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.wheel.deadline()
    }

    /// The next request to send.
    pub fn take_request(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Puts a request back that could not be sent.
    pub fn return_request(&mut self, request: Request) {
        self.requests.push_front(request);
    }

    /// The next group of those that have waited long enough.
    pub fn take_settled(&mut self) -> Option<Settled> {
        self.settled.pop()
    }

    /// Whether a request or a settled group waits to be taken.
    pub fn has_work(&self) -> bool {
        !self.requests.is_empty() || !self.settled.is_empty()
    }

    /// Sends a request now, or as soon as the rate limit allows, and sets the timer for the next.
    fn ask(&mut self, index: u32, now: Instant) {
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        if let Some(asked) = entry.asked
            && now - asked < RETRY
        {
            self.wheel.arm(index, asked + RETRY);
            return;
        }
        entry.asked = Some(now);
        entry.tries += 1;
        let to = if entry.state == State::Probe && entry.tries <= TRIES {
            entry.mac
        } else {
            Mac::BROADCAST
        };
        // With so many waiting this one would be late; the timer comes again.
        if self.requests.len() < REQUESTS_MAX {
            self.requests.push_back(Request {
                target: entry.address,
                to,
            });
        }
        self.wheel.arm(index, now + RETRY);
    }

    fn settle(&mut self, index: u32, mac: Option<Mac>) {
        if let Some(entry) = self.entries.get_mut(index)
            && !(entry.sockets.is_empty() && entry.replies.is_empty())
        {
            let settled = Settled {
                mac,
                sockets: std::mem::take(&mut entry.sockets),
                replies: std::mem::take(&mut entry.replies),
            };
            self.settled.push(settled);
        }
    }

    fn insert(
        &mut self,
        address: Ipv4Addr,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<Handle> {
        let entry = Neighbour {
            address,
            mac: Mac([0; 6]),
            state: State::Incomplete,
            tries: 0,
            confirmed: now,
            used: now,
            asked: None,
            sockets: Vec::new(),
            replies: VecDeque::new(),
        };
        let index = match self.entries.insert(entry) {
            Ok(index) => index,
            Err(entry) => {
                if !self.evict() {
                    counters.neighbours_refused += 1;
                    return None;
                }
                counters.neighbours_evicted += 1;
                self.entries.insert(entry).ok()?
            }
        };
        let key = self.key;
        let entries = &self.entries;
        let rehash = |&other: &u32| {
            hash(
                key,
                entries
                    .get(other)
                    .map_or(Ipv4Addr::UNSPECIFIED, |entry| entry.address),
            )
        };
        self.index.insert_unique(hash(key, address), index, rehash);
        self.wheel.arm(index, now + UNUSED);
        Some(Handle {
            index,
            generation: self.entries.generation(index),
        })
    }

    /// Forgets one entry of a sample: one that no socket waits for, unanswered ones first, then the one used longest ago.
    fn evict(&mut self) -> bool {
        let len = self.entries.len() as u32;
        let mut victim: Option<(bool, Instant, u32)> = None;
        for _ in 0..EVICT_SAMPLE.min(len) {
            self.hand = (self.hand + 1) % len;
            if let Some(entry) = self.entries.get(self.hand)
                && entry.sockets.is_empty()
            {
                let known = matches!(entry.state, State::Reachable | State::Probe);
                let rank = (known, entry.used, self.hand);
                if victim.is_none_or(|best| rank < best) {
                    victim = Some(rank);
                }
            }
        }
        match victim {
            Some((_, _, index)) => {
                self.settle(index, None);
                self.forget(index);
                true
            }
            None => false,
        }
    }

    fn forget(&mut self, index: u32) {
        let Some(entry) = self.entries.remove(index) else {
            return;
        };
        self.wheel.cancel(index);
        if let Ok(found) = self
            .index
            .find_entry(hash(self.key, entry.address), |&other| other == index)
        {
            found.remove();
        }
    }

    fn index_of(&self, address: Ipv4Addr) -> Option<u32> {
        let matches = |&index: &u32| {
            self.entries
                .get(index)
                .is_some_and(|entry| entry.address == address)
        };
        self.index.find(hash(self.key, address), matches).copied()
    }
}

/// Neighbours are few and bounded; an odd secret multiplier is enough to spread them.
fn hash(key: u64, address: Ipv4Addr) -> u64 {
    let product = u128::from(u64::from(address.to_bits()) ^ key.rotate_left(32)) * u128::from(key);
    (product >> 64) as u64 ^ product as u64
}
