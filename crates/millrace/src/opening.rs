//! Connects sockets that are bound, whichever shard their answers come to.
//!
//! Another shard is asked before anything is sent, so that it never takes an answer for a
//! stranger's. Asking is done in a task: what other shards ask for is done meanwhile.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::PoisonError;
use std::task::{Context, Poll};

use millrace_shard::{Error, Flow, SocketId};

use crate::core::Core;
use crate::pins::{Reply, Request, Shared};
use crate::stack::Stack;

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
