//! Opens connections when the other shard has agreed, or gives them up.

use std::net::SocketAddr;
use std::task::{Context, Poll};

use millrace::SocketId;

use super::Host;
use crate::opening::{Opening, refused};
use crate::outcome::Outcome;
use crate::things::Things;

impl Things {
    /// The socket is not about to be connected any more.
    pub fn forget_opening(&mut self, key: u32) {
        if !self.opening.is_empty() {
            self.opening.retain(|&other| other != key);
        }
        if let Ok(socket) = self.socket_mut(key) {
            socket.opening = None;
        }
    }
}

impl Host {
    /// Begins to connect a bound socket when the shard that the answers come to has agreed.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn open_elsewhere(&self, key: u32, id: SocketId, remote: SocketAddr) -> Outcome<()> {
        let opening = Box::pin(self.stack.connect_bound(id, remote));
        let mut things = self.things.borrow_mut();
        let socket = things.socket_mut(key)?;
        socket.opening = Some(Opening::Asked(opening));
        socket.known.bits = millrace::Poll::empty();
        things.opening.push(key);
        Ok(())
    }

    /// Opens the connections to which the other shard has agreed; returns of how many there is
    /// news.
    pub fn open_agreed(&self) -> usize {
        if self.things.borrow().opening.is_empty() {
            return 0;
        }
        let waker = self.stack.waker();
        let mut context = Context::from_waker(&waker);
        let mut things = self.things.borrow_mut();
        let (mut news, mut opened) = (0, false);
        for key in std::mem::take(&mut things.opening) {
            let Ok(socket) = things.socket_mut(key) else {
                continue;
            };
            if let Some(Opening::Asked(opening)) = &mut socket.opening {
                match opening.as_mut().poll(&mut context) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) => {
                        socket.opening = None;
                        (news, opened) = (news + 1, true);
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        socket.opening = Some(Opening::Refused(error.errno()));
                        news += 1;
                        things.tell(key, refused());
                    }
                }
            }
            things.opening.push(key);
        }
        drop(things);
        if opened {
            self.stack.flush();
        }
        news
    }

    /// Gives up a connection that the other shard was asked for, as Linux does when one is shut
    /// that is connecting. Whether there was such a one.
    pub fn give_up_opening(&self, key: u32) -> bool {
        let mut things = self.things.borrow_mut();
        let Ok(socket) = things.socket_mut(key) else {
            return false;
        };
        if !matches!(socket.opening, Some(Opening::Asked(_))) {
            return false;
        }
        socket.connecting = false;
        things.forget_opening(key);
        true
    }

    /// What a call of a connection finds that is not opened yet.
    ///
    /// # Errors
    /// `EAGAIN` while the other shard has not answered; what it has refused with, once.
    pub fn ensure_opened(&self, key: u32) -> Outcome<()> {
        self.open_agreed();
        let mut things = self.things.borrow_mut();
        if things.opening.is_empty() {
            return Ok(());
        }
        match things.socket(key)?.opening {
            None => Ok(()),
            Some(Opening::Asked(_)) => Err(libc::EAGAIN),
            Some(Opening::Refused(error)) => {
                things.forget_opening(key);
                Err(error)
            }
        }
    }
}
