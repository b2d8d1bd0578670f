//! The hosts on the link: from an IP address to a hardware address (RFC 826, RFC 4861), with
//! reachability as in RFC 4861 7.3.
//!
//! An entry is created when a packet wants to go there, or when the neighbour asks for us. Until
//! the answer comes, sockets wait (nothing of theirs is copied), and a few answers that belong to
//! no socket wait too. An entry that was not confirmed for a while is asked again, first directly,
//! while it goes on being used. Forward progress of TCP confirms it without asking.
//!
//! Anybody on the link can make us want hosts that do not exist. Such entries give way first, so
//! they displace no neighbour that is used.

mod entry;
mod eviction;

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::num::NonZeroU32;

use hashbrown::HashTable;
use millrace_tcp::{Duration, Instant};
use millrace_wire::ethernet::Mac;

use crate::counters::Counters;
use crate::memory::Owner;
use crate::network::reply_queue::Reply;
use crate::slab::Slab;
use crate::timer_wheel::TimerWheel;
use entry::{Neighbour, State};
use eviction::{Hand, Makers};

/// Time without confirmation after which an address is asked for again.
const REACHABLE: Duration = Duration::from_secs(60);
/// As above, for IPv6 (RFC 4861 10: `REACHABLE_TIME`).
const REACHABLE_V6: Duration = Duration::from_secs(30);
/// How long an IPv6 neighbour that may have gone is used before it is asked (RFC 4861 10:
/// `DELAY_FIRST_PROBE_TIME`): until then TCP may confirm it.
const DELAY: Duration = Duration::from_secs(5);
/// Time between two requests for one neighbour.
const RETRY: Duration = Duration::from_secs(1);
/// How long after a request an answer to it may come.
const ANSWER: Duration = Duration::from_secs(3);
/// Requests before a neighbour has failed: this many to the known hardware address, this many to
/// all.
const TRIES: u8 = 3;
/// Time without use after which an entry is forgotten.
const UNUSED: Duration = Duration::from_secs(600);
/// A different hardware address is not believed so soon after the last one was learnt (Linux's
/// `locktime`).
const LOCK: Duration = Duration::from_secs(1);
/// Answers that wait for one neighbour; the oldest gives way.
const WAITING_MAX: usize = 8;
/// As above, for datagrams (Linux's `unres_qlen` is 101).
const DATAGRAMS_WAITING_MAX: usize = 128;
/// Requests that wait to be sent.
const REQUESTS_MAX: usize = 4096;

/// Names an entry; goes stale when the entry is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    index: u32,
    generation: NonZeroU32,
}

impl Handle {
    /// Names nothing.
    pub const NONE: Handle = Handle {
        index: u32::MAX,
        generation: NonZeroU32::MAX,
    };
}

/// The state of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// Send there.
    Known(Mac),
    /// It has been asked for; wait.
    Wait,
    /// The handle is stale: look the address up again.
    Gone,
}

/// An ARP request or a neighbour solicitation that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The address in question.
    pub target: IpAddr,
    /// Where to: the known address that is to be confirmed, or [`Mac::BROADCAST`] for everybody who
    /// may have it.
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
    wheel: TimerWheel,
    requests: VecDeque<Request>,
    settled: Vec<Settled>,
    /// Those that have not answered of late.
    failed: Vec<IpAddr>,
    /// Those that were not known or not used when last looked at, oldest first: the first to give
    /// way.
    doubtful: VecDeque<Handle>,
    limit: usize,
    makers: Makers,
    hand: Hand,
    key: u64,
    /// For how long a neighbour whose hardware address was just learnt is not believed to have
    /// another one.
    lock: Duration,
    /// The last entry that was found: most connections share one next hop.
    found: Option<(IpAddr, Handle)>,
    /// The entry of the station that all others are behind.
    only: Option<Handle>,
}

