//! What all sockets have in common.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_shard::{Error, Opt, OptName, Owner, SocketId};

use crate::core::{Core, Side};
use crate::stack::{Stack, system};

/// Everything in a stack of its own has one owner.
pub(crate) const OWNER: Owner = Owner(0);
/// A socket of a stack, on one of its links. It is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) stack: Stack,
    pub(crate) id: SocketId,
    nonblocking: Cell<bool>,
    /// How long a call that reads, and one that writes, waits.
    patience: [Cell<Option<Duration>>; 2],
}

impl Socket {
    pub(crate) fn new(stack: &Stack, id: SocketId) -> Socket {
        Socket {
            stack: stack.clone(),
            id,
            nonblocking: Cell::new(false),
            patience: [Cell::new(None), Cell::new(None)],
        }
    }

    /// Does `attempt` as a call of this socket is to: at once, or waiting.
    pub(crate) fn call<T>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&mut Core, SocketId) -> Result<T, Error>,
    ) -> io::Result<T> {
        let attempt = || self.stack.with(|core| attempt(core, self.id));
        let outcome = self.waiting(side, attempt);
        // What it has queued leaves at once.
        if !self.nonblocking.get() {
            self.stack.with(Core::transmit);
        }
        outcome
    }

    /// Does `attempt` at once or waiting, as this socket is to.
    pub(crate) fn waiting<T>(
        &self,
        side: Side,
        attempt: impl FnMut() -> Result<T, Error>,
    ) -> io::Result<T> {
        let patience = self.patience[side as usize].get();
        let nonblocking = self.nonblocking.get();
        self.stack.blocking(nonblocking, patience, attempt)
    }

    /// Does `attempt` in a task.
    #[inline]
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        side: Side,
        attempt: impl FnOnce(&mut Core, SocketId) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        self.stack
            .attempt(cx, self.id, side, |core| attempt(core, self.id))
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.set(on);
    }

    pub(crate) fn set_patience(&self, side: Side, span: Option<Duration>) -> io::Result<()> {
        if span == Some(Duration::ZERO) {
            return Err(io::Error::from_raw_os_error(millrace_shard::errno::EINVAL));
        }
        self.patience[side as usize].set(span);
        Ok(())
    }

    pub(crate) fn patience(&self, side: Side) -> Option<Duration> {
        self.patience[side as usize].get()
    }

    pub(crate) fn set_option(&self, option: Opt) -> io::Result<()> {
        self.stack
            .with(|core| core.shard.set_option(self.id, option, core.now))
            .map_err(system)
    }

    pub(crate) fn option(&self, name: OptName) -> io::Result<Opt> {
        self.stack
            .with(|core| core.shard.option(self.id, name))
            .map_err(system)
    }

    pub(crate) fn set_ttl(&self, hops: u32) -> io::Result<()> {
        let hops = u8::try_from(hops).map_err(|_| system(Error::Invalid))?;
        self.set_option(Opt::Ttl(hops))
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        match self.option(OptName::Ttl)? {
            Opt::Ttl(hops) => Ok(hops.into()),
            _ => Err(system(Error::Invalid)),
        }
    }

    pub(crate) fn take_error(&self) -> Option<io::Error> {
        match self.stack.with(|core| core.shard.take_error(self.id)) {
            0 => None,
            number => Some(io::Error::from_raw_os_error(number)),
        }
    }

    /// The own address and the peer's.
    pub(crate) fn ends(&self) -> io::Result<(SocketAddr, SocketAddr)> {
        let view = self.stack.with(|core| core.shard.view(self.id));
        let view = view.ok_or(Error::NoSocket).map_err(system)?;
        let scoped = |address| self.stack.scoped(address);
        Ok((scoped(view.local), scoped(view.remote)))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.stack.close(self.id);
    }
}

/// Tries each of the addresses that a name has; returns what the last one says if none will do.
pub(crate) fn each<T>(
    addresses: impl ToSocketAddrs,
    mut attempt: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut outcome = Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "the name has no address",
    ));
    for address in addresses.to_socket_addrs()? {
        outcome = attempt(address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}
