//! A program that does anything: submissions, contents of its region, control messages, forks and
//! deaths that are announced. `crates/engine/tests/seeds.rs` runs the same program from seeds.

use crate::engine::{Process, engine};
use crate::program::stranger::Stranger;

/// The first byte says at which engine.
pub fn run(data: &[u8]) {
    let Some((shards, data)) = data.split_first() else {
        return;
    };
    let engine = engine(usize::from(*shards));
    let name = engine.full_name();
    engine.while_it_holds(|| {
        let process = Process::fork(|| {
            let mut stranger = Stranger::new(&name, data);
            stranger.run();
            stranger.have_no_children();
        });
        process.wait();
    });
}
