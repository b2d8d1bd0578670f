//! Connections to the control socket, and how many a user may have.
//!
//! Any local user can connect, with a token or without. The engine waits for no client, and a user
//! cannot use up the connections of another.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use millrace_context::control_socket;
use millrace_context::protocol::{Descriptors, accept_descriptors};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};

use crate::control::closer::Closer;
use crate::control::descriptor_quota::Charge;
use crate::programs::owners::Process;

/// Connections that one user may have that have neither attached nor made a program. The oldest of
/// too many is closed.
pub(crate) const VISITORS: usize = 256;
/// Connections that are accepted before the existing ones are served.
const BURST: usize = 64;
/// How long the engine accepts no connection after it has run out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A process of a program, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// The program.
    pub(crate) program: u32,
    /// Its process slot in the program.
    pub(crate) process: Process,
    /// The serial number of the member. Program numbers and process slots are used again; serial
    /// numbers are not.
    pub(crate) serial: u64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// It was made for the child of a process of this user.
    pub(crate) for_child: bool,
    /// The process, once it has attached.
    pub(crate) member: Option<Membership>,
    /// The program that lives as long as this connection.
    pub(crate) guards: Option<u32>,
    /// The program and user that its descriptor counts against, once it has attached.
    pub(crate) charged: Option<Charge>,
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Clients {
    /// The control socket, by its path and by its alias.
    listeners: Vec<OwnedFd>,
    /// The epoll token of the listeners.
    token: u64,
    by_number: HashMap<u64, Client>,
    /// By user, the numbers of connections that have not attached, the oldest first.
    visitors: HashMap<u32, BTreeSet<u64>>,
    closer: Closer,
    next: u64,
    paused: Option<Instant>,
    /// Connections closed because their user had too many.
    pub(crate) refused: u64,
    /// The users of such connections that are not in the audit log yet.
    turned_away: Vec<u32>,
    /// The part of `exhausted` that is in the audit log.
    told_exhausted: u64,
    /// Connections for which there was no descriptor or memory.
    pub(crate) exhausted: u64,
}

impl Clients {
    /// No connections. `token` is the epoll token of the listeners; those of clients start at
    /// `first`.
    pub(crate) fn new(
        epoll: &OwnedFd,
        listeners: Vec<OwnedFd>,
        token: u64,
        first: u64,
    ) -> io::Result<Clients> {
        for listener in &listeners {
            let data = epoll::EventData::new_u64(token);
            epoll::add(epoll, listener, data, epoll::EventFlags::IN)?;
        }
        Ok(Clients {
            listeners,
            token,
            by_number: HashMap::new(),
            visitors: HashMap::new(),
            closer: Closer::default(),
            next: first,
            paused: None,
            refused: 0,
            turned_away: Vec::new(),
            told_exhausted: 0,
            exhausted: 0,
        })
    }

    pub(crate) fn get(&self, number: u64) -> Option<&Client> {
        self.by_number.get(&number)
    }

