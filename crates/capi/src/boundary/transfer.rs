//! Reading and writing.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use libc::{iovec, msghdr, sockaddr, socklen_t, ssize_t};
use millrace::SendTo;

use super::pointer;
use crate::control::{self, Riders};
use crate::here;
use crate::lend::Piece;
use crate::outcome::{Outcome, call};
use crate::socket::{Receive, Send};

/// The flags of a call that receives.
fn receive_flags(flags: c_int) -> Outcome<Receive> {
    let known = libc::MSG_PEEK | libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    if flags & !known != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(Receive {
        peek: flags & libc::MSG_PEEK != 0,
        all: flags & libc::MSG_WAITALL != 0,
        at_once: flags & libc::MSG_DONTWAIT != 0,
        full_len: flags & libc::MSG_TRUNC != 0,
        goes_on: false,
    })
}

/// The flags of a call that sends. No call raises a signal, with `MSG_NOSIGNAL` or without.
fn send_flags(flags: c_int) -> Outcome<Send> {
    if flags & !(libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(Send {
        more: flags & libc::MSG_MORE != 0,
        at_once: flags & libc::MSG_DONTWAIT != 0,
    })
}

/// As read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_read(fd: c_int, buf: *mut c_void, len: usize) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers.
        let out = unsafe { pointer::bytes_mut(buf, len)? };
        let (len, _) = host.receive(key, out, Receive::default())?;
        Ok(len as ssize_t)
    })
}

/// As write; EPIPE raises no signal.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_write(fd: c_int, buf: *const c_void, len: usize) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers.
        let bytes = unsafe { pointer::bytes(buf, len)? };
        let len = host.send_to(key, &[bytes], None, Send::default())?;
        Ok(len as ssize_t)
    })
}

/// As recv: MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, and MSG_TRUNC of datagrams; EOPNOTSUPP for other
/// flags. ENOTSOCK for an end of a pipe: mr_read reads it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_recv(fd: c_int, buf: *mut c_void, len: usize, flags: c_int) -> ssize_t {
    let (addr, addrlen) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise.
    unsafe { mr_recvfrom(fd, buf, len, flags, addr, addrlen) }
}

/// As send: MSG_MORE, MSG_DONTWAIT, MSG_NOSIGNAL; EOPNOTSUPP for other flags.
/// ENOTSOCK for an end of a pipe: mr_write writes to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_send(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    unsafe { mr_sendto(fd, buf, len, flags, std::ptr::null(), 0) }
}

/// As recvfrom, with the flags of mr_recv. Of a connection there is no address to tell: `addrlen`
/// becomes 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        let family = host.family(key)?;
        // SAFETY: as the header says of pointers.
        unsafe { pointer::check_address(addr, addrlen)? };
        // SAFETY: as the header says of pointers.
        let out = unsafe { pointer::bytes_mut(buf, len)? };
        let (len, record) = host.receive(key, out, receive_flags(flags)?)?;
        match record {
            _ if addr.is_null() => {}
            // SAFETY: as the header says of pointers.
            Some(record) => unsafe { pointer::put_address(record.from, family, addr, addrlen)? },
            // SAFETY: as the header says of pointers.
            None => unsafe { pointer::put(addrlen, 0)? },
        }
        Ok(len as ssize_t)
    })
}

/// As sendto, with the flags of mr_send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_sendto(
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    addr: *const sockaddr,
    addrlen: socklen_t,
) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        let family = host.family(key)?;
        // SAFETY: as the header says of pointers.
        let bytes = unsafe { pointer::bytes(buf, len)? };
        let to = match addr.is_null() {
            true => None,
            // SAFETY: as the header says of pointers.
            false => unsafe { pointer::address(addr, addrlen, family)? },
        };
        let len = host.send_to(key, &[bytes], to, send_flags(flags)?)?;
        Ok(len as ssize_t)
    })
}

/// As readv: up to 1,024 pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_readv(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers.
        let (total, pieces) = unsafe { pointer::pieces_mut(iov, iovcnt)? };
        Ok(host.receive_pieces(key, total, pieces)? as ssize_t)
    })
}

/// As recvmsg, with the flags of mr_recv; what came of a datagram that did not fit says MSG_TRUNC
/// in msg_flags. Control messages are those of a datagram that were asked for (IP_PKTINFO,
/// IP_RECVTTL, IP_RECVTOS, and the same of IPv6; interface 1 is loopback, 2 the link), MSG_CTRUNC
/// when they do not fit. EMSGSIZE for more than 1,024 pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        let family = host.family(key)?;
        // SAFETY: as the header says of pointers.
        let mut header = unsafe { pointer::get(msg)? };
        let (name, room) = (header.msg_name.cast::<sockaddr>(), header.msg_namelen);
        if !name.is_null() {
            let room = c_int::try_from(room).map_err(|_| libc::EINVAL)?;
            // SAFETY: as the header says of pointers. Looked at before a datagram is taken that
            // could not be told.
            unsafe { pointer::bytes_mut(header.msg_name, room as usize)? };
        }
        let room = match header.msg_control.is_null() {
            true => 0,
            false => header.msg_controllen,
        };
        // SAFETY: as the header says of pointers. Looked at before, likewise.
        unsafe { pointer::bytes_mut(header.msg_control, room)? };
        let count = c_int::try_from(header.msg_iovlen).map_err(|_| libc::EMSGSIZE)?;
        // SAFETY: as the header says of pointers.
        let (total, pieces) = unsafe { pointer::pieces_mut(header.msg_iov, message(count)?)? };
        let received = host.receive_message(key, total, pieces, receive_flags(flags)?)?;
        match received.record {
            _ if name.is_null() => {}
            // SAFETY: as the header says of pointers; the length is ours.
            Some(record) => unsafe {
                pointer::put_address(record.from, family, name, &raw mut header.msg_namelen)?;
            },
            None => header.msg_namelen = 0,
        }
        header.msg_flags = if received.cut { libc::MSG_TRUNC } else { 0 };
        header.msg_controllen = 0;
        if let Some(record) = received.record {
            // SAFETY: as the header says of pointers; nothing else is used while this is.
            let mut riders = Riders::new(unsafe { pointer::bytes_mut(header.msg_control, room)? });
            host.tell(key, &record, &mut riders)?;
            header.msg_controllen = riders.used;
            if riders.cut {
                header.msg_flags |= libc::MSG_CTRUNC;
            }
        }
        // SAFETY: as the header says of pointers: it has just been read there.
        unsafe { pointer::put(msg, header)? };
        Ok(received.len as ssize_t)
    })
}

