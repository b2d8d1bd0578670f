//! What a process of millrace's gives up once it has opened all that it needs.
//!
//! An engine handles bytes that strangers send, and memory that programs share with it. A mistake
//! in that code must not hand out the machine. So the process first opens its devices and sockets
//! with the rights of whoever started it. Then [`drop_privileges`] makes it a user of its own,
//! without capabilities but those that its link needs. Then each thread calls [`enter`] with its
//! [`Role`], and from there on has the capabilities and the system calls of that role alone.
//!
//! - `user`: which user, and the way there.
//! - `roles`: the table of roles, their capabilities and their calls.
//! - `filter`: from the table to filters of the kernel's (seccomp).
//! - `refusals`: a call that is not in the table fails with EPERM, is counted and said.

mod filter;
mod privileges;
mod refusals;
mod roles;
mod user;

use std::io;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

pub use privileges::drop_privileges;
pub use refusals::count as refused_calls;
pub use roles::{Link, Role};

/// What the command line decides. It crosses to the engine's process as JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Config {
    /// The user to become: a name of /etc/passwd or a number. Without one it is chosen
    /// (`drop_privileges`).
    pub user: Option<String>,
    /// No filter of system calls: for tools that run the process inside of them.
    pub all_calls: bool,
    /// Other processes of the same user may read the memory (ptrace), and a crash leaves a core
    /// file.
    pub dumpable: bool,
}

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

/// What this process has become.
#[derive(Clone, Copy, Debug)]
struct Sandbox {
    link: Link,
    /// Who started the process.
    starter: u32,
    filtered: bool,
}

/// Privileges are the process's, so this is, too.
static OWN: OnceLock<Sandbox> = OnceLock::new();

/// The user who started the process, whoever it is now.
pub fn starter() -> u32 {
    let now = || rustix::process::geteuid().as_raw();
    OWN.get().map_or_else(now, |own| own.starter)
}

/// Whether threads of this process are left with the system calls of their roles.
pub fn is_filtered() -> bool {
    OWN.get().is_some_and(|own| own.filtered)
}

/// Leaves the calling thread, and those that it starts, with the capabilities and the system calls
/// of a role. There is no way back. Nothing happens in a process that has not dropped its
/// privileges.
///
/// # Errors
/// What the kernel says.
pub fn enter(role: Role) -> Result<(), Error> {
    let Some(own) = OWN.get() else {
        return Ok(());
    };
    privileges::limit(roles::capabilities(role, own.link))?;
    match own.filtered {
        true => filter::install(role, own.link),
        false => Ok(()),
    }
}
