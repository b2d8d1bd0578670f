//! poll and select on descriptors that include millrace sockets.
//!
//! A thread that has to sleep does so in the kernel's `ppoll`, with a hidden poller's doorbell
//! beside the kernel's descriptors. The poller goes on watching its sockets after the call, so a
//! loop around `poll` asks for hints once for each socket. A thread that waits for a single
//! millrace socket sleeps on the socket itself.

use std::ffi::{c_int, c_short};
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{POLLIN, POLLNVAL, pollfd, sigset_t};
use millrace_context::SlotRef;
use rustix::io::Errno;

use crate::engine::batch;
use crate::engine::{self, Engine};
use crate::fd::placeholder;
use crate::fd::table::{self, Entry};
use crate::process::thread;
use crate::readiness::poller::{self, Own};
use crate::readiness::sleep::{Call, Restart};
use crate::readiness::{bits, poll_mask, ready_list};
use crate::readiness::{epoll_sets, nested_epoll};
use crate::socket::Socket;
use crate::sys::mmap_buffer::SmallBuffer;
use crate::sys::{self, Result};

/// The longest sleep without a poller, in microseconds; then the sockets are looked at again.
const SLEEP_POLLERLESS_US: u64 = 1000;
/// The most descriptors for which one call uses the stack alone.
const SMALL: usize = 32;
/// The most hidden pollers of one process.
const POLLERS: usize = 1024;

/// Whether one of the descriptors concerns the shim: a millrace socket, or an epoll set.
pub fn concerns_us(fds: &[pollfd]) -> bool {
    fds.iter().any(|polled| is_ours(polled.fd))
}

/// Whether a descriptor concerns the shim.
pub fn is_ours(fd: c_int) -> bool {
    match table::get(fd) {
        Entry::Socket(_) => true,
        // Another thread may register a millrace socket while this one sleeps.
        Entry::Epoll(_) => engine::get().is_ok(),
        _ => false,
    }
}

/// A call that has begun.
#[derive(Clone, Copy)]
pub struct Begun {
    /// Ends when a signal handler has run since it began.
    pub call: Call,
    /// The time at which the call began, in microseconds.
    pub us: u64,
}

impl Begun {
    /// A call that begins now.
    pub fn now(mask: *const sigset_t) -> Begun {
        Begun {
            call: Call::begin_with_mask(mask),
            us: sys::now_us(),
        }
    }
}

/// Does `ppoll`. Without `timeout_us` it waits for ever.
pub fn poll(
    fds: &mut [pollfd],
    begun: Begun,
    timeout_us: Option<u64>,
    mask: *const sigset_t,
) -> Result<usize> {
    let engine = engine::get()?;
    batch::end(engine);
    let until = timeout_us.map(|us| begun.us.saturating_add(us));
    let call = begun.call;
    let mut targets = Targets::new(fds)?;
    let alone = mask.is_null().then(|| targets.only_socket()).flatten();
    let mut sleeper: Option<Sleeper> = None;
    loop {
        let sequence = alone.as_deref().map(Socket::sequence);
        let count = targets.poll_now(fds)?;
        if std::mem::take(&mut targets.changed) {
            sleeper = None;
        }
        if count > 0 {
            batch::begin(engine);
            return Ok(count);
        }
        let left = until.map(|until| until.saturating_sub(sys::now_us()));
        if left == Some(0) {
            return Ok(0);
        }
        if let (Some(socket), Some(sequence)) = (alone.as_deref(), sequence) {
            let waiters = &socket.slot.app.waiters;
            let word = (&socket.slot.engine.sequence, sequence);
            match call.on_word(engine, waiters, word, until, Restart::Never) {
                Ok(()) | Err(Errno::TIMEDOUT) => continue,
                Err(errno) => return Err(errno),
            }
        }
        match &sleeper {
            // Look once more, since hints come from here on.
            None => sleeper = Some(Sleeper::new(engine, &targets)),
            Some(sleeper) => {
                sleeper.sleep(engine, call, &mut targets.kernel, (left, mask))?;
            }
        }
    }
}

/// A descriptor's meaning, held until [`Targets`] are dropped. A descriptor that was just closed is
/// the kernel's to report.
fn hold(fd: c_int) -> Entry {
    match table::get(fd) {
        Entry::Socket(slot) => match Socket::get(fd, slot) {
            Ok(socket) => {
                let slot = socket.reference;
                std::mem::forget(socket);
                Entry::Socket(slot)
            }
            Err(_) => Entry::Internal,
        },
        // The number may mean another set by now. The set that is held counts.
        Entry::Epoll(_) => match epoll_sets::hold_descriptor(fd) {
            Some(held) => {
                let index = held.index();
                std::mem::forget(held);
                Entry::Epoll(index)
            }
            None => Entry::Internal,
        },
        entry => entry,
    }
}

/// The polled descriptors, resolved once. A descriptor that another thread closes meanwhile is
/// still polled, as in the kernel.
struct Targets {
    /// Entries of the table as words.
    ours: SmallBuffer<u64, SMALL>,
    /// The kernel's descriptors, with -1 in place of the others, and room for two more.
    kernel: SmallBuffer<pollfd, { SMALL + 2 }>,
    any_kernel: bool,
    looked: bool,
    /// Another thread has put a millrace socket in place of a descriptor of the kernel.
    changed: bool,
}

