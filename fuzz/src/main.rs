//! libFuzzer's side of a target: the one that `MILLRACE_FUZZ` names.
#![no_main]

use std::sync::OnceLock;

use millrace_fuzz::{TARGETS, Target, target};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    static CHOSEN: OnceLock<Target> = OnceLock::new();
    let run = CHOSEN.get_or_init(|| {
        let name = std::env::var("MILLRACE_FUZZ").unwrap_or_default();
        target(&name).unwrap_or_else(|| {
            let known: Vec<_> = TARGETS.iter().map(|(name, _)| *name).collect();
            panic!("MILLRACE_FUZZ={name}: there are {}", known.join(", "))
        })
    });
    run(data);
});
