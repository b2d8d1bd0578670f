//! One end of a conversation over a connection: what it sends, what it expects, and that nothing
//! else happens.

use std::net::SocketAddr;

use millrace_shard::{Error, How, Memory, Owner, SocketId, View, ViewFlags};
use millrace_tcp::{Duration, Instant};

use crate::context::Context;
use crate::pattern::Pattern;

/// What a conversation consists of; both ends know it.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Bytes from client to server.
    pub client_bytes: u64,
    /// Bytes from server to client.
    pub server_bytes: u64,
    /// Length of each request and of each answer in bytes: the client waits for an answer before it
    /// asks again. `None`: both talk at once.
    pub turns: Option<(u64, u64)>,
    /// How it ends.
    pub ending: Ending,
    /// How fast the client reads and writes.
    pub client_pace: Pace,
    /// How fast the server does.
    pub server_pace: Pace,
}

impl Plan {
    /// Both talk at once; each shuts its side when it has said all.
    pub fn exchange(client_bytes: u64, server_bytes: u64) -> Plan {
        let (client_pace, server_pace) = (Pace::default(), Pace::default());
        Plan {
            client_bytes,
            server_bytes,
            turns: None,
            ending: Ending::HalfClose,
            client_pace,
            server_pace,
        }
    }

    /// So many requests, each with its answer; then the client closes.
    pub fn requests(count: u64, request: u64, answer: u64) -> Plan {
        Plan {
            turns: Some((request, answer)),
            ending: Ending::ClientCloses,
            ..Plan::exchange(count * request, count * answer)
        }
    }
}

/// How a conversation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Each end shuts its side for writing once it has said all, and reads on to the end of the
    /// other's.
    HalfClose,
    /// The client closes when it has said and heard all; the server when it reads the end.
    ClientCloses,
    /// The other way round.
    ServerCloses,
    /// Each end closes when it has said and heard all.
    BothClose,
    /// The client aborts when it has said and heard all; the server finds its connection reset.
    ClientAborts,
}

/// How fast an end reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Reads and writes at most this much at a time, less at random; at least 1.
    pub chunk: usize,
    /// How it reads.
    pub read: Read,
    /// After this many bytes it stops reading, ...
    pub stall_every: u64,
    /// ... for this long.
    pub stall: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            chunk: 64 << 10,
            read: Read::Call,
            stall_every: u64::MAX,
            stall: Duration::ZERO,
        }
    }
}

/// By what way bytes are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// By `recv`, sometimes after `peek`.
    Call,
    /// From the receive ring, as a program does whose memory it is in.
    Ring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Client,
    Server,
}

/// One end.
#[derive(Debug)]
pub(crate) struct Talk {
    id: SocketId,
    plan: Plan,
    role: Role,
    sent: u64,
    received: u64,
    acked: u64,
    stalled_until: Option<Instant>,
    next_stall: u64,
    shut: bool,
    at_end: bool,
    done: bool,
}

impl Talk {
    pub fn new(id: SocketId, role: Role, plan: Plan) -> Talk {
        let mut talk = Talk {
            id,
            plan,
            role,
            sent: 0,
            received: 0,
            acked: 0,
            stalled_until: None,
            next_stall: 0,
            shut: false,
            at_end: false,
            done: false,
        };
        talk.next_stall = talk.pace().stall_every;
        talk
    }

    /// Grows with everything that is achieved.
    pub fn progress(&self) -> u64 {
        self.sent
            + self.received
            + self.acked
            + u64::from(self.shut)
            + u64::from(self.at_end)
            + u64::from(self.done)
    }

    /// Whether this end is closed, after all that was to be said.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Does what can be done.
    pub fn step(&mut self, context: &mut Context<'_>) {
        if self.done {
            return;
        }
        let view = self.view(context);
        self.check(&view);
        if view.error != 0 {
            return self.end_with_error(context, &view);
        }
        if !view.flags.contains(ViewFlags::CONNECTED) {
            return;
        }
        self.read(context);
        self.write(context);
        self.end(context);
    }

