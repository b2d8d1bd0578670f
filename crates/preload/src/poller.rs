//! Pollers: where the engine leaves hints, and the doorbell it rings when nobody looks.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use millrace_context::protocol::{Kind, Request};
use millrace_context::{Operation, Poller, Slot, SlotRef, Submission};
use rustix::io::Errno;

use crate::engine::Engine;
use crate::internal::{self, Handle};
use crate::lane::Lane;
use crate::readiness::bits;
use crate::sys::{self, Result};

/// A poller of this process.
#[derive(Clone, Copy)]
pub struct Own {
    /// Its index in the region.
    pub index: u32,
    /// What the engine rings: an epoll set of the engine's making, readable after each ring until it is waited for.
    pub bell: Handle,
    /// What the program's own threads ring: an eventfd that the engine does not have. None if they never do.
    pub own_bell: Option<Handle>,
}

impl Own {
    /// Rings: another thread of the program has something to look at.
    pub fn ring(&self) {
        if let Some(bell) = self.own_bell {
            sys::ring(bell.fd());
        }
    }

    /// Whether there is a ring that nobody has taken back.
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
        sys::poll_look(&mut bells).is_ok_and(|rung| rung > 0)
    }

    /// Takes back all rings.
    pub fn silence(&self) {
        let _ = sys::epoll_look(
            self.bell.fd(),
            &mut [libc::epoll_event { events: 0, u64: 0 }],
        );
        if let Some(bell) = self.own_bell {
            sys::silence(bell.fd());
        }
    }

    /// Closes the descriptors that are rung.
    pub fn close_bells(&self) {
        for bell in std::iter::once(self.bell).chain(self.own_bell) {
            internal::release(bell);
        }
    }

    /// The descriptors that are rung.
    pub fn bells(&self) -> impl Iterator<Item = c_int> {
        let own = self.own_bell.map(Handle::fd);
        std::iter::once(self.bell.fd()).chain(own)
    }
}

/// Makes one. `rings`: threads of the program ring it, too.
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

/// Gives one back.
pub fn give_back(engine: &Engine, own: Own) {
    own.close_bells();
    say_gone(engine, own.index);
}

/// Tells the engine that this process has no use for a poller any more.
pub fn say_gone(engine: &Engine, index: u32) {
    let arguments = [u64::from(index), 0, 0, 0];
    engine.tell(&Request::new(Kind::PollerGone, [0; 16], arguments));
}

/// The shared part.
pub fn shared(
    engine: &'static Engine,
    index: u32,
) -> Option<(&'static Poller, &'static [AtomicU32])> {
    engine.region.poller(index)
}

/// All bits of which there are hints. Which of them matter is decided when the hints are looked at, so that a changed interest needs no request.
pub const EVERYTHING: u32 = bits::IN | bits::PRI | bits::OUT | bits::RDHUP | bits::ALWAYS;

/// Asks for hints of a slot, of these bits; with [`bits::EXCLUSIVE`] of what is told to nobody else.
pub fn watch(engine: &'static Engine, poller: u32, slot: SlotRef, wanted: u32) -> Result<()> {
    let shared = engine.region.slot(slot.index).ok_or(Errno::BADF)?;
    let mut submission = Submission::new(Operation::Watch, slot, poller);
    submission.arguments[0] = u64::from(wanted);
    // Read before the caller's first look at the socket.
    let sequence = shared.engine.sequence.load(Ordering::Acquire);
    submission.arguments[1] = u64::from(sequence);
    submission.arguments[2] = shared.app.next_watch_order();
    fence(Ordering::SeqCst);
    post(engine, shared, |lane| lane.submit_quietly(&submission))
}

/// Posts something to a slot's shard. If the slot moves meanwhile, what is asked of the new shard next must not come before this.
fn post(
    engine: &'static Engine,
    slot: &Slot,
    post: impl FnOnce(&Lane) -> Result<()>,
) -> Result<()> {
    let shard = slot.engine.shard.load(Ordering::Relaxed);
    let lane = Lane::take(engine, shard)?;
    post(&lane)?;
    if slot.engine.has_moved_from(shard) {
        lane.wait_taken()?;
    }
    Ok(())
}

/// Asks for none any more. The poller's set is locked.
pub fn unwatch(engine: &'static Engine, poller: u32, slot: SlotRef) {
    let Some(shared) = engine.region.slot(slot.index) else {
        return;
    };
    let mut submission = Submission::new(Operation::Unwatch, slot, poller);
    submission.arguments[2] = shared.app.next_watch_order();
    // Hints that come all the same are dropped when they are looked at.
    let _ = post(engine, shared, |lane| lane.leave(&submission));
}
