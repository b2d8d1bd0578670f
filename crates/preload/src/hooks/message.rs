//! Hooks of sendmsg, recvmsg, sendmmsg and recvmmsg.

use std::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, ssize_t, timespec};
use millrace_context::SlotRef;
use rustix::io::Errno;

use super::socket::{decide_for, is_kernels, opens_fast, to_open_fast};
use super::{hooks, length};
use crate::fd::scm_rights;
use crate::fd::table::{self, Entry};
use crate::interfaces::netlink;
use crate::socket::stack_choice::{Decision, Purpose};
use crate::socket::{Socket, deadline};
use crate::socket::{connect, datagram, receive, send};
use crate::sys::original;
use crate::sys::user_buffers::{self, UserBuffers};
use crate::sys::{self, Result};

/// The most messages of one call, as in Linux.
const MESSAGES_MAX: usize = 1024;

hooks! {
    /// Sends a message.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Internal => length(Err(Errno::BADF)),
            entry if opens_fast(fd, entry, flags) => match open_fast(fd, entry, message, flags) {
                Ok(None) => original::sendmsg(fd, message, flags),
                Ok(Some(sent)) => length(Ok(sent)),
                Err(errno) => length(Err(errno)),
            },
            Entry::Socket(slot) if names_kernels(fd, slot, message) => {
                original::sendmsg(fd, message, flags)
            }
            Entry::Socket(slot) => length(Socket::get(fd, slot).and_then(|socket| {
                let message = read(message)?;
                send_one(&socket, &message, flags)
            })),
            entry @ Entry::Undecided(undecided) if undecided.datagrams => {
                match decide_by(fd, entry, message) {
                    Ok(Some(socket)) => {
                        length(read(message).and_then(|message| send_one(&socket, &message, flags)))
                    }
                    Ok(None) => original::sendmsg(fd, message, flags),
                    Err(errno) => length(Err(errno)),
                }
            }
            Entry::Netlink(_) => {
                netlink::note_message(fd, message);
                original::sendmsg(fd, message, flags)
            }
            _ => send_kernels(fd, message, flags),
        }
    }

    /// Sends messages.
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let socket = match table::get(fd) {
            entry if count > 0 && opens_fast(fd, entry, flags) => {
                // Each message may ask to connect; the first one decides which stack serves the
                // socket.
                return match open_fast(fd, entry, messages.cast(), flags) {
                    Ok(None) => original::sendmmsg(fd, messages, count, flags),
                    Ok(Some(sent)) => {
                        (*messages).msg_len = sent as c_uint;
                        let rest = sendmmsg(fd, messages.add(1), count - 1, flags);
                        1 + rest.max(0)
                    }
                    Err(errno) => length(Err(errno)) as c_int,
                };
            }
            Entry::Socket(slot) if count > 0 && names_kernels(fd, slot, messages.cast()) => {
                return original::sendmmsg(fd, messages, count, flags);
            }
            Entry::Socket(slot) => Socket::get(fd, slot),
            entry @ Entry::Undecided(undecided) if undecided.datagrams && count > 0 => {
                match decide_by(fd, entry, messages.cast()) {
                    Ok(Some(socket)) => Ok(socket),
                    Ok(None) => return original::sendmmsg(fd, messages, count, flags),
                    Err(errno) => Err(errno),
                }
            }
            _ => return send_all_kernels(fd, messages, count, flags),
        };
        length(socket.and_then(|socket| {
            each(messages, count, |entry| {
                entry.msg_len = send_one(&socket, &entry.msg_hdr, flags)? as c_uint;
                Ok(true)
            })
        })) as c_int
    }

    /// Receives a message.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length(Socket::get(fd, slot).and_then(|socket| {
                user_buffers::check(message.cast(), size_of::<msghdr>())?;
                receive_one(&socket, &mut *message, flags)
            })),
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(asked) => match netlink::receive(fd, asked, message, flags) {
                Some(result) => length(result),
                None => original::recvmsg(fd, message, flags),
            },
            _ => {
                let received = original::recvmsg(fd, message, flags);
                if received >= 0 && has_control(message) {
                    scm_rights::received(&*message, flags);
                }
                received
            }
        }
    }

    /// Receives messages.
    fn recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int {
        let Entry::Socket(slot) = table::get(fd) else {
            let received = original::recvmmsg(fd, messages, count, flags, timeout);
            for at in 0..received.max(0) as usize {
                let message = &raw const (*messages.add(at)).msg_hdr;
                if has_control(message) {
                    scm_rights::received(&*message, flags);
                }
            }
            return received;
        };
        length(Socket::get(fd, slot).and_then(|socket| {
            let until = if timeout.is_null() {
                None
            } else {
                user_buffers::check(timeout.cast(), size_of::<timespec>())?;
                deadline((*timeout).tv_sec as u64 * 1_000_000 + (*timeout).tv_nsec as u64 / 1000)
            };
            let mut flags = flags;
            each(messages, count, |entry| {
                let one = flags & !libc::MSG_WAITFORONE;
                entry.msg_len = receive_one(&socket, &mut entry.msg_hdr, one)? as c_uint;
                if flags & libc::MSG_WAITFORONE != 0 {
                    flags |= libc::MSG_DONTWAIT;
                }
                // As on Linux, the time is checked only after each message.
                Ok(until.is_none_or(|until| sys::now_us() < until))
            })
        })) as c_int
    }
}

