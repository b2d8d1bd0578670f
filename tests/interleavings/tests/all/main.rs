//! Each protocol is the code that runs in production, between threads of the checker: it is run in
//! every order of the steps of these threads that takes no more than [`PREEMPTIONS`] of them off in
//! the middle, and with every value that a load may have found. A thread that sleeps for ever is a
//! deadlock, which fails the test. What is the kernel's is in [`kernel`].
//!
//! That a test would notice is shown by leaving out what the protocol rests on, and seeing it fail.
#![cfg(millrace_loom)]

mod exclusive;
mod kernel;
mod order;
mod rings;
mod sleep;
#[path = "../../../../crates/engine/src/programs/watches.rs"]
#[expect(
    dead_code,
    clippy::box_collection,
    reason = "it is the engine's, which uses all of it"
)]
mod watches;

/// How often a thread is taken off, at most, in one run, but where it waits.
const PREEMPTIONS: usize = 3;

/// Runs a protocol in every order.
fn check(protocol: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(protocol);
}

/// Set for a process of this test that runs a single protocol, which lacks something.
const ALONE: &str = "MILLRACE_INTERLEAVINGS_ALONE";

/// Runs a protocol that lacks something, in a process of its own, and sees that some order of steps
/// makes it fail. To be called by a test, for a closure of its own.
fn fails<P: Fn() + Send + Sync + 'static>(protocol: P) {
    if std::env::var_os(ALONE).is_some() {
        return check(protocol);
    }
    // all::MODULE::TEST::{{closure}}
    let name = std::any::type_name::<P>();
    let name = name.split_once("::").map_or("", |(_, rest)| rest);
    let name = name.trim_end_matches("::{{closure}}");
    let own = std::env::current_exe().unwrap();
    let outcome = std::process::Command::new(own)
        .args(["--exact", "--nocapture", name])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&outcome.stderr);
    // A thread sleeps for ever, or what is true at the end is wrong.
    let missed = said.contains("deadlock; threads") || said.contains("panicked at tests/inter");
    assert!(!outcome.status.success() && missed, "{name}: {outcome:?}");
}

/// The same for one that lacks the fences behind updates.
fn fails_without_fences<P: Fn() + Send + Sync + 'static>(protocol: P) {
    millrace_context::sync::leave_out(true);
    fails(protocol);
}
