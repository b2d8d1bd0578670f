//! The millrace sockets of an epoll set that may be ready, and the reports about them.

use std::mem::ManuallyDrop;

use millrace_context::SlotRef;
use millrace_context::sync::{Ordering, fence};

use crate::engine::{self, Engine};
use crate::fd::refcount;
use crate::readiness::interest_list::{Memory, Set, state};
use crate::readiness::poller::{self, Own};
use crate::readiness::{bits, epoll_sets, poll_mask};
use crate::socket::{Socket, flag};
use crate::sys::robust_lock::{self, Rank};

/// Moves hints into the list of items that may be ready.
pub fn take_hints(set: &Set<'_>, index: u32, engine: &'static Engine) {
    let Some((shared, ring)) = poller::shared(engine, index) else {
        return;
    };
    let Some(_turn) = robust_lock::take(shared.lock(), Rank::Leaf) else {
        return;
    };
    while let Some(slot) = shared.take(ring) {
        for item in set.of_slot(slot) {
            set.list(item);
        }
    }
    if shared.overflowed() || engine.is_lost() {
        set.list_all();
    }
    // The engine gives no new hint while an old one stands. A change after the hints were taken is
    // seen from here on, or brings a new hint.
    fence(Ordering::SeqCst);
}

/// The event to report for an item that was taken off the list. With `for_good` it counts as
/// reported.
pub fn report(set: &Set<'_>, index: u32, for_good: bool) -> Option<(u32, u64)> {
    let item = set.item(index);
    let slot = set.slot_of(index)?;
    let Some(socket) = peek(slot, set.is_shared()) else {
        if !set.is_shared() {
            set.remove(index);
        }
        return None;
    };
    let state = item.state.load(Ordering::Relaxed);
    if state & state::SPENT != 0 {
        return None;
    }
    let interest = item.events.load(Ordering::Relaxed);
    let (ready, edge) = poll_mask::of(&socket, interest);
    let events = ready & (interest | bits::ALWAYS);
    let news = interest & bits::EDGE == 0
        || state & state::FRESH != 0
        || item.has_changed(&edge)
        || state & state::OUT_OWED != 0 && ready & bits::OUT != 0;
    if !for_good {
        if events != 0 && news {
            set.list(index);
            return Some((events, 0));
        }
        // The wait that reports the edge still has to find it.
        if interest & bits::EDGE != 0 {
            set.list(index);
        }
        return None;
    }
    let owed = interest & bits::OUT != 0 && ready & bits::OUT == 0;
    let kept = state & !(state::FRESH | state::OUT_OWED | state::LISTED);
    item.state.store(
        kept | if owed { state::OUT_OWED } else { 0 },
        Ordering::Relaxed,
    );
    item.has_seen(&edge);
    if events == 0 || !news {
        return None;
    }
    if interest & bits::ONESHOT != 0 {
        item.state.fetch_or(state::SPENT, Ordering::Relaxed);
    } else if interest & bits::EDGE == 0 {
        // The next wait looks again at a level-triggered item.
        set.list(index);
    }
    Some((events, item.data.load(Ordering::Relaxed)))
}

/// The socket of an item. `None` if the slot has another socket by now, or if nobody who has the
/// set or the socket may hold it.
fn peek(slot: SlotRef, shared_set: bool) -> Option<ManuallyDrop<Socket>> {
    let engine = engine::mapped()?;
    let shared = engine.region.slot(slot.index)?;
    let current = shared.engine.generation.load(Ordering::Acquire) == slot.generation;
    let flags = || shared.app.flags.load(Ordering::Relaxed);
    let others = || flags() & (flag::SHARED | flag::IN_SHARED_SET) != 0;
    (current && (shared_set || refcount::any(slot.index) || others())).then(|| {
        // This reference is not counted, so it is not dropped. The set is locked, and a close
        // removes its registrations before the slot is used again.
        ManuallyDrop::new(Socket {
            engine,
            slot: shared,
            reference: slot,
        })
    })
}

/// Whether a locked set has a ready millrace socket, without reporting it: for a wait on the set
/// itself.
pub fn has_ready(set: &Set<'_>, own: Own, engine: &'static Engine) -> bool {
    take_hints(set, own.index, engine);
    for _ in 0..set.listed() {
        let Some(item) = set.next_listed() else {
            break;
        };
        if report(set, item, false).is_some() {
            return true;
        }
    }
    false
}

/// Whether a set has a ready millrace socket. Its doorbells stay as they are.
pub fn is_ready_here(index: u32, engine: &'static Engine) -> bool {
    let memory = epoll_sets::memory(index);
    let set = memory.and_then(Memory::lock);
    let (Some(set), Some(own)) = (set, epoll_sets::poller(index)) else {
        return false;
    };
    has_ready(&set, own, engine)
}

/// For callers that wait for the set itself: rings the set's doorbell if a millrace socket is
/// ready, and silences it if not. Returns whether one is ready.
pub fn show(index: u32, engine: &'static Engine) -> bool {
    let Some(memory) = epoll_sets::memory(index) else {
        return false;
    };
    // A signal handler in the middle of another call on the set changes nothing.
    let (Some(set), Some(own)) = (memory.lock(), epoll_sets::poller(index)) else {
        return false;
    };
    let is_ready = has_ready(&set, own, engine);
    show_locked(&set, own, engine, is_ready);
    is_ready
}

/// Rings or silences the doorbell of a locked set, for callers that wait for the set itself.
pub fn show_locked(set: &Set<'_>, own: Own, engine: &'static Engine, is_ready: bool) {
    if is_ready {
        // A second ring would be a second edge to a caller that waits for the set.
        if !own.is_rung() {
            own.ring();
        }
        return;
    }
    set.note_silenced();
    own.silence();
    fence(Ordering::SeqCst);
    if poller::shared(engine, own.index).is_some_and(|(shared, _)| shared.pending()) {
        own.ring();
    }
}

/// A caller waits for the set itself: from now on the kernel's set is readable while hints or ready
/// sockets may exist.
pub fn wait_for_set(index: u32, engine: &'static Engine) {
    let Ok(memory) = epoll_sets::memory_or_new(index, engine) else {
        return;
    };
    let Some(set) = memory.lock() else {
        return;
    };
    if epoll_sets::show_rings(index, engine, memory, &set) {
        // Sockets that are ready already show at once.
        drop(set);
        show(index, engine);
    }
}
