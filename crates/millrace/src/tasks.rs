//! The executor: tasks of one thread, in the order in which they were woken.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use rustix::event::{EventfdFlags, eventfd};

/// Tasks that run in one round; those that they wake wait for the next.
const TURN: usize = 256;

type Task = Pin<Box<dyn Future<Output = ()>>>;
/// Where a task is, and which of those that were there.
type Key = (u32, u32);
/// Tasks that are to run.
type Ready = Rc<RefCell<VecDeque<Key>>>;

thread_local! {
    /// The executor whose turn it is on this thread, by its number: wake-ups of its tasks need no
    /// lock.
    static CURRENT: RefCell<Option<(u64, Ready)>> = const { RefCell::new(None) };
}

/// What other threads need to wake a task: a list, and the stack's doorbell.
#[derive(Debug)]
pub(crate) struct Remote {
    woken: Mutex<Vec<Key>>,
    doorbell: OwnedFd,
    any: AtomicBool,
}

impl Remote {
    pub(crate) fn new() -> io::Result<Arc<Remote>> {
        Ok(Arc::new(Remote {
            woken: Mutex::default(),
            doorbell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            any: AtomicBool::new(false),
        }))
    }

    fn push(&self, key: Key) {
        self.woken
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(key);
        self.any.store(true, Ordering::Release);
        self.ring();
    }

    /// Ends the stack's wait.
    pub(crate) fn ring(&self) {
        // It can only fail when the counter is full, and then it is rung already.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    /// The doorbell, to wait for.
    pub(crate) fn doorbell(&self) -> impl AsFd {
        &self.doorbell
    }
}

/// Ends the stack's wait, and no more.
impl Wake for Remote {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

struct TaskWaker {
    key: Key,
    executor: u64,
    /// It is in a list already.
    queued: AtomicBool,
    remote: Arc<Remote>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let here = CURRENT.try_with(|current| match &*current.borrow() {
            Some((executor, ready)) if *executor == self.executor => {
                ready.borrow_mut().push_back(self.key);
                true
            }
            _ => false,
        });
        if !matches!(here, Ok(true)) {
            self.remote.push(self.key);
        }
    }
}

struct Slot {
    generation: u32,
    /// None while it runs, and when it is over.
    task: Option<Task>,
    waker: Option<Arc<TaskWaker>>,
}

impl Slot {
    /// Nobody who knows its task means the next one.
    fn end(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.waker = None;
    }
}

/// The tasks of one stack.
pub(crate) struct Tasks {
    number: u64,
    slots: RefCell<Vec<Slot>>,
    vacant: RefCell<Vec<u32>>,
    ready: Ready,
    live: Cell<usize>,
    pub(crate) remote: Arc<Remote>,
}

impl Tasks {
    pub(crate) fn new(remote: Arc<Remote>) -> Tasks {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Tasks {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            slots: RefCell::default(),
            vacant: RefCell::default(),
            ready: Ready::default(),
            live: Cell::new(0),
            remote,
        }
    }

    /// How many are not over.
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Whether one is to run.
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.borrow().is_empty() || self.remote.any.load(Ordering::Acquire)
    }

    /// Adds a task, which runs in the next round.
    pub(crate) fn spawn(&self, task: Task) {
        let mut slots = self.slots.borrow_mut();
        let index = self.vacant.borrow_mut().pop().unwrap_or_else(|| {
            slots.push(Slot {
                generation: 0,
                task: None,
                waker: None,
            });
            slots.len() as u32 - 1
        });
        let slot = &mut slots[index as usize];
        let key = (index, slot.generation);
        slot.task = Some(task);
        slot.waker = Some(Arc::new(TaskWaker {
            key,
            executor: self.number,
            queued: AtomicBool::new(true),
            remote: self.remote.clone(),
        }));
        self.live.set(self.live.get() + 1);
        self.ready.borrow_mut().push_back(key);
    }

    /// Runs `body` with wake-ups of these tasks kept on this thread.
    pub(crate) fn enter<T>(&self, body: impl FnOnce() -> T) -> T {
        struct Leave(Option<(u64, Ready)>);
        impl Drop for Leave {
            fn drop(&mut self) {
                let before = self.0.take();
                CURRENT.with(|current| *current.borrow_mut() = before);
            }
        }
        let own = Some((self.number, self.ready.clone()));
        let _leave = Leave(CURRENT.with(|current| current.replace(own)));
        body()
    }