hooks! {
    /// Takes a descriptor out of another process.
    fn pidfd_getfd(process: c_int, fd: c_int, flags: c_uint) -> c_int {
        if table::get(process) == Entry::Internal {
            return super::fail(Errno::BADF);
        }
        let words = [libc::SYS_pidfd_getfd, process.into(), fd.into(), flags.into(), 0, 0, 0];
        match sys::raw(words) as c_int {
            taken @ 0.. => super::number(scm_rights::taken(taken)),
            failed => failed,
        }
    }
}

/// Whether a message that the kernel has received has control data. Most have none.
///
/// # Safety
/// The kernel has filled the message.
unsafe fn has_control(message: *const msghdr) -> bool {
    // SAFETY: the caller's promise.
    unsafe { (*message).msg_controllen > 0 && !(*message).msg_control.is_null() }
}

/// Sends a message on a kernel descriptor; its control data may have millrace sockets.
///
/// # Safety
/// The message is valid for sendmsg.
unsafe fn send_kernels(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        let Ok(original) = read(message) else {
            return original::sendmsg(fd, message, flags);
        };
        match scm_rights::substitute(&original) {
            Ok(None) => original::sendmsg(fd, message, flags),
            Ok(Some(mut substituted)) => {
                original::sendmsg(fd, &substituted.message(&original), flags)
            }
            Err(errno) => length(Err(errno)),
        }
    }
}

/// Sends messages on a kernel descriptor, one by one if one of them has control data.
///
/// # Safety
/// There are `count` messages, valid for sendmsg.
unsafe fn send_all_kernels(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let len = (count as usize).min(MESSAGES_MAX);
    let good = user_buffers::check(messages.cast(), len * size_of::<mmsghdr>()).is_ok();
    // SAFETY: the caller's promise.
    unsafe {
        if !good || !(0..len).any(|at| has_control(&raw const (*messages.add(at)).msg_hdr)) {
            return original::sendmmsg(fd, messages, count, flags);
        }
        length(each(messages, count, |entry| {
            match send_kernels(fd, &raw const entry.msg_hdr, flags) {
                sent @ 0.. => {
                    entry.msg_len = sent as c_uint;
                    Ok(true)
                }
                _ => Err(sys::last_errno()),
            }
        })) as c_int
    }
}

