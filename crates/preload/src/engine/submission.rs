//! Submitting requests to a shard: a locked context of this process, used for one submission or a
//! few.

use std::sync::atomic::Ordering;

use millrace_context::layout::{ASLEEP, AWAKE, STAGING};
use millrace_context::submission::{Ask, SubmissionCell};
use millrace_context::{Context, Slot, SlotRef, Submission};
use rustix::io::Errno;

use crate::engine::Engine;
use crate::process::thread;
use crate::sys::robust_lock::{self, Guard, Rank};
use crate::sys::thread_sanitizer;
use crate::sys::{self, Result};

/// With fewer free entries than this the shard is rung even in a batch.
const ENTRIES_LOW: u32 = 256;
/// With fewer free bytes of staging than this the shard is rung even in a batch.
const STAGING_LOW: u64 = STAGING / 2;
/// How often a thread that waits for a shard checks that the engine lives, in microseconds.
const CHECK_US: u64 = 1_000_000;

/// A context that this thread has locked.
pub struct SubmissionHandle {
    engine: &'static Engine,
    context: &'static Context,
    ring: &'static [SubmissionCell],
    index: u32,
    shard: u32,
    _guard: Guard<'static>,
}

impl SubmissionHandle {
    /// Takes the calling thread's context for a shard. A signal handler takes another one if its
    /// thread has its own locked. `NOBUFS`: the calls below the handler have all contexts locked.
    /// `NETDOWN`: there is no engine.
    pub fn take(engine: &'static Engine, shard: u32) -> Result<SubmissionHandle> {
        if engine.is_lost() {
            return Err(Errno::NETDOWN);
        }
        let number = thread::number();
        for turn in 0..engine.contexts() {
            let index = engine.context(number.wrapping_add(turn), shard);
            let (context, ring) = engine.region.context(index).ok_or(Errno::PROTO)?;
            if let Some(guard) = robust_lock::take(context.lock(), Rank::Submission) {
                let handle = SubmissionHandle {
                    engine,
                    context,
                    ring,
                    index,
                    shard,
                    _guard: guard,
                };
                handle.wait_for_room()?;
                return Ok(handle);
            }
        }
        Err(Errno::NOBUFS)
    }

    /// Waits until the ring has a free entry.
    fn wait_for_room(&self) -> Result<()> {
        if self.context.room() > 0 {
            return Ok(());
        }
        self.wait_until(self.shard, || self.context.room() > 0)
    }

    /// Waits until `shard` has done something.
    fn wait_until(&self, shard: u32, done: impl Fn() -> bool) -> Result<()> {
        ring_if_asleep(self.engine, shard);
        let mut next_check = sys::now_us() + CHECK_US;
        let mut attempts = 0u32;
        while !done() {
            attempts += 1;
            if attempts < 64 {
                sys::sched_yield();
                continue;
            }
            sys::sleep_us(50);
            if sys::now_us() >= next_check {
                self.engine.check();
                if self.engine.is_lost() {
                    return Err(Errno::NETDOWN);
                }
                ring_if_asleep(self.engine, shard);
                next_check = sys::now_us() + CHECK_US;
            }
        }
        Ok(())
    }

    /// Waits until the shard has taken every submission of this context and has finished the round
    /// in which it took them.
    pub fn wait_taken(&self) -> Result<()> {
        let position = self.context.position();
        if self.context.taken(position) {
            return Ok(());
        }
        self.wait_until(self.shard, || self.context.taken(position))
    }

    /// Notes in the slot of a connection that waits to be accepted which context accepts it.
    pub fn claim(&self, slot: &Slot) {
        slot.app.claim(self.index);
    }

    /// How many bytes can be staged now.
    pub fn staging_room(&self) -> u64 {
        self.context.staging_room()
    }

    /// Where the next `len` staged bytes go.
    pub fn staging(&self, len: usize) -> [(*mut u8, usize); 2] {
        self.context.staging_pieces(len as u64).map(|(at, len)| {
            let to = self.engine.region.staging(self.index, at, len);
            (to.unwrap_or(std::ptr::null_mut()), len)
        })
    }

