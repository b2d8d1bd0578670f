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

mod config;
mod error;
mod filter;
mod privileges;
mod refusals;
mod roles;
mod user;

use config::OWN;

pub use config::Config;
pub use error::Error;
pub use privileges::drop_privileges;
pub use refusals::count as refused_calls;
pub use roles::{Link, Role};

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
