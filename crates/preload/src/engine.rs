//! The engine, as this process knows it: the shared region, the doorbells and the control socket.
//!
//! A process attaches at the first call that needs the engine. The child of a fork has the mapping
//! already, and attaches once more to get contexts of its own. A child made by the raw system call,
//! which the shim does not see, attaches at its first call that needs the engine.

pub mod batch;
pub mod bypass;
pub mod submission;

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use millrace_context::control_socket::Peer;
use millrace_context::layout::{AWAKE, Line, MAGIC, SHARDS_MAX};
use millrace_context::protocol::{self, Attached, Descriptors, Kind, Request};
use millrace_context::{Region, SlotRef};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::fd::internal::{self, Handle};
use crate::fd::refcount;
use crate::fd::table::{self, Entry};
use crate::process::environment::{self, Environment};
use crate::process::thread;
use crate::socket::flag;
use crate::sys::mmap_buffer::MmapBuffer;
use crate::sys::robust_lock;
use crate::sys::robust_lock::Rank;
use crate::sys::wipe_on_fork::{self, OWN};
use crate::sys::{self, Result};

/// How long an engine may take to answer before it counts as gone, in seconds.
const PATIENCE_S: u64 = 10;
/// The process number that no process has.
const NOBODY: u32 = u32::MAX;

/// The engine.
pub struct Engine {
    /// The memory shared with it.
    pub region: Region,
    doorbells: [AtomicU32; SHARDS_MAX],
    /// Handle of the control socket plus 1; 0 for none.
    control: AtomicU32,
    /// First context of this process.
    first_context: AtomicU32,
    /// Contexts of this process for each shard.
    contexts: AtomicU32,
    /// This process's number in the program.
    process: AtomicU32,
    lost: AtomicBool,
}

struct Place(UnsafeCell<MaybeUninit<Engine>>);
// SAFETY: written once under LOCK before MAPPED is set; read only after that; an Engine is Sync.
unsafe impl Sync for Place {}
static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));
static MAPPED: AtomicBool = AtomicBool::new(false);
/// Set once this process, or the parent that forked it unseen, has attached.
static ATTACHED: AtomicBool = AtomicBool::new(false);

/// Held while the process attaches and during each request on the control socket. A fork holds it,
/// so that the child never finds a request half done.
pub static LOCK: &AtomicU32 = &OWN.engine_lock;

/// Returns the engine, and attaches first if needed. `NETDOWN`: the engine cannot be reached.
#[inline]
pub fn get() -> Result<&'static Engine> {
    if OWN.attached.load(Ordering::Acquire) {
        return Ok(place());
    }
    attach()
}

/// Returns the engine if this process has attached. The child of an unseen fork attaches now if its
/// parent had attached.
pub fn attached() -> Option<&'static Engine> {
    if OWN.attached.load(Ordering::Acquire) {
        return Some(place());
    }
    ATTACHED
        .load(Ordering::Acquire)
        .then(attach)
        .and_then(Result::ok)
}

/// Returns the engine if its memory is mapped, attached or not.
pub fn mapped() -> Option<&'static Engine> {
    MAPPED.load(Ordering::Acquire).then(place)
}

fn place() -> &'static Engine {
    // SAFETY: callers have seen MAPPED, or ATTACHED which is set after it: it is written, and never
    // dropped.
    unsafe { (*PLACE.0.get()).assume_init_ref() }
}

