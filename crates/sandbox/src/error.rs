//! Why a process keeps rights that it should give up.

use std::io;

/// Why a process cannot give up its rights.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such user.
    #[error(
        "there is no user {0:?} in /etc/passwd; make one (`useradd --system --no-create-home {0}`), or give the number of one"
    )]
    NoUser(String),
    /// Only root can become another user.
    #[error(
        "cannot become user {user:?}: {error}; start as root, or without --user to stay who you are"
    )]
    User {
        /// The user that was asked for.
        user: String,
        /// What the kernel said.
        error: io::Error,
    },
    /// The machine refuses.
    #[error("cannot {what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel has no seccomp.
    #[error(
        "cannot install a filter of system calls: {0}; a kernel without CONFIG_SECCOMP_FILTER needs --no-seccomp"
    )]
    Filter(io::Error),
}
