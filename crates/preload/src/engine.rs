//! The engine, as this process knows it: the region they share, its doorbells, its control socket.
//!
//! Nothing happens before the first call that needs it. A process attaches once; a child of a fork, which has the mapping already, once more
//! for contexts of its own. A child that was made past the shim (by the system call itself) does so at its first call that needs the engine.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use millrace_context::control_socket::Peer;
use millrace_context::layout::{AWAKE, Line, MAGIC, SHARDS_MAX};
use millrace_context::protocol::{self, Attached, Descriptors, Kind, Request};
use millrace_context::{Region, SlotRef};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::environment::{self, Environment};
use crate::internal::{self, Handle};
use crate::lock::Rank;
use crate::scratch::Scratch;
use crate::socket::flag;
use crate::sys::{self, Result};
use crate::table::{self, Entry};
use crate::{lock, poll, refs, rights, sets, thread};

/// How long an engine may take to answer before it counts as gone, in seconds.
const PATIENCE_S: u64 = 10;
/// Number of no process.
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
/// This process has attached, or it is the child of a fork that the shim did not see and its parent had.
static ATTACHED: AtomicBool = AtomicBool::new(false);

/// What a process does not have from its parent: the kernel clears this page in the child of every fork, so a child that the shim did not see being made (by
/// the system call itself) finds out at its first call that needs the engine.
#[repr(C, align(4096))]
struct Own {
    attached: AtomicBool,
    lock: AtomicU32,
    descriptors: AtomicU32,
}

static OWN: Own = Own {
    attached: AtomicBool::new(false),
    lock: AtomicU32::new(0),
    descriptors: AtomicU32::new(0),
};
/// Held while attaching, and for each request on the control socket. A fork holds it, so that the child finds a quiet state.
pub static LOCK: &AtomicU32 = &OWN.lock;
/// The word of [`internal::lock`].
pub static DESCRIPTORS: &AtomicU32 = &OWN.descriptors;

/// The engine, attached to if need be. `NETDOWN`: it cannot be reached.
#[inline]
pub fn get() -> Result<&'static Engine> {
    if OWN.attached.load(Ordering::Acquire) {
        return Ok(place());
    }
    attach()
}

/// The engine if this process has attached to it; the child of a fork that the shim did not see does so now if its parent had.
pub fn attached() -> Option<&'static Engine> {
    if OWN.attached.load(Ordering::Acquire) {
        return Some(place());
    }
    ATTACHED
        .load(Ordering::Acquire)
        .then(attach)
        .and_then(Result::ok)
}

/// The engine if its memory is mapped, whether or not this process has attached again after a fork.
pub fn mapped() -> Option<&'static Engine> {
    MAPPED.load(Ordering::Acquire).then(place)
}

fn place() -> &'static Engine {
    // SAFETY: callers have seen MAPPED, or ATTACHED which is set after it: it is written, and never dropped.
    unsafe { (*PLACE.0.get()).assume_init_ref() }
}

#[cold]
fn attach() -> Result<&'static Engine> {
    let environment = environment::get().ok_or(Errno::NETDOWN)?;
    if ATTACHED.load(Ordering::Acquire) {
        // Not announced: the thread may take itself for its parent's.
        thread::check();
    }
    let unseen = {
        // Held by the own thread: a signal handler, or the allocator, in the middle of attaching.
        let _guard = lock::take(LOCK, Rank::Control).ok_or(Errno::NETDOWN)?;
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
    if unseen {
        rights::forked();
        {
            let _lock = internal::lock();
            sets::count_processes(1);
        }
        poll::forked(engine);
        sets::forked();
    }
    Ok(engine)
}

/// `parent`: whose sockets this process has without the engine knowing.
fn attach_locked(environment: &Environment, parent: Option<u32>) -> Result<()> {
    let engine = attach_now(environment, parent)?;
    refs::count_again(engine);
    if table::all().any(|(_, entry)| matches!(entry, Entry::Socket(_))) {
        hold_exactly(engine, parent.is_some())?;
    }
    Ok(())
}

/// Lets the kernel clear [`OWN`] in the child of every fork. A kernel that cannot (before Linux 4.14) leaves it as it is, and [`Engine::forked`] clears it in those that
/// the shim sees.
fn clear_in_children() {
    // SAFETY: a page of its own, in the part of the library's data that no file backs.
    let _ = unsafe {
        rustix::mm::madvise(
            (&raw const OWN).cast_mut().cast(),
            size_of::<Own>(),
            rustix::mm::Advice::LinuxWipeOnFork,
        )
    };
}

fn attach_now(environment: &Environment, parent: Option<u32>) -> Result<&'static Engine> {
    // What the parent has asked for serves once.
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

