//! Closing and duplicating descriptors, and `fcntl` and `ioctl` on millrace sockets.

use std::ffi::{c_int, c_long, c_uint};
use std::sync::atomic::Ordering;

use millrace_context::submission::Query;
use millrace_context::{SlotRef, Status};
use rustix::io::Errno;

use crate::fd::table::{self, Entry, Undecided};
use crate::fd::{internal, refcount};
use crate::hooks::stdio;
use crate::readiness::bits;
use crate::readiness::epoll_sets;
use crate::readiness::epoll_sets::Hold;
use crate::readiness::sleep::Call;
use crate::socket::recall::Recalls;
use crate::socket::{Socket, deadline, flag};
use crate::socket::{connect, datagram, options, urgent};
use crate::sys::original;
use crate::sys::{self, Result};

/// The meaning of a descriptor, held while the kernel duplicates the descriptor.
enum Original {
    Socket(Socket),
    Set(Hold),
    Undecided(Undecided),
    Kernel,
}

impl Original {
    /// `BADF`: the descriptor is not open, or has just been closed.
    fn of(fd: c_int) -> Result<Original> {
        match table::get(fd) {
            Entry::Socket(slot) => Socket::get(fd, slot).map(Original::Socket),
            Entry::Epoll(_) => epoll_sets::hold_descriptor(fd)
                .map(Original::Set)
                .ok_or(Errno::BADF),
            Entry::Undecided(undecided) => Ok(Original::Undecided(undecided)),
            Entry::Kernel | Entry::Netlink(_) => Ok(Original::Kernel),
            Entry::Internal => Err(Errno::BADF),
        }
    }

    /// The kernel has made `to` a duplicate of `from`. The table says so too, and `to` takes over
    /// the reference that the call held.
    fn give_to(self, from: c_int, to: c_int) {
        // A number beyond the table means only what the kernel says.
        if !table::holds(to) {
            return;
        }
        match self {
            Original::Socket(socket) => {
                let slot = socket.reference;
                std::mem::forget(socket);
                table::set(to, Entry::Socket(slot));
            }
            Original::Set(held) => {
                let index = held.index();
                std::mem::forget(held);
                table::set(to, Entry::Epoll(index));
            }
            Original::Undecided(undecided) => {
                let shared = Entry::Undecided(Undecided {
                    shared: true,
                    ..undecided
                });
                table::exchange(from, Entry::Undecided(undecided), shared);
                table::set(to, shared);
            }
            Original::Kernel => {}
        }
    }

    /// Gives the number `to` this meaning; `make` makes the kernel's duplicate. The number always
    /// has a meaning: a millrace socket is reached by the table, so it exists from the change of
    /// the table on, and the former one until then.
    fn replace(self, from: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
        let is_set = |entry| matches!(entry, Entry::Epoll(_));
        let _numbers = (matches!(self, Original::Set(_)) || is_set(table::get(to)))
            .then(epoll_sets::numbers)
            .flatten();
        let entry = match &self {
            _ if !table::holds(to) => return make(),
            Original::Socket(socket) => Entry::Socket(socket.reference),
            Original::Set(held) => Entry::Epoll(held.index()),
            Original::Undecided(_) | Original::Kernel => {
                let result = make();
                if result >= 0 {
                    let before = table::replace(to, Entry::Kernel);
                    self.give_to(from, to);
                    let_go(to, before);
                }
                return result;
            }
        };
        let before = table::replace(to, entry);
        let result = make();
        if result < 0 && table::exchange(to, entry, before) {
            return result;
        }
        // The number takes over the reference that the call held.
        std::mem::forget(self);
        let_go(to, before);
        result
    }
}

/// A descriptor number of the program loses its meaning: the socket or set behind it has one
/// descriptor fewer. The caller closes the kernel's descriptor.
pub fn let_go(fd: c_int, entry: Entry) {
    match entry {
        Entry::Socket(slot) => {
            // The call's own reference keeps the slot while the descriptor's is given up. The last
            // reference to be dropped closes the socket.
            let _socket = Socket::of(slot);
            refcount::fewer(slot.index);
        }
        Entry::Epoll(index) => epoll_sets::release(index),
        Entry::Undecided(_) => epoll_sets::forget_undecided(fd),
        Entry::Kernel | Entry::Internal | Entry::Netlink(_) => {}
    }
}

