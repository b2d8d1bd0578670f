//! Connections in tasks. What moves bytes is made of plain functions: a state between them and the
//! task would cost what a poll of theirs does.

use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, ready};

use super::TcpStream;
use crate::core::Side;

impl TcpStream {
    /// Reads in a task: up to a buffer full, 0 is the end of the stream.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// assert_eq!(stack.block_on(client.read_async(&mut [0; 8]))?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What the connection died of.
    pub fn read_async(&self, out: &mut [u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_read(cx, out))
    }

    /// Fills the whole buffer in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// let mut two = [0; 2];
    /// stack.block_on(client.read_exact_async(&mut two))?;
    /// assert_eq!(&two, b"he");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`], or what the connection died of.
    pub async fn read_exact_async(&self, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.read_async(&mut out[done..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                len => done += len,
            }
        }
        Ok(())
    }

    /// Writes in a task: as many of the bytes as there is room for, one at least.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(stack.block_on(server.write_async(b"hello"))?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn write_async(&self, bytes: &[u8]) -> impl Future<Output = io::Result<usize>> {
        poll_fn(move |cx| self.poll_write(cx, bytes))
    }

    /// Writes all bytes in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// stack.block_on(server.write_all_async(b"hello"))?;
    /// assert_eq!(client.try_read(&mut [0; 8])?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub fn write_all_async(&self, mut bytes: &[u8]) -> impl Future<Output = io::Result<()>> {
        poll_fn(move |cx| {
            while !bytes.is_empty() {
                let done = ready!(self.poll_write(cx, bytes))?;
                bytes = &bytes[done..];
            }
            Poll::Ready(Ok(()))
        })
    }

    /// What [`TcpStream::read_async`] is made of.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// assert!(client.poll_read(&mut cx, &mut [0; 8]).is_pending());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_read(&self, cx: &Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.poll(cx, Side::Read, |core, id| {
            core.shard.recv(id, out, core.now)
        })
    }

    /// What [`TcpStream::write_async`] is made of.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    /// assert!(client.poll_write(&mut cx, b"hello").is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket
            .poll(cx, Side::Write, |core, id| core.shard.send(id, bytes, true))
    }

    /// Waits until [`TcpStream::read_with`] has something to show, in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// stack.block_on(client.readable_async())?;
    /// assert!(client.try_read(&mut [0; 8]).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// What the connection died of.
    pub async fn readable_async(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.socket.poll(cx, Side::Read, |core, id| {
                core.shard.recv_with(id, |_| 0, core.now).map(drop)
            })
        })
        .await
    }

    /// Waits until there is room to write, in a task.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// while server.try_write(&[0; 65_536]).is_ok() {}
    /// let reader = stack.spawn(async move { while client.read_async(
    ///     &mut [0; 65_536]).await.is_ok_and(|len| len > 0) {} });
    /// stack.block_on(server.writable_async())?;
    /// assert!(server.try_write(b"more").is_ok());
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`TcpStream::try_write`].
    pub async fn writable_async(&self) -> io::Result<()> {
        poll_fn(|cx| {
            self.socket.poll(cx, Side::Write, |core, id| {
                core.shard.room_to_send(id).map(drop)
            })
        })
        .await
    }
}
