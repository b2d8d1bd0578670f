//! Sockets that another program holds too and has in its memory ([`Status::ELSEWHERE`]). Such a
//! slot says what the socket is ready for. A call fetches the socket when it begins, and when it
//! has slept and the socket is ready for it: the other program may have fetched it meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use millrace_context::{Operation, Status};
use rustix::io::Errno;

use crate::engine::submission::SubmissionHandle;
use crate::readiness::bits;
use crate::socket::Socket;
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::{self, Result};

/// How often the other program is asked that is in the middle of a call, and how long to wait in
/// between, in microseconds.
const TRIES: u32 = 1000;
const PAUSE_US: u32 = 1000;

/// Whether a call has fetched its socket.
pub struct Recalls {
    done: bool,
    wanted: u32,
}

impl Recalls {
    /// A call that waits until the socket is ready for `wanted`, by epoll's bits.
    pub fn for_bits(wanted: u32) -> Recalls {
        let wanted = wanted | bits::ALWAYS;
        Recalls {
            done: false,
            wanted,
        }
    }

    /// Fetches the socket if another program has it and there is something to be had. Whether it is
    /// to be looked at again.
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

/// Takes the lock under which requests of a socket are made, with the socket here; none in a signal
/// handler above a call on the same socket.
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

/// Fetches the socket.
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
