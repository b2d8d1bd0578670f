//! What a process is told to give up, and what it has given up.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::roles::Link;

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

/// What this process has become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sandbox {
    pub(crate) link: Link,
    /// Who started the process.
    pub(crate) starter: u32,
    pub(crate) filtered: bool,
}

/// Privileges are the process's, so this is, too.
pub(crate) static OWN: OnceLock<Sandbox> = OnceLock::new();
