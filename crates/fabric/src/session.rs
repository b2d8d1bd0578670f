//! What one port says to one other: credits, announcements, grants, data. No transport is special
//! here.

use std::collections::VecDeque;

use millrace_tcp::Instant;

use crate::buffers::Use;
use crate::queues::Queues;
use crate::record::{Body, Head, Transport};
use crate::types::{
    ANNOUNCED_MAX, BufferId, CHANNELS, Channel, Failure, INLINE_MAX, MESSAGE_MAX, PortName,
    Received, SYSTEM_MAX,
};

/// Answers that wait for room. A peer that keeps to the protocol is owed fewer.
const REPLIES_MAX: usize = 8 * CHANNELS as usize * ANNOUNCED_MAX;

/// The peer broke the protocol: its records are not believed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation;

/// What a request sends, kept.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    /// The bytes.
    Inline(u8, [u8; INLINE_MAX]),
    /// A buffer.
    Buffer(BufferId, u32),
}

impl Kept {
    fn len(&self) -> u32 {
        match self {
            Kept::Inline(len, _) => u32::from(*len),
            Kept::Buffer(_, len) => *len,
        }
    }

    fn buffer(&self) -> Option<BufferId> {
        match self {
            Kept::Inline(..) => None,
            Kept::Buffer(id, _) => Some(*id),
        }
    }

    fn bytes<'a>(&'a self, port: &'a Queues) -> &'a [u8] {
        match self {
            Kept::Inline(len, bytes) => &bytes[..usize::from(*len)],
            // It cannot be freed while it is sent from.
            Kept::Buffer(id, len) => port
                .buffers
                .bytes(*id)
                .map_or(&[], |bytes| &bytes[..*len as usize]),
        }
    }
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The program's mark.
    pub tag: u64,
    /// Where it goes.
    pub channel: Channel,
    /// And where in a window.
    pub offset: u64,
    /// What it sends.
    pub payload: Kept,
    /// Until when it waits for the receiver.
    pub deadline: Instant,
}

/// A message of the peer's that waits for a buffer or a window.
#[derive(Clone, Copy, Debug)]
struct Announced {
    ticket: u32,
    channel: Channel,
    len: u32,
    offset: u64,
}

/// A message that is being received.
#[derive(Clone, Copy, Debug)]
struct Receiving {
    message: Announced,
    buffer: BufferId,
    got: u32,
}

/// A session with one port.
#[derive(Debug)]
pub struct Session {
    /// That port.
    pub remote: PortName,
    key: u64,
    up: bool,
    /// Messages sent on the system channel and how many may be, modulo 2^32.
    system_sent: u32,
    system_total: u32,
    system: VecDeque<Request>,
    /// Requests for the other channels: not announced yet, announced, and granted with how many
    /// bytes were sent.
    fresh: VecDeque<Request>,
    announced_to: VecDeque<(u32, Request)>,
    granted: VecDeque<(u32, u32, Request)>,
    next_ticket: u32,
    may_announce: bool,
    /// What the transport has taken and not delivered, by its position.
    undelivered: VecDeque<(u64, u64, Option<BufferId>)>,
    replies: VecDeque<Head>,
    /// When the first request has waited long enough, or earlier.
    expiry: Instant,
    /// Messages received on the system channel, given back by the program, and the credit that the
    /// peer was told.
    system_received: u32,
    system_freed: u32,
    system_told: u32,
    expected_ticket: u32,
    /// There will be no session.
    is_hopeless: bool,
    announced: VecDeque<Announced>,
    receiving: VecDeque<Receiving>,
}

fn channel_index(channel: Channel) -> Option<usize> {
    match channel {
        Channel::Normal(number) if number < CHANNELS => Some(usize::from(number)),
        Channel::Open(number) if number < CHANNELS => Some(usize::from(CHANNELS + number)),
        _ => None,
    }
}

