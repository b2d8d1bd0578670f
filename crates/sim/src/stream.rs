//! Programs that move as much as they can, for measurements.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;

use millrace_shard::{Error, Options, Owner, Reuse, SocketId};
use millrace_tcp::Instant;

use crate::context::Context;
use crate::program::Program;

/// Bytes that a [`Source`] writes at a time.
const CHUNK: usize = 16 << 10;

/// Connects at its time, and then keeps its send buffer full for ever.
pub struct Source {
    remote: SocketAddr,
    start: Instant,
    options: Options,
    id: Option<SocketId>,
    sent: u64,
}

impl Source {
    /// One connection to `remote`, from `start` on.
    pub fn new(remote: SocketAddr, start: Instant, options: Options) -> Source {
        Source {
            remote,
            start,
            options,
            id: None,
            sent: 0,
        }
    }

    fn fill(&mut self, context: &mut Context<'_>) {
        let Some(id) = self.id else {
            return;
        };
        loop {
            match context.stack.send(id, &[0x5a; CHUNK], true) {
                Ok(taken) => self.sent += taken as u64,
                Err(Error::WouldBlock) => return,
                Err(error) => panic!("send: {error}"),
            }
        }
    }
}

impl Program for Source {
    fn changed(&mut self, context: &mut Context<'_>, _id: SocketId) {
        self.fill(context);
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if context.now < self.start {
            return context.wake_at(self.start);
        }
        if self.id.is_none() {
            let owner = Owner(context.program() as u32);
            let id = context
                .stack
                .connect(owner, None, self.remote, &self.options, context.now)
                .expect("a port is free");
            context.adopt(id);
            self.id = Some(id);
        }
    }

    fn progress(&self) -> u64 {
        self.sent
    }

    fn is_done(&self) -> bool {
        false
    }
}

/// What a [`Sink`] has received of each connection, by the peer's port.
pub type Received = Rc<RefCell<BTreeMap<u16, u64>>>;

/// Accepts connections and reads all that comes.
pub struct Sink {
    local: SocketAddr,
    listener: Option<SocketId>,
    open: BTreeMap<SocketId, u16>,
    received: Received,
}

impl Sink {
    /// A sink that listens at `local` and counts in `received`.
    pub fn new(local: SocketAddr, received: Received) -> Sink {
        Sink {
            local,
            listener: None,
            open: BTreeMap::new(),
            received,
        }
    }
}

impl Program for Sink {
    fn changed(&mut self, context: &mut Context<'_>, id: SocketId) {
        if Some(id) == self.listener {
            while let Ok(accepted) = context.stack.accept(id) {
                context.adopt(accepted);
                let view = context.stack.view(accepted).expect("accepted");
                self.open.insert(accepted, view.remote.port());
                self.changed(context, accepted);
            }
            return;
        }
        let Some(port) = self.open.get(&id) else {
            return;
        };
        let mut buffer = [0; CHUNK];
        while let Ok(len @ 1..) = context.stack.recv(id, &mut buffer, context.now) {
            *self.received.borrow_mut().entry(*port).or_default() += len as u64;
        }
    }

    fn woken(&mut self, context: &mut Context<'_>) {
        if self.listener.is_none() {
            let owner = Owner(context.program() as u32);
            let listener = context
                .stack
                .listen(owner, self.local, 128, Reuse::default())
                .expect("the address is free");
            context.adopt(listener);
            self.listener = Some(listener);
        }
    }

    fn progress(&self) -> u64 {
        self.received.borrow().values().sum()
    }

    fn is_done(&self) -> bool {
        false
    }
}
