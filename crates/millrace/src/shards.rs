//! The threads of an engine, as sockets of other threads see them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use crate::stack::Stack;
use crate::tasks::Remote;

/// Something to be done on a shard's thread.
pub(crate) type Job = Box<dyn FnOnce(&Shard) + Send>;

/// What a job finds on its shard's thread: the stack, and the sockets that other threads hold.
pub(crate) struct Shard {
    pub(crate) stack: Stack,
    pub(crate) listeners: Sockets<crate::TcpListener>,
    pub(crate) streams: Sockets<crate::TcpStream>,
    pub(crate) datagrams: Sockets<crate::UdpSocket>,
}

/// Sockets that other threads hold, by the names that they have there.
pub(crate) type Sockets<S> = Rc<RefCell<HashMap<u64, Rc<S>>>>;

pub(crate) struct Handle {
    pub(crate) jobs: Sender<Job>,
    pub(crate) remote: Arc<Remote>,
}

/// What shared sockets hold of their engine.
pub(crate) struct Shards {
    pub(crate) shards: Vec<Handle>,
    pub(crate) next: AtomicUsize,
    pub(crate) stop: Arc<AtomicBool>,
}

impl Shards {
    pub(crate) fn count(&self) -> usize {
        self.shards.len()
    }

    /// Has `job` done on a shard's thread, some time soon; never, once the engine has ended.
    pub(crate) fn send(&self, shard: usize, job: impl FnOnce(&Shard) + Send + 'static) {
        if let Some(handle) = self.shards.get(shard) {
            // Who waits for it notices that it is gone.
            let _ = handle.jobs.send(Box::new(job));
            handle.remote.ring();
        }
    }

    /// Has `job` done and waits for what it says.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        job: impl FnOnce(&Shard, Sender<T>) + Send + 'static,
    ) -> io::Result<T> {
        if ON_SHARD.get() {
            return Err(io::Error::new(
                io::ErrorKind::Deadlock,
                "a shared socket would make the shard wait for itself; use the shard's own",
            ));
        }
        let (reply, answer) = channel();
        self.send(shard, |shard| job(shard, reply));
        answer.recv().map_err(|_| ended())
    }

    /// The shard that the next connection of ours is made on.
    pub(crate) fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.shards.len()
    }
}

thread_local! {
    /// Whether this is a shard's thread.
    pub(crate) static ON_SHARD: Cell<bool> = const { Cell::new(false) };
}

/// What a call says when its engine is no more.
pub(crate) fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the engine has ended")
}

impl Shard {
    pub(crate) fn new(stack: Stack) -> Shard {
        Shard {
            stack,
            listeners: Rc::default(),
            streams: Rc::default(),
            datagrams: Rc::default(),
        }
    }
}
