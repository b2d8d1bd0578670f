//! Requests about a socket to its shard, in the order of the calls.

use millrace_context::{Operation, Submission};

use crate::engine::submission::SubmissionHandle;
use crate::socket::Socket;
use crate::socket::recall;
use crate::sys::Result;

impl Socket {
    /// Submits behind every earlier submission about this socket.
    pub fn submit(&self, submission: &Submission) -> Result<()> {
        // `None`: this is a signal handler in the middle of a call on the same socket, so the order
        // does not matter.
        let _guard = recall::lock_here(self)?;
        let handle = SubmissionHandle::take(self.engine, self.shard())?;
        handle.follow(self.slot)?;
        handle.submit(submission)
    }

    /// Submits behind every earlier submission about this socket, and waits for the answer.
    pub fn ask(&self, submission: &Submission, out: &mut [u8]) -> Result<(i64, usize)> {
        let _guard = recall::lock_here(self)?;
        let handle = SubmissionHandle::take(self.engine, self.shard())?;
        handle.follow(self.slot)?;
        handle.ask(submission, out)
    }

    /// Drops one hold: the engine has counted this process as a holder once too often.
    pub fn give_hold_back(&self) -> Result<()> {
        self.submit(&self.submission(Operation::Close, 0))
    }
}
