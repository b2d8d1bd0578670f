//! fork: the engine hears of the child before it exists, so that it holds every socket that its parent holds from its first moment.
//!
//! So it is for every way to make a process that goes through the C library. A child made by the system call itself is noticed later, by itself: see [`engine::get`].

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::pid_t;
use millrace_context::protocol::{Kind, Request};
use rustix::io::Errno;

use crate::engine::{self, Engine};
use crate::internal::{self, Handle};
use crate::lock::{Guard, Rank};
use crate::socket::flag;
use crate::sys::{self, Result};
use crate::table::{self, Entry};
use crate::{anchor, environment, lane, lock, poll, rights, sets, thread};

/// A fork that is about to happen, with everything quiet that the child will find.
struct Forking {
    engine: &'static Engine,
    announced: Option<Announced>,
    /// There is something to hold, but it could not be announced: a signal handler in the middle of another request.
    unknown: bool,
    /// Held over the fork: the child finds no half-done attaching. They cannot be waited for by the thread that holds them.
    guards: [Option<Guard<'static>>; 3],
}

/// A child that the engine expects.
pub struct Announced {
    /// What the child shows when it attaches.
    pub ticket: u64,
    /// A control connection for it.
    control: Option<Handle>,
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
    let forking = match Forking::begin(engine) {
        Ok(forking) => forking,
        Err(errno) => {
            sys::set_errno(errno);
            return -1;
        }
    };
    match make() {
        0 => {
            forking.in_child();
            0
        }
        pid => forking.in_parent(pid),
    }
}

/// The flags of a clone whose child is to have memory of its own: none if it is to be a thread, or something between. As for vfork, a child that would share its
/// parent's memory until it calls exec gets a copy.
pub fn with_own_memory(flags: u64) -> Option<u64> {
    let until_exec = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    let thread = (libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FILES) as u64;
    if flags & until_exec == until_exec && flags & thread == 0 {
        return Some(flags & !until_exec);
    }
    (flags & libc::CLONE_VM as u64 == 0).then_some(flags)
}

/// What the child of a `clone` does, and before that what the shim has to do.
struct Start {
    forking: Option<Forking>,
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// Makes a process with memory of its own by `clone`, whose child begins with a function.
pub fn clone(
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    clone: impl FnOnce(extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> pid_t,
) -> pid_t {
    let forking = match engine::attached().map(Forking::begin).transpose() {
        Ok(forking) => forking,
        Err(errno) => {
            sys::set_errno(errno);
            return -1;
        }
    };
    let mut start = Start {
        forking,
        function,
        argument,
    };
    let pid = clone(child, (&raw mut start).cast());
    match start.forking {
        Some(forking) => forking.in_parent(pid),
        None => pid,
    }
}

/// Where the child of a `clone` begins.
extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: the memory is a copy of the parent's, with what `clone` above had on its stack.
    let start = unsafe { &mut *start.cast::<Start>() };
    match start.forking.take() {
        Some(forking) => forking.in_child(),
        None => thread::forked(),
    }
    (start.function)(start.argument)
}

/// Announces a child, if this process has sockets or epoll sets for them that it will have too. `connected`: it is to have a control connection. `AGAIN`, as for any limit of
/// processes: the engine has no room for it.
pub fn announce(engine: &'static Engine, connected: bool) -> Result<Option<Announced>> {
    if !shares() {
        return Ok(None);
    }
    for (_, entry) in table::all() {
        if let Entry::Socket(slot) = entry
            && let Some(slot) = engine.region.slot(slot.index)
        {
            slot.app.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
        }
    }
    let request = Request::new(Kind::Fork, [0; 16], [u64::from(connected), 0, 0, 0]);
    match engine.call(&request, &[]) {
        Ok((words, mut descriptors)) => Ok(Some(Announced {
            ticket: words[0],
            control: descriptors
                .take(0)
                .and_then(|control| internal::adopt(control).ok()),
        })),
        Err(Errno::USERS) => {
            static SAID: AtomicBool = AtomicBool::new(false);
            if !SAID.swap(true, Ordering::Relaxed) {
                engine::say(&[
                    "millrace: the engine has no room for another process of the program; fork fails with EAGAIN\n",
                ]);
            }
            Err(Errno::AGAIN)
        }
        // The child makes itself known, if there is an engine.
        Err(_) => Ok(None),
    }
}

/// Whether a child would have something of this process's that the engine has to know of.
fn shares() -> bool {
    sets::all().any(|(_, memory)| memory.poller().is_some())
        || table::all().any(|(_, entry)| matches!(entry, Entry::Socket(_)))
}

/// Tells the engine what came of a fork: the child's pid, or that there is none.
pub fn tell(engine: &Engine, announced: &Announced, pid: pid_t) {
    let opened = sys::pidfd_open(pid);
    // One that is gone has attached before or holds nothing any more.
    let is_gone = opened.as_ref().err() == Some(&Errno::SRCH);
    let pid = if is_gone { 0 } else { pid };
    let arguments = [announced.ticket, pid.max(0) as u64, 0, 0];
    let request = Request::new(Kind::Forked, [0; 16], arguments);
    engine.tell_with(&request, opened.ok().as_ref().map(AsFd::as_fd));
}

impl Forking {
    fn begin(engine: &'static Engine) -> Result<Forking> {
        lane::end_batch(engine);
        sets::share(engine);
        let announced = announce(engine, true)?;
        let guards = [
            lock::take(engine::LOCK, Rank::Control),
            lock::take(&anchor::LOCK, Rank::Leaf),
            internal::lock(),
        ];
        sets::count_processes(1);
        Ok(Forking {
            engine,
            unknown: announced.is_none() && shares(),
            announced,
            guards,
        })
    }

    fn in_parent(self, pid: pid_t) -> pid_t {
        // After a fork that went well it may be anything, 0 too.
        // SAFETY: the C library's errno is always there.
        let errno = unsafe { *libc::__errno_location() };
        if pid < 0 {
            sets::count_processes(-1);
        }
        drop(self.guards);
        if let Some(announced) = &self.announced {
            if let Some(control) = announced.control {
                internal::release(control);
            }
            tell(self.engine, announced, pid);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
        pid
    }

    fn in_child(self) {
        // The locks are those of the parent's thread; here nobody else is.
        std::mem::forget(self.guards);
        thread::forked();
        engine::LOCK.store(0, Ordering::Relaxed);
        engine::DESCRIPTORS.store(0, Ordering::Relaxed);
        anchor::LOCK.store(0, Ordering::Relaxed);
        self.engine.forked(self.unknown);
        rights::forked();
        if self.unknown {
            // It will count itself.
            sets::count_processes(-1);
            return;
        }
        if let (Some(environment), Some(announced)) = (environment::get(), &self.announced) {
            let control = announced.control.map_or(0, |control| control.to_bits() + 1);
            environment.control.store(control, Ordering::Relaxed);
            environment
                .announced
                .store(announced.ticket, Ordering::Relaxed);
            // Now, while the parent still knows who we are: a child that closes nothing and calls exec would hold everything for ever. If
            // the engine cannot be reached its sockets say so when they are used.
            let _ = engine::get();
        }
        poll::forked(self.engine);
        sets::forked();
    }
}