    /// Accepts a burst of waiting connections.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd) {
        for listener in 0..self.listeners.len() {
            for _ in 0..BURST {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(&self.listeners[listener], flags) {
                    Ok(socket) => self.admit(epoll, socket),
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        return self.pause(epoll);
                    }
                    // This client has disconnected already.
                    Err(Errno::CONNABORTED | Errno::INTR) => {}
                    Err(_) => break,
                }
            }
        }
    }

    fn admit(&mut self, epoll: &OwnedFd, socket: OwnedFd) {
        let Ok(control_socket::Peer { pid, uid }) = control_socket::peer(&socket) else {
            return;
        };
        // Connections are inherited and passed on, so each message must say who sent it.
        if sockopt::set_socket_passcred(&socket, true).is_err() {
            return;
        }
        if let Some(number) = self.add(epoll, socket, (pid, uid), None) {
            self.visit(number, uid);
        }
    }

    /// Adds a connection for the child of a process. Its pid is unknown until the child sends a
    /// message. It does not count as a visitor: its descriptor counts against `charge` from the
    /// start. Returns whether it could be added.
    pub(crate) fn add_for_child(
        &mut self,
        epoll: &OwnedFd,
        socket: OwnedFd,
        charge: Charge,
    ) -> bool {
        self.add(epoll, socket, (0, charge.uid), Some(charge))
            .is_some()
    }

    /// Notes which process uses a connection that was made for a child.
    pub(crate) fn note_pid(&mut self, number: u64, pid: u32) {
        let client = self.by_number.get_mut(&number);
        if let Some(client) = client.filter(|client| client.for_child) {
            client.pid = pid;
        }
    }

    /// Adds a connection. With a `charge` it is one that was made for a child.
    fn add(
        &mut self,
        epoll: &OwnedFd,
        socket: OwnedFd,
        (pid, uid): (u32, u32),
        charge: Option<Charge>,
    ) -> Option<u64> {
        let number = self.next;
        let data = epoll::EventData::new_u64(number);
        if epoll::add(epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            self.exhausted += 1;
            return None;
        }
        self.next += 1;
        let client = Client {
            socket,
            pid,
            uid,
            for_child: charge.is_some(),
            member: None,
            guards: None,
            charged: charge,
        };
        self.by_number.insert(number, client);
        Some(number)
    }

    /// Counts a connection as a visitor of its user. The oldest of too many visitors is closed.
    fn visit(&mut self, number: u64, uid: u32) {
        let visitors = self.visitors.entry(uid).or_default();
        visitors.insert(number);
        if visitors.len() > VISITORS {
            let oldest = visitors.pop_first().unwrap_or(number);
            self.remove(oldest);
            if self.refused == 0 {
                eprintln!(
                    "millrace: user {uid} has more than {VISITORS} connections to the control socket that do not attach; the oldest are closed"
                );
            }
            self.refused += 1;
            self.turned_away.push(uid);
        }
    }

    /// Takes the users whose connections were closed since the last call.
    pub(crate) fn take_turned_away(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.turned_away)
    }

    /// Whether a connection could not be accepted since the last call.
    pub(crate) fn take_exhausted(&mut self) -> bool {
        std::mem::replace(&mut self.told_exhausted, self.exhausted) != self.exhausted
    }

    /// Stops accepting for a moment: the engine has no descriptor or memory left, and the event
    /// would come again at once.
    fn pause(&mut self, epoll: &OwnedFd) {
        if self.exhausted == 0 {
            eprintln!(
                "millrace: no descriptor or memory for another control connection; see `ulimit -n` of the engine (LimitNOFILE of a service)"
            );
        }
        self.exhausted += 1;
        for listener in &self.listeners {
            // A listener may have left the set already.
            let _ = epoll::delete(epoll, listener);
        }
        self.paused = Some(Instant::now());
    }

    /// Accepts again if the pause is over. Returns how long it still lasts.
    pub(crate) fn resume(&mut self, epoll: &OwnedFd) -> Option<Duration> {
        let since = self.paused?.elapsed();
        if since < PAUSE {
            return Some(PAUSE - since);
        }
        let added = self.listeners.iter().all(|listener| {
            let data = epoll::EventData::new_u64(self.token);
            let added = epoll::add(epoll, listener, data, epoll::EventFlags::IN);
            matches!(added, Ok(()) | Err(Errno::EXIST))
        });
        self.paused = (!added).then(Instant::now);
        self.paused.map(|_| PAUSE)
    }

    /// Notes that a client has attached. Its descriptor counts against `charge`, unless it counts
    /// already.
    pub(crate) fn attached(&mut self, number: u64, member: Membership, charge: Charge) {
        self.settle(number);
        if let Some(client) = self.by_number.get_mut(&number) {
            accept_descriptors(&client.socket, true);
            client.member = Some(member);
            client.charged.get_or_insert(charge);
        }
    }

    /// Notes that a program lives as long as this client.
    pub(crate) fn guards(&mut self, number: u64, program: u32) {
        self.settle(number);
        if let Some(client) = self.by_number.get_mut(&number) {
            client.guards = Some(program);
        }
    }

    /// Ends the time as a visitor.
    fn settle(&mut self, number: u64) {
        let Some(client) = self.by_number.get(&number) else {
            return;
        };
        if let Some(visitors) = self.visitors.get_mut(&client.uid) {
            visitors.remove(&number);
            if visitors.is_empty() {
                self.visitors.remove(&client.uid);
            }
        }
    }

    /// Removes a client. Returns what its descriptor counted against, and the program that it
    /// guarded.
    pub(crate) fn remove(&mut self, number: u64) -> (Option<Charge>, Option<u32>) {
        self.settle(number);
        let Some(client) = self.by_number.remove(&number) else {
            return (None, None);
        };
        self.closer.close(client.uid, client.socket);
        (client.charged, client.guards)
    }

    /// Closes descriptors that a user sent.
    pub(crate) fn dispose(&mut self, uid: u32, mut came: Descriptors) {
        for index in 0..came.len() {
            if let Some(descriptor) = came.take(index) {
                self.closer.close(uid, descriptor);
            }
        }
    }
}

