//! The sandbox role of a thread.

use millrace_sandbox::Role;

/// Enters the sandbox role of a thread. If that fails the thread ends, and the engine with it.
pub(super) fn enter(role: Role) {
    if let Err(error) = millrace_sandbox::enter(role) {
        panic!("{role:?}: {error}");
    }
}
