//! The process and its threads: environment, signals, fork, exec and spawn.

pub mod environment;
pub mod exec;
pub mod executable;
pub mod fork;
pub mod interruptible_syscall;
pub mod signals;
pub mod spawn;
pub mod startup;
pub mod thread;