/// Closes a descriptor, as `close` does.
pub fn close(fd: c_int) -> Result<()> {
    let entry = table::get(fd);
    if entry == Entry::Internal {
        return Err(Errno::BADF);
    }
    if let Entry::Socket(slot) = entry {
        linger(fd, slot);
    }
    let _numbers = matches!(entry, Entry::Epoll(_)).then(epoll_sets::numbers);
    // The table changes first: once the kernel has closed the number, another thread may get it.
    let entry = table::replace(fd, Entry::Kernel);
    if let Entry::Undecided(_) = entry {
        let_go(fd, entry);
    }
    // SAFETY: the program closes its descriptor.
    let result = match unsafe { original::close(fd) } {
        0 => Ok(()),
        _ => Err(sys::last_errno()),
    };
    // The kernel closes the number soon after the table has changed. Telling the engine takes
    // longer, so it comes last.
    if !matches!(entry, Entry::Undecided(_)) {
        let_go(fd, entry);
    }
    result
}

/// SO_LINGER with a time: the last close waits until the peer has acknowledged all data and the
/// FIN.
fn linger(fd: c_int, slot: SlotRef) {
    let Ok(socket) = Socket::get(fd, slot) else {
        return;
    };
    let seconds = options::linger(&socket);
    let alone = refcount::count(slot.index) == 2 && !socket.has(flag::SHARED);
    if seconds == 0 || !alone || !socket.status().contains(Status::CONNECTED) {
        return;
    }
    // A connection that has ended has nothing to wait for.
    if connect::shutdown(&socket, libc::SHUT_WR).is_err() {
        return;
    }
    let until = deadline(u64::from(seconds) * 1_000_000);
    let call = Call::begin();
    loop {
        let sequence = socket.sequence();
        let sent = socket.slot.app.queued.load(Ordering::Relaxed)
            == socket.slot.engine.acked.load(Ordering::Acquire);
        if sent || socket.status().contains(Status::DEAD) {
            return;
        }
        // A signal or the end of the time ends the wait, not the connection.
        if socket.wait(call, sequence, until).is_err() {
            return;
        }
    }
}

/// Closes a range of descriptors, as `close_range` and `closefrom` do. It leaves out the shim's own
/// descriptors.
pub fn close_range(first: c_uint, last: c_uint, flags: c_int) -> Result<()> {
    if first > last {
        return Err(Errno::INVAL);
    }
    let kernel = |first: c_uint, last: c_uint| {
        // SAFETY: the program closes its descriptors.
        let result = unsafe { original::close_range(first, last, flags) };
        if result == 0 {
            Ok(())
        } else {
            Err(sys::last_errno())
        }
    };
    const CLOSE_RANGE_CLOEXEC: c_int = 4;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        return kernel(first, last);
    }
    let _numbers = epoll_sets::numbers();
    let mut from = first;
    for (fd, entry) in table::entries(first, last) {
        if entry == Entry::Internal {
            if from < fd as c_uint {
                kernel(from, fd as c_uint - 1)?;
            }
            from = fd as c_uint + 1;
        } else {
            let entry = table::replace(fd, Entry::Kernel);
            let_go(fd, entry);
        }
    }
    if from <= last {
        kernel(from, last)?;
    }
    Ok(())
}

/// Duplicates a descriptor, as `dup` and `fcntl` do; `make` makes the kernel's duplicate.
pub fn duplicate(fd: c_int, make: impl FnOnce() -> c_int) -> c_int {
    let original = match Original::of(fd) {
        Ok(original) => original,
        Err(errno) => {
            sys::set_errno(errno);
            return -1;
        }
    };
    let to = make();
    if to >= 0 {
        original.give_to(fd, to);
    }
    to
}