impl Targets {
    fn new(from: &[pollfd]) -> Result<Targets> {
        let mut targets = Targets {
            ours: SmallBuffer::new(from.len())?,
            kernel: SmallBuffer::new(from.len() + 2)?,
            any_kernel: false,
            looked: false,
            changed: false,
        };
        let entries = targets.ours.iter_mut().zip(targets.kernel.iter_mut());
        for ((ours, kernel), polled) in entries.zip(from) {
            let entry = hold(polled.fd);
            *ours = entry.to_word();
            kernel.fd = match entry {
                Entry::Socket(_) | Entry::Internal => -1,
                Entry::Epoll(index) => epoll_sets::kernel_fd_or_new(index).unwrap_or(polled.fd),
                _ => polled.fd,
            };
            kernel.events = polled.events;
            targets.any_kernel |= kernel.fd >= 0;
        }
        for unused in &mut targets.kernel[from.len()..] {
            unused.fd = -1;
        }
        Ok(targets)
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        self.ours.iter().map(|word| Entry::from_word(*word))
    }

    /// The socket, if the call waits for one millrace socket alone.
    fn only_socket(&self) -> Option<ManuallyDrop<Socket>> {
        let mut wanted = self
            .entries()
            .zip(self.kernel.iter())
            .filter(|(entry, kernel)| *entry != Entry::Kernel || kernel.fd >= 0);
        match (wanted.next(), wanted.next()) {
            (Some((Entry::Socket(slot), _)), None) => held(slot),
            _ => None,
        }
    }

    /// Looks without waiting and sets the results. Returns how many descriptors have events.
    fn poll_now(&mut self, fds: &mut [pollfd]) -> Result<usize> {
        let first = !std::mem::replace(&mut self.looked, true);
        if self.any_kernel {
            let kernel = &mut self.kernel[..fds.len()];
            sys::poll_now(kernel)?;
        }
        let mut count = 0;
        for ((polled, word), kernel) in fds
            .iter_mut()
            .zip(self.ours.iter_mut())
            .zip(self.kernel.iter_mut())
        {
            if kernel.fd >= 0 && is_placeholder(kernel) {
                let entry = hold(kernel.fd);
                self.changed |= matches!(entry, Entry::Socket(_));
                *word = entry.to_word();
                kernel.revents = POLLNVAL;
                if self.changed {
                    kernel.fd = -1;
                }
            }
            let interest = u32::from(polled.events as u16);
            let found = match Entry::from_word(*word) {
                Entry::Socket(slot) => held(slot).map_or(bits::NVAL, |socket| {
                    poll_mask::of(&socket, interest).0 & (interest | bits::ALWAYS)
                }),
                // The kernel also shows doorbells that ring without an event.
                Entry::Epoll(index) => match interest & bits::IN {
                    0 => 0,
                    wanted if nested_epoll::is_ready(index) => wanted,
                    _ => 0,
                },
                Entry::Internal => bits::NVAL,
                _ if kernel.fd < 0 => 0,
                _ if kernel.revents & POLLNVAL != 0 && !first => {
                    // The descriptor was open when the call began.
                    kernel.fd = -1;
                    0
                }
                _ => u32::from(kernel.revents as u16),
            };
            polled.revents = found as c_short;
            count += usize::from(polled.revents != 0);
        }
        Ok(count)
    }
}

/// Whether the kernel has polled the placeholder for the program. Then another thread is about to
/// close the number, or has put a millrace socket there.
pub fn is_placeholder(polled: &pollfd) -> bool {
    polled.revents & libc::POLLHUP != 0 && placeholder::is_known(polled.fd)
}

impl Drop for Targets {
    fn drop(&mut self) {
        for entry in self.entries() {
            match entry {
                Entry::Socket(slot) => drop(held(slot).map(ManuallyDrop::into_inner)),
                Entry::Epoll(index) => epoll_sets::release(index),
                _ => {}
            }
        }
    }
}

/// A socket that these targets hold.
fn held(slot: SlotRef) -> Option<ManuallyDrop<Socket>> {
    let engine = engine::mapped()?;
    let shared = engine.region.slot(slot.index)?;
    Some(ManuallyDrop::new(Socket {
        engine,
        slot: shared,
        reference: slot,
    }))
}

/// A thread that has asked for hints of what it waits for.
struct Sleeper {
    own: Option<Own>,
}

impl Sleeper {
    fn new(engine: &'static Engine, targets: &Targets) -> Sleeper {
        let own = hidden_poller(engine);
        for entry in targets.entries() {
            match entry {
                Entry::Socket(slot) => {
                    if let Some(hidden) = own {
                        hidden.watch(engine, slot);
                    }
                }
                // From now on the kernel's set shows the ready millrace sockets in it.
                Entry::Epoll(index) => ready_list::wait_for_set(index, engine),
                _ => {}
            }
        }
        Sleeper {
            own: own.map(|hidden| hidden.own),
        }
    }

