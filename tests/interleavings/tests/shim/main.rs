//! The shim's own code of `epoll_ctl` and `epoll_wait`, between threads of the checker and a shard:
//! see `tests/all/main.rs`. The files of `crates/preload` are taken as they are. What is below them
//! is here: the kernel's set and its eventfds, descriptors, locks, and a region of one slot.
//!
//! The checker does not switch threads within a set's memory, which only the holder of the set's
//! lock touches. What is looked at without the lock is a word of the poller or of `KernelWaits`,
//! and those are the checker's.
#![cfg(millrace_loom)]

mod bucket_moves_check;
#[path = "../all/check.rs"]
mod check;
mod engine;
mod epoll_check;
mod fd;
mod kernel;
mod process;
mod readiness;
mod shard;
mod socket;
mod sys;
