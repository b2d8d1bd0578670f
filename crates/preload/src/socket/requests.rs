//! Requests about a socket to its shard, in the order of the calls.

use millrace_context::{Operation, Submission};

use crate::engine::submission::SubmissionHandle;
use crate::socket::Socket;
use crate::socket::recall;
use crate::sys::Result;

impl Socket {
    /// Submits behind everything that was submitted of this socket before.
    pub fn submit(&self, submission: &Submission) -> Result<()> {
        // Without the lock this is a signal handler above a call on the same socket: it goes as it
        // comes.
        let _guard = recall::lock_here(self)?;
        let handle = SubmissionHandle::take(self.engine, self.shard())?;
        handle.follow(self.slot)?;
        handle.submit(submission)
    }

    /// Asks behind everything that was submitted of this socket before.
    pub fn ask(&self, submission: &Submission, out: &mut [u8]) -> Result<(i64, usize)> {
        let _guard = recall::lock_here(self)?;
        let handle = SubmissionHandle::take(self.engine, self.shard())?;
        handle.follow(self.slot)?;
        handle.ask(submission, out)
    }

    /// The engine has counted this process as a holder once more than it has to let go.
    pub fn give_hold_back(&self) -> Result<()> {
        self.submit(&self.submission(Operation::Close, 0))
    }
}