/// As sendmsg, with the flags of mr_send. Control messages of a datagram: IP_PKTINFO (the source
/// address), IP_TTL, IP_TOS, the same of IPv6, and UDP_SEGMENT; EINVAL for others, and for any of a
/// connection. EMSGSIZE for more than 1,024 pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        let family = host.family(key)?;
        // SAFETY: as the header says of pointers.
        let header = unsafe { pointer::get(msg)? };
        let mut what = SendTo::default();
        if header.msg_controllen > 0 {
            if !host.is_datagrams(key)? {
                return Err(libc::EINVAL);
            }
            // SAFETY: as the header says of pointers.
            let control = unsafe { pointer::bytes(header.msg_control, header.msg_controllen)? };
            control::read(control, &mut what)?;
        }
        what.to = match header.msg_name.is_null() {
            true => None,
            // SAFETY: as the header says of pointers.
            false => unsafe {
                pointer::address(header.msg_name.cast(), header.msg_namelen, family)?
            },
        };
        let count = c_int::try_from(header.msg_iovlen).map_err(|_| libc::EMSGSIZE)?;
        // SAFETY: as the header says of pointers.
        let pieces = unsafe { pointer::pieces(header.msg_iov, message(count)?)? };
        let len = host.send_as(key, &pieces, what, send_flags(flags)?)?;
        Ok(len as ssize_t)
    })
}

/// How many pieces a message has: Linux has another error for too many of them than for a vector.
fn message(count: c_int) -> Outcome<c_int> {
    (count <= pointer::PIECES_MAX)
        .then_some(count)
        .ok_or(libc::EMSGSIZE)
}

/// As writev: up to 1,024 pieces.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_writev(fd: c_int, iov: *const iovec, iovcnt: c_int) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers.
        let pieces = unsafe { pointer::pieces(iov, iovcnt)? };
        let len = host.send_to(key, &pieces, None, Send::default())?;
        Ok(len as ssize_t)
    })
}

/// Hands out two pieces of the stack's memory; how many bytes they are.
fn show(pieces: [Piece; 2], to: &mut [MaybeUninit<iovec>]) -> ssize_t {
    for (place, (start, len)) in to.iter_mut().zip(pieces) {
        place.write(iovec {
            iov_base: start.cast(),
            iov_len: len,
        });
    }
    (pieces[0].1 + pieces[1].1) as ssize_t
}

/// Shows what has come of a stream where it is, in two pieces since a ring wraps: how many bytes, 0
/// at the end of the stream. They may be read until mr_consume, a call that reads or closes it, or
/// one that lets its stack work. Never waits: EAGAIN. EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP for
/// datagrams; what the connection died of.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_peek(fd: c_int, pieces: *mut iovec) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers: there are two.
        let to = unsafe { pointer::places(pieces, 2)? };
        Ok(show(host.peek(key)?, to))
    })
}

/// So many of the bytes that mr_peek has shown have been read, and their room is free. EINVAL for
/// more than have come; EBADF, ENOTSOCK, EOPNOTSUPP.
#[unsafe(no_mangle)]
pub extern "C" fn mr_consume(fd: c_int, len: usize) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        host.consume(key, len)?;
        Ok(0)
    })
}

/// Shows where up to `len` bytes will be sent from, in two pieces since a ring wraps: for how many
/// there is room. Write there, in order, and call mr_commit before anything else on this stack.
/// Never waits: EAGAIN. EBADF, ENOTSOCK, EFAULT; EOPNOTSUPP for datagrams; those of mr_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_reserve(fd: c_int, len: usize, pieces: *mut iovec) -> ssize_t {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers: there are two.
        let to = unsafe { pointer::places(pieces, 2)? };
        Ok(show(host.reserve(key, len)?, to))
    })
}

/// Sends the first `len` bytes of what mr_reserve has shown. EINVAL for more than there was room
/// for, and when another call came between, which may have used the room: reserve again. EBADF,
/// ENOTSOCK, EOPNOTSUPP; those of mr_write.
#[unsafe(no_mangle)]
pub extern "C" fn mr_commit(fd: c_int, len: usize) -> ssize_t {
    call(|| {
        let ((host, key), lent) = here::named_and_lent(fd)?;
        Ok(host.commit(key, len, lent)? as ssize_t)
    })
}