    fn view(&self, context: &Context<'_>) -> View {
        context.stack.view(self.id).expect("the socket is open")
    }

    /// What must be true at any time.
    fn check(&mut self, view: &View) {
        assert!(
            view.acked >= self.acked && view.acked <= self.sent,
            "acknowledged: {view:?} of {self:?}"
        );
        assert_eq!(
            (view.queued, view.consumed),
            (self.sent, self.received),
            "{view:?} of {self:?}"
        );
        assert!(
            view.received >= view.consumed && view.received <= self.to_receive(),
            "{view:?} of {self:?}"
        );
        assert!(
            view.ring.is_some() || view.received == view.consumed,
            "unread bytes without a ring: {view:?}"
        );
        self.acked = view.acked;
    }

    fn end_with_error(&mut self, context: &mut Context<'_>, view: &View) {
        let expected = self.plan.ending == Ending::ClientAborts && self.role == Role::Server;
        assert!(
            expected && view.error == millrace_shard::errno::ECONNRESET,
            "the connection failed: {view:?} of {self:?}"
        );
        assert_eq!(context.stack.take_error(self.id), view.error);
        self.close(context);
    }

    fn read(&mut self, context: &mut Context<'_>) {
        let mut buffer = vec![0; self.pace().chunk];
        while !self.at_end && !self.is_stalled(context) {
            let most = context.rng.between(1, buffer.len() as u64) as usize;
            let from = self.view(context);
            let pattern = Pattern::between(from.remote, from.local);
            let len = match self.pace().read {
                Read::Call => self.read_by_call(context, &mut buffer[..most]),
                Read::Ring => self.read_ring(context, &from, &mut buffer[..most]),
            };
            let Some(len) = len else { return };
            if len == 0 {
                assert_eq!(
                    self.received,
                    self.to_receive(),
                    "the stream ends early: {self:?}"
                );
                self.at_end = true;
                return;
            }
            if let Some(at) = pattern.first_difference(self.received, &buffer[..len]) {
                panic!("byte {at} of the stream is wrong: {self:?}");
            }
            self.received += len as u64;
        }
    }

    /// Whether a pause is on. One begins when so much was read.
    fn is_stalled(&mut self, context: &mut Context<'_>) -> bool {
        if self.stalled_until.is_none() && self.received >= self.next_stall {
            let end = context.now + self.pace().stall;
            self.stalled_until = Some(end);
            context.wake_at(end);
        }
        match self.stalled_until {
            Some(end) if end > context.now => true,
            Some(_) => {
                self.stalled_until = None;
                self.next_stall = self.received.saturating_add(self.pace().stall_every);
                false
            }
            None => false,
        }
    }

    fn read_by_call(&self, context: &mut Context<'_>, out: &mut [u8]) -> Option<usize> {
        if context.rng.chance(0.2) {
            let mut peeked = vec![0; out.len()];
            let len = context.stack.peek(self.id, &mut peeked).ok()?;
            let read = context
                .stack
                .recv(self.id, out, context.now)
                .expect("what could be peeked at can be read");
            assert!(
                read == len && peeked[..len] == out[..len],
                "peek and recv differ: {self:?}"
            );
            return Some(read);
        }
        match context.stack.recv(self.id, out, context.now) {
            Ok(len) => Some(len),
            Err(Error::WouldBlock) => {
                let view = self.view(context);
                assert!(
                    view.received == view.consumed
                        && !view.flags.contains(ViewFlags::END_OF_STREAM),
                    "{view:?}"
                );
                None
            }
            Err(error) => panic!("recv: {error}: {self:?}"),
        }
    }

    fn read_ring(&self, context: &mut Context<'_>, view: &View, out: &mut [u8]) -> Option<usize> {
        let unread = view.received - view.consumed;
        if unread == 0 {
            return view.flags.contains(ViewFlags::END_OF_STREAM).then_some(0);
        }
        let block = view.ring.expect("unread bytes are in a ring");
        assert!(
            unread <= block.len() as u64,
            "{unread} unread bytes in a ring of {}",
            block.len()
        );
        let len = out.len().min(unread as usize);
        let at = (view.consumed as usize) & (block.len() - 1);
        let (first, second) = out[..len].split_at_mut(len.min(block.len() - at));
        let owner = Owner(context.program() as u32);
        context.stack.memory().read(owner, block, at, first);
        context.stack.memory().read(owner, block, 0, second);
        context
            .stack
            .consumed(self.id, view.consumed + len as u64, context.now)
            .expect("what was received can be read");
        Some(len)
    }