/// Called in a child of a fork that the shim did not see, once it has attached.
static AFTER_UNSEEN_FORK: OnceLock<fn(&'static Engine)> = OnceLock::new();

/// Sets the function that a child of an unseen fork calls once it has attached.
pub fn on_unseen_fork(after: fn(&'static Engine)) {
    let _ = AFTER_UNSEEN_FORK.set(after);
}

#[cold]
fn attach() -> Result<&'static Engine> {
    let environment = environment::get().ok_or(Errno::NETDOWN)?;
    if ATTACHED.load(Ordering::Acquire) {
        // The shim did not see the fork: the thread may still have its parent's id.
        thread::check();
    }
    let unseen = {
        // `None`: this thread holds the lock. It runs a signal handler, or the allocator, in the
        // middle of attaching.
        let _guard = robust_lock::take(LOCK, Rank::Control).ok_or(Errno::NETDOWN)?;
        if OWN.attached.load(Ordering::Acquire) {
            return Ok(place());
        }
        let parent = mapped().map(|engine| engine.process.load(Ordering::Relaxed));
        let parent = parent.filter(|parent| *parent != NOBODY);
        if let Err(errno) = attach_locked(environment, parent) {
            let name = environment.engine().map(|engine| engine.name());
            complain(name.unwrap_or(""), errno);
            return Err(Errno::NETDOWN);
        }
        OWN.attached.store(true, Ordering::Release);
        ATTACHED.swap(true, Ordering::AcqRel)
    };
    let engine = place();
    if unseen && let Some(after) = AFTER_UNSEEN_FORK.get() {
        after(engine);
    }
    Ok(engine)
}

/// Attaches with the lock held. `parent`: the process whose sockets this one has inherited without
/// the engine knowing.
fn attach_locked(environment: &Environment, parent: Option<u32>) -> Result<()> {
    let engine = attach_now(environment, parent)?;
    refcount::count_again(engine.region.geometry().slots);
    if table::all().any(|(_, entry)| matches!(entry, Entry::Socket(_))) {
        hold_exactly(engine, parent.is_some())?;
    }
    Ok(())
}

fn attach_now(environment: &Environment, parent: Option<u32>) -> Result<&'static Engine> {
    // The connection that the parent has asked for is used once.
    let control = match environment.control.swap(0, Ordering::Relaxed) {
        0 => {
            let engine = environment.engine().ok_or(Errno::INVAL)?;
            internal::adopt(engine.connect(peer).map_err(|error| errno(&error))?)?
        }
        given => Handle::from_bits(given - 1),
    };
    let outcome = attach_by(control, environment, parent);
    if outcome.is_err() {
        internal::release(control);
    }
    outcome
}

/// Returns the process at the other end of a connection, without calling our own hooks.
fn peer(socket: &OwnedFd) -> std::io::Result<Peer> {
    let mut credentials = [0; size_of::<libc::ucred>()];
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let read = sys::getsockopt_bytes(socket.as_raw_fd(), level, name, &mut credentials);
    read.map_err(std::io::Error::from)?;
    let word = |at: usize| credentials[at..at + 4].try_into().map(u32::from_ne_bytes);
    Ok(Peer {
        pid: word(0).unwrap_or_default(),
        uid: word(4).unwrap_or(u32::MAX),
    })
}

fn attach_by(
    handle: Handle,
    environment: &Environment,
    parent: Option<u32>,
) -> Result<&'static Engine> {
    // SAFETY: the handle's descriptor is open, and LOCK keeps it so.
    let control = unsafe { BorrowedFd::borrow_raw(handle.fd()) };
    for direction in [
        rustix::net::sockopt::Timeout::Recv,
        rustix::net::sockopt::Timeout::Send,
    ] {
        rustix::net::sockopt::set_socket_timeout(
            control,
            direction,
            Some(std::time::Duration::from_secs(PATIENCE_S)),
        )?;
    }
    let ticket = environment.announced.swap(0, Ordering::Relaxed);
    let sharing = parent.map_or(0, |parent| u64::from(parent) + 1);
    let request = Request::new(Kind::Attach, environment.token, [ticket, sharing, 0, 0]);
    let (answer, mut descriptors) = request.call(control, &[]).map_err(|error| errno(&error))?;
    let attached = Attached::from_words(answer.words);
    if !MAPPED.load(Ordering::Acquire) {
        if let Err(errno) = map(&attached, &mut descriptors) {
            // This process can use none of its sockets, so the engine closes them all.
            let _ = Request::new(Kind::Holds, [0; 16], [0; 4]).call(control, &[]);
            return Err(errno);
        }
        wipe_on_fork::clear_in_children();
    }
    let engine = place();
    let before = engine.control.swap(handle.to_bits() + 1, Ordering::AcqRel);
    if let Some(bits) = before.checked_sub(1) {
        internal::release(Handle::from_bits(bits));
    }
    engine
        .first_context
        .store(attached.context, Ordering::Release);
    engine
        .contexts
        .store(attached.contexts.max(1), Ordering::Release);
    engine.process.store(attached.process, Ordering::Release);
    Ok(engine)
}

