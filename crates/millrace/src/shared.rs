//! Sockets for any thread: `Send` and `Sync`, and blocking.
//!
//! Each belongs to a shard of an [`crate::Engine`], whose thread does the work; a call hands its bytes over and waits. That costs two wake-ups and a copy, so it is
//! for programs that have threads anyway, not for the last microsecond: what runs as a task on the shard itself needs neither. On a shard's own thread they return
//! [`io::ErrorKind::Deadlock`].

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;

use millrace_shard::Opt;

mod udp;

pub use udp::UdpSocket;

use crate::engine::{Shard, Shards, Sockets, ended};

/// Bytes that one call hands over at most.
const PIECE: usize = 256 << 10;

/// Names a socket on its shard's thread.
fn new_key() -> u64 {
    static KEYS: AtomicU64 = AtomicU64::new(0);
    KEYS.fetch_add(1, Ordering::Relaxed)
}

/// Has something done with a socket on its shard, in a task, and waits for what that says.
fn ask<S: 'static, T: Send + 'static, F>(
    shards: &Shards,
    shard: usize,
    key: u64,
    sockets: fn(&Shard) -> &Sockets<S>,
    job: impl FnOnce(Rc<S>) -> F + Send + 'static,
) -> io::Result<T>
where
    F: Future<Output = io::Result<T>> + 'static,
{
    shards.ask(shard, move |here, reply: Sender<io::Result<T>>| {
        // It is there as long as whoever asks.
        let socket = sockets(here).borrow().get(&key).cloned();
        if let Some(socket) = socket {
            here.stack.spawn(async move {
                // Whoever asked is waiting.
                let _ = reply.send(job(socket).await);
            });
        }
    })?
}

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
    accepted: Mutex<Receiver<Accepted>>,
}

impl TcpListener {
    pub(crate) fn bind(shards: &Arc<Shards>, address: SocketAddr) -> io::Result<TcpListener> {
        let (tell, accepted) = channel();
        let mut listener = TcpListener {
            shards: shards.clone(),
            key: new_key(),
            local: address,
            accepted: Mutex::new(accepted),
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
    /// Those of [`crate::TcpListener::accept`]; [`io::ErrorKind::NotConnected`] when the engine has ended.
    pub fn accept(&self) -> Accepted {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.recv().map_err(|_| ended())?
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
    tell: Sender<Accepted>,
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
        })
    }

    fn ask<T: Send + 'static, F>(
        &self,
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
            job,
        )
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

    /// Sets an option.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// # let client = engine.connect(listener.local_addr())?;
    /// # let (server, _) = listener.accept()?;
    /// client.set_option(millrace::Opt::NoDelay(true))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::TcpStream::set_option`].
    pub fn set_option(&self, option: Opt) -> io::Result<()> {
        self.ask(move |stream| async move { stream.set_option(option) })
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
        self.ask(move |stream| async move { stream.shutdown(how) })
    }
}

impl Read for &TcpStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let len = out.len().min(PIECE);
        let bytes = self.ask(move |stream| async move {
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
        self.ask(move |stream| async move { stream.write_async(&bytes).await })
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
