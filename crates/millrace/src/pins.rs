//! Connections from a port that the program chose, whose answers come to another shard of the
//! engine: that one is asked to hand them over.
//!
//! It is asked before anything is sent, so that it never takes an answer for a stranger's. Asking
//! is done in a task: what other shards ask for is done meanwhile.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use millrace_shard::{Error, Flow, SocketId};

use crate::core::Core;
use crate::stack::Stack;

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
struct Answer {
    outcome: Option<Result<(), Error>>,
    waker: Option<Waker>,
}

type Shared = Arc<Mutex<Answer>>;

/// Answers, however it ends: a shard that is no more hands nothing over.
pub(crate) struct Reply(Shared);

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
    fn ask(&mut self, flow: Flow, owner: u16) {
        let pinned = self.flows.entry(flow).or_insert(Pinned {
            owner,
            asking: 0,
            open: false,
        });
        pinned.asking += 1;
    }

    /// One who asked has opened it, or gives it up. With the shard that is to be told if nobody has
    /// it now.
    fn asked(&mut self, flow: &Flow, opened: bool) -> Option<u16> {
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

/// Begins to connect a bound socket.
pub(crate) fn open(core: &mut Core, id: SocketId, remote: SocketAddr) -> Result<(), Error> {
    core.read_clock();
    core.shard.connect_bound(id, remote, core.now)
}

/// As [`open`], after the shard that the answers come to has agreed to hand them over.
pub(crate) async fn open_bound(
    stack: &Stack,
    id: SocketId,
    remote: SocketAddr,
) -> Result<(), Error> {
    let Some(mut asking) = Asking::new(stack, id, remote) else {
        return stack.with(|core| open(core, id, remote));
    };
    (&mut asking).await?;
    stack.with(|core| open(core, id, remote))?;
    asking.opened();
    Ok(())
}

/// Ready when the shard that the flow is pinned at has agreed, or refused; the pin goes with this
/// unless the connection was opened.
struct Asking {
    stack: Stack,
    flow: Flow,
    answer: Shared,
    opened: bool,
}

impl Asking {
    /// Asks for the connection from the bound socket `id` to `remote`; none if its answers come
    /// here by themselves.
    fn new(stack: &Stack, id: SocketId, remote: SocketAddr) -> Option<Asking> {
        stack.with(|core| {
            let (owner, flow) = match core.shard.leads_elsewhere(id, remote) {
                true => core.shard.must_pin(id, remote)?,
                false => return None,
            };
            let peers = core.peers.as_mut()?;
            let answer = Shared::default();
            peers.pins.ask(flow, owner);
            peers.tell(
                owner,
                Request::Pin {
                    flow,
                    shard: peers.own(),
                    reply: Reply(answer.clone()),
                },
            );
            Some(Asking {
                stack: stack.clone(),
                flow,
                answer,
                opened: false,
            })
        })
    }

    /// The connection is there: the pin ends with it.
    fn opened(mut self) {
        self.opened = true;
    }
}

impl Future for Asking {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        match answer.outcome {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                answer.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.stack.with(|core| {
            if let Some(peers) = &mut core.peers
                && let Some(owner) = peers.pins.asked(&self.flow, self.opened)
            {
                peers.unpin(owner, self.flow);
            }
        });
    }
}