    /// Waits until earlier submissions of this socket by another context are taken. The slot's
    /// `write_lock` is held.
    pub fn follow(&self, slot: &Slot) -> Result<()> {
        let Some(before) = slot.app.goes_by(self.index) else {
            return Ok(());
        };
        let Some((other, _)) = self.engine.region.context(before) else {
            return Ok(());
        };
        let position = other.position();
        if other.taken(position) {
            return Ok(());
        }
        // The slot may have moved since. Then the earlier submission is another shard's to take.
        let shard = before % self.engine.region.geometry().shards;
        self.wait_until(shard, || other.taken(position))
    }

    /// Submits. One entry is certainly free after [`SubmissionHandle::take`] and after each
    /// [`SubmissionHandle::submit`].
    pub fn submit(&self, submission: &Submission) -> Result<()> {
        thread::with(|thread| thread.urgent.set(true));
        self.submit_quietly(submission)
    }

    /// Submits a request that no other thread waits for. In a batch the shard is rung only when
    /// this thread sleeps.
    pub fn submit_quietly(&self, submission: &Submission) -> Result<()> {
        thread_sanitizer::release();
        self.context.submit(self.ring, submission);
        if thread::with(|thread| thread.batch.get()) {
            let low =
                self.context.room() < ENTRIES_LOW || self.context.staging_room() < STAGING_LOW;
            thread::with(|thread| thread.unrung.set(thread.unrung.get() | 1 << self.shard));
            if !low && self.engine.sleep_of(self.shard) != ASLEEP {
                return self.wait_for_room();
            }
        }
        ring_if_asleep(self.engine, self.shard);
        self.wait_for_room()
    }

    /// Submits a request that is not urgent. The shard finds it the next time it looks.
    pub fn leave(&self, submission: &Submission) -> Result<()> {
        thread_sanitizer::release();
        self.context.submit(self.ring, submission);
        self.wait_for_room()
    }

    /// Submits and waits for the answer. Returns the result and how many bytes of data came with
    /// it, or the errno of the answer.
    pub fn ask(&self, submission: &Submission, out: &mut [u8]) -> Result<(i64, usize)> {
        let reply = &self.context.reply;
        let before = reply.sequence.load(Ordering::Acquire);
        let mut submission = *submission;
        submission.ask |= Ask::REPLY;
        thread_sanitizer::release();
        self.context.submit(self.ring, &submission);
        ring_if_asleep(self.engine, self.shard);
        while reply.sequence.load(Ordering::Acquire) == before {
            if sys::futex_wait(&reply.sequence, before, CHECK_US) == Err(Errno::TIMEDOUT) {
                self.engine.check();
                if self.engine.is_lost() {
                    return Err(Errno::NETDOWN);
                }
                ring_if_asleep(self.engine, self.shard);
            }
        }
        let (result, len) = reply.read(out);
        if result < 0 {
            return Err(Errno::from_raw_os_error(-result as i32));
        }
        Ok((result, len))
    }

    /// Waits until the shard has taken everything. The staging ring is empty then.
    pub fn drain(&self, slot: SlotRef) -> Result<()> {
        let nop = Submission::new(millrace_context::Operation::Nop, slot, 0);
        self.ask(&nop, &mut []).map(drop)
    }
}

/// Rings a shard's doorbell if the shard sleeps.
pub fn ring_if_asleep(engine: &Engine, shard: u32) {
    if engine.sleep_of(shard) != AWAKE {
        engine.ring(shard);
    }
}

/// Makes one request with a handle of its own and waits for the answer.
pub fn ask(
    engine: &'static Engine,
    shard: u32,
    submission: &Submission,
    out: &mut [u8],
) -> Result<(i64, usize)> {
    SubmissionHandle::take(engine, shard)?.ask(submission, out)
}