/// The pid, in this PID namespace, of a process whose pidfd another process opened; 0 if it has
/// ended.
pub(crate) fn pid_of(pidfd: BorrowedFd<'_>) -> Option<u32> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd());
    let info = std::fs::read_to_string(path).ok()?;
    let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    match pid.trim().parse::<i32>().ok()? {
        0 => None,
        -1 => Some(0),
        pid => u32::try_from(pid).ok(),
    }
}

/// The parent of a process. None if it is in another PID namespace or there is no /proc.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // Format: "4711 (any name) S 4710 ...". The name may contain parentheses and spaces.
    let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_ends + 1..]).ok()?;
    rest.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn the_parent_of_a_child_is_this_process() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        assert_eq!(parent_of(child.id()), Some(std::process::id()));
        let pid = rustix::process::Pid::from_child(&child);
        let flags = rustix::process::PidfdFlags::empty();
        let pidfd = rustix::process::pidfd_open(pid, flags).unwrap();
        assert_eq!(pid_of(pidfd.as_fd()), Some(child.id()));
        child.kill().unwrap();
        assert_eq!(
            parent_of(child.id()),
            Some(std::process::id()),
            "a zombie has its parent still"
        );
        child.wait().unwrap();
        assert_eq!(parent_of(u32::MAX), None);
    }

    /// A client that says nothing costs a bounded number of descriptors, and keeps no other client
    /// of its user away.
    #[test]
    fn the_oldest_of_too_many_visitors_is_closed() {
        let (listener, alias) = control_socket::listen_by_alias().unwrap();
        let alias = millrace_context::protocol::format_token(&alias);
        let address = control_socket::Address {
            owner: rustix::process::geteuid().as_raw(),
            alias: &alias,
            path: "/nowhere",
        };
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let mut clients = Clients::new(&set, vec![listener], 0, 1).unwrap();
        let mut connections = Vec::new();
        for _ in 0..VISITORS + 10 {
            connections.push(address.connect(control_socket::peer).unwrap());
            clients.accept(&set);
        }
        assert_eq!(clients.by_number.len(), VISITORS);
        assert_eq!(clients.refused, 10);
        assert!(clients.get(1).is_none() && clients.get(11).is_some());
        let member = Membership {
            program: 0,
            process: 0,
            serial: 0,
        };
        let charge = Charge { program: 0, uid: 0 };
        clients.attached(11, member, charge);
        connections.push(address.connect(control_socket::peer).unwrap());
        clients.accept(&set);
        assert_eq!(
            clients.by_number.len(),
            VISITORS + 1,
            "who has attached is no visitor"
        );
        assert!(clients.get(11).is_some());
        // A server may start many children at once. None of them may lose its connection.
        let (own, _child) = millrace_context::protocol::pair().unwrap();
        assert!(clients.add_for_child(&set, own, charge));
        for _ in 0..=VISITORS {
            connections.push(address.connect(control_socket::peer).unwrap());
            clients.accept(&set);
        }
        assert!(clients.by_number.values().any(|client| client.for_child));
        for number in 0..2 * VISITORS as u64 + 20 {
            clients.remove(number);
        }
        assert!(clients.by_number.is_empty() && clients.visitors.is_empty());
    }
}
