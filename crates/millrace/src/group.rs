//! Sockets that are one to the program: one on each link, at an address that all of them have, or a
//! single one.

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::task::{Context, Poll};
use std::time::Duration;

use millrace_shard::{Error, Opt, OptName, SocketId};

use crate::core::{Core, Side};
use crate::socket::Socket;
use crate::stack::{Stack, system};

/// How often a port is chosen that shall be free on all links.
const TRIES: usize = 16;

/// One socket at least. They are closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Group {
    first: Socket,
    /// Those of the other links, in their order.
    more: Vec<Socket>,
    /// The one that is left of several.
    only: Cell<Option<usize>>,
    /// Whose turn it is to be asked first, so that no link keeps the others waiting.
    turn: Cell<usize>,
}

impl Group {
    /// One on each link that `address` is on. With port 0 all have the one that the first finds
    /// free.
    pub(crate) fn bind(
        stack: &Stack,
        address: SocketAddr,
        make: impl Fn(&mut Core, SocketAddr) -> io::Result<SocketId>,
    ) -> io::Result<Group> {
        if let Some(link) = stack.home(address.ip()) {
            return Ok(Group::of(made(stack, link, |core| make(core, address))?));
        }
        // Kept until one is free on all, so that none is chosen twice.
        let mut taken = Vec::new();
        loop {
            let span = stack.span();
            let first = made(stack, span.start, |core| make(core, address))?;
            let at = SocketAddr::new(address.ip(), first.ends()?.0.port());
            let others = span.skip(1);
            let more = others.map(|link| made(stack, link, |core| make(core, at)));
            match more.collect::<io::Result<Vec<_>>>() {
                Ok(more) => {
                    return Ok(Group {
                        more,
                        ..Group::of(first)
                    });
                }
                Err(error)
                    if address.port() == 0
                        && error.kind() == io::ErrorKind::AddrInUse
                        && taken.len() < TRIES =>
                {
                    taken.push(first);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One on each link.
    pub(crate) fn everywhere(
        stack: &Stack,
        make: impl Fn(&mut Core) -> io::Result<SocketId>,
    ) -> io::Result<Group> {
        let mut span = stack.span();
        let first = made(stack, span.next().unwrap_or(0), &make)?;
        let more: io::Result<_> = span.map(|link| made(stack, link, &make)).collect();
        Ok(Group {
            more: more?,
            ..Group::of(first)
        })
    }

    pub(crate) fn of(first: Socket) -> Group {
        Group {
            first,
            more: Vec::new(),
            only: Cell::new(None),
            turn: Cell::new(0),
        }
    }

    /// The only one, if there is only one.
    #[inline]
    pub(crate) fn single(&self) -> Option<&Socket> {
        match self.more.is_empty() {
            true => Some(&self.first),
            false => self.only.get().map(|at| self.get(at)),
        }
    }

    /// The one that speaks for all.
    pub(crate) fn lead(&self) -> &Socket {
        self.single().unwrap_or(&self.first)
    }

    fn get(&self, at: usize) -> &Socket {
        match at.checked_sub(1) {
            None => &self.first,
            Some(other) => &self.more[other],
        }
    }

    /// All that are open.
    pub(crate) fn each(&self) -> impl Iterator<Item = &Socket> {
        let range = match self.only.get() {
            Some(at) => at..at + 1,
            None => 0..self.more.len() + 1,
        };
        range.map(|at| self.get(at))
    }

    /// The one by whose link packets go to `remote`, from an address that may be unspecified.
    pub(crate) fn towards(&self, from: IpAddr, remote: SocketAddr) -> Result<&Socket, Error> {
        if let Some(single) = self.single() {
            return Ok(single);
        }
        let link = self.first.stack.all_links().towards(from, remote)?;
        Ok(self.get(link))
    }

    /// Closes all but this one.
    pub(crate) fn keep_only(&self, kept: &Socket) {
        if self.single().is_some() {
            return;
        }
        let at = usize::from(kept.stack.link);
        let others = self.each().filter(|socket| !std::ptr::eq(*socket, kept));
        others.for_each(|socket| socket.stack.close(socket.id));
        self.only.set(Some(at));
    }

    /// As [`Socket::call`], of the first that has something to say, which comes last the next time.
    pub(crate) fn call<T>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&mut Core, SocketId) -> Result<T, Error>,
    ) -> io::Result<(&Socket, T)> {
        if let Some(single) = self.single() {
            return single.call(side, attempt).map(|value| (single, value));
        }
        let outcome = self.first.waiting(side, || self.in_turn(&mut attempt));
        if let Ok((socket, _)) = outcome {
            socket.stack.with(Core::transmit);
        }
        outcome
    }

    /// As [`Group::call`], in a task.
    #[inline]
    pub(crate) fn poll<T>(
        &self,
        cx: &Context<'_>,
        side: Side,
        mut attempt: impl FnMut(&mut Core, SocketId) -> Result<T, Error>,
    ) -> Poll<io::Result<(&Socket, T)>> {
        if let Some(single) = self.single() {
            let polled = single.poll(cx, side, attempt);
            return polled.map_ok(|value| (single, value));
        }
        match self.in_turn(&mut attempt) {
            Err(Error::WouldBlock) => {
                for Socket { stack, id, .. } in self.each() {
                    stack.with(|core| core.wait_for(*id, side, cx.waker()));
                }
                Poll::Pending
            }
            outcome => Poll::Ready(outcome.map_err(system)),
        }
    }

    fn in_turn<T>(
        &self,
        attempt: &mut impl FnMut(&mut Core, SocketId) -> Result<T, Error>,
    ) -> Result<(&Socket, T), Error> {
        let count = self.more.len() + 1;
        for offset in 0..count {
            let at = (self.turn.get() + offset) % count;
            let socket = self.get(at);
            match socket.stack.with(|core| attempt(core, socket.id)) {
                Err(Error::WouldBlock) => {}
                outcome => {
                    self.turn.set((at + 1) % count);
                    return outcome.map(|value| (socket, value));
                }
            }
        }
        Err(Error::WouldBlock)
    }

    pub(crate) fn set_nonblocking(&self, on: bool) {
        self.each().for_each(|socket| socket.set_nonblocking(on));
    }

    pub(crate) fn set_patience(&self, side: Side, span: Option<Duration>) -> io::Result<()> {
        self.each()
            .try_for_each(|socket| socket.set_patience(side, span))
    }

    pub(crate) fn set_option(&self, option: Opt) -> io::Result<()> {
        self.each().try_for_each(|socket| socket.set_option(option))
    }

    pub(crate) fn option(&self, name: OptName) -> io::Result<Opt> {
        self.lead().option(name)
    }

    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.each().find_map(Socket::take_error)
    }
}

/// A socket that `make` makes on a link.
fn made(
    stack: &Stack,
    link: usize,
    make: impl FnOnce(&mut Core) -> io::Result<SocketId>,
) -> io::Result<Socket> {
    let stack = stack.at(link);
    let id = stack.with(make)?;
    Ok(Socket::new(&stack, id))
}
