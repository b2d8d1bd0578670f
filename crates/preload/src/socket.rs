//! A millrace socket, held for the time of one call.

pub mod address;
pub mod connect;
pub mod datagram;
pub mod device_binding;
pub mod flag;
pub mod option_rows;
pub mod options;
pub mod recall;
pub mod receive;
pub mod requests;
pub mod send;
pub mod stack_choice;
pub mod urgent;
pub mod wait;

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use millrace_context::{Operation, Slot, SlotRef, Status, Submission};
use rustix::io::Errno;

use crate::engine::submission::SubmissionHandle;
use crate::engine::{self, Engine};
use crate::fd::refcount;
use crate::fd::table::{self, Entry};
use crate::readiness::epoll_sets;
use crate::sys::robust_lock;
use crate::sys::robust_lock::Rank;
use crate::sys::{self, Result};

/// The value of SO_LINGER's word (the second of [`millrace_context::slot::AppCold::options`]) for a
/// linger time of 0, which resets the connection.
pub const RESET: u32 = u32::MAX;

/// The bit in the first word of [`millrace_context::slot::AppCold::options`] that marks a datagram
/// socket.
const DATAGRAMS: u32 = 1 << 31;

/// A socket that a call works on. The slot stays this socket's until it is dropped.
pub struct Socket {
    /// The engine that serves it.
    pub engine: &'static Engine,
    /// The shared state.
    pub slot: &'static Slot,
    /// The slot's name.
    pub reference: SlotRef,
}

impl Socket {
    /// The socket behind a descriptor whose entry has been read. If another thread has put another
    /// socket there, returns that one. `BADF`: it has been closed meanwhile. `NETDOWN`: there is no
    /// engine.
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
        if !refcount::more(reference.index) {
            return Err(Errno::BADF);
        }
        Ok(Socket {
            engine,
            slot,
            reference,
        })
    }

    /// A socket that is new to this process. It has one reference, which a descriptor takes over.
    /// If none does, dropping it closes the socket.
    pub fn new(engine: &'static Engine, reference: SlotRef) -> Result<Socket> {
        let slot = engine.region.slot(reference.index).ok_or(Errno::PROTO)?;
        refcount::first(reference.index);
        Ok(Socket {
            engine,
            slot,
            reference,
        })
    }

    /// Counts one more descriptor of this socket.
    pub fn count_descriptor(&self) {
        refcount::more(self.reference.index);
    }

    /// Whether it is a datagram socket.
    #[inline]
    pub fn is_datagrams(&self) -> bool {
        self.slot.app_cold.options[0].load(Ordering::Relaxed) & DATAGRAMS != 0
    }

    /// The shard that serves it.
    pub fn shard(&self) -> u32 {
        self.slot.engine.shard.load(Ordering::Relaxed)
    }

    /// The state of the socket.
    pub fn status(&self) -> Status {
        let status = self.slot.engine.status();
        if self.engine.is_lost() {
            return status | Status::DEAD;
        }
        // The shard may not have taken the connect yet.
        if self.has(flag::ATTEMPT) && self.is_fresh(status) && self.error().is_none() {
            return status | Status::CONNECTING;
        }
        status
    }

    /// The shim's flags: see [`flag`].
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

    /// Whether calls do not block, by the socket's flag or by the flags of a message.
    pub fn is_nonblocking(&self, message_flags: c_int) -> bool {
        message_flags & libc::MSG_DONTWAIT != 0 || self.has(flag::NONBLOCK)
    }

    /// Whether the socket has never listened, connected or been connected.
    pub fn is_fresh(&self, status: Status) -> bool {
        !status
            .intersects(Status::LISTENING | Status::CONNECTING | Status::CONNECTED | Status::DEAD)
    }

    /// Whether no more data will come.
    pub fn read_closed(&self, status: Status) -> bool {
        status.intersects(Status::READ_CLOSED | Status::DEAD) || self.has(flag::SHUT_READ)
    }

    /// Whether nothing can be sent any more.
    pub fn write_closed(&self, status: Status) -> bool {
        status.intersects(Status::WRITE_CLOSED | Status::DEAD) || self.has(flag::SHUT_WRITE)
    }

    /// The pending error, which stays pending.
    pub fn error(&self) -> Option<Errno> {
        let word = self.slot.engine.error.load(Ordering::Acquire);
        let errno = (word & 0xffff) as i32;
        if errno != 0 && self.slot.app.error_seen.load(Ordering::Relaxed) != word {
            return Some(Errno::from_raw_os_error(errno));
        }
        let lost = self.engine.is_lost() && !self.has(flag::LOSS_SEEN);
        lost.then_some(Errno::CONNRESET)
    }

    /// Takes the pending error, which is reported once.
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

    /// The sequence for [`Socket::wait`]. Read it before you look at the socket.
    pub fn sequence(&self) -> u32 {
        self.slot.engine.sequence.load(Ordering::Acquire)
    }
}

