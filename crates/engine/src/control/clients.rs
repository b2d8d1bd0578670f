//! Who is connected to the control socket, and how many of them a user may have.
//!
//! Any local user can connect, with a token or without one. Nobody is waited for, and what
//! one user does leaves the connections of the others alone.

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

/// Connections of one user that have neither attached nor made a program. Beyond that the oldest
/// of them is closed.
pub(crate) const VISITORS: usize = 256;
/// Connections accepted before those that are there are served.
const BURST: usize = 64;
/// How long none is accepted after the engine has run out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// A process of a program, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Membership {
    /// The program.
    pub(crate) program: u32,
    /// The process's slot in it.
    pub(crate) process: Process,
    /// The member's, which no other member ever has: program and slot are used again.
    pub(crate) serial: u64,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// It was made for a child of a process of this user.
    pub(crate) for_child: bool,
    /// What it is once it has attached.
    pub(crate) member: Option<Membership>,
    /// The program that it guards.
    pub(crate) guards: Option<u32>,
    /// What its descriptor counts against once it has attached.
    pub(crate) charged: Option<Charge>,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Clients {
    /// By its path, and by its alias if it has one.
    listeners: Vec<OwnedFd>,
    /// The event that says that there are connections to accept.
    token: u64,
    by_number: HashMap<u64, Client>,
    /// Numbers of those that have not attached, by user, the oldest first.
    visitors: HashMap<u32, BTreeSet<u64>>,
    closer: Closer,
    next: u64,
    paused: Option<Instant>,
    /// Connections closed because their user had too many.
    pub(crate) refused: u64,
    /// Users of those that nobody has been told of.
    turned_away: Vec<u32>,
    /// How many of `exhausted` somebody has been told of.
    told_exhausted: u64,
    /// Times that there was no descriptor or memory for one.
    pub(crate) exhausted: u64,
}

impl Clients {
    /// Nobody yet; `token` is the listeners' event, clients' events are the numbers from `first` on.
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

    /// Accepts some of those that wait.
    pub(crate) fn accept(&mut self, epoll: &OwnedFd) {
        for listener in 0..self.listeners.len() {
            for _ in 0..BURST {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                match accept_with(&self.listeners[listener], flags) {
                    Ok(socket) => self.admit(epoll, socket),
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                        return self.pause(epoll);
                    }
                    // One that has gone again.
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
        // Descriptors are inherited and passed on: a message says who has sent it.
        if sockopt::set_socket_passcred(&socket, true).is_err() {
            return;
        }
        if let Some(number) = self.add(epoll, socket, (pid, uid), None) {
            self.visit(number, uid);
        }
    }

    /// Adds a connection that has been made for a child of a process; it is nobody's until the child speaks. It is no
    /// visitor: its descriptor counts against `charge` from the start. Whether it could be added.
    pub(crate) fn add_for_child(
        &mut self,
        epoll: &OwnedFd,
        socket: OwnedFd,
        charge: Charge,
    ) -> bool {
        self.add(epoll, socket, (0, charge.uid), Some(charge))
            .is_some()
    }

    /// Who has spoken on a connection that was made for a child.
    pub(crate) fn note_pid(&mut self, number: u64, pid: u32) {
        let client = self.by_number.get_mut(&number);
        if let Some(client) = client.filter(|client| client.for_child) {
            client.pid = pid;
        }
    }

    /// Adds a connection; `charge`: one that was made for a child.
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

    /// A connection counts as its user's until it attaches; the oldest of too many is closed.
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

    /// The users of connections that were closed since the last time.
    pub(crate) fn take_turned_away(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.turned_away)
    }

    /// Whether there was no descriptor or memory for a connection since the last time.
    pub(crate) fn take_exhausted(&mut self) -> bool {
        std::mem::replace(&mut self.told_exhausted, self.exhausted) != self.exhausted
    }

    /// Descriptors or memory have run out: those that wait go on waiting for a moment, since the event would come again at once.
    fn pause(&mut self, epoll: &OwnedFd) {
        if self.exhausted == 0 {
            eprintln!(
                "millrace: no descriptor or memory for another control connection; see `ulimit -n` of the engine (LimitNOFILE of a service)"
            );
        }
        self.exhausted += 1;
        for listener in &self.listeners {
            // One may be out of the set already.
            let _ = epoll::delete(epoll, listener);
        }
        self.paused = Some(Instant::now());
    }

    /// Accepts again if it is time; how long until it is.
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

    /// The client has attached as this; from the first time on its descriptor counts against `charge`.
    pub(crate) fn attached(&mut self, number: u64, member: Membership, charge: Charge) {
        self.settle(number);
        if let Some(client) = self.by_number.get_mut(&number) {
            accept_descriptors(&client.socket, true);
            client.member = Some(member);
            client.charged.get_or_insert(charge);
        }
    }

    /// The client guards this program.
    pub(crate) fn guards(&mut self, number: u64, program: u32) {
        self.settle(number);
        if let Some(client) = self.by_number.get_mut(&number) {
            client.guards = Some(program);
        }
    }

    /// It does not count as a visitor any more.
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

    /// The client has gone, or is to go: what its descriptor counted against, and the program that it guarded.
    pub(crate) fn remove(&mut self, number: u64) -> (Option<Charge>, Option<u32>) {
        self.settle(number);
        let Some(client) = self.by_number.remove(&number) else {
            return (None, None);
        };
        self.closer.close(client.uid, client.socket);
        (client.charged, client.guards)
    }

    /// Closes what came from a user.
    pub(crate) fn dispose(&mut self, uid: u32, mut came: Descriptors) {
        for index in 0..came.len() {
            if let Some(descriptor) = came.take(index) {
                self.closer.close(uid, descriptor);
            }
        }
    }
}

/// The number that a process has here, by a descriptor of it that another one has opened, in a PID namespace of its own perhaps: 0 if it has ended.
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

/// The parent of a process, as far as this process can see it: not in another PID namespace, nor without /proc.
pub(crate) fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // "4711 (any name) S 4710 ...": the name may have parentheses and spaces.
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

    /// Whoever connects and says nothing does not keep others of the same user away, nor costs more than a bounded number of descriptors.
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
        // Children that have not spoken yet are many where a server starts many, and none of them may lose its connection.
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