    /// Runs those that were woken; returns how many. To be called inside [`Tasks::enter`].
    pub(crate) fn run(&self) -> usize {
        if self.remote.any.swap(false, Ordering::AcqRel) {
            let mut woken = self
                .remote
                .woken
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.ready.borrow_mut().extend(woken.drain(..));
        }
        let turn = self.ready.borrow().len().min(TURN);
        for _ in 0..turn {
            let Some(key) = self.ready.borrow_mut().pop_front() else {
                break;
            };
            self.run_one(key);
        }
        turn
    }

    fn run_one(&self, (index, generation): Key) {
        let (mut task, waker) = {
            let mut slots = self.slots.borrow_mut();
            let slot = &mut slots[index as usize];
            let (Some(waker), true) = (&slot.waker, slot.generation == generation) else {
                return;
            };
            waker.queued.store(false, Ordering::Release);
            let Some(task) = slot.task.take() else {
                return;
            };
            (task, waker.clone())
        };
        let waker = Waker::from(waker);
        let is_over = task.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(());
        if !is_over {
            let slot = &mut self.slots.borrow_mut()[index as usize];
            if slot.generation == generation {
                slot.task = Some(task);
                return;
            }
        }
        // Outside of any borrow: what it held may wake others.
        drop(task);
        let mut slots = self.slots.borrow_mut();
        let slot = &mut slots[index as usize];
        // Unless it has had all of them dropped, and itself.
        if slot.generation == generation {
            slot.end();
            self.live.set(self.live.get() - 1);
            self.vacant.borrow_mut().push(index);
        }
    }

    /// Drops all of them. Those that will still be woken are not known any more.
    pub(crate) fn clear(&self) {
        let mut tasks = Vec::new();
        {
            let mut slots = self.slots.borrow_mut();
            let mut vacant = self.vacant.borrow_mut();
            vacant.clear();
            for (index, slot) in (0..).zip(slots.iter_mut()) {
                tasks.extend(slot.task.take());
                slot.end();
                vacant.push(index);
            }
            self.ready.borrow_mut().clear();
            self.live.set(0);
        }
        drop(tasks);
    }
}

enum Outcome<T> {
    Running(Option<Waker>),
    Done(Result<T, Box<dyn Any + Send>>),
    Taken,
}

/// Waits for a task: a future of what it returns. Dropping it lets the task go on.
///
/// ```
/// let stack = millrace::Builder::new().build()?;
/// let sum = stack.spawn(async { 1 + 2 });
/// assert!(!sum.is_finished());
/// assert_eq!(stack.block_on(sum), 3);
/// # Ok::<(), millrace::BuildError>(())
/// ```
pub struct JoinHandle<T>(Rc<RefCell<Outcome<T>>>);

impl<T> JoinHandle<T> {
    /// Whether the task is over.
    ///
    /// ```
    /// # let stack = millrace::Builder::new().build()?;
    /// let task = stack.spawn(async {});
    /// stack.poll();
    /// assert!(task.is_finished());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_finished(&self) -> bool {
        !matches!(*self.0.borrow(), Outcome::Running(_))
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;

    /// A panic of the task goes on here.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut outcome = self.0.borrow_mut();
        match &mut *outcome {
            Outcome::Running(waker) => {
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Outcome::Done(_) => {}
            Outcome::Taken => panic!("polled after it was ready"),
        }
        let done = std::mem::replace(&mut *outcome, Outcome::Taken);
        drop(outcome);
        match done {
            Outcome::Done(Ok(value)) => Poll::Ready(value),
            Outcome::Done(Err(panic)) => resume_unwind(panic),
            Outcome::Running(_) | Outcome::Taken => Poll::Pending,
        }
    }
}

/// A task that keeps what `future` returns for its handle.
pub(crate) fn joined<T: 'static>(
    future: impl Future<Output = T> + 'static,
) -> (Task, JoinHandle<T>) {
    let shared = Rc::new(RefCell::new(Outcome::Running(None)));
    let handle = JoinHandle(shared.clone());
    let mut future = Box::pin(future);
    let task = std::future::poll_fn(move |cx| {
        // A task that panics ends alone.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        let done = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(value)) => Ok(value),
            Err(panic) => Err(panic),
        };
        let before = std::mem::replace(&mut *shared.borrow_mut(), Outcome::Done(done));
        if let Outcome::Running(Some(waker)) = before {
            waker.wake();
        }
        Poll::Ready(())
    });
    (Box::pin(task), handle)
}
