//! Which sockets may be bound to a privileged port, as the control thread has permitted it.

use std::sync::atomic::Ordering;

use crate::control::privileged_ports::FirstUnprivileged;
use crate::programs::slot::ProgramSlot;

/// Permits that a shard remembers. Most are used at once; the oldest is forgotten.
const PERMITS: usize = 256;

/// A socket may be bound to a port, once.
#[derive(Debug, PartialEq, Eq)]
struct Permit {
    place: ProgramSlot,
    generation: u32,
    port: u16,
}

/// What a shard knows of privileged ports.
#[derive(Debug)]
pub(crate) struct PortPermits {
    first_unprivileged: FirstUnprivileged,
    list: Vec<Permit>,
}

impl PortPermits {
    pub(crate) fn new(first_unprivileged: FirstUnprivileged) -> PortPermits {
        PortPermits {
            first_unprivileged,
            list: Vec::new(),
        }
    }

    /// Permits a socket to be bound to a port, once.
    pub(crate) fn permit(&mut self, place: ProgramSlot, generation: u32, port: u16) {
        if self.list.len() == PERMITS {
            self.list.remove(0);
        }
        self.list.push(Permit {
            place,
            generation,
            port,
        });
    }

    /// Uses a permit up, if the port takes one.
    ///
    /// # Errors
    /// `EACCES`: the shim has to ask the control thread.
    pub(crate) fn check(
        &mut self,
        place: ProgramSlot,
        generation: u32,
        port: u16,
    ) -> Result<(), i32> {
        let first = self.first_unprivileged.load(Ordering::Relaxed);
        if port == 0 || u32::from(port) >= first {
            return Ok(());
        }
        let wanted = Permit {
            place,
            generation,
            port,
        };
        let found = self.list.iter().position(|permit| *permit == wanted);
        self.list.remove(found.ok_or(libc::EACCES)?);
        Ok(())
    }
}