/// Maps the region the first time. The child of a fork has the region and its doorbells already.
fn map(attached: &Attached, descriptors: &mut Descriptors) -> Result<()> {
    let geometry = attached.geometry;
    let shards = geometry.shards as usize;
    if shards == 0 || shards > SHARDS_MAX || !table::fits(geometry.slots) {
        return Err(Errno::PROTO);
    }
    let file = descriptors.take(0).ok_or(Errno::PROTO)?;
    let region = Region::map(file.as_fd(), geometry).map_err(|error| errno(&error))?;
    let header = region.header();
    if header.magic != MAGIC || header.version != millrace_context::VERSION {
        return Err(Errno::PROTO);
    }
    let doorbells = [const { AtomicU32::new(0) }; SHARDS_MAX];
    for (shard, doorbell) in doorbells.iter().enumerate().take(shards) {
        let fd = descriptors.take(1 + shard).ok_or(Errno::PROTO)?;
        doorbell.store(internal::adopt(fd)?.to_bits(), Ordering::Relaxed);
    }
    refcount::make(geometry.slots)?;
    let engine = Engine {
        region,
        doorbells,
        control: AtomicU32::new(0),
        first_context: AtomicU32::new(0),
        contexts: AtomicU32::new(1),
        process: AtomicU32::new(NOBODY),
        lost: AtomicBool::new(false),
    };
    // SAFETY: under LOCK, and nobody reads before MAPPED is set.
    unsafe { (*PLACE.0.get()).write(engine) };
    MAPPED.store(true, Ordering::Release);
    Ok(())
}

fn errno(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::PROTO, Errno::from_raw_os_error)
}

/// Reports once why the program's sockets do not work. Writes straight to standard error, because
/// the library must not call a function that it replaces.
fn complain(name: &str, errno: Errno) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if SAID.swap(true, Ordering::Relaxed) {
        return;
    }
    let reason = match errno {
        Errno::CONNREFUSED | Errno::NOENT => "there is no engine of this name (has it ended?)",
        Errno::PERM => "a process of another user answers in its place and is not believed",
        Errno::INVAL => "MILLRACE_ENGINE does not say where it is",
        Errno::PROTONOSUPPORT => {
            "it is of another version than this program's libmillrace_preload.so"
        }
        Errno::ACCESS => "it does not know this program (MILLRACE_TOKEN)",
        Errno::AGAIN => "it does not answer",
        Errno::USERS => "it has no room for another process of the program",
        Errno::NOMEM => "its memory cannot be mapped (is there a limit, ulimit -v?)",
        _ => "it cannot be reached",
    };
    say(&[
        "millrace: engine ",
        name,
        ": ",
        reason,
        "; TCP sockets fail with ENETDOWN\n",
    ]);
}

