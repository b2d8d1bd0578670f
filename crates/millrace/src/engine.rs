//! A stack on each of several threads.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::build_error::{BuildError, refused};
use crate::builder::Builder;
use crate::shards::{Handle, Job, ON_SHARD, Shard, Shards};
use crate::shared;
use crate::stack::Stack;

/// Stacks on threads of their own, which share the addresses of their links: each has a queue of
/// each link, and the flows whose tag is its.
///
/// A server binds a listener on every shard; each accepts the connections that are its own. A
/// connection that a shard makes comes back to it.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// let engine = millrace::Builder::new().start(2, |stack, shard| async move {
///     // Runs once on each of the threads.
///     let listener = millrace::TcpListener::bind(&stack, (Ipv4Addr::LOCALHOST, 80))
///         .expect("a free port");
///     let client = millrace::TcpStream::connect_async(&stack, ([127, 0, 0, 1], 80).into()).await;
///     assert!(client.is_ok() && listener.accept_async().await.is_ok(), "shard {shard}");
/// })?;
/// engine.join();
/// # Ok::<(), millrace::BuildError>(())
/// ```
pub struct Engine {
    shards: Arc<Shards>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Told when a shard's first task is over.
    done: Mutex<Receiver<()>>,
}

impl Builder {
    /// Starts `shards` threads (1 to 64) with a stack each, and on each the task that `main` makes
    /// of its stack and its number. Each link needs a queue for each; limits are shared out.
    ///
    /// ```
    /// let engine = millrace::Builder::new().start(2, |stack, shard| async move {
    ///     // A task on each thread; it may start others.
    ///     stack.spawn(async move { assert!(shard < 2) }).await;
    /// })?;
    /// engine.join();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Builder::build`], and [`BuildError::Queues`].
    pub fn start<F, Fut>(self, shards: u16, main: F) -> Result<Engine, BuildError>
    where
        F: Fn(Stack, usize) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let parts = self.parts(shards)?;
        let main = Arc::new(main);
        let stop = Arc::<AtomicBool>::default();
        let (tell, done) = channel();
        let (ready, started) = channel();
        let mut handles = Vec::new();
        let mut threads = Vec::new();
        for (own, part) in parts.into_iter().enumerate() {
            let (jobs, receiver) = channel();
            handles.push(Handle {
                jobs,
                remote: part.remote.clone(),
            });
            let (main, stop, tell, ready) =
                (main.clone(), stop.clone(), tell.clone(), ready.clone());
            let body = move || {
                let stack = match part.stack() {
                    Ok(stack) => stack,
                    Err(error) => {
                        let _ = ready.send(Err(error));
                        return;
                    }
                };
                let first = main(stack.clone(), own);
                // What only it holds goes with the tasks.
                drop(main);
                stack.spawn(async move {
                    // Told however it ends.
                    let _tell = Tell(tell);
                    first.await;
                });
                let _ = ready.send(Ok(()));
                drop(ready);
                serve(&Shard::new(stack), &receiver, &stop);
            };
            let thread = std::thread::Builder::new()
                .name(format!("millrace-{own}"))
                .spawn(body)
                .map_err(refused("cannot start a thread"))?;
            threads.push(thread);
        }
        drop(ready);
        let engine = Engine {
            shards: Arc::new(Shards {
                shards: handles,
                next: AtomicUsize::new(0),
                stop,
            }),
            threads: Mutex::new(threads),
            done: Mutex::new(done),
        };
        for outcome in started {
            outcome?;
        }
        Ok(engine)
    }
}

/// Says that a task is over when it is dropped.
struct Tell(Sender<()>);

impl Drop for Tell {
    fn drop(&mut self) {
        // Nobody may be waiting.
        let _ = self.0.send(());
    }
}

