//! The control socket: any messages on several connections, with any descriptors, by processes with
//! and without a token; and what a program can do with the descriptors that it gets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_context::VERSION;
use millrace_context::protocol::{Answer, Kind, Request};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketType,
};

use crate::bytes::Bytes;
use crate::engine::{Process, engine};
use crate::program::{Program, address};

/// Connections of one process.
const CONNECTIONS: usize = 4;
/// Descriptors that it keeps.
const KEPT: usize = 64;
/// A user without rights.
const STRANGER: u32 = 65_533;

/// Whether the process under test may end the engine, which then is no fault.
static OWNER: AtomicBool = AtomicBool::new(true);

/// The first byte says at which engine, and as whom.
pub fn run(data: &[u8]) {
    let Some((how, data)) = data.split_first() else {
        return;
    };
    let engine = engine(usize::from(*how));
    let name = engine.full_name();
    engine.while_it_holds(|| {
        // It lives as long as this, and longer than the process that attaches to it.
        let guard = Program::guard(&name);
        let path = address(&name);
        let (is_stranger, token) = (how & 2 != 0, guard.token);
        Process::fork(|| {
            let is_stranger = is_stranger && becomes_stranger();
            OWNER.store(!is_stranger, Ordering::Relaxed);
            let connect =
                || millrace_context::control_socket::connect(&path, SocketType::SEQPACKET);
            Speaker {
                bytes: Bytes(data),
                connect: &connect,
                connections: Vec::new(),
                kept: Vec::new(),
                words: Vec::new(),
                token,
            }
            .run();
        })
        .wait();
    });
}

/// Gives up the rights of this process, for good.
fn becomes_stranger() -> bool {
    // SAFETY: plain system calls on numbers.
    unsafe {
        libc::setresgid(STRANGER, STRANGER, STRANGER) == 0
            && libc::setresuid(STRANGER, STRANGER, STRANGER) == 0
    }
}

struct Speaker<'a> {
    bytes: Bytes<'a>,
    connect: &'a dyn Fn() -> std::io::Result<OwnedFd>,
    connections: Vec<OwnedFd>,
    kept: Vec<OwnedFd>,
    /// What the engine has answered: tickets, pollers, sockets.
    words: Vec<u64>,
    token: [u8; 16],
}