    fn write(&mut self, context: &mut Context<'_>) {
        let mut buffer = vec![0; self.pace().chunk];
        while self.sent < self.may_send() {
            let most = (self.may_send() - self.sent).min(buffer.len() as u64);
            let len = context.rng.between(1, most) as usize;
            let view = self.view(context);
            Pattern::between(view.local, view.remote).fill(self.sent, &mut buffer[..len]);
            let push = context.rng.chance(0.8) || self.sent + len as u64 == self.may_send();
            let taken = if context.rng.chance(0.5) {
                context.stack.send(self.id, &buffer[..len], push)
            } else {
                let mut rest = &buffer[..len];
                context.stack.send_with(self.id, len, push, |out| {
                    let (now, later) = rest.split_at(out.len());
                    out.copy_from_slice(now);
                    rest = later;
                })
            };
            match taken {
                Ok(taken) => {
                    assert!(
                        (1..=len).contains(&taken),
                        "{taken} of {len} bytes were taken"
                    );
                    self.sent += taken as u64;
                }
                Err(Error::WouldBlock) => return,
                // The client is gone for good; the error comes with the view.
                Err(_) if self.plan.ending == Ending::ClientAborts => return,
                Err(error) => panic!("send: {error}: {self:?}"),
            }
        }
    }

    /// Shuts or closes when the time for it has come.
    fn end(&mut self, context: &mut Context<'_>) {
        let all_said = self.sent == self.to_send();
        let all_heard = self.received == self.to_receive();
        let first = match self.plan.ending {
            Ending::HalfClose => {
                if all_said && !self.shut {
                    context
                        .stack
                        .shutdown(self.id, How::Write, context.now)
                        .expect("the connection is open");
                    self.shut = true;
                }
                false
            }
            Ending::ClientCloses => self.role == Role::Client,
            Ending::ServerCloses => self.role == Role::Server,
            Ending::BothClose => true,
            Ending::ClientAborts => {
                if all_said && all_heard && self.role == Role::Client {
                    context
                        .stack
                        .abort(self.id, context.now)
                        .expect("the connection is open");
                    self.done = true;
                }
                return;
            }
        };
        if all_said && all_heard && (first || self.at_end) {
            self.close(context);
        }
    }

    fn close(&mut self, context: &mut Context<'_>) {
        context
            .stack
            .close(self.id, context.now)
            .expect("the socket is open");
        assert!(
            context.stack.view(self.id).is_none(),
            "a closed socket has a view"
        );
        self.done = true;
    }

    fn to_send(&self) -> u64 {
        if self.role == Role::Client {
            self.plan.client_bytes
        } else {
            self.plan.server_bytes
        }
    }

    fn to_receive(&self) -> u64 {
        if self.role == Role::Client {
            self.plan.server_bytes
        } else {
            self.plan.client_bytes
        }
    }

    /// How much may have been sent by now.
    fn may_send(&self) -> u64 {
        let turn = match (self.plan.turns, self.role) {
            (None, _) => u64::MAX,
            (Some((request, answer)), Role::Client) => (self.received / answer + 1) * request,
            (Some((request, answer)), Role::Server) => self.received / request * answer,
        };
        turn.min(self.to_send())
    }

    fn pace(&self) -> &Pace {
        if self.role == Role::Client {
            &self.plan.client_pace
        } else {
            &self.plan.server_pace
        }
    }
}

/// Which of two ends that are alike is the client.
pub(crate) fn role_of(local: SocketAddr, remote: SocketAddr) -> Role {
    if local < remote {
        Role::Client
    } else {
        Role::Server
    }
}
