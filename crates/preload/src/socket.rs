//! A millrace socket, held for the time of one call.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_context::{Operation, Slot, SlotRef, Status, Submission};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::lane::Lane;
use crate::lock::Rank;
use crate::sleep::{Call, Restart};
use crate::sys::{self, Result};
use crate::table::{self, Entry};
use crate::{elsewhere, lock, refs, sets};

/// The shim's bits in [`millrace_context::slot::App::flags`].
pub mod flag {
    /// O_NONBLOCK.
    pub const NONBLOCK: u32 = 1;
    /// Shut for reading, by this side.
    pub const SHUT_READ: u32 = 2;
    /// Shut for writing, by this side.
    pub const SHUT_WRITE: u32 = 4;
    /// A connect has been asked for and its end not been reported by `connect` yet.
    pub const CONNECTING: u32 = 8;
    /// `connect` has reported success, or the connection was accepted.
    pub const CONNECTED: u32 = 16;
    /// The loss of the engine has been reported as an error.
    pub const LOSS_SEEN: u32 = 32;
    /// Processes other than this one may hold it too.
    pub const SHARED: u32 = 64;
    /// A connect has been asked for and no error been taken since: until the shard says otherwise it is under way.
    pub const ATTEMPT: u32 = 128;
    /// It is for datagrams, and the program has bound it.
    pub const BOUND: u32 = 256;
    /// The SYN waits for the first bytes to send (TCP Fast Open).
    pub const DEFERRED: u32 = 512;
    /// A process has put it into an epoll set that other processes have too: they report it, whoever has the set and whoever has the socket.
    pub const IN_SHARED_SET: u32 = 1024;
}

/// In the second word of [`millrace_context::slot::AppCold::options`], which is SO_LINGER's time in seconds: on, and no time.
pub const RESET: u32 = u32::MAX;

/// A socket that a call works on. The slot stays this socket's until it is dropped.
pub struct Socket {
    /// The engine.
    pub engine: &'static Engine,
    /// The shared state.
    pub slot: &'static Slot,
    /// The slot's name.
    pub reference: SlotRef,
}

impl Socket {
    /// The socket behind a descriptor, whose entry has been read; if another thread has put a socket in its place meanwhile, that one. `BADF` if it has been closed
    /// meanwhile, `NETDOWN` without an engine.
    pub fn get(fd: c_int, mut reference: SlotRef) -> Result<Socket> {
        loop {
            let socket = Socket::of(reference);
            match table::get(fd) {
                Entry::Socket(now) if now == reference => return socket,
                Entry::Socket(now) => reference = now,
                _ => return socket.and(Err(Errno::BADF)),
            }
        }
    }

    /// The socket of a slot that this process holds.
    pub fn of(reference: SlotRef) -> Result<Socket> {
        let engine = engine::get()?;
        let slot = engine.region.slot(reference.index).ok_or(Errno::BADF)?;
        if !refs::more(reference.index) {
            return Err(Errno::BADF);
        }
        Ok(Socket {
            engine,
            slot,
            reference,
        })
    }

    /// A socket that is new to this process. It has one reference, which a descriptor takes over; if none does, dropping it closes the socket.
    pub fn new(engine: &'static Engine, reference: SlotRef) -> Result<Socket> {
        let slot = engine.region.slot(reference.index).ok_or(Errno::PROTO)?;
        refs::first(reference.index);
        Ok(Socket {
            engine,
            slot,
            reference,
        })
    }

    /// One more descriptor means this socket.
    pub fn count_descriptor(&self) {
        refs::more(self.reference.index);
    }

    /// The engine has counted this process as a holder once more than it has to let go.
    pub fn give_hold_back(&self) -> Result<()> {
        self.submit(&self.submission(Operation::Close, 0))
    }

    /// The shard that serves it.
    pub fn shard(&self) -> u32 {
        self.slot.engine.shard.load(Ordering::Relaxed)
    }

    /// What is true of it.
    pub fn status(&self) -> Status {
        let status = self.slot.engine.status();
        if self.engine.is_lost() {
            return status | Status::DEAD;
        }
        // The shard may not have come to the connect yet.
        if self.has(flag::ATTEMPT) && self.is_fresh(status) && self.error().is_none() {
            return status | Status::CONNECTING;
        }
        status
    }

