//! Epoll sets that are registered in other epoll sets.
//!
//! A nested set is in the kernel's list of the outer set, with a mark of the shim as its data. Its
//! doorbells may ring without an event. So when the kernel reports the mark, the shim checks that
//! the inner set has an event, and only then reports the program's registration, which is in the
//! outer set's memory.

use std::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, epoll_event, pollfd};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::fd::table::{self, Entry};
use crate::readiness::bits;
use crate::readiness::{epoll_sets, ready_list};
use crate::sys::{self, Result};

/// The depth of nested sets that is followed, which is the kernel's limit.
const DEPTH: u32 = 6;
/// How often a set whose doorbells ring meanwhile is looked at again.
const ATTEMPTS: u32 = 64;

/// Does `epoll_ctl` on the set at place `index` for the descriptor of another set. `None`: the
/// descriptor is not, or no longer, a set; the caller looks at the table again.
pub fn control(
    index: u32,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
) -> Option<Result<()>> {
    let _numbers = epoll_sets::numbers();
    let inner = epoll_sets::hold_descriptor(fd)?;
    Some(control_held(index, operation, fd, inner.index(), event))
}

fn control_held(
    index: u32,
    operation: c_int,
    fd: c_int,
    inner: u32,
    event: Option<epoll_event>,
) -> Result<()> {
    let engine = engine::get()?;
    let memory = epoll_sets::memory_or_new(index, engine)?;
    let outer = epoll_sets::kernel_fd_or_new(index)?;
    let id = epoll_sets::id(inner);
    if index == inner {
        return Err(Errno::INVAL);
    }
    epoll_sets::note_mixed(index);
    if operation == EPOLL_CTL_ADD {
        // The inner doorbells must be level-triggered before anybody waits.
        ready_list::wait_for_set(inner, engine);
    }
    let set = memory.lock().ok_or(Errno::NOMEM)?;
    let found = set.find_inner(fd, id);
    let ask = |item: u32, version: u32, events: u32| {
        let mut event = epoll_event {
            events,
            u64: epoll_sets::inner_mark(item, version),
        };
        sys::epoll_ctl(outer, operation, fd, &mut event)
    };
    match operation {
        EPOLL_CTL_ADD => {
            let event = event.ok_or(Errno::FAULT)?;
            if found.is_some() {
                return Err(Errno::EXIST);
            }
            let (events, data) = (event.events, event.u64);
            let item = set.insert_inner(fd, id, events, data)?;
            ask(item, set.version(item), events).inspect_err(|_| set.remove(item))
        }
        EPOLL_CTL_MOD => {
            let event = event.ok_or(Errno::FAULT)?;
            let item = found.ok_or(Errno::NOENT)?;
            // Another thread may have taken an event of the old registration from the kernel. It is
            // dropped; the kernel reports the new one.
            ask(item, set.version(item).wrapping_add(1) & 0xff, event.events)?;
            set.next_version(item);
            let (events, data) = (event.events, event.u64);
            set.item(item).events.store(events, RELAXED);
            set.item(item).data.store(data, RELAXED);
            Ok(())
        }
        EPOLL_CTL_DEL => {
            let item = found.ok_or(Errno::NOENT)?;
            ask(item, 0, 0)?;
            set.remove(item);
            Ok(())
        }
        _ => Err(Errno::INVAL),
    }
}

const RELAXED: std::sync::atomic::Ordering = std::sync::atomic::Ordering::Relaxed;

