//! Whether connections go along with their buckets is decided once, by the shard or by the control
//! thread.

use loom::thread;

use crate::check::check;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "it is the engine's, which uses all of it"
)]
#[path = "../../../../crates/engine/src/migration/bucket_moves.rs"]
mod bucket_moves;

use bucket_moves::MoveDecision;

#[test]
fn a_shard_and_the_control_thread_decide_the_same() {
    check(|| {
        let decision = MoveDecision::default();
        let shard = thread::spawn({
            let decision = decision.clone();
            // It looks again in each round until all is quiet.
            move || [decision.begin(), decision.begin()]
        });
        let stay = decision.give_up();
        let go = shard.join().unwrap();
        assert_eq!(go, [!stay; 2]);
    });
}
