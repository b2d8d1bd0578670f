//! The stack on the caller's thread.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use millrace_shard::{Egress, Error, SocketId};
use millrace_tcp::{Algorithm, Instant};
use millrace_wire::offload::Frame;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

use crate::core::{Clock, Core, Cores, Side};
use crate::plan::Ready;
use crate::tasks::{JoinHandle, Remote, Tasks, joined};
use crate::watched::Watched;

const TOKEN_LINK: u64 = 1;
const TOKEN_DOORBELL: u64 = 2;
/// Those of descriptors that tasks wait for begin here.
const TOKEN_WATCHED: u64 = 16;
/// Events taken from the kernel at once.
const EVENTS: usize = 64;

/// Descriptors that tasks wait for, by place.
type Watching = Vec<Option<Rc<RefCell<Watched>>>>;

/// A host's TCP/IP on the thread that made it. Clones are the same stack; it ends with the last of
/// them and of its sockets. Tasks that are not over hold theirs: [`Stack::cancel_tasks`] lets go of
/// them.
///
/// It does nothing by itself. One of these makes it work:
/// - a blocking call of a socket ([`std::io::Read`], [`crate::TcpListener::accept`], ...), until it
///   has its answer;
/// - [`Stack::block_on`] and [`Stack::run`], which run tasks;
/// - a loop of your own of [`Stack::poll`] and [`Stack::wait`], or of [`Stack::poll_at`] with a
///   clock of your own.
///
/// ```
/// use std::time::Duration;
///
/// let stack = millrace::Builder::new().build()?;
/// let listener = millrace::TcpListener::bind(&stack, "127.0.0.1:80")?;
/// stack.spawn(async move {
///     while let Ok((stream, _)) = listener.accept_async().await {
///         let _ = stream.write_all_async(b"hello").await;
///     }
/// });
/// // A loop of one's own: all there is to do, then a wait for more.
/// let client = millrace::TcpStream::connect_nonblocking(&stack, "127.0.0.1:80".parse()?,
///     millrace::TcpOptions::new())?;
/// let mut hello = [0; 5];
/// while client.try_read(&mut hello).is_err() {
///     if stack.poll() == 0 {
///         stack.wait(Some(Duration::from_secs(1)))?;
///     }
/// }
/// assert_eq!(&hello, b"hello");
/// # stack.cancel_tasks();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stack {
    pub(crate) inner: Rc<Inner>,
    /// The link that this handle means where it means one.
    pub(crate) link: u16,
    /// Whether it means that one alone.
    pub(crate) narrow: bool,
}

pub(crate) struct Inner {
    /// One for each link.
    pub(crate) cores: Cores,
    tasks: Tasks,
    epoll: OwnedFd,
    /// Whether the links are in there, too: there are several, or somebody waits for
    /// [`Stack::descriptor`]. If they are not, a frame that comes while the stack works has nobody
    /// to tell, which is cheaper for whoever sends it.
    has_links: Cell<bool>,
    watching: RefCell<Watching>,
    /// Sockets that were dropped while their link was borrowed.
    closing: RefCell<Vec<(u16, SocketId)>>,
}

/// What a stack waits with beside its link: for its doorbell, and for what tasks wait for.
pub(crate) fn waiting(remote: &Remote) -> io::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(
        &epoll,
        remote.doorbell(),
        epoll::EventData::new_u64(TOKEN_DOORBELL),
        epoll::EventFlags::IN | epoll::EventFlags::ET,
    )?;
    Ok(epoll)
}

impl Stack {
    /// A stack of so many links that waits with what [`waiting`] has made of the same doorbell.
    pub(crate) fn new(
        links: Vec<Ready>,
        clock: Clock,
        remote: Arc<Remote>,
        epoll: OwnedFd,
    ) -> Stack {
        let core = |ready| Core::new(ready, clock);
        Stack {
            inner: Rc::new(Inner {
                cores: Cores::new(links.into_iter().map(core)),
                tasks: Tasks::new(remote),
                epoll,
                has_links: Cell::new(false),
                watching: RefCell::default(),
                closing: RefCell::default(),
            }),
            link: 0,
            narrow: false,
        }
    }

