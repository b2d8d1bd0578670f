//! Sockets on their way from one process to another in messages (SCM_RIGHTS).
//!
//! The descriptor of a millrace socket means nothing to the kernel. The engine makes a stand-in,
//! one end of a pair of Unix sockets, and the message carries that. While the stand-in is open
//! anywhere, even in a message that nobody reads, the engine holds the socket. When the kernel
//! closes it, the engine sees that at its own end. (A process that shuts the stand-in down gives
//! the socket up.)
//!
//! A process that has received the stand-in shows it to the engine, and then holds the socket. A
//! process that cannot show it gets nothing. A program without millrace sees a socket whose peer
//! has closed it.

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

/// Stand-ins of one program at a time. Each takes the engine a descriptor.
const IN_FLIGHT_MAX: u32 = 1024;

/// The words and descriptors of an answer.
type Words = Result<([u64; 8], Vec<Arc<OwnedFd>>), i32>;

/// The engine's end of a pair, and the socket that the other end stands for.
#[derive(Debug)]
struct Passed {
    /// Kept open because it is in the epoll set.
    _end: OwnedFd,
    /// The inode of the other end.
    inode: u64,
    program: u32,
    socket: SlotRef,
    claimed: bool,
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
    fn has_room(&mut self, program: u32, more: usize) -> bool {
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

    /// Notes that a process has received a stand-in.
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

    /// The cookie, program and socket of a stand-in that a process shows.
    fn find(&self, shown: &OwnedFd) -> Option<(u64, u32, SlotRef)> {
        let cookie = rustix::net::sockopt::socket_cookie(shown).ok()?;
        let passed = self.passed.get(&cookie)?;
        // Before Linux 5.10 each network namespace counts cookies from the start.
        let inode = rustix::fs::fstat(shown).ok()?.st_ino;
        (passed.inode == inode).then_some((cookie, passed.program, passed.socket))
    }
}

impl Control {
    /// The process of a client, if it lives. Another process may have its pid when its last request
    /// is read.
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

    /// A process is about to send sockets: makes a stand-in for each.
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
        // If this fails, dropping the stand-ins releases the sockets.
        Ok((words(&[]), outcome?))
    }

    /// A process shows the stand-ins that it has received. The answer has a word for each.
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

    /// Moves a socket that a message holds to another program, which has received it.
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

    /// Releases the sockets whose stand-ins the kernel has closed.
    pub(super) fn messages_gone(&mut self) {
        let gone = self.in_flight.take_gone(None);
        self.arrived(gone);
    }

    fn arrived(&self, gone: Vec<Passed>) {
        for passed in gone {
            self.release_passed(passed.program, passed.socket);
        }
    }

    /// Releases one hold of [`IN_FLIGHT`] on a socket. The socket has not changed its shard: the
    /// control thread waits for moves to end.
    fn release_passed(&self, index: u32, socket: SlotRef) {
        if let Some(program) = &self.programs[index as usize] {
            let shard = program.slot_shards.shard_of(socket.index, &program.region);
            let owner = Owner(index);
            let command = Command::Arrived { owner, socket };
            self.workers.send_to(shard as u16, command);
        }
    }

    /// Has `to` hold the sockets that `from` holds. Returns for each, in order, whether it does.
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