/// Who is at the other end of a connection, past our own hooks.
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
            // It can use none of its sockets, so none stays open for it.
            let _ = Request::new(Kind::Holds, [0; 16], [0; 4]).call(control, &[]);
            return Err(errno);
        }
        clear_in_children();
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

/// Maps the region, the first time. A child of a fork has it already, and the doorbells with it.
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
    refs::make(geometry.slots)?;
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

/// Says once why the program's sockets do not work. Straight to the standard error: the library must not go through what it stands in for.
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

/// Says something on the standard error, as far as a line has room.
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

/// Tells the engine what this process holds after an exec, or, if `more`, what it has of a parent that the engine knows it by. The lock is held.
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

/// Sockets as the payload of [`Kind::Holds`], as many as fit in one packet; beyond that they are let go.
pub struct Held {
    words: Scratch<u64>,
    len: usize,
}

impl Held {
    /// None.
    pub fn new() -> Result<Held> {
        Ok(Held {
            words: Scratch::new((protocol::PACKET_MAX - size_of::<Request>()) / 8)?,
            len: 0,
        })
    }

    /// One more.
    pub fn push(&mut self, slot: SlotRef) {
        if let Some(word) = self.words.get_mut(self.len) {
            *word = slot.to_bits();
            self.len += 1;
        }
    }

    /// As they are sent.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: integers, read as the bytes they are.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len * 8) }
    }
}

impl Engine {
    /// The context that a thread of this number uses to speak to a shard.
    pub fn context(&self, thread: u32, shard: u32) -> u32 {
        let contexts = self.contexts.load(Ordering::Relaxed);
        self.first_context.load(Ordering::Relaxed)
            + thread % contexts * self.region.geometry().shards
            + shard
    }

    /// The shard for a new socket of the thread of this number: the threads and processes of a program spread over all that serve.
    pub fn shard_for(&self, thread: u32) -> u32 {
        let process = self.process.load(Ordering::Relaxed);
        let serving = self.region.header().serving.0.load(Ordering::Relaxed);
        process.wrapping_add(thread) % serving.clamp(1, self.region.geometry().shards)
    }

    /// Contexts of this process for each shard.
    pub fn contexts(&self) -> u32 {
        self.contexts.load(Ordering::Relaxed)
    }

    /// Wakes a shard.
    pub fn ring(&self, shard: u32) {
        if let Some(doorbell) = self.doorbells.get(shard as usize) {
            sys::ring(Handle::from_bits(doorbell.load(Ordering::Relaxed)).fd());
        }
    }

    /// How a shard sleeps that has just been asked for something: AWAKE, ASLEEP or NAPPING.
    pub fn sleep_of(&self, shard: u32) -> u32 {
        let lines = &self.region.header().sleeping;
        lines.get(shard as usize).map_or(AWAKE, Line::wakefulness)
    }

    /// The control socket, for those who wait and want to know when the engine ends; -1 without one.
    pub fn control_fd(&self) -> i32 {
        self.control
            .load(Ordering::Acquire)
            .checked_sub(1)
            .map_or(-1, |bits| Handle::from_bits(bits).fd())
    }

    /// Asks the engine for something on the control socket.
    pub fn call(&self, request: &Request, payload: &[u8]) -> Result<([u64; 8], Descriptors)> {
        let _guard = lock::take(LOCK, Rank::Control).ok_or(Errno::AGAIN)?;
        self.call_locked(request, payload)
    }

    /// The same with [`LOCK`] held already.
    pub fn call_locked(
        &self,
        request: &Request,
        payload: &[u8],
    ) -> Result<([u64; 8], Descriptors)> {
        self.call_locked_with(request, payload, &[])
    }

    /// The same with descriptors.
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

    /// Tells the engine something that has no answer.
    pub fn tell(&self, request: &Request) {
        self.tell_with(request, None);
    }

    /// The same with a descriptor.
    pub fn tell_with(&self, request: &Request, descriptor: Option<BorrowedFd<'_>>) {
        let Some(_guard) = lock::take(LOCK, Rank::Control) else {
            return;
        };
        let fd = self.control_fd();
        if fd >= 0 {
            // SAFETY: as in `call_locked`.
            let control = unsafe { BorrowedFd::borrow_raw(fd) };
            // An engine that is gone is noticed by whoever waits.
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

    /// It has ended: so it is told to whoever sleeps for it, as the kernel wakes one alone.
    pub fn note_over(&self) {
        if !self.lost.swap(true, Ordering::Relaxed) {
            millrace_context::futex::wake(&self.region.header().life.0, i32::MAX as u32);
        }
    }

    /// Looks whether the engine still is there.
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

    /// In the child of a fork: what the parent had is not ours to use. The mapping stays. `unknown`: it has something of its parent's, which the engine has not been told; it
    /// makes itself known as a child does that the shim did not see.
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
