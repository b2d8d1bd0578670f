//! posix_spawn: fork and exec in one call, with a list of actions on descriptors in between.

use std::ffi::{c_char, c_int};

use libc::{pid_t, posix_spawn_file_actions_t};
use millrace_context::SlotRef;

use crate::engine;
use crate::engine::batch;
use crate::fd::table::{self, Entry};
use crate::process::exec::{Outgoing, Survivors};
use crate::process::{environment, fork};
use crate::sys::mmap_buffer::MmapBuffer;
use crate::sys::{self, Result};

/// The C library's `struct __spawn_action`. Its layout has never changed, since new kinds of action
/// are added at the end.
#[repr(C)]
struct Action {
    kind: c_int,
    _padding: c_int,
    first: c_int,
    second: c_int,
    _rest: [u64; 2],
}

/// The C library's `posix_spawn_file_actions_t`.
#[repr(C)]
struct Actions {
    _allocated: c_int,
    used: c_int,
    actions: *const Action,
}

const CLOSE: c_int = 0;
const DUP2: c_int = 1;
const OPEN: c_int = 2;
const CLOSE_FROM: c_int = 5;

/// The sockets that the new process will have, by descriptor: number plus 1 (0 for none), slot, and
/// whether an exec closes it.
struct Plan {
    entries: MmapBuffer<u64>,
    len: usize,
}

const WORDS: usize = 3;

impl Plan {
    /// The sockets of this process, with room for those that `actions` actions may add.
    fn new(actions: usize) -> Result<Plan> {
        let sockets = || {
            table::all().filter_map(|(fd, entry)| match entry {
                Entry::Socket(slot) => Some((fd, slot)),
                _ => None,
            })
        };
        let mut plan = Plan {
            entries: MmapBuffer::new((sockets().count() + actions) * WORDS)?,
            len: 0,
        };
        for (fd, slot) in sockets() {
            let closed =
                sys::fcntl(fd, libc::F_GETFD, 0).is_ok_and(|flags| flags & libc::FD_CLOEXEC != 0);
            plan.put(fd, Some((slot.to_bits(), closed)));
        }
        Ok(plan)
    }

    fn find(&self, fd: c_int) -> Option<usize> {
        (0..self.len).find(|at| self.entries[at * WORDS] == fd as u64 + 1)
    }

    fn get(&self, fd: c_int) -> Option<u64> {
        self.find(fd).map(|at| self.entries[at * WORDS + 1])
    }

    fn put(&mut self, fd: c_int, socket: Option<(u64, bool)>) {
        let at = match (self.find(fd), socket) {
            (Some(at), None) => {
                self.entries[at * WORDS] = 0;
                return;
            }
            (None, None) => return,
            (Some(at), Some(_)) => at,
            (None, Some(_)) if (self.len + 1) * WORDS <= self.entries.len() => {
                self.len += 1;
                self.len - 1
            }
            (None, Some(_)) => return,
        };
        if let Some((slot, closed)) = socket {
            let entry = &mut self.entries[at * WORDS..(at + 1) * WORDS];
            entry.copy_from_slice(&[fd as u64 + 1, slot, u64::from(closed)]);
        }
    }

    fn apply(&mut self, action: &Action) {
        match action.kind {
            CLOSE | OPEN => self.put(action.first, None),
            DUP2 => {
                let socket = self.get(action.first).map(|slot| (slot, false));
                self.put(action.second, socket);
            }
            CLOSE_FROM => {
                for at in 0..self.len {
                    let fd = self.entries[at * WORDS];
                    if fd > action.first.max(0) as u64 {
                        self.entries[at * WORDS] = 0;
                    }
                }
            }
            // Other actions change the directory or the terminal's process group.
            _ => {}
        }
    }
}

impl Survivors for Plan {
    fn each(&self, each: &mut dyn FnMut(c_int, SlotRef)) {
        for entry in self.entries.chunks_exact(WORDS).take(self.len) {
            if entry[0] != 0 && entry[2] == 0 {
                each((entry[0] - 1) as c_int, SlotRef::from_bits(entry[1]));
            }
        }
    }
}

/// Spawns a process. `make` gets the environment and the place for the pid.
///
/// # Safety
/// The requirements of posix_spawn hold.
pub unsafe fn spawn(
    pid: *mut pid_t,
    actions: *const posix_spawn_file_actions_t,
    given: *const *mut c_char,
    make: impl FnOnce(*mut pid_t, *const *mut c_char) -> c_int,
) -> c_int {
    let Some(environment) = environment::get() else {
        return make(pid, given);
    };
    let actions: &[Action] = if actions.is_null() {
        &[]
    } else {
        // SAFETY: the C library made it.
        unsafe {
            let actions = &*actions.cast::<Actions>();
            if actions.actions.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(actions.actions, actions.used.max(0) as usize)
            }
        }
    };
    let mut plan = match Plan::new(actions.len()) {
        Ok(plan) => plan,
        Err(errno) => return errno.raw_os_error(),
    };
    for action in actions {
        plan.apply(action);
    }
    let mut any = false;
    plan.each(&mut |_, _| any = true);
    let engine = engine::attached().filter(|_| any);
    let announced = engine.map_or(Ok(None), |engine| {
        batch::end(engine);
        fork::announce(engine, false)
    });
    let announced = match announced {
        Ok(announced) => announced,
        Err(errno) => return errno.raw_os_error(),
    };
    let ticket = announced.as_ref().map(|announced| announced.ticket);
    // SAFETY: the caller's promise.
    let outgoing = unsafe { Outgoing::new(given.cast(), environment, &plan, ticket) };
    let mut child: pid_t = 0;
    let result = match &outgoing {
        Ok(outgoing) => make(&mut child, outgoing.lines.as_ptr().cast()),
        Err(errno) => errno.raw_os_error(),
    };
    if let (Some(engine), Some(announced)) = (engine, &announced) {
        fork::tell(engine, announced, if result == 0 { child } else { -1 });
    }
    if result == 0 && !pid.is_null() {
        // SAFETY: the caller's promise.
        unsafe { *pid = child };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(kind: c_int, first: c_int, second: c_int) -> Action {
        Action {
            kind,
            _padding: 0,
            first,
            second,
            _rest: [0; 2],
        }
    }

    fn survivors(plan: &Plan) -> Vec<(c_int, u64)> {
        let mut found = Vec::new();
        plan.each(&mut |fd, slot| found.push((fd, slot.to_bits())));
        found.sort_unstable();
        found
    }

    #[test]
    fn p5_spawn_actions_move_sockets() {
        let mut plan = Plan {
            entries: MmapBuffer::new(8 * WORDS).unwrap(),
            len: 0,
        };
        plan.put(5, Some((50, true)));
        plan.put(6, Some((60, false)));
        plan.put(7, Some((70, false)));
        assert_eq!(survivors(&plan), [(6, 60), (7, 70)]);
        // As inetd does: the connection becomes standard input and output.
        plan.apply(&action(DUP2, 5, 0));
        plan.apply(&action(DUP2, 5, 1));
        plan.apply(&action(CLOSE, 6, 0));
        assert_eq!(survivors(&plan), [(0, 50), (1, 50), (7, 70)]);
        plan.apply(&action(DUP2, 9, 1));
        plan.apply(&action(CLOSE_FROM, 3, 0));
        assert_eq!(survivors(&plan), [(0, 50)]);
    }
}
