//! Sleeping until a socket changes.

use rustix::io::Errno;

use crate::readiness::sleep::{Call, Restart};
use crate::socket::Socket;
use crate::sys::{self, Result};

impl Socket {
    /// Sleeps until the socket changes from `sequence`. `AGAIN`: the time `deadline_us` (see
    /// [`sys::now_us`]) has come. `INTR`: a signal came.
    pub fn wait(&self, call: Call, sequence: u32, deadline_us: Option<u64>) -> Result<()> {
        if deadline_us.is_some_and(|deadline| deadline <= sys::now_us()) {
            return Err(Errno::AGAIN);
        }
        if self.engine.is_lost() {
            return Ok(());
        }
        // As in the kernel, a call with a time-out is not restarted; one without is restarted if
        // the handler allows it.
        let restart = match deadline_us {
            Some(_) => Restart::Never,
            None => Restart::Allowed,
        };
        let waiters = &self.slot.app.waiters;
        let word = (&self.slot.engine.sequence, sequence);
        match call.on_word(self.engine, waiters, word, deadline_us, restart) {
            // The caller looks again at the socket, the clock and the engine.
            Ok(()) | Err(Errno::TIMEDOUT) => Ok(()),
            Err(errno) => Err(errno),
        }
    }
}