impl Session {
    pub fn new(remote: PortName, key: u64) -> Session {
        Session {
            remote,
            key,
            up: false,
            system_sent: 0,
            system_total: 0,
            system: VecDeque::new(),
            fresh: VecDeque::new(),
            announced_to: VecDeque::new(),
            granted: VecDeque::new(),
            next_ticket: 0,
            may_announce: false,
            undelivered: VecDeque::new(),
            replies: VecDeque::new(),
            expiry: Instant::NEVER,
            system_received: 0,
            system_freed: 0,
            system_told: 0,
            expected_ticket: 0,
            is_hopeless: false,
            announced: VecDeque::new(),
            receiving: VecDeque::new(),
        }
    }

    /// The transport carries records from now on.
    pub fn come_up(&mut self) {
        self.up = true;
        self.may_announce = true;
    }

    /// Whether it does.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Which session it is.
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Buffers of the pool that hold messages of this session.
    pub fn messages_held(&self) -> usize {
        self.system_received.wrapping_sub(self.system_freed) as usize
    }

    /// The program has given a buffer of the pool back.
    #[inline]
    pub fn message_freed(&mut self) {
        self.system_freed = self.system_freed.wrapping_add(1);
    }

    /// When something is to be done though no record comes.
    pub fn deadline(&self) -> Instant {
        self.expiry
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.system.is_empty()
            && self.fresh.is_empty()
            && self.announced_to.is_empty()
            && self.granted.is_empty()
            && self.undelivered.is_empty()
            && self.replies.is_empty()
    }

    fn has_credit(&self) -> bool {
        self.up && self.system_sent != self.system_total
    }

    /// A new request of the program's: sent at once if that is possible.
    #[inline]
    pub fn send(
        &mut self,
        port: &mut Queues,
        transport: &mut impl Transport,
        mut request: Request,
    ) {
        port.outstanding += 1;
        if self.is_hopeless {
            request.deadline = Instant::default();
        }
        match request.channel {
            Channel::System => {
                let is_sent = self.system.is_empty()
                    && self.has_credit()
                    && self.send_system(port, transport, &request);
                if !is_sent {
                    self.expiry = self.expiry.min(request.deadline);
                    port.counters.waited += 1;
                    self.system.push_back(request);
                }
            }
            _ => {
                self.expiry = self.expiry.min(request.deadline);
                self.fresh.push_back(request);
                self.may_announce = true;
                self.announce(port, transport);
            }
        }
    }

    #[inline]
    fn send_system(
        &mut self,
        port: &mut Queues,
        transport: &mut impl Transport,
        request: &Request,
    ) -> bool {
        if !transport.push(Head::System, request.payload.bytes(port)) {
            return false;
        }
        self.system_sent = self.system_sent.wrapping_add(1);
        self.departed(port, transport, request);
        true
    }

    /// The transport has all of it.
    #[inline]
    fn departed(&mut self, port: &mut Queues, transport: &impl Transport, request: &Request) {
        let buffer = request.payload.buffer();
        if self.undelivered.is_empty() && transport.delivered() >= transport.position() {
            port.complete(self.remote, request.tag, buffer, Ok(()));
        } else {
            let entry = (transport.position(), request.tag, buffer);
            self.undelivered.push_back(entry);
        }
    }

    /// Sends what can be sent. To be called after records have come, and when the transport has
    /// room again.
    pub fn pump(&mut self, port: &mut Queues, transport: &mut impl Transport) {
        while let Some(&(position, tag, buffer)) = self.undelivered.front()
            && transport.delivered() >= position
        {
            self.undelivered.pop_front();
            port.complete(self.remote, tag, buffer, Ok(()));
        }
        if !self.up {
            return;
        }
        while let Some(&head) = self.replies.front() {
            if !transport.push(head, &[]) {
                return;
            }
            self.replies.pop_front();
        }
        self.tell_credit(port, transport);
        while self.has_credit()
            && let Some(&request) = self.system.front()
        {
            if !self.send_system(port, transport, &request) {
                return;
            }
            self.system.pop_front();
        }
        self.announce(port, transport);
        self.send_data(port, transport);
    }

