//! The kernel's descriptors in tasks of a stack: sockets, pipes, timers.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::core::Side;
use crate::stack::Stack;
use crate::watched::Watched;

/// Something of the kernel's with a descriptor, so that a task can wait for it beside the stack's
/// own sockets. It must not block: set that before.
///
/// ```
/// use std::io::{Read, Write};
///
/// let stack = millrace::Builder::new().build()?;
/// let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
/// one.set_nonblocking(true)?;
/// let one = millrace::Descriptor::new(&stack, one)?;
/// other.write_all(b"ready")?;
/// let mut buffer = [0; 8];
/// let read = stack.block_on(one.read_with(|mut stream| stream.read(&mut buffer)));
/// assert_eq!(read?, 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Descriptor<T: AsFd> {
    stack: Stack,
    inner: T,
    place: usize,
    watched: Rc<RefCell<Watched>>,
}

impl<T: AsFd> Descriptor<T> {
    /// Waits for `inner` with the stack.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// other.write_all(b"ready")?;
    /// stack.block_on(one.readable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `epoll_ctl`: `EPERM` for a file, which is always ready.
    pub fn new(stack: &Stack, inner: T) -> io::Result<Descriptor<T>> {
        let watched = Rc::<RefCell<Watched>>::default();
        let place = stack.watch(inner.as_fd(), watched.clone())?;
        Ok(Descriptor {
            stack: stack.clone(),
            inner,
            place,
            watched,
        })
    }

    /// What it waits for.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// assert!(one.get_ref().peer_addr().is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// Reads when there is something to read: `read` is called until it does not return `EAGAIN`.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// other.write_all(b"ready")?;
    /// let mut buffer = [0; 8];
    /// assert_eq!(stack.block_on(one.read_with(|mut one| one.read(&mut buffer)))?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `read`.
    pub async fn read_with<R>(&self, read: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Side::Read, read).await
    }

    /// Writes when there is room, likewise.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// assert_eq!(stack.block_on(one.write_with(|mut one| one.write(b"ready")))?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `write`.
    pub async fn write_with<R>(&self, write: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Side::Write, write).await
    }

    /// Waits until there may be something to read.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// other.write_all(b"ready")?;
    /// stack.block_on(one.readable());
    /// assert_eq!(one.get_ref().read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn readable(&self) {
        poll_fn(|cx| self.poll_ready(Side::Read, cx)).await;
    }

    /// A read has returned `EAGAIN`: waits until there is more.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// assert!(one.get_ref().read(&mut [0; 8]).is_err());
    /// other.write_all(b"ready")?;
    /// stack.block_on(one.readable_again());
    /// assert_eq!(one.get_ref().read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn readable_again(&self) {
        self.watched.borrow_mut().ready[Side::Read as usize] = false;
        self.readable().await;
    }

    /// A write has returned `EAGAIN`: waits until there is room.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// while one.get_ref().write(&[0; 4096]).is_ok() {}
    /// let reader = std::thread::spawn(move || while other.read(&mut [0; 65_536])
    ///     .is_ok_and(|len| len > 0) {});
    /// stack.block_on(one.writable_again());
    /// assert!(one.get_ref().write(&[0; 4096]).is_ok());
    /// # drop(one);
    /// # reader.join().expect("it does not panic");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn writable_again(&self) {
        self.watched.borrow_mut().ready[Side::Write as usize] = false;
        self.writable().await;
    }

    /// Waits until there may be room to write; of a socket that connects, until that is over.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # let stack = millrace::Builder::new().build()?;
    /// # let (one, mut other) = std::os::unix::net::UnixStream::pair()?;
    /// # one.set_nonblocking(true)?;
    /// let one = millrace::Descriptor::new(&stack, one)?;
    /// stack.block_on(one.writable());
    /// assert_eq!(one.get_ref().write(b"ready")?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn writable(&self) {
        poll_fn(|cx| self.poll_ready(Side::Write, cx)).await;
    }

    async fn attempt<R>(
        &self,
        side: Side,
        mut attempt: impl FnMut(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match attempt(&self.inner) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.watched.borrow_mut().ready[side as usize] = false;
                    poll_fn(|cx| self.poll_ready(side, cx)).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => return outcome,
            }
        }
    }

    fn poll_ready(&self, side: Side, cx: &Context<'_>) -> Poll<()> {
        let mut watched = self.watched.borrow_mut();
        if watched.ready[side as usize] {
            return Poll::Ready(());
        }
        let waiting = &mut watched.waiting[side as usize];
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

impl Descriptor<TcpStream> {
    /// Connects by the kernel's own stack.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let stream = stack.block_on(millrace::Descriptor::connect(&stack, listener.local_addr()?))?;
    /// assert_eq!(stream.get_ref().peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `connect`.
    pub async fn connect(stack: &Stack, to: SocketAddr) -> io::Result<Descriptor<TcpStream>> {
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = Descriptor::new(stack, TcpStream::from(socket))?;
        stream.writable().await;
        sockopt::socket_error(stream.get_ref())??;
        Ok(stream)
    }
}

impl<T: AsFd> AsFd for Descriptor<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl<T: AsFd> Drop for Descriptor<T> {
    fn drop(&mut self) {
        self.stack.unwatch(self.inner.as_fd(), self.place);
    }
}
