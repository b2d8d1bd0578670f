//! What the kernel does for the protocols.

use loom::sync::{Condvar, Mutex};

/// A doorbell in an epoll set, edge-triggered: each ring is told to one thread, a sleeping one or
/// the next that looks.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<bool>,
    sleepers: Condvar,
}

impl Bell {
    pub fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.sleepers.notify_one();
    }

    /// `epoll_wait` without a time-out.
    pub fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.sleepers.wait(rung).unwrap();
        }
        *rung = false;
    }

    /// `epoll_wait` that does not wait.
    pub fn look(&self) -> bool {
        std::mem::take(&mut *self.rung.lock().unwrap())
    }
}
