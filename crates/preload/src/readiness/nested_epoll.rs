//! Epoll sets in other epoll sets.
//!
//! A set that is in another one is in the kernel's list of that one, under a mark of ours. Its
//! doorbells ring for hints, which may mean nothing: so when the kernel reports the mark it is
//! looked whether the inner set has anything, and the program's registration, which lies in the
//! outer set's memory, is reported only then.

use std::ffi::c_int;

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, epoll_event, pollfd};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::fd::table::{self, Entry};
use crate::readiness::bits;
use crate::readiness::{epoll_sets, ready_list};
use crate::sys::{self, Result};

/// Sets in sets that are looked into, as many as the kernel allows.
const DEPTH: u32 = 6;
/// Looks at a set whose doorbells ring meanwhile.
const ATTEMPTS: u32 = 64;

/// `epoll_ctl` on the set at place `index` for the descriptor of another set. `None`: it is none,
/// or none any more; the caller looks at the table again.
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
        // Its doorbells ring as whoever waits for it needs it before anybody waits.
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
            // What another thread has from the kernel of the registration as it was is not reported
            // any more: the kernel looks anew.
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

/// What the program is told of an event of the kernel's set at place `index` that stands for
/// another set; none: nothing is in that.
pub fn report(index: u32, (item, version): (u32, u32), event: epoll_event) -> Option<epoll_event> {
    let memory = epoll_sets::memory(index)?;
    let id = memory.lock()?.inner_id(item)?;
    // This process may have closed it, while another one has it: then it is as the kernel says.
    let is_ready = epoll_sets::find(id).is_none_or(|inner| is_ready(inner.index()));
    // A one-shot is armed again by its number.
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

/// Arms a one-shot again that was not reported. False: its number has been closed, so it cannot be.
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

/// Whether a set, which the caller holds, has something to report, without reporting it.
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
        // What the kernel shows is a ring that came meanwhile, or was taken back by another thread
        // meanwhile, or something.
        let now = engine::mapped().map(|engine| rings(index, engine, 0));
        if now.is_none_or(|(is_rung, now)| !is_rung && Some(now) == silenced) {
            return true;
        }
    }
    true
}

/// Makes the doorbells of a set, and of those in it, ring if and only if millrace sockets in it are
/// ready. How often rings have been taken back.
fn settle(index: u32, engine: &'static Engine, depth: u32) -> u32 {
    ready_list::show(index, engine);
    let Some(memory) = epoll_sets::memory(index) else {
        return 0;
    };
    let below = each_inner(index, depth).map(|inner| settle(inner.index(), engine, depth + 1));
    below.fold(memory.silenced(), u32::wrapping_add)
}

/// Whether any of these doorbells ring without a ready socket, and how often rings have been taken
/// back.
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

/// The sets in a set that this process has open.
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
