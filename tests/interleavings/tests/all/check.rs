//! How protocols are checked.

use millrace_context::sync::Step;

/// How often a thread is taken off, at most, in one run, but where it waits.
pub const PREEMPTIONS: usize = 3;

/// Runs a protocol in every order.
pub fn check(protocol: impl Fn() + Send + Sync + 'static) {
    check_to(PREEMPTIONS, protocol);
}

/// The same where a thread is taken off at most `preemptions` times.
pub fn check_to(preemptions: usize, protocol: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(protocol);
}

/// Set for a process of this test that runs a single protocol, which lacks something.
const ALONE: &str = "MILLRACE_INTERLEAVINGS_ALONE";

/// Runs a protocol that lacks something, in a process of its own, and sees that some order of steps
/// makes it fail. To be called by a test, for a closure of its own.
pub fn fails<P: Fn() + Send + Sync + 'static>(protocol: P) {
    if std::env::var_os(ALONE).is_some() {
        // What is wrong shows sooner in fewer orders.
        return check_to(PREEMPTIONS - 1, protocol);
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

/// The same for one that lacks this step.
pub fn fails_without<P: Fn() + Send + Sync + 'static>(step: Step, protocol: P) {
    millrace_context::sync::leave_out(step);
    fails(protocol);
}
