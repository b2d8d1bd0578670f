//! Sending on a stream: bytes are copied once, into the context's staging ring, and one submission
//! hands them over.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use libc::{MSG_MORE, MSG_NOSIGNAL, MSG_OOB};
use millrace_context::submission::Ask;
use millrace_context::{Operation, Status};
use rustix::io::Errno;

use crate::engine::submission::SubmissionHandle;
use crate::readiness::sleep::Call;
use crate::readiness::{bits, poll_mask};
use crate::socket::recall::Recalls;
use crate::socket::{Socket, deadline, flag};
use crate::sys::robust_lock;
use crate::sys::robust_lock::Rank;
use crate::sys::user_buffers::{CALL_MAX, UserBuffers};
use crate::sys::{self, Result};

/// The most bytes of one submission: the shard can work on one while the program copies the next.
const CHUNK: usize = 64 * 1024;

/// A source of bytes.
pub trait Source {
    /// Bytes left.
    fn left(&self) -> usize;
    /// Puts up to `len` bytes at `to`. Fewer mean that the source has no more.
    ///
    /// # Safety
    /// `to` is valid for `len` bytes.
    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize>;
}

impl Source for UserBuffers {
    fn left(&self) -> usize {
        UserBuffers::left(self)
    }
    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.take(to, len) };
        Ok(len)
    }
}

/// A file, from an offset or from its current position.
pub struct File {
    /// The file's descriptor.
    pub fd: c_int,
    /// The offset to read at; `None` reads at the file's current position.
    pub offset: Option<i64>,
    /// Bytes left to send.
    pub left: usize,
}

