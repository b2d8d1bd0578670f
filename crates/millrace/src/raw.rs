//! What a binding needs that has sockets of its own kind, and a loop of its own. A number names a
//! socket of one link: of a stack of several it is the first, and that of the handle if it is one
//! of [`Stack::on_link`].

use std::io;
use std::net::SocketAddr;
use std::task::Waker;
use std::time::Duration;

use millrace_shard::{Error, SocketId};
use millrace_tcp::Instant;

use crate::opening::open_bound;
use crate::sockets::Sockets;
use crate::stack::Stack;

impl Stack {
    /// Lends the sockets by their numbers, at the time of the last [`Stack::poll`] or
    /// [`Stack::read_clock`]. Those made there are closed there; what they say leaves with the next
    /// poll. `body` must leave the stack alone. They are those of one link, and a number means
    /// nothing on another: the first link, or that of [`Stack::on_link`].
    ///
    /// ```
    /// let stack = millrace::Builder::new().build()?;
    /// let id = stack.with_sockets(|sockets| sockets.stream(&Default::default()))?;
    /// stack.with_sockets(|sockets| sockets.close(id))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn with_sockets<T>(&self, body: impl FnOnce(&mut Sockets<'_>) -> T) -> T {
        self.with(|core| body(&mut Sockets::of(core)))
    }

    /// Begins to connect a bound socket, whichever shard of the engine the answers come to: another
    /// one has to agree to hand them over first, and nothing is sent before. Dropped while it waits
    /// for that, it leaves the socket bound.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// let local = "127.0.0.1:1234".parse()?;
    /// let id = stack.with_sockets(|sockets| sockets.bind(local, &Default::default()))?;
    /// stack.block_on(stack.connect_bound(id, "127.0.0.1:80".parse()?))?;
    /// assert_eq!(listener.accept()?.1, local);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `connect`. [`Error::AddressNotAvailable`] if the other shard has a connection with
    /// these ends, or is no more; [`Error::NoMemory`] if it hands over as many flows as it may have
    /// sockets.
    pub fn connect_bound(
        &self,
        id: SocketId,
        remote: SocketAddr,
    ) -> impl Future<Output = Result<(), Error>> + 'static + use<> {
        let stack = self.clone();
        async move { open_bound(&stack, id, remote).await }
    }

    /// What ends [`Stack::wait`] and [`Stack::wait_for_news`] from any thread: for futures that are
    /// polled by hand.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let waker = stack.waker();
    /// let thread = std::thread::spawn(move || waker.wake());
    /// // However long it would be.
    /// stack.wait_for_news(None)?;
    /// # thread.join().expect("no panic");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waker(&self) -> Waker {
        Waker::from(self.remote())
    }

    /// Reads the clock, unless it is the caller's: for requests that may come long after the last
    /// poll.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let before = stack.now();
    /// assert!(stack.read_clock() >= before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_clock(&self) -> Instant {
        self.with(|core| {
            core.read_clock();
            core.now
        })
    }

    /// Waits for a frame, a wake-up from another thread or a descriptor that a task waits for,
    /// `at_most` so long: as [`Stack::wait`], without regard to timers and tasks.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// stack.wait_for_news(Some(std::time::Duration::from_millis(1)))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `poll` and `epoll_wait`; `EINTR` after a signal.
    pub fn wait_for_news(&self, at_most: Option<Duration>) -> io::Result<()> {
        self.pause(at_most)
    }

    /// Sends what may leave now, on all links. A poll does this and more.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// server.try_write(b"hello")?;
    /// stack.flush();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn flush(&self) {
        self.inner.cores.transmit();
    }

    /// Whether [`Stack::poll`] keeps which sockets of [`Stack::with_sockets`]'s link have changed,
    /// for [`Stack::take_changed`]; by default it tells its tasks, and forgets.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// stack.keep_changed(true);
    /// server.try_write(b"hello")?;
    /// while client.try_read(&mut [0; 8]).is_err() {
    ///     stack.poll();
    /// }
    /// let mut changed = 0;
    /// stack.take_changed(|_| changed += 1);
    /// assert!(changed > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keep_changed(&self, on: bool) {
        self.with(|core| core.keep_changed(on));
    }

    /// Gives the sockets of [`Stack::with_sockets`]'s link that have changed since the last time to
    /// `take`, each once for every poll that changed it.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// # let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
    /// # let client = millrace::TcpStream::connect(&stack, "127.0.0.1:80")?;
    /// # let (server, _) = listener.accept()?;
    /// stack.keep_changed(true);
    /// stack.poll();
    /// stack.take_changed(|id| {
    ///     let readiness = stack.with_sockets(|sockets| sockets.view(id).map(|view| view.flags));
    ///     println!("{id:?}: {readiness:?}");
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_changed(&self, mut take: impl FnMut(SocketId)) {
        let mut kept = self.with(|core| core.take_kept());
        kept.drain(..).for_each(&mut take);
        self.with(|core| core.put_kept(kept));
    }
}
