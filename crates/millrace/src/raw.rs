//! The shard itself, for bindings that make sockets of their own kind.

use millrace_shard::{HeapMemory, Shard, SocketId};
use millrace_tcp::Instant;

use crate::stack::Stack;

impl Stack {
    /// Lends the shard, at the time of the last [`Stack::poll`] or [`Stack::read_clock`]. Sockets made there are closed there; what they say leaves with the next poll.
    /// `body` must leave the stack alone.
    ///
    /// ```
    /// use millrace::Options;
    /// let stack = millrace::Builder::new().build()?;
    /// let id = stack.with_shard(|shard, _| shard.socket(millrace::Owner(0), &Options::default()));
    /// assert!(id.is_ok());
    /// # Ok::<(), millrace::BuildError>(())
    /// ```
    #[inline]
    pub fn with_shard<T>(&self, body: impl FnOnce(&mut Shard<HeapMemory>, Instant) -> T) -> T {
        self.with(|core| body(&mut core.shard, core.now))
    }

    /// Reads the clock, unless it is the caller's: for requests that may come long after the last poll.
    pub fn read_clock(&self) -> Instant {
        self.with(|core| {
            core.read_clock();
            core.now
        })
    }

    /// Sends what may leave now. A poll does this and more.
    pub fn flush(&self) {
        self.with(|core| core.transmit());
    }

    /// Whether [`Stack::poll`] keeps which sockets have changed, for [`Stack::take_changed`]; by default it tells its tasks, and forgets.
    pub fn keep_changed(&self, on: bool) {
        self.with(|core| core.keep_changed(on));
    }

    /// Gives the sockets that have changed since the last time to `take`, each once for every poll that changed it.
    pub fn take_changed(&self, mut take: impl FnMut(SocketId)) {
        let mut kept = self.with(|core| core.take_kept());
        kept.drain(..).for_each(&mut take);
        self.with(|core| core.put_kept(kept));
    }
}
