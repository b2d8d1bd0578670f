//! Sockets for any thread: `Send` and `Sync`, and blocking.
//!
//! Each belongs to a shard of an [`crate::Engine`], whose thread does the work; a call hands its
//! bytes over and waits. That costs two wake-ups and a copy, so it is for programs that have
//! threads anyway, not for the last microsecond: what runs as a task on the shard itself needs
//! neither. On a shard's own thread they return [`io::ErrorKind::Deadlock`]. They wait for ever,
//! unless `set_read_timeout`, `set_write_timeout` or `set_nonblocking` say otherwise, as those of
//! [`std::net`].

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use std::sync::mpsc::Sender;
use std::task::Poll;
use std::time::Duration;

mod asking;
mod udp;
mod waiting;

pub use udp::UdpSocket;

use crate::core::Side;
use crate::shards::{Shard, Shards};
use asking::{PIECE, ask, new_key};
use waiting::{Hearer, Patience, Teller, Wait, channel};

type Accepted = io::Result<(TcpStream, SocketAddr)>;

/// Waits for connections on all shards.
///
/// ```
/// use std::io::{Read, Write};
///
/// let engine = millrace::Builder::new().start(2, |_, _| async {})?;
/// let listener = engine.listen("127.0.0.1:80".parse()?)?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let (mut stream, _) = listener.accept().expect("the engine runs");
///         stream.write_all(b"hello").expect("connected");
///     });
///     let mut hello = String::new();
///     let mut stream = engine.connect(listener.local_addr()).expect("somebody listens");
///     stream.read_to_string(&mut hello).expect("connected");
///     assert_eq!(hello, "hello");
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpListener {
    shards: Arc<Shards>,
    key: u64,
    local: SocketAddr,
    accepted: Hearer<Accepted>,
    patience: Patience,
}

impl TcpListener {
    pub(crate) fn bind(shards: &Arc<Shards>, address: SocketAddr) -> io::Result<TcpListener> {
        let (tell, accepted) = channel();
        let mut listener = TcpListener {
            shards: shards.clone(),
            key: new_key(),
            local: address,
            accepted,
            patience: Patience::default(),
        };
        for shard in 0..shards.count() {
            let (key, tell, shards) = (listener.key, tell.clone(), shards.clone());
            // All listen at the port that the first one has found free.
            let address = listener.local;
            listener.local = shards.clone().ask(shard, move |here, reply| {
                let bound = crate::TcpListener::bind(&here.stack, address).and_then(|bound| {
                    let local = bound.local_addr()?;
                    accept_all(here, shards, shard, key, bound, tell);
                    Ok(local)
                });
                // Whoever asked is waiting.
                let _ = reply.send(bound);
            })??;
        }
        Ok(listener)
    }

    /// The next connection of any shard, and who is at its other end.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// let client = engine.connect(listener.local_addr())?;
    /// assert_eq!(listener.accept()?.1, client.local_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::TcpListener::accept`]; [`io::ErrorKind::NotConnected`] when the engine has
    /// ended.
    pub fn accept(&self) -> Accepted {
        self.accepted.take(self.patience.of(Side::Read))?
    }

    /// Whether [`TcpListener::accept`] returns [`io::ErrorKind::WouldBlock`] instead of waiting.
    ///
    /// ```
    /// let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// listener.set_nonblocking(true);
    /// let nobody = listener.accept().err().expect("nobody has come");
    /// assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nonblocking(&self, on: bool) {
        self.patience.set_nonblocking(on);
    }

    /// Its address.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// assert_ne!(listener.local_addr().port(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

/// Accepts for all threads, as long as the listener is there.
fn accept_all(
    here: &Shard,
    shards: Arc<Shards>,
    shard: usize,
    key: u64,
    listener: crate::TcpListener,
    tell: Teller<Accepted>,
) {
    let listener = Rc::new(listener);
    let watched = Rc::downgrade(&listener);
    here.listeners.borrow_mut().insert(key, listener);
    let streams = here.streams.clone();
    here.stack.spawn(async move {
        loop {
            let next = poll_fn(|cx| match watched.upgrade() {
                Some(listener) => listener.poll_accept(cx).map(Some),
                None => Poll::Ready(None),
            });
            let Some(outcome) = next.await else {
                return;
            };
            let failed = outcome.is_err();
            let outcome = outcome.and_then(|(stream, peer)| {
                let local = stream.local_addr()?;
                let key = new_key();
                streams.borrow_mut().insert(key, Rc::new(stream));
                let shared = TcpStream {
                    shards: shards.clone(),
                    shard,
                    key,
                    local,
                    peer,
                    patience: Patience::default(),
                };
                Ok((shared, peer))
            });
            // If nobody waits any more, the connection is closed with what comes back.
            if tell.send(outcome).is_err() || failed {
                return;
            }
        }
    });
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        let key = self.key;
        for shard in 0..self.shards.count() {
            self.shards.send(shard, move |here| {
                let listener = here.listeners.borrow_mut().remove(&key);
                drop(listener);
            });
        }
    }
}