    /// Does what there is to do now: frames in, timers, tasks, frames out. Returns how much that
    /// was; 0 means that it is time for [`Stack::wait`]. Never waits.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// // All that there is to do now.
    /// while stack.poll() > 0 {}
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll(&self) -> usize {
        self.inner.tasks.enter(|| {
            if !self.inner.watching.borrow().is_empty() {
                // What fails here fails in `wait`, which says so.
                let _ = self.take_events(Some(&Timespec::default()));
            }
            let received = self.inner.cores.take_in();
            let run = self.run_tasks();
            received + run + self.inner.cores.send_out()
        })
    }

    /// As [`Stack::poll`] at a time of the caller's, for a stack that was made with
    /// [`crate::Builder::manual_clock`]. Time does not go back: an earlier one is taken for the
    /// last.
    ///
    /// ```
    /// # use millrace::Instant;
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.manual_clock().build()?;
    /// stack.poll_at(Instant::from_micros(1_000));
    /// // Time does not go back.
    /// stack.poll_at(Instant::from_micros(500));
    /// assert_eq!(stack.now(), Instant::from_micros(1_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_at(&self, now: Instant) -> usize {
        self.set_now(now);
        self.poll()
    }

    /// Says what time it is, for [`Stack::input`] and [`Stack::transmit`].
    ///
    /// ```
    /// # use millrace::Instant;
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.manual_clock().build()?;
    /// stack.set_now(Instant::from_micros(1_000));
    /// assert_eq!(stack.now(), Instant::from_micros(1_000));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_now(&self, now: Instant) {
        self.inner.cores.set_now(now);
    }

    /// Takes in one frame of the caller's, at the time of the last [`Stack::set_now`]. What it
    /// gives rise to leaves with [`Stack::transmit`]. It comes by the first link; by another, on a
    /// handle of [`Stack::on_link`].
    ///
    /// ```
    /// # use millrace::Instant;
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.manual_clock().build()?;
    /// // Nothing that it knows: counted, and no more.
    /// stack.input(&millrace::Frame {
    ///     bytes: &[0; 60],
    ///     checksum: millrace::ChecksumState::Unchecked,
    ///     segment_size: 0,
    /// });
    /// assert_eq!(stack.counters().frames_in, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn input(&self, frame: &Frame<'_>) {
        self.inner.tasks.enter(|| {
            self.with(|core| {
                core.input(frame);
                core.wake();
            });
        });
    }

    /// Runs timers and tasks, and gives all that may leave now to the caller; the link, if there is
    /// one, gets none of it. That is what leaves by the first link; by another, on a handle of
    /// [`Stack::on_link`].
    ///
    /// ```
    /// # use millrace::Instant;
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.manual_clock().build()?;
    /// # struct Out(Vec<Vec<u8>>);
    /// # impl millrace::Egress for Out {
    /// #     fn send(&mut self, head: &[u8], payload: [&[u8]; 2], _: millrace::Offload) -> bool {
    /// #         self.0.push([head, payload[0], payload[1]].concat());
    /// #         true
    /// #     }
    /// #     fn capabilities(&self) -> millrace::Capabilities {
    /// #         millrace::Capabilities::plain(millrace::Mac([2, 0, 0, 0, 0, 1]), 1500)
    /// #     }
    /// # }
    /// let socket = millrace::UdpSocket::bind(&stack, "10.0.0.2:7")?;
    /// socket.send_to(b"hello", "10.0.0.1:7")?;
    /// let mut out = Out(Vec::new());
    /// stack.transmit(&mut out);
    /// assert!(out.0[0].ends_with(b"hello"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transmit(&self, egress: &mut impl Egress) {
        self.inner.tasks.enter(|| {
            self.inner.cores.run_timers();
            self.run_tasks();
            self.with(|core| {
                core.transmit_to(egress);
                core.wake();
            });
        });
    }

    /// Runs tasks, and closes what they have dropped; returns how many ran.
    #[inline]
    fn run_tasks(&self) -> usize {
        let run = self.inner.tasks.run();
        for (link, id) in self.inner.closing.borrow_mut().drain(..) {
            self.inner.cores.get(link.into()).borrow_mut().close(id);
        }
        run
    }

    /// When [`Stack::poll`] has something to do even if no frame comes; none if never.
    ///
    /// ```
    /// use std::time::Duration;
    /// # let stack = millrace::Builder::new().build()?;
    /// let sleep = stack.spawn(stack.sleep(Duration::from_secs(1)));
    /// while stack.poll() > 0 {}
    /// assert!(stack.deadline().is_some_and(|deadline| deadline > stack.now()));
    /// # stack.cancel_tasks();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn deadline(&self) -> Option<Instant> {
        if self.inner.tasks.has_ready() {
            return Some(self.now());
        }
        let cores = self.inner.cores.iter();
        cores.filter_map(|core| core.borrow().deadline()).min()
    }

    /// The time of the last [`Stack::poll`], from an origin that is the stack's.
    ///
    /// ```
    /// # use millrace::Instant;
    /// # let link = millrace::Link::packets(1500);
    /// # let builder = millrace::Builder::new().link(link).address([10, 0, 0, 2], 24);
    /// # let stack = builder.manual_clock().build()?;
    /// assert_eq!(stack.now(), Instant::from_micros(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn now(&self) -> Instant {
        self.with(|core| core.now)
    }

    /// Waits until there is something to do: a frame, a timer, a wake-up from another thread; for
    /// `at_most` so long. Returns at once if the link cannot be waited for.
    ///
    /// ```
    /// use std::time::Duration;
    /// # let stack = millrace::Builder::new().build()?;
    /// // What a loop of one's own does between two polls.
    /// if stack.poll() == 0 {
    ///     stack.wait(Some(Duration::from_millis(1)))?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of `poll` and `epoll_wait`; an interruption by a signal is none.
    pub fn wait(&self, at_most: Option<Duration>) -> io::Result<()> {
        let mut patience = at_most;
        for core in self.inner.cores.iter() {
            let mut core = core.borrow_mut();
            core.read_clock();
            if core.port().is_some_and(|port| port.descriptor().is_none()) {
                return Ok(());
            }
            if let Some(until) = core.deadline() {
                let left = Duration::from_micros((until - core.now).as_micros());
                patience = Some(patience.map_or(left, |span| span.min(left)));
            }
        }
        if self.inner.tasks.has_ready() {
            return Ok(());
        }
        match self.pause(patience) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            outcome => outcome,
        }
    }

    /// Waits for frames and wake-ups, whatever else there is to do.
    pub(crate) fn pause(&self, at_most: Option<Duration>) -> io::Result<()> {
        let timeout = at_most.map(|span| Timespec {
            tv_sec: span.as_secs() as i64,
            tv_nsec: span.subsec_nanos().into(),
        });
        if self.inner.cores.count() == 1 {
            let core = self.inner.cores.get(0).borrow();
            let link = core.port().and_then(|port| port.descriptor());
            let Some(link) = link.filter(|_| !self.inner.has_links.get()) else {
                return self.take_events(timeout.as_ref());
            };
            let mut both = [link, self.inner.epoll.as_fd()]
                .map(|one| PollFd::from_borrowed_fd(one, PollFlags::IN));
            poll(&mut both, timeout.as_ref())?;
            return match both[1].revents().is_empty() {
                true => Ok(()),
                false => self.take_events(Some(&Timespec::default())),
            };
        }
        self.watch_links()?;
        self.take_events(timeout.as_ref())
    }

    /// Has the links in what the stack waits with.
    fn watch_links(&self) -> io::Result<()> {
        if self.inner.has_links.get() {
            return Ok(());
        }
        for core in self.inner.cores.iter() {
            let core = core.borrow();
            if let Some(link) = core.port().and_then(|port| port.descriptor()) {
                let token = epoll::EventData::new_u64(TOKEN_LINK);
                match epoll::add(&self.inner.epoll, link, token, epoll::EventFlags::IN) {
                    // Of an attempt that failed at a later one.
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.inner.has_links.set(true);
        Ok(())
    }

    /// Takes what the kernel has to say, waiting for it so long; wakes those whose descriptors it
    /// is about.
    fn take_events(&self, timeout: Option<&Timespec>) -> io::Result<()> {
        let mut events = [const { std::mem::MaybeUninit::uninit() }; EVENTS];
        let (events, _) = epoll::wait(&self.inner.epoll, &mut events, timeout)?;
        let watching = self.inner.watching.borrow();
        for event in events {
            let place = event.data.u64().checked_sub(TOKEN_WATCHED);
            let watched = place.and_then(|place| watching.get(place as usize));
            if let Some(Some(watched)) = watched {
                watched.borrow_mut().note(event.flags);
            }
        }
        Ok(())
    }

    /// Has the stack wait for a descriptor as well.
    pub(crate) fn watch(
        &self,
        descriptor: BorrowedFd<'_>,
        watched: Rc<RefCell<Watched>>,
    ) -> io::Result<usize> {
        use epoll::EventFlags as Flags;
        let mut watching = self.inner.watching.borrow_mut();
        let place = match watching.iter().position(Option::is_none) {
            Some(place) => place,
            None => {
                watching.push(None);
                watching.len() - 1
            }
        };
        epoll::add(
            &self.inner.epoll,
            descriptor,
            epoll::EventData::new_u64(TOKEN_WATCHED + place as u64),
            Flags::IN | Flags::OUT | Flags::RDHUP | Flags::PRI | Flags::ET,
        )?;
        watching[place] = Some(watched);
        Ok(place)
    }

    /// Undoes [`Stack::watch`].
    pub(crate) fn unwatch(&self, descriptor: BorrowedFd<'_>, place: usize) {
        // It can only fail for a descriptor that is closed, which is not watched any more.
        let _ = epoll::delete(&self.inner.epoll, descriptor);
        let mut watching = self.inner.watching.borrow_mut();
        watching[place] = None;
        while watching.last().is_some_and(Option::is_none) {
            watching.pop();
        }
    }

    /// A descriptor that is readable when [`Stack::poll`] has something to do on any link, for a
    /// loop of your own around `epoll`; look at [`Stack::deadline`] as well.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// use std::os::fd::AsRawFd;
    /// // For `epoll_ctl`, `poll`, or another runtime.
    /// assert!(stack.descriptor()?.as_raw_fd() >= 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: the kernel cannot tell of frames.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        self.watch_links()?;
        Ok(self.inner.epoll.as_fd())
    }

    /// Adds a task. It runs when the stack does, on this thread.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let sum = stack.spawn(async { 1 + 2 });
    /// assert_eq!(stack.block_on(sum), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let (task, handle) = joined(future);
        self.inner.tasks.spawn(task);
        handle
    }

    /// Runs the stack and its tasks until `future` is ready.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// assert_eq!(stack.block_on(async { 7 }), 7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the stack cannot wait, which takes a broken descriptor.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        let main = Arc::new(Main {
            woken: AtomicBool::new(true),
            thread: std::thread::current().id(),
            remote: self.inner.tasks.remote.clone(),
        });
        let waker = Waker::from(main.clone());
        loop {
            if main.woken.swap(false, Ordering::AcqRel) {
                let polled = self
                    .inner
                    .tasks
                    .enter(|| future.as_mut().poll(&mut Context::from_waker(&waker)));
                if let Poll::Ready(output) = polled {
                    // What it has written leaves before it goes on.
                    self.poll();
                    return output;
                }
            }
            if self.poll() == 0 && !main.woken.load(Ordering::Acquire) {
                self.wait(None).expect("epoll_wait on our own descriptors");
            }
        }
    }

    /// Runs the stack and its tasks until no task is left.
    ///
    /// ```
    /// use std::time::Duration;
    /// # let stack = millrace::Builder::new().build()?;
    /// let here = stack.clone();
    /// stack.spawn(async move {
    ///     // Tasks may start others; all of them are waited for.
    ///     here.spawn(here.sleep(Duration::from_millis(1)));
    /// });
    /// stack.run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Stack::wait`].
    pub fn run(&self) -> io::Result<()> {
        while self.inner.tasks.live() > 0 {
            if self.poll() == 0 {
                self.wait(None)?;
            }
        }
        Ok(())
    }

    /// Ready after `span`.
    ///
    /// ```
    /// use std::time::Duration;
    /// # let stack = millrace::Builder::new().build()?;
    /// stack.block_on(stack.sleep(Duration::from_millis(1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sleep(&self, span: Duration) -> impl Future<Output = ()> + 'static + use<> {
        Sleep {
            stack: self.clone(),
            until: self.now()
                + millrace_tcp::Duration::from_micros(
                    u64::try_from(span.as_micros()).unwrap_or(u64::MAX),
                ),
            timer: None,
        }
    }

    /// What `future` returns, or none if that takes longer than `span`.
    ///
    /// ```
    /// use std::time::Duration;
    /// # let stack = millrace::Builder::new().build()?;
    /// let never = std::future::pending::<()>();
    /// assert!(stack.block_on(stack.timeout(Duration::from_millis(1), never)).is_none());
    /// assert_eq!(stack.block_on(stack.timeout(Duration::from_secs(9), async { 7 })), Some(7));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn timeout<F: Future>(&self, span: Duration, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut sleep = std::pin::pin!(self.sleep(span));
        poll_fn(move |cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            sleep.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Drops all tasks. Sockets that only they held are closed.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let task = stack.spawn(std::future::pending::<()>());
    /// stack.cancel_tasks();
    /// // None is left to wait for.
    /// stack.run()?;
    /// assert!(!task.is_finished());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel_tasks(&self) {
        self.inner.tasks.clear();
    }

    /// The congestion control of this name: the stack's own as Linux names them, or one that was
    /// added ([`crate::Builder::add_congestion`]).
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// assert_eq!(stack.congestion("bbr"), Some(millrace::Algorithm::Bbr));
    /// assert_eq!(stack.congestion("none such"), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn congestion(&self, name: &str) -> Option<Algorithm> {
        self.with(|core| core.shard.config().tcp.named(name))
    }

    /// What other threads reach it by.
    pub(crate) fn remote(&self) -> Arc<Remote> {
        self.inner.tasks.remote.clone()
    }

    /// Something short with the parts of this handle's link.
    #[inline]
    pub(crate) fn with<T>(&self, body: impl FnOnce(&mut Core) -> T) -> T {
        body(&mut self.inner.cores.get(self.link.into()).borrow_mut())
    }

    /// Does `attempt`, once or until it need not wait any longer.
    pub(crate) fn blocking<T>(
        &self,
        nonblocking: bool,
        until: Option<Duration>,
        mut attempt: impl FnMut() -> Result<T, Error>,
    ) -> io::Result<T> {
        let mut end = None;
        loop {
            match attempt() {
                Err(Error::WouldBlock) if !nonblocking => {}
                outcome => return outcome.map_err(system),
            }
            let now = self.with(|core| {
                core.read_clock();
                core.now
            });
            let left = match until {
                None => None,
                Some(span) => {
                    let span = millrace_tcp::Duration::from_micros(
                        u64::try_from(span.as_micros()).unwrap_or(u64::MAX),
                    );
                    let end = *end.get_or_insert(now + span);
                    if now >= end {
                        return Err(system(Error::WouldBlock));
                    }
                    Some(Duration::from_micros((end - now).as_micros()))
                }
            };
            if self.poll() == 0 {
                self.wait(left)?;
            }
        }
    }

    /// Does `attempt`; if it would have to wait, has the task woken when the socket changes.
    #[inline]
    pub(crate) fn attempt<T>(
        &self,
        cx: &Context<'_>,
        id: SocketId,
        side: Side,
        attempt: impl FnOnce(&mut Core) -> Result<T, Error>,
    ) -> Poll<io::Result<T>> {
        self.with(|core| match attempt(core) {
            Err(Error::WouldBlock) => {
                core.wait_for(id, side, cx.waker());
                Poll::Pending
            }
            outcome => Poll::Ready(outcome.map_err(system)),
        })
    }

    /// Closes a socket, now or as soon as the stack can be reached.
    pub(crate) fn close(&self, id: SocketId) {
        match self.inner.cores.get(self.link.into()).try_borrow_mut() {
            Ok(mut core) => core.close(id),
            Err(_) => self.inner.closing.borrow_mut().push((self.link, id)),
        }
    }
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack").finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Connections that sockets have closed end as well as they can: what may leave now does.
        for core in self.cores.iter() {
            let mut core = core.borrow_mut();
            core.read_clock();
            core.transmit();
        }
    }
}

/// Wakes the future of [`Stack::block_on`].
struct Main {
    woken: AtomicBool,
    thread: ThreadId,
    remote: Arc<Remote>,
}

impl Wake for Main {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        if std::thread::current().id() != self.thread {
            self.remote.ring();
        }
    }
}

/// What the kernel would say.
pub(crate) fn system(error: Error) -> io::Error {
    io::Error::from_raw_os_error(error.errno())
}

struct Sleep {
    stack: Stack,
    until: Instant,
    timer: Option<(Instant, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let until = self.until;
        let before = self.timer.take();
        let timer = self.stack.with(|core| {
            if let Some(timer) = before {
                core.remove_timer(timer);
            }
            (core.now < until).then(|| core.add_timer(until, cx.waker()))
        });
        self.timer = timer;
        match self.timer {
            Some(_) => Poll::Pending,
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.stack.with(|core| core.remove_timer(timer));
        }
    }
}