impl Socket {
    /// Tells the engine that this process no longer holds the socket.
    fn let_go(&self) -> Result<()> {
        let _guard = robust_lock::take(&self.slot.app.write_lock, Rank::Socket);
        let handle = SubmissionHandle::take(self.engine, self.shard())?;
        handle.follow(self.slot)?;
        let app = &self.slot.app;
        let unread = self.slot.engine.received.load(Ordering::Acquire)
            > app.consumed.load(Ordering::Relaxed);
        let unsent =
            app.queued.load(Ordering::Relaxed) > self.slot.engine.acked.load(Ordering::Acquire);
        if unsent
            && !self.is_datagrams()
            && (unread || self.slot.app_cold.options[1].load(Ordering::Relaxed) == RESET)
        {
            // This close will reset the connection and drop unsent data. In the kernel, data within
            // the peer's window has left when a send returns. So the close waits for the shard's
            // next round.
            handle.wait_taken()?;
        }
        let close = self.submission(Operation::Close, 0);
        let status = self.slot.engine.status();
        let holds_address = status.contains(Status::BOUND)
            && (self.has(flag::BOUND)
                || !status.intersects(Status::CONNECTED | Status::CONNECTING));
        // The close is answered in two cases:
        // - The socket holds an address. A later bind may be another thread's, by a context that is
        //   served first or by another shard, and must find the address free. Datagrams that come
        //   later are not this socket's.
        // - Sets may report a socket that others hold as long as the engine knows a holder.
        let in_sets = || refcount::in_sets(self.reference.index) || epoll_sets::any_is_shared();
        let is_reported_elsewhere =
            self.has(flag::IN_SHARED_SET) || self.has(flag::SHARED) && in_sets();
        if holds_address || is_reported_elsewhere {
            return handle.ask(&close, &mut []).map(drop);
        }
        handle.submit(&close)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if refcount::fewer(self.reference.index) {
            if refcount::in_sets(self.reference.index) {
                epoll_sets::forget(self.reference, self.has(flag::SHARED));
            }
            self.close();
        }
    }
}

/// Closes that the engine has not been told of yet, as sockets; 0 is a free place.
static OWED: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Whether there are such closes.
static OWES: AtomicBool = AtomicBool::new(false);

impl Socket {
    /// Tells the engine, now or soon, that this process no longer holds the socket.
    fn close(&self) {
        // Without an engine nobody has to be told.
        if self.let_go() != Err(Errno::NOBUFS) {
            return;
        }
        // This is a signal handler above calls that have all contexts locked. The engine is told
        // when one of these calls is over.
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

    /// Tells the engine of the closes that it has not been told of yet. These sockets have no
    /// descriptor any more and keep their slots until then.
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

/// The deadline of a time-out in microseconds; a time-out of 0 has none.
pub fn deadline(timeout_us: u64) -> Option<u64> {
    (timeout_us != 0).then(|| sys::now_us().saturating_add(timeout_us))
}
