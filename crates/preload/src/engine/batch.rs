//! Batches: a thread that has come back from a wait with events rings for what it submits only
//! before its next wait, so that the shard is woken once for all of it.

use crate::engine::Engine;
use crate::engine::submission::ring_if_asleep;
use crate::process::thread;
use crate::socket::Socket;
use crate::sys;

/// The longest that [`settle`] waits, in microseconds.
const SETTLE_US: u64 = 1_000_000;

/// A wait has returned events. From here to the next wait, submissions ring no doorbell.
pub fn begin(engine: &'static Engine) {
    if !thread::with(|thread| thread.batch.replace(true)) {
        announce(engine, true);
    }
}

/// The thread is about to look for events. Rings the doorbells that it owes if a thread waits for
/// one of the submissions; otherwise the batch goes on, since there may be events.
pub fn pause(engine: &'static Engine) {
    let quiet = thread::with(|thread| {
        thread.batch.get() && thread.unrung.get() != 0 && !thread.urgent.get()
    });
    if !quiet {
        end(engine);
    }
}

/// The thread is about to wait: ends the batch and rings the doorbells that it owes.
pub fn end(engine: &'static Engine) {
    Socket::close_owed(engine);
    if thread::with(|thread| thread.batch.replace(false)) {
        announce(engine, false);
    }
    let mut unrung = thread::with(|thread| {
        thread.urgent.set(false);
        thread.unrung.replace(0)
    });
    while unrung != 0 {
        let shard = unrung.trailing_zeros();
        unrung &= unrung - 1;
        ring_if_asleep(engine, shard);
    }
}

/// Waits until the shards have taken everything that this process submitted, for a second at most.
pub fn settle(engine: &'static Engine) {
    end(engine);
    let until = sys::now_us() + SETTLE_US;
    for shard in 0..engine.region.geometry().shards {
        for turn in 0..engine.contexts() {
            let Some((context, _)) = engine.region.context(engine.context(turn, shard)) else {
                continue;
            };
            let position = context.position();
            while !context.taken(position) && sys::now_us() < until {
                ring_if_asleep(engine, shard);
                sys::sleep_us(20);
            }
        }
    }
}

fn announce(engine: &'static Engine, batching: bool) {
    let number = thread::number();
    let core = sys::core();
    for shard in 0..engine.region.geometry().shards {
        if let Some((context, _)) = engine.region.context(engine.context(number, shard)) {
            context.set_batching(batching);
            context.set_core(core);
        }
    }
}
