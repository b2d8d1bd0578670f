//! One end of a conversation on a socket of smoltcp: the counterpart of what the simulator's
//! programs do on ours.

use std::net::SocketAddr;

use millrace_sim::{Ending, Pace, Pattern, Plan, Rng};
use millrace_tcp::Instant;
use smoltcp::socket::tcp::{RecvError, Socket, State};
use smoltcp::wire::IpEndpoint;

/// Which of the plan's ends it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Says what the plan's client says.
    Client,
    /// What its server says.
    Server,
}

/// One end.
#[derive(Debug)]
pub struct Talk {
    role: Role,
    plan: Plan,
    /// Local and remote end, once it is open.
    ends: Option<(SocketAddr, SocketAddr)>,
    sent: u64,
    received: u64,
    stalled_until: Option<Instant>,
    next_stall: u64,
    shut: bool,
    at_end: bool,
    done: bool,
}

impl Talk {
    /// An end that has said nothing yet.
    pub fn new(role: Role, plan: Plan) -> Talk {
        let mut talk = Talk {
            role,
            plan,
            ends: None,
            sent: 0,
            received: 0,
            stalled_until: None,
            next_stall: 0,
            shut: false,
            at_end: false,
            done: false,
        };
        talk.next_stall = talk.pace().stall_every;
        talk
    }

    /// Whether it is closed, after all that was to be said.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Does what can be done.
    pub fn step(&mut self, socket: &mut Socket<'_>, now: Instant, rng: &mut Rng) {
        if self.done {
            return;
        }
        if self.ends.is_none() {
            assert!(
                self.role == Role::Server || socket.state() != State::Closed,
                "refused: {self:?}"
            );
            if !socket.may_send() {
                return;
            }
            self.ends = ends(socket);
        }
        self.read(socket, now, rng);
        self.write(socket, rng);
        self.end(socket);
    }

    fn read(&mut self, socket: &mut Socket<'_>, now: Instant, rng: &mut Rng) {
        let mut buffer = vec![0; self.pace().chunk];
        while !self.at_end && !self.is_stalled(now) {
            let most = rng.between(1, buffer.len() as u64) as usize;
            match socket.recv_slice(&mut buffer[..most]) {
                Ok(0) => return,
                Ok(len) => {
                    let (local, remote) = self.ends.expect("it is open");
                    let pattern = Pattern::between(remote, local);
                    let wrong = pattern.first_difference(self.received, &buffer[..len]);
                    assert_eq!(wrong, None, "a byte of the stream is wrong: {self:?}");
                    self.received += len as u64;
                    let most = self.len(self.role == Role::Server);
                    assert!(self.received <= most, "more than was sent: {self:?}");
                }
                Err(RecvError::Finished) => {
                    let all = self.len(self.role == Role::Server);
                    assert_eq!(self.received, all, "the stream ends early: {self:?}");
                    self.at_end = true;
                }
                // It forgets that there was an end when it has closed meanwhile.
                Err(RecvError::InvalidState)
                    if self.shut && self.received == self.len(self.role == Role::Server) =>
                {
                    self.at_end = true;
                }
                Err(RecvError::InvalidState) => {
                    let expected = self.plan.ending == Ending::ClientAborts
                        && self.role == Role::Server
                        && socket.state() == State::Closed;
                    assert!(
                        expected,
                        "the connection failed: {} {self:?}",
                        socket.state()
                    );
                    self.done = true;
                    return;
                }
            }
        }
    }

    fn is_stalled(&mut self, now: Instant) -> bool {
        if self.stalled_until.is_none() && self.received >= self.next_stall {
            self.stalled_until = Some(now + self.pace().stall);
        }
        match self.stalled_until {
            Some(end) if end > now => true,
            Some(_) => {
                self.stalled_until = None;
                self.next_stall = self.received.saturating_add(self.pace().stall_every);
                false
            }
            None => false,
        }
    }

    fn write(&mut self, socket: &mut Socket<'_>, rng: &mut Rng) {
        let mut buffer = vec![0; self.pace().chunk];
        while self.sent < self.may_send() && socket.can_send() {
            let most = (self.may_send() - self.sent).min(buffer.len() as u64);
            let len = rng.between(1, most) as usize;
            let (local, remote) = self.ends.expect("it is open");
            Pattern::between(local, remote).fill(self.sent, &mut buffer[..len]);
            let taken = socket
                .send_slice(&buffer[..len])
                .expect("it can be sent to");
            self.sent += taken as u64;
        }
    }

    fn end(&mut self, socket: &mut Socket<'_>) {
        if self.done {
            return;
        }
        let all_said = self.sent == self.len(self.role == Role::Client);
        let all_heard = self.received == self.len(self.role == Role::Server);
        let first = match self.plan.ending {
            Ending::HalfClose => {
                if all_said && !self.shut {
                    socket.close();
                    self.shut = true;
                }
                false
            }
            Ending::ClientCloses => self.role == Role::Client,
            Ending::ServerCloses => self.role == Role::Server,
            Ending::BothClose => true,
            Ending::ClientAborts => {
                // What was written must be there before it is given up.
                if all_said && all_heard && socket.send_queue() == 0 && self.role == Role::Client {
                    socket.abort();
                    self.done = true;
                }
                return;
            }
        };
        if all_said && all_heard && (first || self.at_end) {
            socket.close();
            self.done = true;
        }
    }

    /// How much the client says, or the server.
    fn len(&self, client: bool) -> u64 {
        match client {
            true => self.plan.client_bytes,
            false => self.plan.server_bytes,
        }
    }

    fn may_send(&self) -> u64 {
        let turn = match (self.plan.turns, self.role) {
            (None, _) => u64::MAX,
            (Some((request, answer)), Role::Client) => (self.received / answer + 1) * request,
            (Some((request, answer)), Role::Server) => self.received / request * answer,
        };
        turn.min(self.len(self.role == Role::Client))
    }

    fn pace(&self) -> &Pace {
        match self.role {
            Role::Client => &self.plan.client_pace,
            Role::Server => &self.plan.server_pace,
        }
    }
}

fn ends(socket: &Socket<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let address = |end: IpEndpoint| SocketAddr::new(end.addr.into(), end.port);
    Some((
        address(socket.local_endpoint()?),
        address(socket.remote_endpoint()?),
    ))
}
