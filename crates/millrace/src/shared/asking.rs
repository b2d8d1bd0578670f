//! Has something done with a socket on its shard.

use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use super::waiting::Wait;
use crate::shards::{Shard, Shards, Sockets};

/// Bytes that one call hands over at most.
pub(super) const PIECE: usize = 256 << 10;

/// Names a socket on its shard's thread.
pub(super) fn new_key() -> u64 {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    KEYS.fetch_add(1, Ordering::Relaxed)
}

/// Has something done with a socket on its shard, in a task, and waits for what that says.
pub(super) fn ask<S: 'static, T: Send + 'static, F>(
    shards: &Shards,
    shard: usize,
    key: u64,
    sockets: fn(&Shard) -> &Sockets<S>,
    wait: Wait,
    job: impl FnOnce(Rc<S>) -> F + Send + 'static,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>> + 'static,
{
    shards.ask(shard, move |here, reply: Sender<io::Result<T>>| {
        // It is there as long as whoever asks.
        let socket = sockets(here).borrow().get(&key).cloned();
        if let Some(socket) = socket {
            let stack = here.stack.clone();
            here.stack.spawn(async move {
                // Whoever asked is waiting.
                let _ = reply.send(wait.within(&stack, job(socket)).await);
            });
        }
    })?
}
