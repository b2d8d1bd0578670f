//! Pollers: the rings in which the engine leaves hints, and the doorbell that it rings when no
//! thread looks.

use std::ffi::c_int;

use millrace_context::protocol::{Kind, Request};
use millrace_context::sync::{AtomicU32, Ordering, fence};
use millrace_context::{Operation, Poller, Slot, SlotRef, Submission};
use rustix::io::Errno;

use crate::engine::Engine;
use crate::engine::submission::SubmissionHandle;
use crate::fd::internal::{self, Handle};
use crate::readiness::bits;
use crate::sys::{self, Result};

/// A poller of this process.
#[derive(Clone, Copy)]
pub struct Own {
    /// Its index in the region.
    pub index: u32,
    /// The doorbell that the engine rings: an epoll set that the engine has made. It is readable
    /// after each ring until a thread waits for it.
    pub bell: Handle,
    /// The doorbell that the program's own threads ring: an eventfd that the engine does not have.
    /// `None` if they never ring.
    pub own_bell: Option<Handle>,
}

impl Own {
    /// Rings the doorbell: another thread of the program has to look again.
    pub fn ring(&self) {
        if let Some(bell) = self.own_bell {
            sys::ring(bell.fd());
        }
    }

    /// Whether a doorbell rings.
    pub fn is_rung(&self) -> bool {
        let entry = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut bells = [-1; 2].map(entry);
        for (polled, bell) in bells.iter_mut().zip(self.bells()) {
            polled.fd = bell;
        }
        sys::poll_now(&mut bells).is_ok_and(|rung| rung > 0)
    }

    /// Silences the doorbells.
    pub fn silence(&self) {
        let _ = sys::epoll_now(
            self.bell.fd(),
            &mut [libc::epoll_event { events: 0, u64: 0 }],
        );
        if let Some(bell) = self.own_bell {
            sys::silence(bell.fd());
        }
    }

    /// Closes the descriptors of the doorbells.
    pub fn close_bells(&self) {
        for bell in std::iter::once(self.bell).chain(self.own_bell) {
            internal::release(bell);
        }
    }

    /// The descriptors of the doorbells.
    pub fn bells(&self) -> impl Iterator<Item = c_int> {
        let own = self.own_bell.map(Handle::fd);
        std::iter::once(self.bell.fd()).chain(own)
    }
}

/// Makes a poller. `rings`: threads of the program ring it too.
pub fn make(engine: &Engine, rings: bool) -> Result<Own> {
    let request = Request::new(Kind::Poller, [0; 16], [0; 4]);
    let (words, mut descriptors) = engine.call(&request, &[])?;
    let bell = internal::adopt(descriptors.take(0).ok_or(Errno::PROTO)?)?;
    let mut own = Own {
        index: words[0] as u32,
        bell,
        own_bell: None,
    };
    if rings {
        match sys::eventfd().and_then(internal::adopt) {
            Ok(bell) => own.own_bell = Some(bell),
            Err(errno) => {
                give_back(engine, own);
                return Err(errno);
            }
        }
    }
    Ok(own)
}

/// Gives a poller back to the engine.
pub fn give_back(engine: &Engine, own: Own) {
    own.close_bells();
    say_gone(engine, own.index);
}

/// Tells the engine that this process no longer uses a poller.
pub fn say_gone(engine: &Engine, index: u32) {
    let arguments = [u64::from(index), 0, 0, 0];
    engine.tell(&Request::new(Kind::PollerGone, [0; 16], arguments));
}

/// The poller's part in the region.
pub fn shared(
    engine: &'static Engine,
    index: u32,
) -> Option<(&'static Poller, &'static [AtomicU32])> {
    engine.region.poller(index)
}

/// All bits for which hints exist. The program decides which of them matter when it looks, so a
/// changed interest needs no request.
pub const EVERYTHING: u32 = bits::IN | bits::PRI | bits::OUT | bits::RDHUP | bits::ALWAYS;

/// Asks for hints of a slot for these bits. With [`bits::EXCLUSIVE`] the engine gives each event to
/// one poller only.
pub fn watch(engine: &'static Engine, poller: u32, slot: SlotRef, wanted: u32) -> Result<()> {
    let shared = engine.region.slot(slot.index).ok_or(Errno::BADF)?;
    let mut submission = Submission::new(Operation::Watch, slot, poller);
    submission.arguments[0] = u64::from(wanted);
    // This is read before the caller first looks at the socket.
    let sequence = shared.engine.sequence.load(Ordering::Acquire);
    submission.arguments[1] = u64::from(sequence);
    submission.arguments[2] = shared.app.next_watch_order();
    fence(Ordering::SeqCst);
    post(engine, shared, |handle| handle.submit_quietly(&submission))
}

/// Submits to a slot's shard. If the slot moves meanwhile, requests to the new shard must come
/// after this one.
fn post(
    engine: &'static Engine,
    slot: &Slot,
    post: impl FnOnce(&SubmissionHandle) -> Result<()>,
) -> Result<()> {
    let shard = slot.engine.shard.load(Ordering::Relaxed);
    let handle = SubmissionHandle::take(engine, shard)?;
    post(&handle)?;
    if slot.engine.has_moved_from(shard) {
        handle.wait_taken()?;
    }
    Ok(())
}

/// Stops the hints of a slot. The poller's set is locked.
pub fn unwatch(engine: &'static Engine, poller: u32, slot: SlotRef) {
    let Some(shared) = engine.region.slot(slot.index) else {
        return;
    };
    let mut submission = Submission::new(Operation::Unwatch, slot, poller);
    submission.arguments[2] = shared.app.next_watch_order();
    // The program drops hints that still come.
    let _ = post(engine, shared, |handle| handle.leave(&submission));
}