impl Speaker<'_> {
    fn run(&mut self) {
        while !self.bytes.is_empty() {
            if self.connections.is_empty() {
                self.open();
            }
            match self.bytes.u8() % 16 {
                0 => self.open(),
                1 => self.close(),
                2..=3 => self.make_descriptor(),
                4..=7 => self.use_descriptor(),
                8 => self.say_bytes(),
                _ => self.say(),
            }
            if self.bytes.u8() > 31 {
                self.hear();
            }
        }
        self.have_no_children();
    }

    /// Says that no child is to come that was announced: the engine waits for one for seconds.
    fn have_no_children(&mut self) {
        for _ in 0..8 {
            self.hear();
        }
        for word in &self.words {
            let request = Request::new(Kind::Forked, self.token, [*word, 0, 0, 0]);
            for connection in &self.connections {
                // The engine may have cut it.
                let _ = request.send(connection, &[]);
            }
        }
    }

    fn open(&mut self) {
        if self.connections.len() < CONNECTIONS
            && let Ok(connection) = (self.connect)()
        {
            self.connections.push(connection);
        }
    }

    fn close(&mut self) {
        let at = usize::from(self.bytes.u8()) % self.connections.len().max(1);
        if at < self.connections.len() {
            self.connections.swap_remove(at);
        }
    }

    fn connection(&mut self) -> Option<OwnedFd> {
        let at = usize::from(self.bytes.u8()) % self.connections.len().max(1);
        self.connections.get(at)?.try_clone().ok()
    }

    fn word(&mut self) -> u64 {
        match self.bytes.u8() % 4 {
            0 => self.bytes.u64(),
            1 => u64::from(self.bytes.u8()),
            2 => u64::from(std::process::id()),
            _ => {
                let at = usize::from(self.bytes.u8()) % self.words.len().max(1);
                self.words.get(at).copied().unwrap_or(0)
            }
        }
    }

    /// A message of the right length, with a kind that exists as a rule.
    fn say(&mut self) {
        let kind = match self.bytes.u8() {
            0xff => self.bytes.u32(),
            kind => u32::from(kind) % 15,
        };
        // Its owner may end an engine, and give it another number of shards.
        let rights = [Kind::Down as u32, Kind::Scale as u32];
        if OWNER.load(Ordering::Relaxed) && rights.contains(&kind) {
            return;
        }
        let mut request = Request::new(Kind::Attach, self.token, [0; 4]);
        request.kind = kind;
        for argument in 0..4 {
            request.arguments[argument] = self.word();
        }
        match self.bytes.u8() {
            0 => request.version = self.bytes.u32(),
            1 => request.token[0] ^= 1,
            _ => request.version = VERSION,
        }
        let payload: Vec<u8> = (0..self.bytes.u8() % 12)
            .flat_map(|_| self.word().to_ne_bytes())
            .collect();
        let payload = &payload[usize::from(self.bytes.u8() % 8).min(payload.len())..];
        let words = [request.kind.to_ne_bytes(), [0; 4]];
        let mut all = request.version.to_ne_bytes().to_vec();
        all.extend(words[0]);
        all.extend(request.token);
        all.extend(request.arguments.iter().flat_map(|word| word.to_ne_bytes()));
        all.extend(payload);
        self.send(&all);
    }

    /// Any bytes, of any length.
    fn say_bytes(&mut self) {
        let len = match self.bytes.u8() % 4 {
            0 => 70_000,
            1 => usize::from(self.bytes.u16()),
            _ => usize::from(self.bytes.u8() % 96),
        };
        let mut all = self.bytes.take(len.min(96)).to_vec();
        all.resize(len, 0);
        // Its owner may say "end" in this way, too.
        if OWNER.load(Ordering::Relaxed) && all.len() >= 8 {
            all[0] = 0xff;
        }
        self.send(&all);
    }

    /// Sends it with some of the descriptors; does not wait.
    fn send(&mut self, all: &[u8]) {
        let Some(connection) = self.connection() else {
            return;
        };
        let count = match self.bytes.u8() {
            0xf0.. => 200,
            few @ 0..0x80 => usize::from(few % 4),
            _ => 0,
        };
        let first = usize::from(self.bytes.u8());
        let kept: Vec<_> = self.kept.iter().map(|kept| kept.as_fd()).collect();
        let shown: Vec<_> = (0..count.min(count * kept.len()))
            .map(|at| kept[(first + at) % kept.len()])
            .collect();
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(200))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !shown.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&shown));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // The engine may have cut the connection.
        let _ = rustix::net::sendmsg(&connection, &[IoSlice::new(all)], &mut control, flags);
    }

    /// What an answer says, if one comes at once.
    fn hear(&mut self) {
        let Some(connection) = self.connection() else {
            return;
        };
        let soon = Timespec {
            tv_sec: 0,
            tv_nsec: 300_000,
        };
        let mut ready = [PollFd::new(&connection, PollFlags::IN)];
        if poll(&mut ready, Some(&soon)) != Ok(1) {
            return;
        }
        let mut space = [MaybeUninit::<u8>::uninit(); rustix::cmsg_space!(ScmRights(100))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut answer = [0; size_of::<Answer>()];
        let parts = &mut [IoSliceMut::new(&mut answer)];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let Ok(came) = rustix::net::recvmsg(&connection, parts, &mut control, flags) else {
            return;
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.kept.extend(rights);
            }
        }
        if came.bytes == answer.len() && answer[..4] == [0; 4] {
            let words = answer[8..].chunks_exact(8);
            let words = words.filter_map(|word| word.try_into().ok().map(u64::from_ne_bytes));
            self.words.extend(words.take(2));
        }
        let excess = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..excess);
        let excess = self.words.len().saturating_sub(KEPT);
        self.words.drain(..excess);
    }

    fn make_descriptor(&mut self) {
        use rustix::event::{EventfdFlags, eventfd};
        use rustix::fs::{MemfdFlags, memfd_create};
        use rustix::process::{PidfdFlags, getpid, pidfd_open};
        let made = match self.bytes.u8() % 6 {
            0 => eventfd(0, EventfdFlags::empty()),
            1 => memfd_create("any", MemfdFlags::empty()),
            2 => pidfd_open(getpid(), PidfdFlags::empty()),
            3 => epoll::create(epoll::CreateFlags::empty()),
            4 => rustix::pipe::pipe().map(|(reader, _)| reader),
            _ => (self.connect)().map_err(|_| rustix::io::Errno::AGAIN),
        };
        self.kept.extend(made);
    }

    /// Something that can be done with a descriptor, whatever it is.
    fn use_descriptor(&mut self) {
        let (at, other) = (self.bytes.u8(), self.bytes.u8());
        let len = self.kept.len().max(1);
        let (at, other) = (usize::from(at) % len, usize::from(other) % len);
        let (Some(this), Some(other)) = (self.kept.get(at), self.kept.get(other)) else {
            return;
        };
        let (number, other) = (this.as_raw_fd(), other.as_raw_fd());
        let word = [u64::MAX - 1, 1][usize::from(self.bytes.u8() % 2)];
        let mut buffer = [0u8; 64];
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLOUT) as u32,
            u64: word,
        };
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: system calls on numbers and on memory of this frame; a descriptor that is not of
        // that kind is an error.
        unsafe {
            match self.bytes.u8() % 12 {
                0 => libc::fcntl(number, libc::F_SETFL, 0),
                1 => libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK | libc::O_ASYNC),
                2 => write_without_waiting(number, word),
                3 => libc::recv(number, buffer.as_mut_ptr().cast(), buffer.len(), flags) as i32,
                4 => libc::ftruncate(number, 0),
                5 => libc::shutdown(number, libc::SHUT_RDWR),
                6 => libc::epoll_ctl(number, libc::EPOLL_CTL_ADD, other, &raw mut event),
                7 => libc::epoll_ctl(number, libc::EPOLL_CTL_DEL, other, std::ptr::null_mut()),
                8 => libc::epoll_wait(number, &raw mut event, 1, 0),
                9 => libc::send(number, (&raw const word).cast(), 8, flags) as i32,
                10 => libc::fallocate(
                    number,
                    libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                    0,
                    1 << 16,
                ),
                _ => libc::flock(number, libc::LOCK_EX | libc::LOCK_NB),
            };
        }
        if self.bytes.u8() < 32 {
            self.kept.swap_remove(at);
        }
    }
}

/// Writes to an event's counter or a pipe, if there is room, and leaves it so that the next write
/// waits.
fn write_without_waiting(number: i32, word: u64) -> i32 {
    // SAFETY: system calls on a number and on memory of this frame, which is only read.
    unsafe {
        libc::fcntl(number, libc::F_SETFL, libc::O_NONBLOCK);
        libc::write(number, (&raw const word).cast(), 8);
        libc::fcntl(number, libc::F_SETFL, 0)
    }
}
