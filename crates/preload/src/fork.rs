//! fork: the engine hears of the child before it exists, so that it holds every socket that its parent holds from its first moment.

use std::sync::atomic::Ordering;

use libc::pid_t;
use millrace_context::protocol::{Kind, Request};

use crate::engine::{self, Engine};
use crate::lock::Rank;
use crate::socket::flag;
use crate::table::{self, Entry};
use crate::{anchor, environment, lane, lock, poll, refs, rights, sets, thread};

/// A fork that has been announced, with everything quiet that the child will find.
struct Announced {
    engine: &'static Engine,
    /// The child's process slot; none if there is nothing to hold.
    process: Option<u32>,
}

/// Forks by `make`, which the kernel's fork must be.
pub fn fork(make: impl FnOnce() -> pid_t) -> pid_t {
    let Some(engine) = engine::attached() else {
        let pid = make();
        if pid == 0 {
            thread::forked();
        }
        return pid;
    };
    lane::end_batch(engine);
    sets::share(engine);
    let process = announce(engine);
    // Held over the fork: the child finds no half-done attaching. It cannot be waited for by the thread that holds it.
    let guards = (
        lock::take(&engine::LOCK, Rank::Control),
        lock::take(&anchor::LOCK, Rank::Leaf),
    );
    sets::count_processes(1);
    let announced = Announced { engine, process };
    let pid = make();
    if pid == 0 {
        // The locks are those of the parent's thread; here nobody else is.
        std::mem::forget(guards);
        announced.in_child();
        return 0;
    }
    drop(guards);
    if pid < 0 {
        sets::count_processes(-1);
    }
    if let Some(process) = announced.process {
        let arguments = [u64::from(process), pid.max(0) as u64, 0, 0];
        // After a fork that went well it may be anything, 0 too.
        // SAFETY: the C library's errno is always there.
        let errno = unsafe { *libc::__errno_location() };
        engine.tell(&Request::new(Kind::Forked, [0; 16], arguments));
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
    pid
}

/// Announces a child, if this process has sockets or epoll sets for them that it will have too.
pub fn announce(engine: &'static Engine) -> Option<u32> {
    let mut any = sets::all().any(|(_, memory)| memory.poller().is_some());
    for (_, entry) in table::all() {
        if let Entry::Socket(slot) = entry {
            any = true;
            if let Some(slot) = engine.region.slot(slot.index) {
                slot.app.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
            }
        }
    }
    if !any {
        return None;
    }
    let request = Request::new(Kind::Fork, [0; 16], [0; 4]);
    let (words, _) = engine.call(&request, &[]).ok()?;
    Some(words[0] as u32)
}

impl Announced {
    fn in_child(&self) {
        thread::forked();
        engine::LOCK.store(0, Ordering::Relaxed);
        anchor::LOCK.store(0, Ordering::Relaxed);
        self.engine.forked();
        rights::forked();
        if let (Some(environment), Some(process)) = (environment::get(), self.process) {
            environment.announced.store(process + 1, Ordering::Relaxed);
            // Now, while the parent still knows who we are: a child that closes nothing and calls exec would hold everything for ever. If
            // the engine cannot be reached its sockets say so when they are used.
            if engine::get().is_ok() {
                refs::count_again(self.engine);
            }
        }
        poll::forked(self.engine);
        sets::forked();
    }
}