    /// The shim's flags.
    pub fn flags(&self) -> u32 {
        self.slot.app.flags.load(Ordering::Acquire)
    }

    /// Sets and clears flags.
    pub fn change_flags(&self, set: u32, clear: u32) {
        let _ = self
            .slot
            .app
            .flags
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |flags| {
                Some(flags & !clear | set)
            });
    }

    /// Whether a flag is set.
    pub fn has(&self, flag: u32) -> bool {
        self.flags() & flag != 0
    }

    /// Whether calls do not block.
    pub fn is_nonblocking(&self, message_flags: c_int) -> bool {
        message_flags & libc::MSG_DONTWAIT != 0 || self.has(flag::NONBLOCK)
    }

    /// Whether it is neither listening nor connecting nor connected, nor ever was.
    pub fn is_fresh(&self, status: Status) -> bool {
        !status
            .intersects(Status::LISTENING | Status::CONNECTING | Status::CONNECTED | Status::DEAD)
    }

    /// Whether nothing more will come after what has been received.
    pub fn read_closed(&self, status: Status) -> bool {
        status.intersects(Status::READ_CLOSED | Status::DEAD) || self.has(flag::SHUT_READ)
    }

    /// Whether nothing can be sent any more.
    pub fn write_closed(&self, status: Status) -> bool {
        status.intersects(Status::WRITE_CLOSED | Status::DEAD) || self.has(flag::SHUT_WRITE)
    }

    /// The pending error, left where it is.
    pub fn error(&self) -> Option<Errno> {
        let word = self.slot.engine.error.load(Ordering::Acquire);
        let errno = (word & 0xffff) as i32;
        if errno != 0 && self.slot.app.error_seen.load(Ordering::Relaxed) != word {
            return Some(Errno::from_raw_os_error(errno));
        }
        let lost = self.engine.is_lost() && !self.has(flag::LOSS_SEEN);
        lost.then_some(Errno::CONNRESET)
    }

    /// Takes the pending error: it is reported once.
    pub fn take_error(&self) -> Option<Errno> {
        let word = self.slot.engine.error.load(Ordering::Acquire);
        let errno = (word & 0xffff) as i32;
        if errno != 0 && self.slot.app.error_seen.swap(word, Ordering::AcqRel) != word {
            self.change_flags(0, flag::ATTEMPT);
            return Some(Errno::from_raw_os_error(errno));
        }
        let lost = self.engine.is_lost() && !self.has(flag::LOSS_SEEN);
        if lost {
            self.change_flags(flag::LOSS_SEEN, 0);
        }
        lost.then_some(Errno::CONNRESET)
    }

    /// A submission about this socket.
    pub fn submission(&self, operation: Operation, parameter: u32) -> Submission {
        Submission::new(operation, self.reference, parameter)
    }

    /// Submits behind everything that was submitted of this socket before.
    pub fn submit(&self, submission: &Submission) -> Result<()> {
        // Without the lock this is a signal handler above a call on the same socket: it goes as it comes.
        let _guard = elsewhere::lock_here(self)?;
        let lane = Lane::take(self.engine, self.shard())?;
        lane.follow(self.slot)?;
        lane.submit(submission)
    }

    /// Asks behind everything that was submitted of this socket before.
    pub fn ask(&self, submission: &Submission, out: &mut [u8]) -> Result<(i64, usize)> {
        let _guard = elsewhere::lock_here(self)?;
        let lane = Lane::take(self.engine, self.shard())?;
        lane.follow(self.slot)?;
        lane.ask(submission, out)
    }

    /// Sleeps until the socket changes from `sequence`, or `deadline_us` (as [`sys::now_us`]) has come: `AGAIN` then, `INTR` for a signal.
    pub fn wait(&self, call: Call, sequence: u32, deadline_us: Option<u64>) -> Result<()> {
        if deadline_us.is_some_and(|deadline| deadline <= sys::now_us()) {
            return Err(Errno::AGAIN);
        }
        if self.engine.is_lost() {
            return Ok(());
        }
        // As in the kernel: a call with a time-out is not restarted, one without is if the handler says so.
        let restart = match deadline_us {
            Some(_) => Restart::Never,
            None => Restart::Allowed,
        };
        let waiters = &self.slot.app.waiters;
        let word = (&self.slot.engine.sequence, sequence);
        match call.on_word(self.engine, waiters, word, deadline_us, restart) {
            // Awake for another look: at the socket, the clock, the engine.
            Ok(()) | Err(Errno::TIMEDOUT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// The sequence to hand to [`Socket::wait`]: read it before looking at the socket.
    pub fn sequence(&self) -> u32 {
        self.slot.engine.sequence.load(Ordering::Acquire)
    }
}

impl Socket {
    /// Tells the engine that this process holds the socket no more.
    fn let_go(&self) -> Result<()> {
        let _guard = lock::take(&self.slot.app.write_lock, Rank::Socket);
        let lane = Lane::take(self.engine, self.shard())?;
        lane.follow(self.slot)?;
        let app = &self.slot.app;
        let unread = self.slot.engine.received.load(Ordering::Acquire)
            > app.consumed.load(Ordering::Relaxed);
        let unsent =
            app.queued.load(Ordering::Relaxed) > self.slot.engine.acked.load(Ordering::Acquire);
        if unsent
            && !self.is_datagrams()
            && (unread || self.slot.app_cold.options[1].load(Ordering::Relaxed) == RESET)
        {
            // The close will reset the connection and drop what has not left. In the kernel a send has left by the time it returns,
            // as far as the peer's window goes: so the close is for the shard's next round.
            lane.wait_taken()?;
        }
        let close = self.submission(Operation::Close, 0);
        let status = self.slot.engine.status();
        let holds_address = status.contains(Status::BOUND)
            && (self.has(flag::BOUND)
                || !status.intersects(Status::CONNECTED | Status::CONNECTING));
        // A bind behind this may be another thread's, by a context that is served first, or another shard's: the address is to be free by then. And
        // datagrams that come behind it are not this socket's.
        // A set reports a socket that others hold as long as the engine knows a holder.
        let in_sets = || refs::in_sets(self.reference.index) || sets::any_is_shared();
        let is_reported_elsewhere =
            self.has(flag::IN_SHARED_SET) || self.has(flag::SHARED) && in_sets();
        if holds_address || is_reported_elsewhere {
            return lane.ask(&close, &mut []).map(drop);
        }
        lane.submit(&close)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if refs::fewer(self.reference.index) {
            if refs::in_sets(self.reference.index) {
                sets::forget(self);
            }
            self.close();
        }
    }
}

/// Closes that the engine could not be told of yet: sockets, 0 where there is none.
static OWED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Whether there are any.
static OWES: AtomicBool = AtomicBool::new(false);

impl Socket {
    /// Tells the engine, now or soon, that this process holds the socket no more.
    fn close(&self) {
        // Without an engine there is nobody to tell.
        if self.let_go() != Err(Errno::NOBUFS) {
            return;
        }
        // A signal handler above calls that have all contexts: the engine is told when one of them is over.
        let bits = self.reference.to_bits();
        let is_kept = OWED.iter().any(|owed| {
            owed.compare_exchange(0, bits, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        });
        OWES.store(true, Ordering::Release);
        if !is_kept {
            engine::say(&[
                "millrace: a signal handler has closed more sockets than can be noted while other calls are under way; the engine closes the rest when this process ends\n",
            ]);
        }
    }

    /// Tells the engine of closes that it could not be told of. The sockets have no descriptor any more, and their slots stay theirs until then.
    pub fn close_owed(engine: &'static Engine) {
        if !OWES.load(Ordering::Relaxed) || !OWES.swap(false, Ordering::AcqRel) {
            return;
        }
        let bits = OWED.iter().map(|owed| owed.swap(0, Ordering::AcqRel));
        for bits in bits.filter(|bits| *bits != 0) {
            let reference = SlotRef::from_bits(bits);
            if let Some(slot) = engine.region.slot(reference.index) {
                let socket = Socket {
                    engine,
                    slot,
                    reference,
                };
                ManuallyDrop::new(socket).close();
            }
        }
    }
}

/// The deadline of a time-out in microseconds; 0 is none.
pub fn deadline(timeout_us: u64) -> Option<u64> {
    (timeout_us != 0).then(|| sys::now_us().saturating_add(timeout_us))
}
