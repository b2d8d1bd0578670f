//! Sockets for datagrams, for any thread.

use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use millrace_shard::SendTo;

use super::asking::{PIECE, ask, new_key};
use super::waiting::{Hearer, Patience, Teller, Wait, channel};
use crate::core::Side;
use crate::shards::{Shard, Shards};

/// Datagrams of one shard that wait for a thread to take them; the rest wait in the shard's own
/// socket, which has a limit of its own.
const WAITING_MAX: usize = 64;
/// How often a port is looked for that is free on every shard.
const TRIES: u32 = 16;

/// A datagram, and who sent it.
type Heard = io::Result<(Vec<u8>, SocketAddr)>;

/// A socket for datagrams. With a peer ([`crate::Engine::datagrams`]) it is one shard's; without
/// one ([`crate::Engine::bind_datagrams`]) it is bound on all of them, and hears what comes to any.
///
/// ```
/// let engine = millrace::Builder::new().start(2, |_, _| async {})?;
/// let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
/// let client = engine.datagrams(server.local_addr())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let mut buffer = [0; 512];
///         let (len, from) = server.recv_from(&mut buffer).expect("open");
///         server.send_to(&buffer[..len], from).expect("sent");
///     });
///     client.send(b"where?").expect("sent");
///     let mut buffer = [0; 512];
///     let len = client.recv(&mut buffer).expect("open");
///     assert_eq!(&buffer[..len], b"where?");
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct UdpSocket {
    shards: Arc<Shards>,
    key: u64,
    local: SocketAddr,
    whom: Whom,
    patience: Patience,
}

/// Who is heard.
enum Whom {
    /// A peer, by the socket of this shard.
    Peer(SocketAddr, usize),
    /// Everybody, by sockets of all shards.
    Everybody(Hearer<(usize, Heard)>, Arc<[Mutex<Inbox>]>),
}

/// What one shard has given to the threads.
#[derive(Default)]
struct Inbox {
    waiting: usize,
    /// The shard's task, when it waits for some of that to be taken.
    task: Option<Waker>,
}

