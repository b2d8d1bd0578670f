//! The limit of a process's address space (RLIMIT_AS): the program's own, beside what the engine's
//! memory takes of it.
//!
//! The region is mapped whole and used in part. A program that limits itself to less (vsftpd's
//! sessions have 200 MB) would have nothing left, so the kernel's limit is higher than the
//! program's by as much as the region takes, and the program does not see the difference.

use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{RLIM_INFINITY, RLIMIT_AS, pid_t, rlimit};

use super::hooks;
use crate::process::environment;
use crate::sys::user_buffers;
use crate::{engine, sys};

/// How many bytes the kernel's limit is above the program's.
static HIGHER: AtomicU64 = AtomicU64::new(0);

hooks! {
    /// Sets a limit.
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int {
        prlimit(0, resource, limit, std::ptr::null_mut())
    }

    /// An alias of the function above.
    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int {
        setrlimit(resource, limit)
    }

    /// Reads a limit.
    fn getrlimit(resource: c_uint, limit: *mut rlimit) -> c_int {
        prlimit(0, resource, std::ptr::null(), limit)
    }

    /// An alias of the function above.
    fn getrlimit64(resource: c_uint, limit: *mut rlimit) -> c_int {
        getrlimit(resource, limit)
    }

    /// Sets and reads a limit of any process.
    fn prlimit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        let own = resource == RLIMIT_AS && (pid == 0 || pid as u32 == sys::getpid());
        let before = HIGHER.load(Ordering::Relaxed);
        let mut raised = None;
        if own && !new.is_null() && user_buffers::check(new.cast(), size_of::<rlimit>()).is_ok() {
            raised = raise(*new);
        }
        let given = raised.as_ref().map_or(new, std::ptr::from_ref);
        let words = [libc::SYS_prlimit64, c_long::from(pid), c_long::from(resource), given as c_long, old as c_long, 0, 0];
        let result = sys::raw(words) as c_int;
        if result == 0 && own && !old.is_null() {
            let limit = &mut *old;
            for value in [&mut limit.rlim_cur, &mut limit.rlim_max] {
                if *value != RLIM_INFINITY {
                    *value = value.saturating_sub(before);
                }
            }
        }
        if result != 0 && raised.is_some() {
            HIGHER.store(before, Ordering::Relaxed);
        }
        result
    }

    /// An alias of the function above.
    fn prlimit64(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
        prlimit(pid, resource, new, old)
    }
}

/// The kernel's limit for a limit of the program; `None` without an engine.
fn raise(limit: rlimit) -> Option<rlimit> {
    environment::get()?;
    let region = engine::get().ok()?.region.geometry().total();
    // The region needs memory beside itself: counts for each socket, and items of epoll sets.
    let higher = region as u64 + region as u64 / 4;
    let mut hard: rlimit = limit;
    // SAFETY: room for the answer.
    let asked = unsafe {
        sys::raw([
            libc::SYS_prlimit64,
            0,
            c_long::from(RLIMIT_AS),
            0,
            &raw mut hard as c_long,
            0,
            0,
        ])
    };
    if asked != 0 {
        return None;
    }
    HIGHER.store(higher, Ordering::Relaxed);
    // A limit that somebody else has set is not raised, because that needs a privilege.
    let raised = |value: u64| match value {
        RLIM_INFINITY => RLIM_INFINITY,
        value => value.saturating_add(higher).min(hard.rlim_max.max(value)),
    };
    Some(rlimit {
        rlim_cur: raised(limit.rlim_cur),
        rlim_max: raised(limit.rlim_max),
    })
}