/// Lets go of a shard's sockets and tasks when its thread ends, however it does: tasks hold their
/// stack, so nobody else would.
struct End<'a>(&'a Shard);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let End(shard) = self;
        shard.listeners.borrow_mut().clear();
        shard.streams.borrow_mut().clear();
        shard.datagrams.borrow_mut().clear();
        shard.stack.cancel_tasks();
        if !std::thread::panicking() {
            shard.stack.poll();
        }
    }
}

/// A shard's thread.
fn serve(shard: &Shard, jobs: &Receiver<Job>, stop: &AtomicBool) {
    ON_SHARD.set(true);
    let _end = End(shard);
    while !stop.load(Ordering::Acquire) {
        let mut done = 0;
        while let Ok(job) = jobs.try_recv() {
            job(shard);
            done += 1;
        }
        if done + shard.stack.poll() == 0 && shard.stack.wait(None).is_err() {
            return;
        }
    }
}

impl Engine {
    /// Waits until the first task of every shard is over, and ends the engine. Tasks that are left
    /// are dropped.
    ///
    /// ```
    /// let engine = millrace::Builder::new().start(1, |stack, _| async move {
    ///     stack.sleep(std::time::Duration::from_millis(1)).await;
    /// })?;
    /// engine.join();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn join(self) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        // One message from each; less when a thread has ended otherwise.
        for _ in 0..self.shards.count() {
            if done.recv().is_err() {
                break;
            }
        }
    }

    /// Has `job` done with a shard's stack, on its thread.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// engine.with_stack(1, move |stack| {
    ///     let _ = tell.send(stack.counters());
    /// });
    /// assert_eq!(told.recv()?.frames_in, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_stack(&self, shard: usize, job: impl FnOnce(&Stack) + Send + 'static) {
        self.shards.send(shard, move |shard| job(&shard.stack));
    }

    /// How many shards it has.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// assert_eq!(engine.shards(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shards(&self) -> usize {
        self.shards.count()
    }

    /// Listens on all shards, for accepting by any thread.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let listener = engine.listen("127.0.0.1:0".parse()?)?;
    /// let client = engine.connect(listener.local_addr())?;
    /// let (server, from) = listener.accept()?;
    /// assert_eq!(from, client.local_addr());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::TcpListener::bind`].
    pub fn listen(&self, address: SocketAddr) -> io::Result<shared::TcpListener> {
        shared::TcpListener::bind(&self.shards, address)
    }

    /// Connects, on one shard after the other, for use by any thread.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let refused = engine.connect("127.0.0.1:80".parse()?).err().expect("nobody listens");
    /// assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::TcpStream::connect`].
    pub fn connect(&self, address: SocketAddr) -> io::Result<shared::TcpStream> {
        shared::TcpStream::connect(&self.shards, address)
    }

    /// A socket for datagrams, bound on all shards, for use by any thread. Port 0 takes a free one.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let socket = engine.bind_datagrams("127.0.0.1:0".parse()?)?;
    /// socket.send_to(b"to myself", socket.local_addr())?;
    /// let mut buffer = [0; 16];
    /// assert_eq!(socket.recv(&mut buffer)?, 9);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::UdpSocket::bind`].
    pub fn bind_datagrams(&self, address: SocketAddr) -> io::Result<shared::UdpSocket> {
        shared::UdpSocket::bind(&self.shards, address)
    }

    /// A socket for datagrams with a peer, for use by any thread.
    ///
    /// ```
    /// # let engine = millrace::Builder::new().start(2, |_, _| async {})?;
    /// let server = engine.bind_datagrams("127.0.0.1:53".parse()?)?;
    /// let client = engine.datagrams(server.local_addr())?;
    /// assert_eq!(client.send(b"where?")?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`crate::UdpSocket::connect`].
    pub fn datagrams(&self, peer: SocketAddr) -> io::Result<shared::UdpSocket> {
        shared::UdpSocket::connect(&self.shards, peer)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shards.stop.store(true, Ordering::Release);
        for shard in &self.shards.shards {
            shard.remote.ring();
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            // A panic has been reported on its thread.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("shards", &self.shards())
            .finish_non_exhaustive()
    }
}