/// A connection.
///
/// ```
/// use std::io::{Read, Write};
///
/// let engine = millrace::Builder::new().start(2, |_, _| async {})?;
/// let listener = engine.listen("127.0.0.1:80".parse()?)?;
/// let stream = engine.connect(listener.local_addr())?;
/// let (mut accepted, _) = listener.accept()?;
/// // One thread writes while another reads: both have a reference.
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         (&stream).write_all(b"ping").expect("connected");
///         stream.shutdown(std::net::Shutdown::Write).expect("connected");
///     });
///     let mut all = Vec::new();
///     accepted.read_to_end(&mut all).expect("connected");
///     assert_eq!(all, b"ping");
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpStream {
    shards: Arc<Shards>,
    shard: usize,
    key: u64,
    local: SocketAddr,
    peer: SocketAddr,
    patience: Patience,
}

impl TcpStream {
    pub(crate) fn connect(shards: &Arc<Shards>, address: SocketAddr) -> io::Result<TcpStream> {
        let (shard, key) = (shards.next(), new_key());
        let local = shards.ask(shard, move |here, reply: Sender<io::Result<SocketAddr>>| {
            let (stack, streams) = (here.stack.clone(), here.streams.clone());
            here.stack.spawn(async move {
                let connected = crate::TcpStream::connect_async(&stack, address).await;
                let local = connected.and_then(|stream| {
                    let local = stream.local_addr()?;
                    streams.borrow_mut().insert(key, Rc::new(stream));
                    Ok(local)
                });
                if reply.send(local).is_err() {
                    streams.borrow_mut().remove(&key);
                }
            });
        })??;
        Ok(TcpStream {
            shards: shards.clone(),
            shard,
            key,
            local,
            peer: address,
            patience: Patience::default(),
        })
    }

    fn ask<T: Send + 'static, F>(
        &self,
        wait: Wait,
        job: impl FnOnce(Rc<crate::TcpStream>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + 'static,
    {
        ask(
            &self.shards,
            self.shard,
            self.key,
            |here| &here.streams,
            wait,
            job,
        )
    }

    /// Does something with the connection on its own shard, at once.
    pub(crate) fn with_stream<T: Send + 'static>(
        &self,
        job: impl FnOnce(&crate::TcpStream) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.ask(Wait::Forever, move |stream| async move { job(&stream) })
    }

    /// Its own address.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// # let client = engine.connect(listener.local_addr())?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.local_addr(), server.peer_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// # let client = engine.connect(listener.local_addr())?;
    /// # let (server, _) = listener.accept()?;
    /// assert_eq!(client.peer_addr(), listener.local_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Shuts a direction.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// # let client = engine.connect(listener.local_addr())?;
    /// # let (server, _) = listener.accept()?;
    /// use std::io::Read;
    /// client.shutdown(std::net::Shutdown::Write)?;
    /// assert_eq!((&server).read(&mut [0; 8])?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::TcpStream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.ask(
            Wait::Forever,
            move |stream| async move { stream.shutdown(how) },
        )
    }

    /// Whether calls return [`io::ErrorKind::WouldBlock`] instead of waiting for the network; they
    /// wait for the shard's answer all the same. For all threads that have the socket.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// use std::io::{Read, Write};
    /// let mut stream = engine.connect(listener.local_addr())?;
    /// stream.set_nonblocking(true);
    /// let nothing = stream.read(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_nonblocking(&self, on: bool) {
        self.patience.set_nonblocking(on);
    }

    /// How long what reads waits at most: for ever by default. Then it returns
    /// [`io::ErrorKind::WouldBlock`], as the standard library's sockets do here.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// use std::io::{Read, Write};
    /// let mut stream = engine.connect(listener.local_addr())?;
    /// stream.set_read_timeout(Some(std::time::Duration::from_millis(5)))?;
    /// let nothing = stream.read(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.patience.set(Side::Read, span)
    }

    /// How long what writes waits at most, as [`TcpStream::set_read_timeout`].
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// use std::io::{Read, Write};
    /// let mut stream = engine.connect(listener.local_addr())?;
    /// stream.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    /// stream.write_all(b"hello")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.patience.set(Side::Write, span)
    }

    /// What [`TcpStream::set_read_timeout`] was told.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// use std::io::{Read, Write};
    /// let mut stream = engine.connect(listener.local_addr())?;
    /// assert_eq!(stream.read_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.patience.get(Side::Read)
    }

    /// What [`TcpStream::set_write_timeout`] was told.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:80".parse()?)?;
    /// use std::io::{Read, Write};
    /// let mut stream = engine.connect(listener.local_addr())?;
    /// assert_eq!(stream.write_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.patience.get(Side::Write)
    }
}

impl Read for &TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(PIECE);
        let wait = self.patience.of(Side::Read);
        let bytes = self.ask(wait, move |stream| async move {
            let mut bytes = vec![0; len];
            let len = stream.read_async(&mut bytes).await?;
            bytes.truncate(len);
            Ok(bytes)
        })?;
        out[..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

impl Write for &TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes[..bytes.len().min(PIECE)].to_vec();
        let wait = self.patience.of(Side::Write);
        self.ask(wait, move |stream| async move {
            stream.write_async(&bytes).await
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}

impl Write for TcpStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        let key = self.key;
        self.shards.send(self.shard, move |here| {
            let stream = here.streams.borrow_mut().remove(&key);
            drop(stream);
        });
    }
}
