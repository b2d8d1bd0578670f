//! Hooks of reading and writing.

use std::ffi::{c_int, c_uint, c_void};

use libc::{iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use millrace_context::SlotRef;
use rustix::io::Errno;

use super::socket::{decide_for, is_kernels};
use super::{check_buffer, hooks, length};
use crate::fd::table::{self, Asked, Entry};
use crate::interfaces::netlink;
use crate::socket::Socket;
use crate::socket::datagram::send::To;
use crate::socket::send::File;
use crate::socket::stack_choice::{Decision, Purpose};
use crate::socket::{connect, datagram, receive, send};
use crate::sys::Result;
use crate::sys::original;
use crate::sys::user_buffers::{self, CALL_MAX, UserBuffers};

/// Receives into the program's buffers.
fn take(fd: c_int, slot: SlotRef, pieces: Result<UserBuffers>, flags: c_int) -> Result<usize> {
    let socket = Socket::get(fd, slot)?;
    if socket.is_datagrams() {
        if flags & libc::MSG_ERRQUEUE != 0 {
            return datagram::receive::receive_failure(&socket, &mut pieces?);
        }
        return datagram::receive::receive(&socket, &mut pieces?, flags)
            .map(|received| received.len);
    }
    receive::receive(&socket, &mut pieces?, flags)
}

/// Sends the program's buffers.
fn give(fd: c_int, slot: SlotRef, pieces: Result<UserBuffers>, flags: c_int) -> Result<usize> {
    let socket = Socket::get(fd, slot)?;
    if socket.is_datagrams() {
        let asked = Default::default();
        return datagram::send::send(&socket, &mut pieces?, To::Peer, &asked, flags);
    }
    send::send(&socket, &mut pieces?, flags)
}

/// For callers that do not ask for the sender's address.
const NOWHERE: (*mut sockaddr, *mut socklen_t) = (std::ptr::null_mut(), std::ptr::null_mut());

/// Receives on a netlink socket.
///
/// # Safety
/// As recvfrom.
unsafe fn take_netlink(
    fd: c_int,
    asked: Asked,
    (buffer, len): (*mut c_void, size_t),
    flags: c_int,
    (from, from_len): (*mut sockaddr, *mut socklen_t),
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe {
        match netlink::receive_from(fd, asked, (buffer, len), flags, (from, from_len)) {
            Some(result) => length(result),
            None => original::recvfrom(fd, buffer, len, flags, from, from_len),
        }
    }
}

hooks! {
    /// Reads.
    fn read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t where settled(fd) {
        match table::get(fd) {
            // A read of no bytes returns 0, whatever the socket's state.
            Entry::Socket(_) if len == 0 => 0,
            Entry::Socket(slot) => length(take(fd, slot, UserBuffers::buffer(buffer, len), 0)),
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(asked) => take_netlink(fd, asked, (buffer, len), 0, NOWHERE),
            _ => original::read(fd, buffer, len),
        }
    }

    /// An alias of the function above.
    fn __read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t {
        read(fd, buffer, len)
    }

    /// The fortified form of the function above, which checks the buffer's size.
    fn __read_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t) -> ssize_t {
        check_buffer(len, room);
        read(fd, buffer, len)
    }

    /// Reads into a vector.
    fn readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length((|| {
                let pieces = UserBuffers::vector(vector, entries(count)?, Errno::INVAL)?;
                if pieces.left() == 0 {
                    return Ok(0);
                }
                take(fd, slot, Ok(pieces), 0)
            })()),
            Entry::Internal => length(Err(Errno::BADF)),
            _ => original::readv(fd, vector, count),
        }
    }

    /// Writes.
    fn write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length(give(fd, slot, UserBuffers::buffer(buffer, len), 0)),
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(_) => {
                netlink::note_buffer(fd, buffer, len);
                original::write(fd, buffer, len)
            }
            _ => original::write(fd, buffer, len),
        }
    }

    /// An alias of the function above.
    fn __write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t {
        write(fd, buffer, len)
    }

    /// Writes a vector.
    fn writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length((|| {
                let pieces = UserBuffers::vector(vector, entries(count)?, Errno::INVAL);
                give(fd, slot, pieces, 0)
            })()),
            Entry::Internal => length(Err(Errno::BADF)),
            _ => original::writev(fd, vector, count),
        }
    }

    /// Sends.
    fn send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length(give(fd, slot, UserBuffers::buffer(buffer, len), flags)),
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(_) => {
                netlink::note_buffer(fd, buffer, len);
                original::send(fd, buffer, len, flags)
            }
            _ => original::send(fd, buffer, len, flags),
        }
    }

    /// An alias of the function above.
    fn __send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        send(fd, buffer, len, flags)
    }

    /// Sends to an address. A connection ignores the address, as on Linux.
    fn sendto(
        fd: c_int,
        buffer: *const c_void,
        len: size_t,
        flags: c_int,
        to: *const sockaddr,
        to_len: socklen_t,
    ) -> ssize_t where settled(fd) {
        match table::get(fd) {
            entry if super::socket::opens_fast(fd, entry, flags) => {
                match super::socket::to_open_fast(fd, entry, to, to_len) {
                    Ok(None) => original::sendto(fd, buffer, len, flags, to, to_len),
                    Ok(Some((socket, ip, port))) => {
                        let sent = UserBuffers::buffer(buffer, len).and_then(|mut pieces| {
                            connect::send_fast(&socket, ip, port, &mut pieces, flags)
                        });
                        length(sent)
                    }
                    Err(errno) => length(Err(errno)),
                }
            }
            Entry::Socket(slot) if is_kernels(fd, slot, to, to_len) => {
                original::sendto(fd, buffer, len, flags, to, to_len)
            }
            Entry::Socket(slot) => length(Socket::get(fd, slot).and_then(|socket| {
                let mut pieces = UserBuffers::buffer(buffer, len)?;
                if socket.is_datagrams() {
                    return send_there(&socket, &mut pieces, flags, to, to_len);
                }
                send::send(&socket, &mut pieces, flags)
            })),
            entry @ Entry::Undecided(undecided) if undecided.datagrams && !to.is_null() => {
                match decide_for(fd, entry, to, to_len, Purpose::Send) {
                    Ok(Decision::Ours(socket, ..)) => length(
                        UserBuffers::buffer(buffer, len)
                            .and_then(|mut pieces| send_there(&socket, &mut pieces, flags, to, to_len)),
                    ),
                    Ok(Decision::Kernel) => original::sendto(fd, buffer, len, flags, to, to_len),
                    Err(errno) => length(Err(errno)),
                }
            }
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(_) => {
                netlink::note_buffer(fd, buffer, len);
                original::sendto(fd, buffer, len, flags, to, to_len)
            }
            _ => original::sendto(fd, buffer, len, flags, to, to_len),
        }
    }

    /// Receives.
    fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => length(take(fd, slot, UserBuffers::buffer(buffer, len), flags)),
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(asked) => take_netlink(fd, asked, (buffer, len), flags, NOWHERE),
            _ => original::recv(fd, buffer, len, flags),
        }
    }

    /// The fortified form of the function above, which checks the buffer's size.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, len: size_t, room: size_t, flags: c_int) -> ssize_t {
        check_buffer(len, room);
        recv(fd, buffer, len, flags)
    }

    /// Receives with the sender's address. A connection returns no address, as on Linux.
    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> ssize_t where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => {
                if let Ok(socket) = Socket::get(fd, slot)
                    && socket.is_datagrams()
                    && flags & libc::MSG_ERRQUEUE == 0
                {
                    return length(UserBuffers::buffer(buffer, len).and_then(|mut pieces| {
                        let received = datagram::receive::receive(&socket, &mut pieces, flags)?;
                        datagram::receive::write_sender(&socket, &received, from, from_len)?;
                        Ok(received.len)
                    }));
                }
                let result = take(fd, slot, UserBuffers::buffer(buffer, len), flags);
                if result.is_ok() && !from.is_null() && user_buffers::check(from_len.cast(), 4).is_ok() {
                    *from_len = 0;
                }
                length(result)
            }
            Entry::Internal => length(Err(Errno::BADF)),
            Entry::Netlink(asked) => take_netlink(fd, asked, (buffer, len), flags, (from, from_len)),
            _ => original::recvfrom(fd, buffer, len, flags, from, from_len),
        }
    }

    /// The fortified form of the function above, which checks the buffer's size.
    fn __recvfrom_chk(
        fd: c_int,
        buffer: *mut c_void,
        len: size_t,
        room: size_t,
        flags: c_int,
        from: *mut sockaddr,
        from_len: *mut socklen_t,
    ) -> ssize_t {
        check_buffer(len, room);
        recvfrom(fd, buffer, len, flags, from, from_len)
    }

    /// Sends a file: read straight into the staging ring.
    fn sendfile(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        if table::is_kernel(out) && table::is_kernel(from) {
            return original::sendfile(out, from, offset, count);
        }
        match (table::get(out), table::get(from)) {
            // The source must be a file.
            (_, Entry::Socket(_) | Entry::Internal) => length(Err(Errno::INVAL)),
            (Entry::Socket(slot), _) => length((|| {
                let socket = Socket::get(out, slot)?;
                if !offset.is_null() {
                    user_buffers::check(offset.cast(), size_of::<off_t>())?;
                }
                let start = (!offset.is_null()).then(|| *offset);
                if start.is_some_and(|start| start < 0) {
                    return Err(Errno::INVAL);
                }
                if socket.is_datagrams() {
                    return Err(Errno::INVAL);
                }
                let mut file = File {
                    fd: from,
                    offset: start,
                    left: count.min(CALL_MAX),
                };
                let sent = send::send(&socket, &mut file, 0)?;
                if let Some(start) = start {
                    *offset = start + sent as off_t;
                }
                Ok(sent)
            })()),
            (Entry::Internal, _) => length(Err(Errno::BADF)),
            _ => original::sendfile(out, from, offset, count),
        }
    }

    /// The 64-bit name of the function above.
    fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(out, from, offset, count)
    }

    /// Refuses millrace sockets with Linux's error for files that cannot be spliced; programs then
    /// copy.
    fn splice(
        from: c_int,
        from_offset: *mut i64,
        to: c_int,
        to_offset: *mut i64,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t {
        if matches!(table::get(from), Entry::Socket(_)) || matches!(table::get(to), Entry::Socket(_)) {
            return length(Err(Errno::INVAL));
        }
        original::splice(from, from_offset, to, to_offset, len, flags)
    }
}

/// A number of entries, as for readv.
fn entries(count: c_int) -> Result<usize> {
    usize::try_from(count).map_err(|_| Errno::INVAL)
}

/// Sends a datagram to an address, or to the peer without one.
///
/// # Safety
/// The address is good for its length, or null.
unsafe fn send_there(
    socket: &Socket,
    pieces: &mut UserBuffers,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Result<usize> {
    // SAFETY: the caller's promise.
    let to = unsafe { datagram::send::destination(to, to_len) }?;
    datagram::send::send(socket, pieces, to, &Default::default(), flags)
}
