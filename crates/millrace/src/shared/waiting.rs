//! How long the calls of a shared socket wait, and a channel that they wait at.

use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::core::Side;
use crate::shards::ended;
use crate::stack::Stack;

/// How long one call waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Not for the network; for the shard's answer it does.
    Not,
    AtMost(Duration),
    Forever,
}

impl Wait {
    /// What `future` says if it says it in time; or else what Linux says.
    pub(super) async fn within<T>(
        self,
        stack: &Stack,
        future: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let in_time = match self {
            Wait::Forever => Some(future.await),
            Wait::AtMost(span) => stack.timeout(span, future).await,
            Wait::Not => {
                let mut future = pin!(future);
                std::future::poll_fn(|cx| {
                    Poll::Ready(match future.as_mut().poll(cx) {
                        Poll::Ready(outcome) => Some(outcome),
                        Poll::Pending => None,
                    })
                })
                .await
            }
        };
        in_time.unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }
}

/// What a program has said about waiting, for all threads that have the socket.
#[derive(Debug, Default)]
pub(super) struct Patience {
    nonblocking: AtomicBool,
    /// Of what reads, and of what writes.
    spans: [Mutex<Option<Duration>>; 2],
}

impl Patience {
    pub(super) fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    pub(super) fn set(&self, side: Side, span: Option<Duration>) -> io::Result<()> {
        if span == Some(Duration::ZERO) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        *lock(&self.spans[side as usize]) = span;
        Ok(())
    }

    pub(super) fn get(&self, side: Side) -> Option<Duration> {
        *lock(&self.spans[side as usize])
    }

    pub(super) fn of(&self, side: Side) -> Wait {
        match (self.nonblocking.load(Ordering::Relaxed), self.get(side)) {
            (true, _) => Wait::Not,
            (false, Some(span)) => Wait::AtMost(span),
            (false, None) => Wait::Forever,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct State<T> {
    waiting: VecDeque<T>,
    tellers: usize,
    /// Nobody will take any more.
    closed: bool,
}

struct Channel<T> {
    state: Mutex<State<T>>,
    news: Condvar,
}

/// What shards tell through. The channel has ended when the last of these is gone.
pub(super) struct Teller<T>(Arc<Channel<T>>);

/// What threads hear with, many at once and each as long as it will.
pub(super) struct Hearer<T>(Arc<Channel<T>>);

pub(super) fn channel<T>() -> (Teller<T>, Hearer<T>) {
    let state = State {
        waiting: VecDeque::new(),
        tellers: 1,
        closed: false,
    };
    let channel = Arc::new(Channel {
        state: Mutex::new(state),
        news: Condvar::new(),
    });
    (Teller(channel.clone()), Hearer(channel))
}

impl<T> Teller<T> {
    /// Gives `what` back if nobody will take it.
    pub(super) fn send(&self, what: T) -> Result<(), T> {
        let mut state = lock(&self.0.state);
        if state.closed {
            return Err(what);
        }
        state.waiting.push_back(what);
        drop(state);
        self.0.news.notify_one();
        Ok(())
    }
}

impl<T> Clone for Teller<T> {
    fn clone(&self) -> Teller<T> {
        lock(&self.0.state).tellers += 1;
        Teller(self.0.clone())
    }
}

impl<T> Drop for Teller<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.tellers -= 1;
        let last = state.tellers == 0;
        drop(state);
        if last {
            self.0.news.notify_all();
        }
    }
}

impl<T> Hearer<T> {
    /// What was told first.
    pub(super) fn take(&self, wait: Wait) -> io::Result<T> {
        let until = match wait {
            // More than the clock has is for ever.
            Wait::AtMost(span) => Instant::now().checked_add(span),
            Wait::Not | Wait::Forever => None,
        };
        let mut state = lock(&self.0.state);
        loop {
            if let Some(first) = state.waiting.pop_front() {
                return Ok(first);
            }
            if state.tellers == 0 {
                return Err(ended());
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if wait == Wait::Not || left == Some(Duration::ZERO) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let news = &self.0.news;
            state = match left {
                Some(left) => match news.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
                None => news.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl<T> Drop for Hearer<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.closed = true;
        let left = std::mem::take(&mut state.waiting);
        drop(state);
        // Outside of the lock: sockets among them tell their shards.
        drop(left);
    }
}