    /// Tells the peer what it may send on the system channel, when that has grown enough to be
    /// worth it.
    #[inline]
    fn tell_credit(&mut self, port: &Queues, transport: &mut impl Transport) {
        let quota = port.limits.system_buffers as u32;
        let total = self.system_freed.wrapping_add(quota);
        if total.wrapping_sub(self.system_told) >= (quota / 2).max(1)
            && transport.push(Head::Credit { total }, &[])
        {
            self.system_told = total;
        }
    }

    fn announce(&mut self, port: &mut Queues, transport: &mut impl Transport) {
        if !self.may_announce || !self.up {
            return;
        }
        let mut counts = [0; 2 * CHANNELS as usize];
        for (_, request) in &self.announced_to {
            if let Some(index) = channel_index(request.channel) {
                counts[index] += 1;
            }
        }
        let mut at = 0;
        while let Some(&request) = self.fresh.get(at) {
            let index = channel_index(request.channel).unwrap_or_default();
            if counts[index] == ANNOUNCED_MAX {
                at += 1;
                continue;
            }
            let head = Head::Announce {
                ticket: self.next_ticket,
                channel: request.channel,
                len: request.payload.len(),
                offset: request.offset,
            };
            if !transport.push(head, &[]) {
                return;
            }
            counts[index] += 1;
            self.announced_to.push_back((self.next_ticket, request));
            self.next_ticket = self.next_ticket.wrapping_add(1);
            self.fresh.remove(at);
        }
        self.may_announce = false;
        port.counters.waited += u64::from(at > 0);
    }

    fn send_data(&mut self, port: &mut Queues, transport: &mut impl Transport) {
        while let Some(&(ticket, at, request)) = self.granted.front() {
            let Some(room) = transport.room() else {
                return;
            };
            let bytes = request.payload.bytes(port);
            let end = bytes.len().min(at as usize + room);
            if !transport.push(Head::Data { ticket, at }, &bytes[at as usize..end]) {
                return;
            }
            if end == bytes.len() {
                self.granted.pop_front();
                self.departed(port, transport, &request);
            } else if let Some(front) = self.granted.front_mut() {
                front.1 = end as u32;
            }
        }
    }

    /// There will be no session: what waits for it has waited long enough.
    pub fn give_up(&mut self) {
        self.expiry = Instant::default();
        let all = self.system.iter_mut().chain(&mut self.fresh);
        all.for_each(|request| request.deadline = Instant::default());
        self.is_hopeless = true;
    }

    /// Ends the requests that have waited for too long.
    pub fn expire(&mut self, port: &mut Queues, now: Instant) {
        if now < self.expiry {
            return;
        }
        let failure = match self.up {
            true => Failure::NoBuffer,
            false => Failure::NoSuchPort,
        };
        let remote = self.remote;
        let mut next = Instant::NEVER;
        let mut is_late = |request: &Request| {
            let late = request.deadline <= now;
            if late {
                port.complete(remote, request.tag, request.payload.buffer(), Err(failure));
            } else {
                next = next.min(request.deadline);
            }
            late
        };
        self.system.retain(|request| !is_late(request));
        self.fresh.retain(|request| !is_late(request));
        self.announced_to.retain(|&(ticket, request)| {
            let late = is_late(&request);
            if late {
                self.replies.push_back(Head::Withdraw { ticket });
                self.may_announce = true;
            }
            !late
        });
        self.expiry = next;
    }