impl Source for File {
    fn left(&self) -> usize {
        self.left
    }
    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> Result<usize> {
        let mut done = 0;
        while done < len {
            // SAFETY: the caller's promise; `done` is below `len`.
            match unsafe { sys::read_file(self.fd, to.add(done), len - done, self.offset) } {
                Ok(0) => {
                    self.left = 0;
                    return Ok(done);
                }
                Ok(read) => {
                    done += read;
                    self.left -= read;
                    self.offset = self.offset.map(|offset| offset + read as i64);
                }
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }
}

/// The result of one step of sending.
enum Step {
    Sent(usize),
    /// There is no room. `sequence` was read before that was seen.
    Full(u32),
    /// The connection is not established yet.
    Connecting(u32),
}

/// Sends, as `sendmsg` does. `PIPE` also raises SIGPIPE unless MSG_NOSIGNAL is set.
pub fn send(socket: &Socket, source: &mut impl Source, flags: c_int) -> Result<usize> {
    let timeout = socket.slot.app_cold.send_timeout.load(Ordering::Relaxed);
    let nonblocking = socket.is_nonblocking(flags);
    let mut until = None;
    let call = Call::begin();
    let mut recalls = Recalls::for_bits(bits::OUT);
    let mut sent = 0;
    let outcome = loop {
        let sequence = match step(socket, source, flags, nonblocking) {
            Ok(Step::Sent(len)) => {
                sent += len;
                if source.left() == 0 {
                    break Ok(());
                }
                continue;
            }
            Ok(Step::Full(sequence) | Step::Connecting(sequence)) => match recalls.recall(socket) {
                Ok(true) => continue,
                Ok(false) if nonblocking => break Err(Errno::AGAIN),
                Ok(false) => sequence,
                Err(errno) => break Err(errno),
            },
            Err(errno) => break Err(errno),
        };
        if until.is_none() {
            until = deadline(timeout);
        }
        if let Err(errno) = socket.wait(call, sequence, until) {
            break Err(errno);
        }
    };
    match outcome {
        Err(errno) if sent == 0 => {
            if errno == Errno::PIPE && flags & MSG_NOSIGNAL == 0 {
                sys::raise(libc::SIGPIPE);
            }
            Err(errno)
        }
        _ => Ok(sent),
    }
}

/// Sends one submission's worth of bytes, if there is room.
fn step(
    socket: &Socket,
    source: &mut impl Source,
    flags: c_int,
    nonblocking: bool,
) -> Result<Step> {
    let sequence = socket.sequence();
    let status = socket.status();
    if let Some(errno) = socket.take_error() {
        return Err(errno);
    }
    let deferred = socket.has(flag::DEFERRED) && status.contains(Status::CONNECTING);
    if status.contains(Status::CONNECTING) && !deferred {
        return Ok(Step::Connecting(sequence));
    }
    if !status.contains(Status::CONNECTED) && !deferred || socket.write_closed(status) {
        return Err(Errno::PIPE);
    }
    if source.left() == 0 {
        return Ok(Step::Sent(0));
    }
    // `None`: this is a signal handler in the middle of a send on this socket.
    let _guard =
        robust_lock::take(&socket.slot.app.write_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    // The shard would drop bytes that follow another thread's shutdown, which is submitted under
    // this lock.
    if socket.has(flag::SHUT_WRITE) {
        return Err(Errno::PIPE);
    }
    let Some(room) = find_room(socket, source.left(), nonblocking) else {
        return Ok(Step::Full(sequence));
    };
    let handle = SubmissionHandle::take(socket.engine, socket.shard())?;
    handle.follow(socket.slot)?;
    if handle.staging_room() == 0 {
        handle.drain(socket.reference)?;
    }
    let room = usize::try_from(room).unwrap_or(CALL_MAX);
    let staging = usize::try_from(handle.staging_room()).unwrap_or(0);
    let len = source.left().min(room).min(staging).min(CHUNK);
    let filled = fill_staging(&handle, source, len)?;
    if filled == 0 {
        return Ok(Step::Sent(0));
    }
    let mut submission = socket.submission(Operation::Send, filled as u32);
    // The program's MSG_MORE is about the end of its bytes. When the shim cuts, more follows for
    // certain, unless TCP_NOTSENT_LOWAT makes the call wait until these bytes are sent.
    let cut = source.left() > 0 && filled < room && poll_mask::low_water(socket).is_none();
    if cut || source.left() == 0 && flags & MSG_MORE != 0 {
        submission.ask |= Ask::MORE;
    }
    // The last byte that a call sends is urgent, even if the call sends less than it was given.
    let ends = source.left() == 0 || nonblocking && filled == room;
    if flags & MSG_OOB != 0 && ends {
        submission.ask |= Ask::URGENT;
    }
    let queued = &socket.slot.app.queued;
    queued.store(
        queued.load(Ordering::Relaxed) + filled as u64,
        Ordering::Release,
    );
    handle.submit(&submission)?;
    if deferred {
        // The SYN is sent with as many bytes as fit. The rest follows once the connection is
        // established.
        socket.change_flags(0, flag::DEFERRED);
    }
    Ok(Step::Sent(filled))
}

/// The room to send, if it is enough for this call: a blocking call waits for a third of the
/// buffer, so that a wake-up is worth its cost; other calls take what there is.
#[inline]
fn find_room(socket: &Socket, left: usize, nonblocking: bool) -> Option<u64> {
    let enough = if nonblocking {
        1
    } else {
        let third = u64::from(socket.slot.engine.send_limit.load(Ordering::Relaxed)) / 3;
        third.min(left as u64).max(1)
    };
    let room = poll_mask::room(socket);
    if room >= enough {
        return Some(room);
    }
    poll_mask::want_room(socket);
    Some(poll_mask::room(socket)).filter(|room| *room >= enough)
}

/// Copies up to `len` bytes into the staging ring; returns how many. An error of the source counts
/// only if it comes before the first byte.
#[inline]
fn fill_staging(handle: &SubmissionHandle, source: &mut impl Source, len: usize) -> Result<usize> {
    let mut filled = 0;
    for (to, len) in handle.staging(len) {
        if len == 0 || to.is_null() {
            continue;
        }
        // SAFETY: `staging` gives pieces of the ring that are ours until submitted.
        match unsafe { source.fill(to, len) } {
            Ok(got) => {
                filled += got;
                if got < len {
                    break;
                }
            }
            Err(errno) if filled == 0 => return Err(errno),
            Err(_) => break,
        }
    }
    Ok(filled)
}
