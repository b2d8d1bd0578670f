//! fork: the shim announces the child to the engine before the child exists, so that the child
//! holds its parent's sockets from its first moment.
//!
//! This covers every way to make a process through the C library. A child made by the raw system
//! call attaches by itself: see [`engine::get`].

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::pid_t;
use millrace_context::protocol::{Kind, Request};
use rustix::io::Errno;

use crate::engine::batch;
use crate::engine::{self, Engine};
use crate::fd::internal::{self, Handle};
use crate::fd::table::{self, Entry};
use crate::fd::{placeholder, scm_rights};
use crate::process::{environment, thread};
use crate::readiness::{epoll_sets, poll};
use crate::socket::flag;
use crate::sys::robust_lock;
use crate::sys::robust_lock::{Guard, Rank};
use crate::sys::{self, Result};

/// A fork that is about to happen. All state that the child will find is consistent.
struct Forking {
    engine: &'static Engine,
    announced: Option<Announced>,
    /// The child will hold sockets, but they could not be announced: this is a signal handler in
    /// the middle of another request.
    unknown: bool,
    /// Held during the fork, so that the child never finds a half-done attach. `None` where this
    /// thread has the lock already.
    guards: [Option<Guard<'static>>; 3],
}

/// A child that the engine expects.
pub struct Announced {
    /// The ticket that the child shows when it attaches.
    pub ticket: u64,
    /// A control connection for the child.
    control: Option<Handle>,
}

/// Forks. `make` makes the kernel's fork.
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

/// The flags of a clone whose child gets memory of its own. `None`: the child is a thread or shares
/// memory for good. A child that would share memory until its exec gets a copy, as with vfork.
pub fn with_own_memory(flags: u64) -> Option<u64> {
    let until_exec = (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    let thread = (libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_FILES) as u64;
    if flags & until_exec == until_exec && flags & thread == 0 {
        return Some(flags & !until_exec);
    }
    (flags & libc::CLONE_VM as u64 == 0).then_some(flags)
}

/// The start of a `clone`'s child, with the shim's state of the fork.
struct Start {
    forking: Option<Forking>,
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
}

/// Makes a process with memory of its own by `clone`. The child begins with `function`.
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

/// The first function of a `clone`'s child.
extern "C" fn child(start: *mut c_void) -> c_int {
    // SAFETY: the memory is a copy of the parent's, with what `clone` above had on its stack.
    let start = unsafe { &mut *start.cast::<Start>() };
    match start.forking.take() {
        Some(forking) => forking.in_child(),
        None => thread::forked(),
    }
    (start.function)(start.argument)
}

/// Announces a child, if it will have sockets or epoll sets of this process. `connected`: it gets a
/// control connection. `AGAIN`: the engine has no room for the child.
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
        // If an engine exists, the child attaches as the child of an unseen fork does.
        Err(_) => Ok(None),
    }
}

/// Whether a child would have sockets or epoll sets that the engine must know of.
fn shares() -> bool {
    epoll_sets::all().any(|(_, memory)| memory.poller().is_some())
        || table::all().any(|(_, entry)| matches!(entry, Entry::Socket(_)))
}

/// Tells the engine the result of a fork: the child's pid, or that there is no child.
pub fn tell(engine: &Engine, announced: &Announced, pid: pid_t) {
    let opened = sys::pidfd_open(pid);
    // A child that has ended has attached before, or holds no sockets any more.
    let is_gone = opened.as_ref().err() == Some(&Errno::SRCH);
    let pid = if is_gone { 0 } else { pid };
    let arguments = [announced.ticket, pid.max(0) as u64, 0, 0];
    let request = Request::new(Kind::Forked, [0; 16], arguments);
    engine.tell_with(&request, opened.ok().as_ref().map(AsFd::as_fd));
}

/// Called in the child of an unseen fork when it has just attached.
pub fn after_unseen_fork(engine: &'static Engine) {
    scm_rights::forked();
    {
        let _lock = internal::lock();
        epoll_sets::count_processes(1);
    }
    poll::forked(engine);
    epoll_sets::forked();
}

impl Forking {
    fn begin(engine: &'static Engine) -> Result<Forking> {
        batch::end(engine);
        epoll_sets::share(engine);
        let announced = announce(engine, true)?;
        let guards = [
            robust_lock::take(engine::LOCK, Rank::Control),
            robust_lock::take(&placeholder::LOCK, Rank::Leaf),
            internal::lock(),
        ];
        epoll_sets::count_processes(1);
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
            epoll_sets::count_processes(-1);
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
        // The parent's thread has these locks; in the child nobody else exists.
        std::mem::forget(self.guards);
        thread::forked();
        engine::LOCK.store(0, Ordering::Relaxed);
        internal::LOCK.store(0, Ordering::Relaxed);
        placeholder::LOCK.store(0, Ordering::Relaxed);
        self.engine.forked(self.unknown);
        scm_rights::forked();
        if self.unknown {
            // The child will count itself.
            epoll_sets::count_processes(-1);
            return;
        }
        if let (Some(environment), Some(announced)) = (environment::get(), &self.announced) {
            let control = announced.control.map_or(0, |control| control.to_bits() + 1);
            environment.control.store(control, Ordering::Relaxed);
            environment
                .announced
                .store(announced.ticket, Ordering::Relaxed);
            // The child attaches now, while the parent still knows its pid. Otherwise a child that
            // closes nothing and calls exec would hold everything for ever. If the engine cannot be
            // reached, the sockets report it when they are used.
            let _ = engine::get();
        }
        poll::forked(self.engine);
        epoll_sets::forked();
    }
}