    /// Ends all requests, and gives back the buffers that were being received into. The session is
    /// of no more use.
    pub fn fail(&mut self, port: &mut Queues, failure: Failure) {
        let remote = self.remote;
        for (_, tag, buffer) in self.undelivered.drain(..) {
            port.complete(remote, tag, buffer, Err(failure));
        }
        let granted = self.granted.drain(..).map(|(_, _, request)| request);
        let announced = self.announced_to.drain(..).map(|(_, request)| request);
        let waiting = self.system.drain(..).chain(self.fresh.drain(..));
        for request in granted.chain(announced).chain(waiting) {
            port.complete(remote, request.tag, request.payload.buffer(), Err(failure));
        }
        for receiving in self.receiving.drain(..).rev() {
            port.give_back(receiving.message.channel, receiving.buffer);
        }
    }

    /// Takes a record of the peer's.
    #[inline]
    pub fn on_record(
        &mut self,
        port: &mut Queues,
        head: Head,
        body: &impl Body,
    ) -> Result<(), Violation> {
        match head {
            Head::System => self.on_system(port, body),
            Head::Data { ticket, at } => self.on_data(port, ticket, at, body),
            _ if body.len() != 0 => Err(Violation),
            Head::Credit { total } => {
                let more = total.wrapping_sub(self.system_total);
                self.system_total = total;
                // It never shrinks, and no port has such a pool.
                (more < 1 << 30).then_some(()).ok_or(Violation)
            }
            Head::Announce {
                ticket,
                channel,
                len,
                offset,
            } => self.on_announce(port, ticket, channel, len, offset),
            Head::Grant { ticket } => self.on_grant(ticket),
            Head::Refuse { ticket, reason } => self.on_refuse(port, ticket, reason),
            Head::Withdraw { ticket } => self.on_withdraw(port, ticket),
        }
    }

    #[inline]
    fn on_system(&mut self, port: &mut Queues, body: &impl Body) -> Result<(), Violation> {
        let len = body.len();
        if len > SYSTEM_MAX || self.system_received == self.system_told {
            return Err(Violation);
        }
        // The pool has as many as all peers were told.
        let buffer = port.buffers.take_pooled(self.key).ok_or(Violation)?;
        if let Ok(bytes) = port.buffers.bytes_mut(buffer) {
            body.copy_to(&mut bytes[..len]);
        }
        self.system_received = self.system_received.wrapping_add(1);
        port.receive(Received {
            from: self.remote,
            channel: Channel::System,
            buffer,
            offset: 0,
            len,
        });
        Ok(())
    }

    fn on_announce(
        &mut self,
        port: &mut Queues,
        ticket: u32,
        channel: Channel,
        len: u32,
        offset: u64,
    ) -> Result<(), Violation> {
        let waiting = self.announced.iter().filter(|one| one.channel == channel);
        if ticket != self.expected_ticket
            || len as usize > MESSAGE_MAX
            || waiting.count() >= ANNOUNCED_MAX
        {
            return Err(Violation);
        }
        self.expected_ticket = ticket.wrapping_add(1);
        if channel_index(channel).is_none() {
            let reason = Failure::NoSuchChannel;
            return self.reply(Head::Refuse { ticket, reason });
        }
        self.announced.push_back(Announced {
            ticket,
            channel,
            len,
            offset,
        });
        port.may_grant = true;
        Ok(())
    }

    fn reply(&mut self, head: Head) -> Result<(), Violation> {
        self.replies.push_back(head);
        (self.replies.len() <= REPLIES_MAX)
            .then_some(())
            .ok_or(Violation)
    }

    /// Grants what there are buffers and windows for, or refuses it.
    pub fn grant(&mut self, port: &mut Queues) -> Result<(), Violation> {
        let mut blocked = [false; 2 * CHANNELS as usize];
        let mut at = 0;
        while let Some(&message) = self.announced.get(at) {
            let index = channel_index(message.channel).unwrap_or_default();
            let ticket = message.ticket;
            // Behind one that waits, all of its channel wait.
            let found = match blocked[index] {
                true => Ok(None),
                false => port.claim(message.channel, message.len, message.offset),
            };
            match found {
                Ok(None) => {
                    blocked[index] = true;
                    at += 1;
                    continue;
                }
                Ok(Some(buffer)) => {
                    self.receiving.push_back(Receiving {
                        message,
                        buffer,
                        got: 0,
                    });
                    self.reply(Head::Grant { ticket })?;
                }
                Err(reason) => self.reply(Head::Refuse { ticket, reason })?,
            }
            self.announced.remove(at);
        }
        Ok(())
    }