/// Connects and sends a message in one call (MSG_FASTOPEN). `None`: the socket is the kernel's.
///
/// # Safety
/// The message is valid for sendmsg.
unsafe fn open_fast(
    fd: c_int,
    entry: Entry,
    message: *const msghdr,
    flags: c_int,
) -> Result<Option<usize>> {
    // SAFETY: the caller's promise.
    let message = unsafe { read(message) }?;
    let to = message.msg_name.cast_const().cast();
    // SAFETY: likewise.
    let target = unsafe { to_open_fast(fd, entry, to, message.msg_namelen) }?;
    let Some((socket, ip, port)) = target else {
        return Ok(None);
    };
    // SAFETY: likewise.
    let pieces =
        unsafe { UserBuffers::vector(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) };
    connect::send_fast(&socket, ip, port, &mut pieces?, flags).map(Some)
}

/// Whether a message on a millrace datagram socket has handed the socket over to the kernel,
/// because its address is only the kernel's.
///
/// # Safety
/// The message is valid for sendmsg.
unsafe fn names_kernels(fd: c_int, slot: SlotRef, message: *const msghdr) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        read(message)
            .is_ok_and(|message| is_kernels(fd, slot, message.msg_name.cast(), message.msg_namelen))
    }
}

/// Chooses the stack by the destination of the first message. `None`: the kernel, or the kernel
/// reports the error.
///
/// # Safety
/// The message is valid for sendmsg.
unsafe fn decide_by(fd: c_int, entry: Entry, message: *const msghdr) -> Result<Option<Socket>> {
    // SAFETY: the caller's promise.
    let Ok(message) = (unsafe { read(message) }) else {
        return Ok(None);
    };
    if message.msg_name.is_null() {
        return Ok(None);
    }
    let (name, len) = (message.msg_name.cast(), message.msg_namelen);
    // SAFETY: likewise.
    match unsafe { decide_for(fd, entry, name, len, Purpose::Send) }? {
        Decision::Ours(socket, ..) => Ok(Some(socket)),
        Decision::Kernel => Ok(None),
    }
}

/// # Safety
/// The message is good as sendmsg wants it.
unsafe fn read(message: *const msghdr) -> Result<msghdr> {
    user_buffers::check(message.cast(), size_of::<msghdr>())?;
    // SAFETY: the caller's promise.
    Ok(unsafe { *message })
}

/// # Safety
/// The message's vector is good.
unsafe fn send_one(socket: &Socket, message: &msghdr, flags: c_int) -> Result<usize> {
    if socket.is_datagrams() {
        // SAFETY: the caller's promise.
        return unsafe { datagram::send::send_message(socket, message, flags) };
    }
    // SAFETY: the caller's promise.
    let mut pieces =
        unsafe { UserBuffers::vector(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) }?;
    send::send(socket, &mut pieces, flags)
}

/// # Safety
/// The message's vector is good.
unsafe fn receive_one(socket: &Socket, message: &mut msghdr, flags: c_int) -> Result<usize> {
    if socket.is_datagrams() {
        // SAFETY: the caller's promise.
        return unsafe { datagram::receive::receive_message(socket, message, flags) };
    }
    // SAFETY: the caller's promise.
    let mut pieces =
        unsafe { UserBuffers::vector(message.msg_iov, message.msg_iovlen, Errno::MSGSIZE) }?;
    let received = receive::receive(socket, &mut pieces, flags)?;
    message.msg_namelen = 0;
    message.msg_controllen = 0;
    message.msg_flags = flags & libc::MSG_OOB;
    Ok(received)
}

/// Handles messages until one fails or `handle` says that it is enough. Returns how many succeeded,
/// or the error of the first one.
///
/// # Safety
/// There are `count` messages.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    mut handle: impl FnMut(&mut mmsghdr) -> Result<bool>,
) -> Result<usize> {
    let count = (count as usize).min(MESSAGES_MAX);
    user_buffers::check(messages.cast(), count * size_of::<mmsghdr>())?;
    for done in 0..count {
        // SAFETY: the caller's promise.
        match handle(unsafe { &mut *messages.add(done) }) {
            Ok(true) => {}
            Ok(false) => return Ok(done + 1),
            Err(errno) if done == 0 => return Err(errno),
            Err(_) => return Ok(done),
        }
    }
    Ok(count)
}