fn lock(inbox: &Mutex<Inbox>) -> std::sync::MutexGuard<'_, Inbox> {
    inbox.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UdpSocket {
    pub(crate) fn connect(shards: &Arc<Shards>, peer: SocketAddr) -> io::Result<UdpSocket> {
        let (shard, key) = (shards.next(), new_key());
        let local = shards.ask(shard, move |here, reply| {
            let made = crate::UdpSocket::connected(&here.stack, peer).and_then(|socket| {
                let local = socket.local_addr()?;
                here.datagrams.borrow_mut().insert(key, Rc::new(socket));
                Ok(local)
            });
            let _ = reply.send(made);
        })??;
        Ok(UdpSocket {
            shards: shards.clone(),
            key,
            local,
            whom: Whom::Peer(peer, shard),
            patience: Patience::default(),
        })
    }

    pub(crate) fn bind(shards: &Arc<Shards>, address: SocketAddr) -> io::Result<UdpSocket> {
        let mut tries = 0;
        loop {
            let outcome = UdpSocket::bind_once(shards, address);
            let again = |error: &io::Error| error.kind() == io::ErrorKind::AddrInUse;
            tries += 1;
            // The port that one shard has found free may be another's.
            if address.port() != 0 || tries == TRIES || !outcome.as_ref().is_err_and(again) {
                return outcome;
            }
        }
    }

    fn bind_once(shards: &Arc<Shards>, address: SocketAddr) -> io::Result<UdpSocket> {
        let (tell, heard) = channel();
        let inboxes: Arc<[Mutex<Inbox>]> = (0..shards.count()).map(|_| Mutex::default()).collect();
        // Dropped, it is closed where it was bound already.
        let mut socket = UdpSocket {
            shards: shards.clone(),
            key: new_key(),
            local: address,
            whom: Whom::Everybody(heard, inboxes.clone()),
            patience: Patience::default(),
        };
        for shard in 0..shards.count() {
            let (key, address) = (socket.key, socket.local);
            let (tell, inboxes) = (tell.clone(), inboxes.clone());
            socket.local = shards.ask(shard, move |here, reply| {
                let bound = crate::UdpSocket::bind(&here.stack, address).and_then(|bound| {
                    let local = bound.local_addr()?;
                    hear(here, shard, key, bound, tell, inboxes);
                    Ok(local)
                });
                let _ = reply.send(bound);
            })??;
        }
        Ok(socket)
    }

    fn ask<T: Send + 'static, F>(
        &self,
        shard: usize,
        wait: Wait,
        job: impl FnOnce(Rc<crate::UdpSocket>) -> F + Send + 'static,
    ) -> io::Result<T>
    where
        F: Future<Output = io::Result<T>> + 'static,
    {
        let (shards, key) = (&self.shards, self.key);
        ask(shards, shard, key, |here| &here.datagrams, wait, job)
    }

    fn send_as(&self, shard: usize, bytes: &[u8], what: SendTo) -> io::Result<usize> {
        let bytes = bytes.to_vec();
        let wait = self.patience.of(Side::Write);
        self.ask(shard, wait, move |socket| async move {
            socket.send_as_async(&bytes, &what).await
        })
    }

    /// Sends a datagram to the peer; returns its length.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// assert_eq!(client.send(b"where?")?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `EDESTADDRREQ` without a peer, and those of [`crate::UdpSocket::send_to`].
    pub fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        let shard = match self.whom {
            Whom::Peer(_, shard) => shard,
            Whom::Everybody(..) => 0,
        };
        self.send_as(shard, bytes, SendTo::default())
    }

    /// Sends a datagram to an address; returns its length. Those to one address leave in their
    /// order.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// assert_eq!(server.send_to(b"here", client.local_addr())?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::UdpSocket::send_to`].
    pub fn send_to(&self, bytes: &[u8], address: SocketAddr) -> io::Result<usize> {
        let shard = match self.whom {
            Whom::Peer(_, shard) => shard,
            Whom::Everybody(..) => {
                let mut hasher = DefaultHasher::new();
                address.hash(&mut hasher);
                (hasher.finish() % self.shards.count() as u64) as usize
            }
        };
        let what = SendTo {
            to: Some(address),
            ..SendTo::default()
        };
        self.send_as(shard, bytes, what)
    }

    /// The oldest datagram: its length, cut to the buffer's.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// server.send_to(b"here", client.local_addr())?;
    /// assert_eq!(client.recv(&mut [0; 512])?, 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::UdpSocket::recv_from`].
    pub fn recv(&self, out: &mut [u8]) -> io::Result<usize> {
        self.recv_from(out).map(|(len, _)| len)
    }

    /// The oldest datagram: its length, cut to the buffer's, and who sent it. Those of one sender
    /// come in their order.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// client.send(b"where?")?;
    /// assert_eq!(server.recv_from(&mut [0; 512])?, (6, client.local_addr()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`crate::UdpSocket::recv_from`].
    pub fn recv_from(&self, out: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let wait = self.patience.of(Side::Read);
        let (bytes, from) = match &self.whom {
            Whom::Peer(_, shard) => {
                let len = out.len().min(PIECE);
                self.ask(*shard, wait, move |socket| receive(socket, len))?
            }
            Whom::Everybody(heard, inboxes) => {
                let (shard, datagram) = heard.take(wait)?;
                let mut inbox = lock(&inboxes[shard]);
                inbox.waiting -= 1;
                if let Some(task) = inbox.task.take() {
                    task.wake();
                }
                datagram?
            }
        };
        let len = bytes.len().min(out.len());
        out[..len].copy_from_slice(&bytes[..len]);
        Ok((len, from))
    }

    /// Its own address.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// assert_eq!(server.local_addr(), "127.0.0.1:53".parse()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The peer's address.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// # let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// # let client = engine.datagrams(server.local_addr())?;
    /// assert_eq!(client.peer_addr()?, server.local_addr());
    /// assert!(server.peer_addr().is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] without one.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        match self.whom {
            Whom::Peer(peer, _) => Ok(peer),
            Whom::Everybody(..) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Whether calls return [`io::ErrorKind::WouldBlock`] instead of waiting for the network; they
    /// wait for the shard's answer all the same. For all threads that have the socket.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// let socket = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// socket.set_nonblocking(true);
    /// let nothing = socket.recv(&mut [0; 8]).expect_err("nothing has come");
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
    /// let socket = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// socket.set_read_timeout(Some(std::time::Duration::from_millis(5)))?;
    /// let nothing = socket.recv(&mut [0; 8]).expect_err("nothing has come");
    /// assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn set_read_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.patience.set(Side::Read, span)
    }

    /// How long what writes waits at most, as [`UdpSocket::set_read_timeout`].
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// let socket = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// socket.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    /// socket.send_to(b"hello", socket.local_addr())?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for no time at all.
    pub fn set_write_timeout(&self, span: Option<Duration>) -> io::Result<()> {
        self.patience.set(Side::Write, span)
    }

    /// What [`UdpSocket::set_read_timeout`] was told.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// let socket = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// assert_eq!(socket.read_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_timeout(&self) -> Option<Duration> {
        self.patience.get(Side::Read)
    }

    /// What [`UdpSocket::set_write_timeout`] was told.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(1, |_, _| async {})?;
    /// let socket = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// assert_eq!(socket.write_timeout(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_timeout(&self) -> Option<Duration> {
        self.patience.get(Side::Write)
    }
}

