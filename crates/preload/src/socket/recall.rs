//! Recalling a socket that another program holds too and has in its memory ([`Status::ELSEWHERE`]).
//!
//! The slot of such a socket says which events the socket is ready for. A call recalls the socket
//! when it begins, and again when it has slept and the socket is ready: the other program may have
//! recalled it meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_context::{Operation, Status};
use rustix::io::Errno;

use crate::engine::submission::SubmissionHandle;
use crate::readiness::bits;
use crate::socket::Socket;
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::{self, Result};

/// How often the shim asks for a socket that the other program is using in a call, and the pause in
/// between, in microseconds.
const TRIES: u32 = 1000;
const PAUSE_US: u32 = 1000;

/// Whether a call has recalled its socket.
pub struct Recalls {
    done: bool,
    wanted: u32,
}

impl Recalls {
    /// A call that waits until the socket is ready for `wanted` (epoll's bits).
    pub fn for_bits(wanted: u32) -> Recalls {
        let wanted = wanted | bits::ALWAYS;
        Recalls {
            done: false,
            wanted,
        }
    }

    /// Recalls the socket if another program has it and it is ready. Returns true if the caller has
    /// to look at it again.
    pub fn recall(&mut self, socket: &Socket) -> Result<bool> {
        if !is_elsewhere(socket) {
            return Ok(false);
        }
        let (_, ready) = socket.slot.engine.elsewhere();
        if self.done && ready & self.wanted == 0 {
            return Ok(false);
        }
        self.done = true;
        recall(socket).map(|()| true)
    }
}

/// Whether another program has the socket.
pub fn is_elsewhere(socket: &Socket) -> bool {
    socket.slot.engine.status().contains(Status::ELSEWHERE)
}

/// Takes the lock for requests about a socket, with the socket in this program. `None`: this is a
/// signal handler in the middle of a call on the same socket.
pub fn lock_here(socket: &Socket) -> Result<Option<Guard<'static>>> {
    loop {
        let guard = robust_lock::take(&socket.slot.app.write_lock, Rank::Socket);
        if guard.is_none() || !is_elsewhere(socket) {
            return Ok(guard);
        }
        drop(guard);
        recall(socket)?;
    }
}

/// Recalls the socket.
pub fn recall(socket: &Socket) -> Result<()> {
    for _ in 0..TRIES {
        match try_recall(socket) {
            Err(Errno::AGAIN) => sys::sleep_us(PAUSE_US),
            outcome => return outcome.inspect_err(|_| complain()),
        }
    }
    complain();
    Err(Errno::BUSY)
}

fn try_recall(socket: &Socket) -> Result<()> {
    let app = &socket.slot.app;
    let _reading = robust_lock::take(&app.read_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    let _writing = robust_lock::take(&app.write_lock, Rank::Socket).ok_or(Errno::AGAIN)?;
    if !is_elsewhere(socket) {
        return Ok(());
    }
    let handle = SubmissionHandle::take(socket.engine, socket.shard())?;
    handle.follow(socket.slot)?;
    let recall = socket.submission(Operation::Recall, 0);
    handle.ask(&recall, &mut []).map(drop)
}

fn complain() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        sys::write(
            2,
            b"millrace: a socket that another program holds too cannot be had back from it: it is in a call on it all the time, or there is no memory for what has come\n",
        );
    }
}
