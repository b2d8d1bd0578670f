//! Reads, writes and closes pipes.

use std::cell::RefCell;
use std::rc::Rc;

use millrace::Poll;

use super::Host;
use crate::outcome::Outcome;
use crate::pipe::{CAPACITY, End, Pipe};
use crate::things::Thing;

impl Host {
    pub fn is_pipe(&self, key: u32) -> bool {
        matches!(self.things.borrow().get(key), Some(Thing::Pipe(_)))
    }

    /// Makes a pipe: the end to read from, and the one to write to.
    pub fn pipe(&self) -> [u32; 2] {
        let pipe = Rc::<RefCell<Pipe>>::default();
        let mut things = self.things.borrow_mut();
        let ends = [false, true].map(|writes| {
            things.insert(Thing::Pipe(End {
                pipe: pipe.clone(),
                writes,
                nonblocking: false,
                watchers: Vec::new(),
            }))
        });
        pipe.borrow_mut().ends = ends.map(Some);
        ends
    }

    /// Reads from a pipe. There is nobody but the caller who could write: an empty one is not
    /// waited for.
    ///
    /// # Errors
    /// `EBADF` for the other end, `EAGAIN`, `EDEADLK` where waiting was asked for.
    pub fn read_pipe(&self, key: u32, out: &mut [u8]) -> Outcome<usize> {
        let mut things = self.things.borrow_mut();
        let (pipe, nonblocking) = match things.get(key) {
            Some(Thing::Pipe(end)) if !end.writes => (end.pipe.clone(), end.nonblocking),
            _ => return Err(libc::EBADF),
        };
        let mut pipe = pipe.borrow_mut();
        let len = out.len().min(pipe.bytes.len());
        if len == 0 && !out.is_empty() && pipe.ends[1].is_some() {
            return Err(if nonblocking {
                libc::EAGAIN
            } else {
                libc::EDEADLK
            });
        }
        for (to, from) in out.iter_mut().zip(pipe.bytes.drain(..len)) {
            *to = from;
        }
        let other = pipe.ends[1];
        drop(pipe);
        if let (Some(other), true) = (other, len > 0) {
            things.tell(other, Poll::OUT);
        }
        Ok(len)
    }

    /// Writes to a pipe, as much as there is room for.
    ///
    /// # Errors
    /// `EBADF` for the other end, `EPIPE`, `EAGAIN`, `EDEADLK` where waiting was asked for.
    pub fn write_pipe(&self, key: u32, bytes: &[u8]) -> Outcome<usize> {
        let mut things = self.things.borrow_mut();
        let (pipe, nonblocking) = match things.get(key) {
            Some(Thing::Pipe(end)) if end.writes => (end.pipe.clone(), end.nonblocking),
            _ => return Err(libc::EBADF),
        };
        let mut pipe = pipe.borrow_mut();
        let Some(other) = pipe.ends[0] else {
            return Err(libc::EPIPE);
        };
        let len = bytes.len().min(CAPACITY - pipe.bytes.len());
        if len == 0 && !bytes.is_empty() {
            return Err(if nonblocking {
                libc::EAGAIN
            } else {
                libc::EDEADLK
            });
        }
        pipe.bytes.extend(&bytes[..len]);
        drop(pipe);
        if len > 0 {
            things.tell(other, Poll::IN);
        }
        Ok(len)
    }

    /// One end was closed: the other is told.
    pub fn hang_up(&self, end: &End) {
        let mut pipe = end.pipe.borrow_mut();
        pipe.ends[usize::from(end.writes)] = None;
        let other = pipe.ends[usize::from(!end.writes)];
        drop(pipe);
        if let Some(other) = other {
            let news = Poll::HUP | Poll::ERR | Poll::IN | Poll::OUT;
            self.things.borrow_mut().tell(other, news);
        }
    }
}
