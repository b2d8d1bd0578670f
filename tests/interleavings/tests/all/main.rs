//! Each protocol is the code that runs in production, between threads of the checker: it is run in
//! every order of the steps of these threads that takes no more than [`check::PREEMPTIONS`] of them
//! off in the middle, and with every value that a load may have found. A thread that sleeps for
//! ever is a deadlock, which fails the test. What is the kernel's is in [`kernel`].
//!
//! That a test would notice is shown by leaving out what the protocol rests on, and seeing it fail.
#![cfg(millrace_loom)]

#[allow(dead_code, reason = "other checks use it")]
mod check;
mod exclusive;
mod kernel;
mod order;
mod rings;
mod sleep;
#[path = "../../../../crates/engine/src/programs/watches.rs"]
#[expect(dead_code, reason = "it is the engine's, which uses all of it")]
mod watches;

use check::{check, fails, fails_without};