/// The oldest datagram of a shard's socket, cut to so many bytes.
async fn receive(socket: Rc<crate::UdpSocket>, len: usize) -> Heard {
    let mut bytes = vec![0; len];
    let received = socket.recv_with_info_async(&mut bytes).await?;
    bytes.truncate(received.len);
    Ok((bytes, received.from))
}

/// Gives the threads what a shard's socket hears, as long as it is there.
fn hear(
    here: &Shard,
    shard: usize,
    key: u64,
    socket: crate::UdpSocket,
    tell: Teller<(usize, Heard)>,
    inboxes: Arc<[Mutex<Inbox>]>,
) {
    let socket = Rc::new(socket);
    let watched = Rc::downgrade(&socket);
    here.datagrams.borrow_mut().insert(key, socket);
    here.stack.spawn(async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let next = poll_fn(|cx| {
                let Some(socket) = watched.upgrade() else {
                    return Poll::Ready(None);
                };
                let mut inbox = lock(&inboxes[shard]);
                if inbox.waiting >= WAITING_MAX {
                    inbox.task = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                drop(inbox);
                socket.poll_recv(cx, &mut buffer).map(Some)
            });
            let Some(outcome) = next.await else {
                return;
            };
            lock(&inboxes[shard]).waiting += 1;
            let heard = outcome.map(|received| (buffer[..received.len].to_vec(), received.from));
            if tell.send((shard, heard)).is_err() {
                return;
            }
        }
    });
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        let key = self.key;
        let (those, inboxes) = match &self.whom {
            Whom::Peer(_, shard) => (*shard..*shard + 1, None),
            Whom::Everybody(_, inboxes) => (0..self.shards.count(), Some(inboxes)),
        };
        for shard in those {
            let inboxes = inboxes.cloned();
            self.shards.send(shard, move |here| {
                let socket = here.datagrams.borrow_mut().remove(&key);
                drop(socket);
                // Its task finds it gone, whatever it waits for.
                let task = inboxes.and_then(|inboxes| lock(&inboxes[shard]).task.take());
                if let Some(task) = task {
                    task.wake();
                }
            });
        }
    }
}