    /// Whether a message is being received into the window of this channel.
    pub fn is_receiving(&self, channel: Channel) -> bool {
        let mut messages = self.receiving.iter();
        messages.any(|receiving| receiving.message.channel == channel)
    }

    /// Whether there was a message of ours with that ticket.
    fn was_announced(&self, ticket: u32) -> Result<(), Violation> {
        let behind = self.next_ticket.wrapping_sub(ticket);
        (behind != 0 && behind < 1 << 31)
            .then_some(())
            .ok_or(Violation)
    }

    /// Takes out the request that was announced with the ticket; none if it was withdrawn
    /// meanwhile.
    fn take_announced(&mut self, ticket: u32) -> Result<Option<Request>, Violation> {
        self.was_announced(ticket)?;
        if self.granted.iter().any(|(granted, ..)| *granted == ticket) {
            return Err(Violation);
        }
        let mut tickets = self.announced_to.iter();
        let found = tickets.position(|(announced, _)| *announced == ticket);
        self.may_announce = true;
        Ok(found
            .and_then(|at| self.announced_to.remove(at))
            .map(|(_, request)| request))
    }

    fn on_grant(&mut self, ticket: u32) -> Result<(), Violation> {
        if let Some(request) = self.take_announced(ticket)? {
            self.granted.push_back((ticket, 0, request));
        }
        Ok(())
    }

    fn on_refuse(
        &mut self,
        port: &mut Queues,
        ticket: u32,
        reason: Failure,
    ) -> Result<(), Violation> {
        if let Some(request) = self.take_announced(ticket)? {
            let buffer = request.payload.buffer();
            port.complete(self.remote, request.tag, buffer, Err(reason));
        }
        Ok(())
    }

    fn on_withdraw(&mut self, port: &mut Queues, ticket: u32) -> Result<(), Violation> {
        let behind = self.expected_ticket.wrapping_sub(ticket);
        if behind == 0 || behind >= 1 << 31 {
            return Err(Violation);
        }
        self.announced.retain(|message| message.ticket != ticket);
        let mut all = self.receiving.iter();
        if let Some(at) = all.position(|receiving| receiving.message.ticket == ticket) {
            let receiving = self.receiving[at];
            if receiving.got > 0 {
                return Err(Violation);
            }
            self.receiving.remove(at);
            port.give_back(receiving.message.channel, receiving.buffer);
        }
        port.may_grant = true;
        Ok(())
    }

    fn on_data(
        &mut self,
        port: &mut Queues,
        ticket: u32,
        at: u32,
        body: &impl Body,
    ) -> Result<(), Violation> {
        let mut all = self.receiving.iter();
        let found = all.position(|receiving| receiving.message.ticket == ticket);
        let index = found.ok_or(Violation)?;
        let Receiving {
            message,
            buffer,
            got,
        } = self.receiving[index];
        let len = body.len();
        let left = (message.len - got) as usize;
        if at != got || len > left || (len == 0 && left > 0) {
            return Err(Violation);
        }
        let start = message.offset as usize + got as usize;
        let bytes = port.buffers.bytes_mut(buffer).map_err(|_| Violation)?;
        // `Queues::claim` has checked that all of it fits.
        body.copy_to(&mut bytes[start..start + len]);
        if len < left {
            self.receiving[index].got += len as u32;
            return Ok(());
        }
        self.receiving.remove(index);
        if matches!(message.channel, Channel::Normal(_)) {
            port.buffers.set_usage(buffer, Use::Idle);
        }
        port.receive(Received {
            from: self.remote,
            channel: message.channel,
            buffer,
            offset: message.offset as usize,
            len: message.len as usize,
        });
        Ok(())
    }
}