    fn sleep(
        &self,
        engine: &'static Engine,
        call: Call,
        kernel: &mut [pollfd],
        (left_us, mask): (Option<u64>, *const sigset_t),
    ) -> Result<()> {
        let last = kernel.len() - 2;
        let entry = |fd, events| pollfd {
            fd,
            events,
            revents: 0,
        };
        kernel[last + 1] = entry(engine.control_fd(), libc::POLLRDHUP);
        let Some(own) = self.own else {
            let us = left_us.map_or(SLEEP_POLLERLESS_US, |us| us.min(SLEEP_POLLERLESS_US));
            return call.poll(kernel, Some(us), mask).map(drop);
        };
        let Some((shared, ring)) = poller::shared(engine, own.index) else {
            return Err(Errno::IO);
        };
        // Every hint means the same to this call: look again.
        let mut news = false;
        while shared.take(ring).is_some() {
            news = true;
        }
        if shared.overflowed() || news {
            std::sync::atomic::fence(Ordering::SeqCst);
            return Ok(());
        }
        own.silence();
        kernel[last] = entry(own.bell.fd(), POLLIN);
        let slept = shared.sleep(|| false, || call.poll(kernel, left_us, mask));
        let result = slept.unwrap_or(Ok(0));
        if kernel[last + 1].revents != 0 {
            engine.check();
        }
        result.map(drop)
    }
}

/// A poller for `poll` and `select`, and the sockets that it watches.
struct Hidden {
    own: Own,
    /// The watched generation of each slot.
    watched: &'static [AtomicU32],
    in_use: AtomicU32,
}

impl Hidden {
    fn watch(&self, engine: &'static Engine, slot: SlotRef) {
        let Some(watched) = self.watched.get(slot.index as usize) else {
            return;
        };
        if watched.swap(slot.generation, Ordering::Relaxed) != slot.generation
            && poller::watch(engine, self.own.index, slot, poller::EVERYTHING).is_err()
        {
            watched.store(0, Ordering::Relaxed);
        }
    }
}

/// Addresses of the process's hidden pollers.
static HIDDEN: [std::sync::atomic::AtomicPtr<Hidden>; POLLERS] =
    [const { std::sync::atomic::AtomicPtr::new(std::ptr::null_mut()) }; POLLERS];

/// The calling thread's hidden poller; `None` if all are taken.
fn hidden_poller(engine: &'static Engine) -> Option<&'static Hidden> {
    let address = thread::with(|thread| thread.poller.get());
    if address != 0 {
        // SAFETY: set below to a Hidden that is never unmapped.
        return Some(unsafe { &*(address as *const Hidden) });
    }
    let hidden = take_over(|hidden| hidden.in_use.load(Ordering::Relaxed) == 0)
        // A thread that has ended has left its poller behind, which is free again.
        .or_else(|| take_over(|hidden| !sys::thread_lives(hidden.in_use.load(Ordering::Relaxed))))
        .or_else(|| make(engine))?;
    thread::with(|thread| thread.poller.set(std::ptr::from_ref(hidden) as usize));
    Some(hidden)
}

fn take_over(is_free: impl Fn(&Hidden) -> bool) -> Option<&'static Hidden> {
    HIDDEN
        .iter()
        .map(|place| place.load(Ordering::Acquire))
        .take_while(|at| !at.is_null())
        .find_map(|at| {
            // SAFETY: never unmapped once it is there.
            let hidden = unsafe { &*at };
            let user = hidden.in_use.load(Ordering::Relaxed);
            let taken = is_free(hidden)
                && hidden
                    .in_use
                    .compare_exchange(user, thread::tid(), Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok();
            taken.then_some(hidden)
        })
}

fn make(engine: &'static Engine) -> Option<&'static Hidden> {
    let slots = engine.region.geometry().slots as usize;
    let own = poller::make(engine, false).ok()?;
    let bytes = size_of::<Hidden>().next_multiple_of(64) + slots * 4;
    let Ok(at) = sys::map(bytes, false) else {
        poller::give_back(engine, own);
        return None;
    };
    // SAFETY: just mapped, large enough for both, and never unmapped.
    let hidden = unsafe {
        let watched = at
            .cast::<u8>()
            .add(size_of::<Hidden>().next_multiple_of(64));
        let hidden = at.cast::<Hidden>();
        hidden.write(Hidden {
            own,
            watched: std::slice::from_raw_parts(watched.cast(), slots),
            in_use: AtomicU32::new(thread::tid()),
        });
        &*hidden
    };
    // If the list is full, this thread alone uses the poller.
    let _ = HIDDEN.iter().find(|place| {
        place
            .compare_exchange(
                std::ptr::null_mut(),
                std::ptr::from_ref(hidden).cast_mut(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_ok()
    });
    Some(hidden)
}

/// In the child of a fork: gives up the hidden pollers of the parent's threads.
pub fn forked(engine: &Engine) {
    for place in &HIDDEN {
        let at = place.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if at.is_null() {
            break;
        }
        // SAFETY: never unmapped once it was there.
        poller::give_back(engine, unsafe { &*at }.own);
    }
}