/// The event to report to the program for a nested set's mark at place `index`. `None`: the nested
/// set has no event.
pub fn report(index: u32, (item, version): (u32, u32), event: epoll_event) -> Option<epoll_event> {
    let memory = epoll_sets::memory(index)?;
    let id = memory.lock()?.inner_id(item)?;
    // If this process has closed the set and another one has it, the kernel's answer counts.
    let is_ready = epoll_sets::find(id).is_none_or(|inner| is_ready(inner.index()));
    // A one-shot registration is armed again by its number.
    let _numbers = (!is_ready).then(epoll_sets::numbers);
    let set = memory.lock()?;
    if set.inner_id(item) != Some(id) || set.version(item) != version {
        return None;
    }
    let (events, data) = {
        let item = set.item(item);
        (item.events.load(RELAXED), item.data.load(RELAXED))
    };
    let shown = event.events & (events | bits::ALWAYS);
    let is_dropped = !is_ready && (events & bits::ONESHOT == 0 || arm(index, item, id, &set));
    (shown != 0 && !is_dropped).then_some(epoll_event {
        events: shown,
        u64: data,
    })
}

/// Arms a one-shot registration again that was not reported. False: its number has been closed, so
/// it cannot be armed.
fn arm(index: u32, item: u32, id: u64, set: &crate::readiness::interest_list::Set<'_>) -> bool {
    let fd = set.item(item).fd();
    let means_it = matches!(table::get(fd), Entry::Epoll(inner) if epoll_sets::id(inner) == id);
    let mut event = epoll_event {
        events: set.item(item).events.load(RELAXED),
        u64: epoll_sets::inner_mark(item, set.version(item)),
    };
    means_it
        && epoll_sets::kernel_fd(index)
            .is_some_and(|outer| sys::epoll_ctl(outer, EPOLL_CTL_MOD, fd, &mut event).is_ok())
}

/// Whether a set has an event, without reporting it. The caller holds the set.
pub fn is_ready(index: u32) -> bool {
    let Ok(epoll) = epoll_sets::kernel_fd_or_new(index) else {
        return false;
    };
    let mut polled = pollfd {
        fd: epoll,
        events: POLLIN,
        revents: 0,
    };
    for _ in 0..ATTEMPTS {
        let silenced = engine::mapped().map(|engine| settle(index, engine, 0));
        if sys::poll_now(std::slice::from_mut(&mut polled)).is_ok_and(|count| count == 0) {
            return false;
        }
        // The kernel shows an event, a ring that has just come, or one that another thread has just
        // silenced.
        let now = engine::mapped().map(|engine| rings(index, engine, 0));
        if now.is_none_or(|(is_rung, now)| !is_rung && Some(now) == silenced) {
            return true;
        }
    }
    true
}

/// Makes the doorbells of a set and of its nested sets ring if and only if one of their millrace
/// sockets is ready. Returns how often doorbells have been silenced.
fn settle(index: u32, engine: &'static Engine, depth: u32) -> u32 {
    ready_list::show(index, engine);
    let Some(memory) = epoll_sets::memory(index) else {
        return 0;
    };
    let below = each_inner(index, depth).map(|inner| settle(inner.index(), engine, depth + 1));
    below.fold(memory.silenced(), u32::wrapping_add)
}

/// Whether one of these doorbells rings without a ready socket, and how often doorbells have been
/// silenced.
fn rings(index: u32, engine: &'static Engine, depth: u32) -> (bool, u32) {
    let Some(memory) = epoll_sets::memory(index) else {
        return (false, 0);
    };
    let is_stale = epoll_sets::poller(index).is_some_and(|own| own.is_rung())
        && !ready_list::is_ready_here(index, engine);
    let below = each_inner(index, depth).map(|inner| rings(inner.index(), engine, depth + 1));
    below.fold(
        (is_stale, memory.silenced()),
        |(any, sum), (stale, silenced)| (any || stale, sum.wrapping_add(silenced)),
    )
}

/// The nested sets that this process has open.
fn each_inner(index: u32, depth: u32) -> impl Iterator<Item = epoll_sets::Peek> {
    let mut found = [0u64; 32];
    let mut count = 0;
    if depth < DEPTH
        && let Some(memory) = epoll_sets::memory(index).filter(|memory| memory.has_inner())
        && let Some(set) = memory.lock()
    {
        for ((_, id), place) in set.all_inner().zip(&mut found) {
            *place = id;
            count += 1;
        }
    }
    found.into_iter().take(count).filter_map(epoll_sets::find)
}
