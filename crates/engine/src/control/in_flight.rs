//! The stand-ins of sockets that are on their way in messages: see [`super::scm_rights`].

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use millrace_context::SlotRef;
use millrace_context::protocol::{PASSED_NAME, format_token};
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::start::random::token;

/// Stand-ins of one program at a time. Each takes the engine a descriptor.
const IN_FLIGHT_MAX: u32 = 1024;

/// The engine's end of a pair, and the socket that the other end stands for.
#[derive(Debug)]
pub(super) struct Passed {
    /// Kept open because it is in the epoll set.
    _end: OwnedFd,
    /// The inode of the other end.
    pub(super) inode: u64,
    pub(super) program: u32,
    pub(super) socket: SlotRef,
    pub(super) claimed: bool,
}

/// All stand-ins.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The epoll set of the engine's ends.
    epoll: OwnedFd,
    /// By the cookie of the other end. No other socket ever has that cookie.
    passed: HashMap<u64, Passed>,
    /// Stand-ins of each program.
    count: HashMap<u32, u32>,
    pub(super) counters: Counters,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: u64,
    pub(super) claimed: u64,
    pub(super) unclaimed: u64,
    pub(super) foreign: u64,
    pub(super) refused: u64,
}

impl InFlight {
    /// No stand-ins.
    pub(super) fn new() -> io::Result<InFlight> {
        Ok(InFlight {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            passed: HashMap::new(),
            count: HashMap::new(),
            counters: Counters::default(),
        })
    }

    /// Readable when a stand-in may have been closed.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The counters, for `describe`.
    pub(super) fn json(&self) -> serde_json::Value {
        let counters = &self.counters;
        serde_json::json!({
            "now": self.passed.len(),
            "passed": counters.passed,
            "claimed": counters.claimed,
            "unclaimed": counters.unclaimed,
            "foreign": counters.foreign,
            "refused": counters.refused,
        })
    }

    /// Forgets the stand-ins of a program that has ended.
    pub(super) fn forget(&mut self, program: u32) {
        self.passed.retain(|_, passed| passed.program != program);
        self.count.remove(&program);
    }

    /// Whether a program may have this many more stand-ins.
    pub(super) fn has_room(&mut self, program: u32, more: usize) -> bool {
        let count = self.count.get(&program).copied().unwrap_or(0);
        let room = IN_FLIGHT_MAX.saturating_sub(count) as usize >= more;
        if !room {
            if self.counters.refused == 0 {
                eprintln!(
                    "millrace: program {program} has {count} sockets in messages and may have {IN_FLIGHT_MAX}: \
                     further sends fail (ETOOMANYREFS) until some have been received"
                );
            }
            self.counters.refused += more as u64;
        }
        room
    }

    /// Makes a stand-in for a socket. Also returns the stand-ins that were closed meanwhile.
    pub(super) fn add(
        &mut self,
        program: u32,
        socket: SlotRef,
    ) -> io::Result<(OwnedFd, Vec<Passed>)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (end, out) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let mut name = PASSED_NAME.to_vec();
        name.extend(format_token(&token()?).into_bytes());
        rustix::net::bind(&out, &SocketAddrUnix::new_abstract_name(&name)?)?;
        rustix::net::shutdown(&end, rustix::net::Shutdown::Both)?;
        let cookie = rustix::net::sockopt::socket_cookie(&out)?;
        let inode = rustix::fs::fstat(&out)?.st_ino;
        let data = epoll::EventData::new_u64(cookie);
        // An end that was shut down is ready at once. Only a further event means that the other end
        // is closed.
        epoll::add(&self.epoll, &end, data, epoll::EventFlags::ET)?;
        let gone = self.take_gone(Some(cookie));
        let passed = Passed {
            _end: end,
            inode,
            program,
            socket,
            claimed: false,
        };
        self.passed.insert(cookie, passed);
        *self.count.entry(program).or_insert(0) += 1;
        self.counters.passed += 1;
        Ok((out, gone))
    }

    /// Takes the stand-ins that the kernel has closed. `open` is one that the engine itself has
    /// open.
    pub(super) fn take_gone(&mut self, open: Option<u64>) -> Vec<Passed> {
        let mut gone = Vec::new();
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            let mut events = [const { MaybeUninit::uninit() }; 64];
            let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&at_once)) else {
                return gone;
            };
            if events.is_empty() {
                return gone;
            }
            for cookie in events.iter().map(|event| event.data.u64()) {
                if Some(cookie) == open {
                    continue;
                }
                if let Some(passed) = self.passed.remove(&cookie) {
                    self.counters.unclaimed += u64::from(!passed.claimed);
                    if let Some(count) = self.count.get_mut(&passed.program) {
                        *count -= 1;
                    }
                    gone.push(passed);
                }
            }
        }
    }

    /// Notes that a process has received a stand-in.
    pub(super) fn note_claimed(&mut self, cookie: u64, socket: SlotRef) -> SlotRef {
        if let Some(passed) = self.passed.get_mut(&cookie) {
            passed.claimed = true;
        }
        self.counters.claimed += 1;
        socket
    }

    /// Whether messages hold sockets of a program.
    pub(super) fn has_any_of(&self, program: u32) -> bool {
        self.count.get(&program).is_some_and(|count| *count > 0)
    }

    /// The cookie, program and socket of a stand-in that a process shows.
    pub(super) fn find(&self, shown: &OwnedFd) -> Option<(u64, u32, SlotRef)> {
        let cookie = rustix::net::sockopt::socket_cookie(shown).ok()?;
        let passed = self.passed.get(&cookie)?;
        // Before Linux 5.10 each network namespace counts cookies from the start.
        let inode = rustix::fs::fstat(shown).ok()?.st_ino;
        (passed.inode == inode).then_some((cookie, passed.program, passed.socket))
    }
}
