//! Sockets on their way from one process to another in messages (SCM_RIGHTS).
//!
//! A descriptor of a millrace socket says nothing of the socket, so another one is sent in its place, which the engine makes: one end of a
//! pair of Unix sockets. As long as it is open anywhere, in a message that nobody reads too, the socket is held; when the kernel closes it,
//! the engine sees that at the other end (and if somebody shuts it, who gives it up by that). A process that has received it shows it to the engine, and holds the socket from then on. Who
//! cannot show it gets nothing, and to those who know nothing of us it is a socket whose peer has closed it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use millrace_context::SlotRef;
use millrace_context::protocol::{CLAIMED_MAX, Descriptors, PASSED_MAX, PASSED_NAME, format_token};
use millrace_shard::Owner;
use rustix::event::{Timespec, epoll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::{Control, words};
use crate::control::command::Command;
use crate::programs::owners::{IN_FLIGHT, Process};
use crate::start::random::token;

/// Descriptors that stand for sockets of one program at once. Each takes the engine a descriptor.
const IN_FLIGHT_MAX: u32 = 1024;

/// What an answer is made of.
type Words = Result<([u64; 8], Vec<Arc<OwnedFd>>), i32>;

/// The engine's end, and what the other end stands for.
#[derive(Debug)]
struct Passed {
    /// Kept for its place in the epoll set.
    _end: OwnedFd,
    /// Of the other end.
    inode: u64,
    program: u32,
    socket: SlotRef,
    claimed: bool,
}

/// All of them.
#[derive(Debug)]
pub(super) struct InFlight {
    /// The engine's ends.
    epoll: OwnedFd,
    /// By the cookie of the other end, which no other socket ever has.
    passed: HashMap<u64, Passed>,
    /// How many, by program.
    count: HashMap<u32, u32>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    passed: u64,
    claimed: u64,
    unclaimed: u64,
    foreign: u64,
    refused: u64,
}

impl InFlight {
    /// None.
    pub(super) fn new() -> io::Result<InFlight> {
        Ok(InFlight {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            passed: HashMap::new(),
            count: HashMap::new(),
            counters: Counters::default(),
        })
    }

    /// Readable when some may be gone.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// For `describe`.
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

    /// A program is over, and its sockets with it.
    pub(super) fn forget(&mut self, program: u32) {
        self.passed.retain(|_, passed| passed.program != program);
        self.count.remove(&program);
    }

    /// Whether a program may have so many more.
    fn has_room(&mut self, program: u32, more: usize) -> bool {
        let count = self.count.get(&program).copied().unwrap_or(0);
        let room = IN_FLIGHT_MAX.saturating_sub(count) as usize >= more;
        if !room {
            if self.counters.refused == 0 {
                eprintln!(
                    "millrace: program {program} has {count} sockets on their way in messages, and may have {IN_FLIGHT_MAX}: those that it \
                     sends now are refused (ETOOMANYREFS) until some have been received"
                );
            }
            self.counters.refused += more as u64;
        }
        room
    }

    /// A descriptor that stands for a socket, and those others that are gone meanwhile.
    fn add(&mut self, program: u32, socket: SlotRef) -> io::Result<(OwnedFd, Vec<Passed>)> {
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
        // An end that has been shut is ready from the start: what counts is that it becomes so once more.
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

    /// Those that the kernel has closed. `open`: one that the engine has open itself, whatever the kernel reports of it.
    fn take_gone(&mut self, open: Option<u64>) -> Vec<Passed> {
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

    /// A process has received one, which its program calls `socket`.
    fn note_claimed(&mut self, cookie: u64, socket: SlotRef) -> SlotRef {
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

    /// The cookie of what a process shows, if it is one of ours; and what it stands for.
    fn find(&self, shown: &OwnedFd) -> Option<(u64, u32, SlotRef)> {
        let cookie = rustix::net::sockopt::socket_cookie(shown).ok()?;
        let passed = self.passed.get(&cookie)?;
        // Before Linux 5.10 cookies begin anew in each network namespace.
        let inode = rustix::fs::fstat(shown).ok()?.st_ino;
        (passed.inode == inode).then_some((cookie, passed.program, passed.socket))
    }
}

impl Control {
    /// The process that asks, if it lives: its number may be another one's already when its last request is read.
    fn living_member(&self, number: u64) -> Result<(u32, Process), i32> {
        let (index, process) = self.member(number)?;
        let program = self.programs[index as usize].as_ref();
        let member = program.and_then(|program| program.members.get(&process));
        let pid = self.clients.get(number).map(|client| client.pid);
        match member.map(|member| member.pid) == pid {
            true => Ok((index, process)),
            false => Err(libc::ESRCH),
        }
    }

    /// Sockets are about to leave a process: a descriptor for each.
    pub(super) fn pass(&mut self, number: u64, payload: &[u8]) -> Words {
        let (index, process) = self.living_member(number)?;
        let sockets: Vec<SlotRef> = payload
            .chunks_exact(8)
            .map(|word| SlotRef::from_bits(u64::from_ne_bytes(word.try_into().unwrap_or_default())))
            .collect();
        if sockets.is_empty() || sockets.len() > PASSED_MAX {
            return Err(libc::EINVAL);
        }
        self.messages_gone();
        if !self.in_flight.has_room(index, sockets.len()) {
            return Err(libc::ETOOMANYREFS);
        }
        let held = self.share(index, &sockets, process, IN_FLIGHT)?;
        let mut outcome = match held.contains(&false) {
            true => Err(libc::EBADF),
            false => Ok(Vec::new()),
        };
        for (socket, _) in sockets.iter().zip(held).filter(|(_, held)| *held) {
            if let Ok(descriptors) = &mut outcome {
                match self.in_flight.add(index, *socket) {
                    Ok((descriptor, gone)) => {
                        self.arrived(gone);
                        descriptors.push(Arc::new(descriptor));
                        continue;
                    }
                    Err(error) => outcome = Err(error.raw_os_error().unwrap_or(libc::EIO)),
                }
            }
            self.release_passed(index, *socket);
        }
        // Of an error's descriptors the kernel says that they are gone.
        Ok((words(&[]), outcome?))
    }

    /// A process shows what it has received: a word for each.
    pub(super) fn claim(&mut self, number: u64, came: &Descriptors) -> Words {
        let (index, process) = self.living_member(number)?;
        if came.is_empty() || came.len() > CLAIMED_MAX {
            return Err(libc::EINVAL);
        }
        let mut answer = [0; CLAIMED_MAX];
        for (at, word) in answer.iter_mut().enumerate().take(came.len()) {
            let outcome = match came.get(at) {
                Some(shown) => self.claim_one(index, process, shown),
                None => Err(libc::EBADF),
            };
            let refused = |errno: i32| SlotRef {
                index: errno as u32,
                generation: 0,
            };
            *word = outcome.unwrap_or_else(refused).to_bits();
        }
        Ok((answer, Vec::new()))
    }

    fn claim_one(&mut self, index: u32, process: Process, shown: &OwnedFd) -> Result<SlotRef, i32> {
        let (cookie, program, socket) = self.in_flight.find(shown).ok_or(libc::ESTALE)?;
        if program != index {
            let socket = self.transfer((program, socket), (index, process))?;
            self.in_flight.counters.foreign += 1;
            return Ok(self.in_flight.note_claimed(cookie, socket));
        }
        if self.share(index, &[socket], IN_FLIGHT, process)? != [true] {
            return Err(libc::ESTALE);
        }
        Ok(self.in_flight.note_claimed(cookie, socket))
    }

    /// A socket of one program's that a message holds becomes one of another's as well, if they have a mind to it.
    fn transfer(
        &self,
        (program, socket): (u32, SlotRef),
        (to, process): (u32, Process),
    ) -> Result<SlotRef, i32> {
        let from = self.programs[program as usize].as_ref();
        let from = from.ok_or(libc::ESTALE)?;
        let shard = from.slot_shards.shard_of(socket.index, &from.region);
        self.workers
            .ask_shard(shard as u16, |done| Command::Transfer {
                from: Owner(program),
                socket,
                to: Owner(to),
                process,
                done,
            })?
    }

    /// The kernel may have closed some.
    pub(super) fn messages_gone(&mut self) {
        let gone = self.in_flight.take_gone(None);
        self.arrived(gone);
    }

    fn arrived(&self, gone: Vec<Passed>) {
        for passed in gone {
            self.release_passed(passed.program, passed.socket);
        }
    }

    /// [`IN_FLIGHT`] holds a socket once less. It is still where it was when it was held: the control thread waits for moves to end.
    fn release_passed(&self, index: u32, socket: SlotRef) {
        if let Some(program) = &self.programs[index as usize] {
            let shard = program.slot_shards.shard_of(socket.index, &program.region);
            let owner = Owner(index);
            let command = Command::Arrived { owner, socket };
            self.workers.send_to(shard as u16, command);
        }
    }

    /// Has `to` hold what `from` holds; for each, in order, whether it does.
    fn share(
        &self,
        index: u32,
        sockets: &[SlotRef],
        from: Process,
        to: Process,
    ) -> Result<Vec<bool>, i32> {
        let program = self.programs[index as usize].as_ref().ok_or(libc::EIO)?;
        let shard_of = |socket: &SlotRef| {
            let shard = program.slot_shards.shard_of(socket.index, &program.region);
            shard as u16
        };
        let mut shards: Vec<u16> = sockets.iter().map(shard_of).collect();
        shards.sort_unstable();
        shards.dedup();
        let mut outcome = vec![false; sockets.len()];
        for shard in shards {
            let its = |at: &usize| shard_of(&sockets[*at]) == shard;
            let places: Vec<usize> = (0..sockets.len()).filter(its).collect();
            let held = self.workers.ask_shard(shard, |done| Command::Share {
                owner: Owner(index),
                sockets: places.iter().map(|at| sockets[*at]).collect(),
                from,
                to,
                done,
            })?;
            for (at, held) in places.into_iter().zip(held) {
                outcome[at] = held;
            }
        }
        Ok(outcome)
    }
}