/// Writes a line to standard error, cut to its room.
pub fn say(parts: &[&str]) {
    let mut line = [0u8; 256];
    let mut len = 0;
    for part in parts {
        let part = &part.as_bytes()[..part.len().min(line.len() - len)];
        line[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    sys::write(2, &line[..len]);
}

/// Tells the engine which sockets this process holds after an exec. With `more`, these are sockets
/// of a parent that the engine knows. The lock is held.
fn hold_exactly(engine: &Engine, more: bool) -> Result<()> {
    let request = Request::new(Kind::Holds, [0; 16], [u64::from(more), 0, 0, 0]);
    let mut held = Held::new()?;
    for (_, entry) in table::all() {
        if let Entry::Socket(slot) = entry {
            held.push(slot);
            if let (true, Some(slot)) = (more, engine.region.slot(slot.index)) {
                slot.app.flags.fetch_or(flag::SHARED, Ordering::Relaxed);
            }
        }
    }
    engine.call_locked(&request, held.bytes()).map(drop)
}

/// Sockets as the payload of [`Kind::Holds`]. One packet bounds their number; the engine closes the
/// rest.
pub struct Held {
    words: MmapBuffer<u64>,
    len: usize,
}

impl Held {
    /// An empty list.
    pub fn new() -> Result<Held> {
        Ok(Held {
            words: MmapBuffer::new((protocol::PACKET_MAX - size_of::<Request>()) / 8)?,
            len: 0,
        })
    }

    /// Adds a socket.
    pub fn push(&mut self, slot: SlotRef) {
        if let Some(word) = self.words.get_mut(self.len) {
            *word = slot.to_bits();
            self.len += 1;
        }
    }

    /// The list as it is sent.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: integers, read as the bytes they are.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len * 8) }
    }
}

impl Engine {
    /// The context by which thread number `thread` submits to a shard.
    pub fn context(&self, thread: u32, shard: u32) -> u32 {
        let contexts = self.contexts.load(Ordering::Relaxed);
        self.first_context.load(Ordering::Relaxed)
            + thread % contexts * self.region.geometry().shards
            + shard
    }

    /// The shard for a new socket of thread number `thread`. The threads and processes of a program
    /// spread over all shards that serve.
    pub fn shard_for(&self, thread: u32) -> u32 {
        let process = self.process.load(Ordering::Relaxed);
        let serving = self.region.header().serving.0.load(Ordering::Relaxed);
        process.wrapping_add(thread) % serving.clamp(1, self.region.geometry().shards)
    }

    /// The number of contexts that this process has for each shard.
    pub fn contexts(&self) -> u32 {
        self.contexts.load(Ordering::Relaxed)
    }

    /// Rings a shard's doorbell.
    pub fn ring(&self, shard: u32) {
        if let Some(doorbell) = self.doorbells.get(shard as usize) {
            sys::ring(Handle::from_bits(doorbell.load(Ordering::Relaxed)).fd());
        }
    }

    /// The state of a shard to which a request was just submitted: AWAKE, ASLEEP or NAPPING.
    pub fn sleep_of(&self, shard: u32) -> u32 {
        let lines = &self.region.header().sleeping;
        lines.get(shard as usize).map_or(AWAKE, Line::wakefulness)
    }

    /// The control socket, -1 without one. A thread that waits polls it to learn that the engine
    /// has ended.
    pub fn control_fd(&self) -> i32 {
        self.control
            .load(Ordering::Acquire)
            .checked_sub(1)
            .map_or(-1, |bits| Handle::from_bits(bits).fd())
    }

    /// Sends a request on the control socket and waits for the answer.
    pub fn call(&self, request: &Request, payload: &[u8]) -> Result<([u64; 8], Descriptors)> {
        let _guard = robust_lock::take(LOCK, Rank::Control).ok_or(Errno::AGAIN)?;
        self.call_locked(request, payload)
    }

    /// [`Engine::call`] with [`LOCK`] held already.
    pub fn call_locked(
        &self,
        request: &Request,
        payload: &[u8],
    ) -> Result<([u64; 8], Descriptors)> {
        self.call_locked_with(request, payload, &[])
    }

    /// [`Engine::call_locked`] that sends descriptors too.
    pub fn call_locked_with(
        &self,
        request: &Request,
        payload: &[u8],
        sent: &[BorrowedFd<'_>],
    ) -> Result<([u64; 8], Descriptors)> {
        let fd = self.control_fd();
        if fd < 0 {
            return Err(Errno::NETDOWN);
        }
        // SAFETY: the handle's descriptor is open, and LOCK keeps it so.
        let control = unsafe { BorrowedFd::borrow_raw(fd) };
        match request.call_with(control, payload, sent) {
            Ok((answer, descriptors)) => Ok((answer.words, descriptors)),
            Err(error) => Err(errno(&error)),
        }
    }

    /// Sends a request that has no answer.
    pub fn tell(&self, request: &Request) {
        self.tell_with(request, None);
    }

    /// [`Engine::tell`] that sends a descriptor too.
    pub fn tell_with(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) {
        let Some(_guard) = robust_lock::take(LOCK, Rank::Control) else {
            return;
        };
        let fd = self.control_fd();
        if fd >= 0 {
            // SAFETY: as in `call_locked`.
            let control = unsafe { BorrowedFd::borrow_raw(fd) };
            // A thread that waits notices that the engine is gone.
            let _ = match descriptor {
                Some(descriptor) => request.send_with(control, &[], &[descriptor]),
                None => request.send(control, &[]),
            };
        }
    }

    /// Whether the engine is known to have ended.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Notes that the engine has ended and wakes every thread that sleeps on its life. The kernel
    /// wakes only one.
    pub fn note_over(&self) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            millrace_context::futex::wake(&self.region.header().life.0, i32::MAX as u32);
        }
    }

    /// Checks whether the engine still lives.
    pub fn check(&self) {
        let fd = self.control_fd();
        if fd < 0 {
            return;
        }
        // SAFETY: open while this process is attached.
        let control = unsafe { BorrowedFd::borrow_raw(fd) };
        let mut polled = [PollFd::from_borrowed_fd(control, PollFlags::RDHUP)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        if rustix::event::poll(&mut polled, Some(&at_once)).is_ok()
            && polled[0].revents().intersects(gone)
        {
            self.note_over();
        }
    }

    /// In the child of a fork: gives up what belongs to the parent. The mapping stays. `unknown`:
    /// the child holds sockets that the engine was not told of, so it attaches as the child of an
    /// unseen fork does.
    pub fn forked(&self, unknown: bool) {
        OWN.attached.store(false, Ordering::Release);
        if !unknown {
            self.process.store(NOBODY, Ordering::Relaxed);
            ATTACHED.store(false, Ordering::Release);
        }
        if let Some(bits) = self.control.swap(0, Ordering::AcqRel).checked_sub(1) {
            internal::release(Handle::from_bits(bits));
        }
    }
}