/// Duplicates a descriptor to a given number, as `dup2` and `dup3` do; `make` makes the kernel's
/// duplicate.
pub fn duplicate_to(from: c_int, to: c_int, make: impl FnOnce() -> c_int) -> c_int {
    let fail = |errno| {
        sys::set_errno(errno);
        -1
    };
    let original = match Original::of(from) {
        Ok(original) => original,
        Err(errno) => return fail(errno),
    };
    if from == to {
        return make();
    }
    if table::get(to) == Entry::Internal
        && let Err(errno) = internal::vacate(to)
    {
        return fail(errno);
    }
    // If `from` is not open, the kernel's call fails and everything stays as it was.
    if sys::fcntl(from, libc::F_GETFD, 0).is_err() {
        return make();
    }
    if matches!(original, Original::Socket(_)) {
        // Bytes that a standard stream has buffered still go to the old descriptor.
        stdio::stand_in(to);
    }
    original.replace(from, to, make)
}

/// Answers `fcntl` on a millrace socket. `None`: the kernel's answer is right for it.
pub fn control(
    fd: c_int,
    slot: SlotRef,
    command: c_int,
    argument: c_long,
) -> Option<Result<c_int>> {
    match command {
        libc::F_GETFL => Some(Socket::get(fd, slot).map(|socket| {
            let nonblocking = socket.has(flag::NONBLOCK);
            libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 }
        })),
        libc::F_SETFL => Some(Socket::get(fd, slot).and_then(|socket| {
            let flags = argument as c_int;
            if flags & (libc::O_ASYNC | libc::O_DIRECT) != 0 {
                return Err(Errno::INVAL);
            }
            set_nonblocking(&socket, flags & libc::O_NONBLOCK != 0);
            Ok(0)
        })),
        _ => None,
    }
}

fn set_nonblocking(socket: &Socket, on: bool) {
    if on {
        socket.change_flags(flag::NONBLOCK, 0);
    } else {
        socket.change_flags(0, flag::NONBLOCK);
    }
}

const SIOCOUTQNSD: u64 = 0x894b;
const SIOCATMARK: u64 = 0x8905;

/// Answers `ioctl` on a millrace socket. `None`: the kernel's answer is right for it, as for
/// requests about interfaces.
///
/// # Safety
/// The argument is valid for the request.
pub unsafe fn device_control(
    fd: c_int,
    slot: SlotRef,
    request: u64,
    argument: *mut c_int,
) -> Option<Result<c_int>> {
    let number = |socket: Socket| -> Result<c_int> {
        let waiting = || {
            let received = socket.slot.engine.received.load(Ordering::Acquire);
            let consumed = socket.slot.app.consumed.load(Ordering::Acquire);
            let limit = urgent::limit(&socket, received);
            limit.saturating_sub(consumed).min(c_int::MAX as u64) as c_int
        };
        let listening = socket.status().contains(Status::LISTENING);
        Recalls::for_bits(bits::IN).recall(&socket)?;
        match request {
            libc::FIONREAD if socket.is_datagrams() => datagram::receive::next_len(&socket),
            SIOCOUTQNSD | SIOCATMARK if socket.is_datagrams() => Err(Errno::NOTTY),
            libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD if listening => Err(Errno::INVAL),
            libc::FIONREAD => Ok(waiting()),
            libc::TIOCOUTQ => {
                let queued = socket.slot.app.queued.load(Ordering::Acquire);
                let acked = socket.slot.engine.acked.load(Ordering::Acquire);
                Ok(queued.saturating_sub(acked).min(c_int::MAX as u64) as c_int)
            }
            SIOCOUTQNSD => options::ask_number(&socket, Query::OutQueueUnsent as u32),
            _ => {
                let received = socket.slot.engine.received.load(Ordering::Acquire);
                Ok(urgent::state(&socket, received)
                    .is_some_and(|urgent| urgent.here)
                    .into())
            }
        }
    };
    match request {
        libc::FIONBIO => Some(Socket::get(fd, slot).and_then(|socket| {
            crate::sys::user_buffers::check(argument.cast(), size_of::<c_int>())?;
            // SAFETY: the caller's promise.
            set_nonblocking(&socket, unsafe { *argument } != 0);
            Ok(0)
        })),
        libc::FIOASYNC => Some(Err(Errno::NOTTY)),
        libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK => {
            Some(Socket::get(fd, slot).and_then(number).and_then(|value| {
                crate::sys::user_buffers::check(argument.cast(), size_of::<c_int>())?;
                // SAFETY: the caller's promise.
                unsafe { *argument = value };
                Ok(0)
            }))
        }
        _ => None,
    }
}