impl Neighbours {
    /// An empty cache of at most `limit` entries, with a key for its hash.
    pub fn new(limit: u32, key: u64, now: Instant) -> Neighbours {
        Neighbours {
            entries: Slab::new(limit),
            index: HashTable::new(),
            wheel: TimerWheel::new(now),
            requests: VecDeque::new(),
            settled: Vec::new(),
            failed: Vec::new(),
            doubtful: VecDeque::new(),
            limit: limit as usize,
            makers: Makers::default(),
            hand: Hand::default(),
            key: key | 1,
            lock: LOCK,
            found: None,
            only: None,
        }
    }

    /// Believes every change of a hardware address at once: the kernel has checked it.
    pub fn trust(&mut self) {
        self.lock = Duration::ZERO;
    }

    /// As this table, on a link with one other station that leads to all hosts: no address is asked
    /// for.
    pub fn all_behind(mut self, station: Option<Mac>, now: Instant) -> Neighbours {
        let Some(station) = station else {
            return self;
        };
        let anybody = Ipv6Addr::UNSPECIFIED.into();
        self.only = self.insert(anybody, None, now, &mut Counters::default());
        if let Some(handle) = self.only
            && let Some(entry) = self.entries.get_mut(handle.index)
        {
            entry.mac = station;
            entry.state = State::Fixed;
            self.wheel.cancel(handle.index);
            self.doubtful.clear();
        }
        self
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The hardware address behind a handle, as the next packet needs it.
    #[inline(always)]
    pub fn resolve(&mut self, handle: Handle, now: Instant) -> Lookup {
        let Some(entry) = self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
        else {
            return Lookup::Gone;
        };
        entry.used = now;
        entry.wanted = true;
        match entry.state {
            State::Reachable if now - entry.confirmed < REACHABLE_V6 => Lookup::Known(entry.mac),
            _ => self.resolve_doubtful(handle.index, now),
        }
    }

    /// As [`Neighbours::resolve`], for an answer: that somebody made us answer is no reason to keep
    /// the entry.
    pub fn resolve_for_answer(&mut self, handle: Handle, now: Instant) -> Lookup {
        if self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
            .is_none()
        {
            return Lookup::Gone;
        }
        self.resolve_doubtful(handle.index, now)
    }

    /// As [`Neighbours::resolve`], for a neighbour that is not, or perhaps no longer, known.
    fn resolve_doubtful(&mut self, index: u32, now: Instant) -> Lookup {
        let Some(entry) = self.entries.get_mut(index) else {
            return Lookup::Gone;
        };
        let mac = entry.mac;
        match entry.state {
            State::Reachable if now - entry.confirmed < REACHABLE_V6 => Lookup::Known(mac),
            State::Reachable | State::Stale if entry.address.is_ipv6() => {
                entry.state = State::Delay;
                entry.due = now + DELAY;
                self.wheel.arm(index, now + DELAY);
                Lookup::Known(mac)
            }
            State::Reachable | State::Stale if now - entry.confirmed < REACHABLE => {
                Lookup::Known(mac)
            }
            State::Reachable | State::Stale => {
                entry.state = State::Probe;
                entry.tries = 0;
                self.ask(index, now);
                Lookup::Known(mac)
            }
            State::Delay | State::Probe | State::Fixed => Lookup::Known(mac),
            State::Incomplete => Lookup::Wait,
            State::Failed => {
                entry.state = State::Incomplete;
                entry.tries = 0;
                self.ask(index, now);
                Lookup::Wait
            }
        }
    }

    /// Finds the entry for `address`, or makes one for `maker`, if it is one of sockets that wants
    /// it, and asks for it; `None` when the cache is full of those in use.
    #[inline]
    pub fn find(
        &mut self,
        address: IpAddr,
        maker: Option<Owner>,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<Handle> {
        if self.only.is_some() {
            return self.only;
        }
        if let Some((last, handle)) = self.found
            && last == address
            && self.entries.generation(handle.index) == handle.generation
        {
            return Some(handle);
        }
        if let Some(index) = self.index_of(address) {
            let generation = self.entries.generation(index);
            let handle = Handle { index, generation };
            self.found = Some((address, handle));
            return Some(handle);
        }
        let handle = self.insert(address, maker, now, counters)?;
        self.ask(handle.index, now);
        Some(handle)
    }

    /// TCP made progress with this neighbour: a segment came from `mac` that acknowledged something
    /// new (RFC 4861 7.3.1).
    #[inline(always)]
    pub fn confirm(&mut self, handle: Handle, mac: Mac, now: Instant) {
        if let Some(entry) = self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
            && entry.mac == mac
            && entry.state.is_known()
            && entry.state != State::Fixed
        {
            entry.confirmed = now;
            entry.state = State::Reachable;
        }
    }

    /// A connection that sends there makes no progress. A neighbour that was not heard of for a
    /// while is asked whether it is still there, or who else has its address now: what confirmed it
    /// came before it went (RFC 4861 7.3.1 has hints of progress; this is one of none).
    pub fn suspect(&mut self, handle: Handle, now: Instant) {
        if let Some(entry) = self
            .entries
            .get_of_generation_mut(handle.index, handle.generation)
            && entry.state == State::Reachable
            && now - entry.confirmed >= RETRY
        {
            entry.state = State::Probe;
            entry.tries = 0;
            self.ask(handle.index, now);
        }
    }

    /// A socket wants to send there when the address is known; it is told through
    /// [`Neighbours::take_settled`].
    pub fn wait_socket(&mut self, handle: Handle, socket: u32) {
        if let Some(entry) = self.entries.get_mut(handle.index) {
            entry.sockets.push(socket);
        }
    }

    /// An answer is to be sent there when the address is known. Returns the answer that gave way to
    /// it.
    pub fn wait_reply(&mut self, handle: Handle, reply: Reply) -> Option<Reply> {
        self.wait(handle, reply, WAITING_MAX)
    }

    /// The same of a datagram, of which more may wait: who sends a burst to a neighbour does not
    /// know that it is not known yet.
    pub fn wait_datagram(&mut self, handle: Handle, packet: Reply) -> Option<Reply> {
        self.wait(handle, packet, DATAGRAMS_WAITING_MAX)
    }

    fn wait(&mut self, handle: Handle, reply: Reply, limit: usize) -> Option<Reply> {
        let Some(entry) = self.entries.get_mut(handle.index) else {
            return Some(reply);
        };
        let oldest = if entry.replies.len() >= limit {
            entry.replies.pop_front()
        } else {
            None
        };
        entry.replies.push_back(reply);
        oldest
    }

    /// A neighbour said over ARP who it is. `create`: it asked for us, so that it is worth
    /// remembering (RFC 826: "merge flag" or target).
    pub fn learn(
        &mut self,
        address: IpAddr,
        mac: Mac,
        create: bool,
        now: Instant,
        counters: &mut Counters,
    ) {
        let index = match self.index_of(address) {
            Some(index) => index,
            None if create => match self.insert(address, None, now, counters) {
                Some(handle) => handle.index,
                None => return,
            },
            None => return,
        };
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        if entry.state.is_known() && entry.mac != mac && now - entry.learnt < self.lock {
            return;
        }
        entry.take_mac(mac, now);
        entry.state = State::Reachable;
        entry.confirmed = now;
        entry.tries = 0;
        self.release_waiters(index, Some(mac));
    }

    /// A message came from `address` with its link-layer address in an option (RFC 4861 6.2.6,
    /// 6.3.4, 7.2.3): so it is there, but whether we reach it is not known. `create`: it will be
    /// answered, so that it is worth remembering.
    pub fn hear(
        &mut self,
        address: Ipv6Addr,
        mac: Mac,
        create: bool,
        now: Instant,
        counters: &mut Counters,
    ) {
        let address = IpAddr::V6(address);
        let index = match self.index_of(address) {
            Some(index) => index,
            None if create => match self.insert(address, None, now, counters) {
                Some(handle) => handle.index,
                None => return,
            },
            None => return,
        };
        if let Some(entry) = self.entries.get_mut(index)
            && !(entry.state.is_known() && entry.mac == mac)
        {
            entry.take_mac(mac, now);
            entry.state = State::Stale;
            entry.tries = 0;
            self.release_waiters(index, Some(mac));
        }
    }

    /// A neighbour advertisement (RFC 4861 7.2.5): `link` is the address that it tells, `solicited`
    /// that it answers, `replaces` that it is to be believed rather than what is known.
    pub fn advertised(
        &mut self,
        address: Ipv6Addr,
        link: Option<Mac>,
        solicited: bool,
        replaces: bool,
        now: Instant,
    ) {
        let Some(index) = self.index_of(address.into()) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(index) else {
            return;
        };
        let known = entry.state.is_known();
        let mac = match link {
            Some(mac) => mac,
            None if known => entry.mac,
            None => return,
        };
        let differs = !known || mac != entry.mac;
        if known && differs && !replaces {
            if entry.state == State::Reachable {
                entry.state = State::Stale;
            }
            return;
        }
        // Whoever says that this answers a question must have been asked one: else anybody could
        // keep a wrong address from being doubted.
        let solicited = solicited && entry.asked.is_some_and(|asked| now - asked < ANSWER);
        entry.take_mac(mac, now);
        if solicited {
            entry.state = State::Reachable;
            entry.confirmed = now;
            entry.tries = 0;
        } else if differs {
            entry.state = State::Stale;
        }
        self.release_waiters(index, Some(mac));
    }

    /// Asks again, gives up and forgets, as far as it is time.
    pub fn advance(&mut self, now: Instant, counters: &mut Counters) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(entry) = self.entries.get_mut(index) else {
                continue;
            };
            match entry.state {
                State::Fixed => {}
                State::Delay if now < entry.due => {
                    let due = entry.due;
                    self.wheel.arm(index, due);
                }
                State::Delay => {
                    entry.state = State::Probe;
                    entry.tries = 0;
                    self.ask(index, now);
                }
                State::Incomplete | State::Probe => {
                    // Over ARP a probe goes to the known address first, then to everybody.
                    let tries = if entry.state == State::Probe && entry.address.is_ipv4() {
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
                    self.failed.push(entry.address);
                    self.release_waiters(index, None);
                    self.wheel.arm(index, now + UNUSED);
                }
                State::Reachable | State::Stale | State::Failed if now - entry.used >= UNUSED => {
                    self.forget(index);
                }
                State::Reachable | State::Stale | State::Failed => {
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

    /// The next neighbour that has not answered; to be asked for after [`Neighbours::advance`]
    /// until there is none.
    pub fn take_failed(&mut self) -> Option<IpAddr> {
        self.failed.pop()
    }

    /// Packets by way of `address` may have to take another way: handles of the entry go stale, and
    /// sockets that wait for it look up their route again.
    pub fn reroute(&mut self, address: IpAddr) {
        if let Some(index) = self.index_of(address) {
            let mac = self.entries.get(index).map(|entry| entry.mac);
            self.release_waiters(index, mac);
            self.forget(index);
        }
    }

    /// As [`Neighbours::reroute`], for all neighbours.
    pub fn reroute_all(&mut self) {
        let all: Vec<IpAddr> = self
            .entries
            .iter()
            .map(|(_, entry)| entry.address)
            .collect();
        for address in all {
            self.reroute(address);
        }
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

    fn release_waiters(&mut self, index: u32, mac: Option<Mac>) {
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
        address: IpAddr,
        maker: Option<Owner>,
        now: Instant,
        counters: &mut Counters,
    ) -> Option<Handle> {
        let entry = Neighbour {
            address,
            mac: Mac([0; 6]),
            state: State::Incomplete,
            tries: 0,
            confirmed: now,
            learnt: now,
            used: now,
            wanted: false,
            due: now,
            asked: None,
            maker,
            sockets: Vec::new(),
            replies: VecDeque::new(),
        };
        let index = match self.entries.insert(entry) {
            Ok(index) => index,
            Err(entry) => {
                if !self.evict(maker, counters) {
                    counters.neighbours_refused += 1;
                    return None;
                }
                counters.neighbours_evicted += 1;
                self.entries.insert(entry).ok()?
            }
        };
        if let Some(maker) = maker {
            self.makers.add(maker);
        }
        let key = self.key;
        let entries = &self.entries;
        let rehash = |&other: &u32| {
            hash(
                key,
                entries
                    .get(other)
                    .map_or(Ipv6Addr::UNSPECIFIED.into(), |entry| entry.address),
            )
        };
        self.index.insert_unique(hash(key, address), index, rehash);
        self.wheel.arm(index, now + UNUSED);
        let handle = Handle {
            index,
            generation: self.entries.generation(index),
        };
        if self.doubtful.len() >= 2 * self.limit {
            let entries = &self.entries;
            self.doubtful.retain(|handle| {
                entries
                    .get(handle.index)
                    .is_some_and(Neighbour::is_doubtful)
                    && entries.generation(handle.index) == handle.generation
            });
        }
        self.doubtful.push_back(handle);
        Some(handle)
    }

    /// Forgets an entry, so that there is room for one that `newcomer` wants; false when all are
    /// needed.
    fn evict(&mut self, newcomer: Option<Owner>, counters: &mut Counters) -> bool {
        let hogs = self
            .hand
            .find_of_hog(&self.entries, &self.makers, self.limit, newcomer);
        counters.neighbours_limited += u64::from(hogs.is_some());
        let victim = hogs
            .or_else(|| self.pop_doubtful())
            .or_else(|| self.hand.find_unused(&self.entries));
        if let Some(index) = victim {
            self.release_waiters(index, None);
            self.forget(index);
        }
        victim.is_some()
    }

    /// The oldest entry that is not known, or that no connection ever used.
    fn pop_doubtful(&mut self) -> Option<u32> {
        while let Some(handle) = self.doubtful.pop_front() {
            let entry = self
                .entries
                .get_of_generation(handle.index, handle.generation);
            if entry.is_some_and(Neighbour::is_doubtful) {
                return Some(handle.index);
            }
        }
        None
    }

    fn forget(&mut self, index: u32) {
        let Some(entry) = self.entries.remove(index) else {
            return;
        };
        self.wheel.cancel(index);
        if let Some(maker) = entry.maker {
            self.makers.remove(maker);
        }
        if let Ok(found) = self
            .index
            .find_entry(hash(self.key, entry.address), |&other| other == index)
        {
            found.remove();
        }
    }

    #[inline(always)]
    fn index_of(&self, address: IpAddr) -> Option<u32> {
        let matches = |&index: &u32| {
            self.entries
                .get(index)
                .is_some_and(|entry| entry.address == address)
        };
        self.index.find(hash(self.key, address), matches).copied()
    }
}

/// Neighbours are few and bounded; an odd secret multiplier is enough to spread them.
fn hash(key: u64, address: IpAddr) -> u64 {
    let bits = match address {
        IpAddr::V4(address) => u64::from(address.to_bits()),
        IpAddr::V6(address) => {
            let bits = address.to_bits();
            mix((bits >> 64) as u64 ^ key, key) ^ bits as u64
        }
    };
    mix(bits ^ key.rotate_left(32), key)
}

fn mix(bits: u64, key: u64) -> u64 {
    let product = u128::from(bits) * u128::from(key);
    (product >> 64) as u64 ^ product as u64
}
