//! Connections from a port that the program chose, whose answers come to another shard of the
//! engine: that one is asked to hand them over.
//! Who asks is in [`crate::opening`].

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;

use millrace_shard::{Error, Flow};

/// What one shard asks of another.
pub(crate) enum Request {
    /// The flow is yours by its tag, and `shard` is about to open it.
    Pin {
        flow: Flow,
        shard: u16,
        reply: Reply,
    },
    /// It is over there.
    Unpin { flow: Flow, shard: u16 },
}

/// What the other shard says, and who waits for that.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) outcome: Option<Result<(), Error>>,
    pub(crate) waker: Option<Waker>,
}

pub(crate) type Shared = Arc<Mutex<Answer>>;

/// Answers, however it ends: a shard that is no more hands nothing over.
pub(crate) struct Reply(pub(crate) Shared);

impl Reply {
    pub(crate) fn say(self, outcome: Result<(), Error>) {
        answer(&self.0, outcome);
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        answer(&self.0, Err(Error::AddressNotAvailable));
    }
}

/// The first answer is the one.
fn answer(shared: &Shared, outcome: Result<(), Error>) {
    let mut answer = shared.lock().unwrap_or_else(PoisonError::into_inner);
    answer.outcome.get_or_insert(outcome);
    let waker = answer.waker.take();
    drop(answer);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A flow that another shard hands over, or is asked to.
struct Pinned {
    owner: u16,
    /// How many are about to open it.
    asking: u32,
    open: bool,
}

/// Flows of this shard that others hand over.
#[derive(Default)]
pub(crate) struct Pins {
    flows: BTreeMap<Flow, Pinned>,
}

impl Pins {
    /// One more asks for the flow.
    pub(crate) fn ask(&mut self, flow: Flow, owner: u16) {
        let pinned = self.flows.entry(flow).or_insert(Pinned {
            owner,
            asking: 0,
            open: false,
        });
        pinned.asking += 1;
    }

    /// One who asked has opened it, or gives it up. With the shard that is to be told if nobody has
    /// it now.
    pub(crate) fn asked(&mut self, flow: &Flow, opened: bool) -> Option<u16> {
        let pinned = self.flows.get_mut(flow)?;
        pinned.asking -= 1;
        pinned.open |= opened;
        self.forget(flow)
    }

    /// The connection is over. Likewise.
    pub(crate) fn over(&mut self, flow: &Flow) -> Option<u16> {
        self.flows.get_mut(flow)?.open = false;
        self.forget(flow)
    }

    fn forget(&mut self, flow: &Flow) -> Option<u16> {
        let pinned = self.flows.get(flow)?;
        let owner = pinned.owner;
        if pinned.open || pinned.asking > 0 {
            return None;
        }
        self.flows.remove(flow);
        Some(owner)
    }
}
