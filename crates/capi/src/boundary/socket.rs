//! Sockets: making, naming, connecting, closing.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use super::pointer;
use crate::here;
use crate::options::VALUE_MAX;
use crate::outcome::{Outcome, call};

/// The family of a descriptor's socket.
fn family(descriptor: c_int) -> Outcome<c_int> {
    let (host, key) = here::named(descriptor)?;
    let things = host.things.borrow();
    things.socket(key).map(|socket| socket.family)
}

/// Makes a socket in this thread's stack: AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM, with
/// SOCK_NONBLOCK if wanted (SOCK_CLOEXEC means nothing here, since no descriptor of these outlives
/// exec). ENODEV when the thread has no stack; EAFNOSUPPORT, ESOCKTNOSUPPORT, EPROTONOSUPPORT,
/// EINVAL; ENFILE, EMFILE at limits.
#[unsafe(no_mangle)]
pub extern "C" fn mr_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(|| {
        let host = here::current()?;
        let key = host.socket(domain, kind, protocol)?;
        here::name(&host, key)
    })
}

/// As pipe2, inside this thread's stack, for a program that waits for itself beside its sockets: 64
/// KiB. O_NONBLOCK and O_CLOEXEC; EINVAL for other flags, ENODEV when the thread has no stack.
/// Nobody but the caller reads and writes it: what would have to wait is EDEADLK, or EAGAIN where
/// that was asked for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_pipe(fds: *mut c_int, flags: c_int) -> c_int {
    call(|| {
        if flags & !(libc::O_NONBLOCK | libc::O_CLOEXEC) != 0 {
            return Err(libc::EINVAL);
        }
        let host = here::current()?;
        // SAFETY: as the header says of pointers: there are two.
        let fds = unsafe { pointer::places(fds, 2)? };
        let [reads, writes] = host.pipe();
        for end in [reads, writes] {
            host.set_nonblocking(end, flags & libc::O_NONBLOCK != 0)?;
        }
        // What has no number is closed, and then so is the other end.
        let first = here::name(&host, reads).inspect_err(|_| {
            let _ = host.close(writes);
        })?;
        let second = here::name(&host, writes).inspect_err(|_| {
            let _ = here::forget(first).and_then(|(host, key)| host.close(key));
        })?;
        fds[0].write(first);
        fds[1].write(second);
        Ok(0)
    })
}

/// Closes a descriptor of any kind. What a connection has been given to send is still sent, as long
/// as the stack works. EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn mr_close(fd: c_int) -> c_int {
    call(|| {
        let (host, key) = here::forget(fd)?;
        host.close(key)?;
        Ok(0)
    })
}

/// Closes a connection with a reset. EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn mr_abort(fd: c_int) -> c_int {
    call(|| {
        let (host, key) = here::forget(fd)?;
        host.remove(key, true)?;
        Ok(0)
    })
}

/// As bind. On several shards a port that was left to the stack (0) may be another after
/// mr_connect: one whose answers come to this thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_bind(fd: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    call(|| {
        let family = family(fd)?;
        // SAFETY: as the header says of pointers.
        let local = unsafe { pointer::address(addr, addrlen, family)? };
        let (host, key) = here::named(fd)?;
        host.bind(key, local.ok_or(libc::EAFNOSUPPORT)?)?;
        Ok(0)
    })
}

/// As listen. On several shards each thread has a listener at the same address, and each accepts
/// what comes to its shard.
#[unsafe(no_mangle)]
pub extern "C" fn mr_listen(fd: c_int, backlog: c_int) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        host.listen(key, backlog)?;
        Ok(0)
    })
}

/// As accept.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_accept(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { mr_accept4(fd, addr, addrlen, 0) }
}

/// As accept4: SOCK_NONBLOCK and SOCK_CLOEXEC; EINVAL for other flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_accept4(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    flags: c_int,
) -> c_int {
    call(|| {
        if flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: as the header says of pointers.
        unsafe { pointer::check_address(addr, addrlen)? };
        let family = family(fd)?;
        let (host, key) = here::named(fd)?;
        let (key, remote) = host.accept(key, flags & libc::SOCK_NONBLOCK != 0)?;
        let number = here::name(&host, key)?;
        if !addr.is_null() {
            // SAFETY: as the header says of pointers.
            let put = unsafe { pointer::put_address(remote, family, addr, addrlen) };
            if let Err(error) = put {
                let (host, key) = here::forget(number)?;
                host.close(key)?;
                return Err(error);
            }
        }
        Ok(number)
    })
}

/// As connect. AF_UNSPEC takes the peer from a socket for datagrams. On several shards answers to a
/// port that the program bound may come to another shard: that one hands them over, which takes a
/// call of its thread before anything is sent; meanwhile the socket is connecting. EADDRNOTAVAIL if
/// the other shard has a connection with these ends, or was ended, ENOBUFS if it hands over as many
/// as it may have sockets; of a connection that was in progress, by SO_ERROR.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_connect(fd: c_int, addr: *const sockaddr, addrlen: socklen_t) -> c_int {
    call(|| {
        let family = family(fd)?;
        // SAFETY: as the header says of pointers.
        let remote = unsafe { pointer::address(addr, addrlen, family)? };
        let (host, key) = here::named(fd)?;
        host.connect(key, remote)?;
        Ok(0)
    })
}

/// As shutdown.
#[unsafe(no_mangle)]
pub extern "C" fn mr_shutdown(fd: c_int, how: c_int) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        host.shutdown(key, how)?;
        Ok(0)
    })
}

/// The name of one end.
unsafe fn name(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, peer: bool) -> Outcome<c_int> {
    let (host, key) = here::named(fd)?;
    let (address, family) = host.name(key, peer)?;
    // SAFETY: as the header says of pointers.
    unsafe { pointer::put_address(address, family, addr, len)? };
    Ok(0)
}

/// As getsockname.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { name(fd, addr, addrlen, false) })
}

/// As getpeername.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller's promise.
    call(|| unsafe { name(fd, addr, addrlen, true) })
}

/// As setsockopt, with Linux's constants. ENOPROTOOPT for what is not implemented:
/// docs/embedding.md lists what is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_setsockopt(
    fd: c_int,
    level: c_int,
    optname: c_int,
    optval: *const c_void,
    optlen: socklen_t,
) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        let len = c_int::try_from(optlen).map_err(|_| libc::EINVAL)?;
        // SAFETY: as the header says of pointers.
        let value = unsafe { pointer::bytes(optval, len as usize)? };
        host.set_option(key, level, optname, value)?;
        Ok(0)
    })
}

/// As getsockopt.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_getsockopt(
    fd: c_int,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: *mut socklen_t,
) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        // SAFETY: as the header says of pointers.
        let room = unsafe { pointer::get(optlen)? };
        let room = c_int::try_from(room).map_err(|_| libc::EINVAL)? as usize;
        let mut value = [0; VALUE_MAX];
        let len = host.option(key, level, optname, &mut value)?.min(room);
        // SAFETY: as the header says of pointers; no more than the room is written.
        unsafe { pointer::bytes_mut(optval, len)? }.copy_from_slice(&value[..len]);
        // SAFETY: as the header says of pointers.
        unsafe { pointer::put(optlen, len as socklen_t)? };
        Ok(0)
    })
}

/// F_GETFL and F_SETFL with O_NONBLOCK; EINVAL for anything else.
#[unsafe(no_mangle)]
pub extern "C" fn mr_fcntl(fd: c_int, cmd: c_int, arg: c_int) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        match cmd {
            libc::F_GETFL if host.is_nonblocking(key)? => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL if arg & !(libc::O_NONBLOCK | libc::O_ACCMODE) == 0 => {
                host.set_nonblocking(key, arg & libc::O_NONBLOCK != 0)?;
                Ok(0)
            }
            _ => Err(libc::EINVAL),
        }
    })
}

/// FIONREAD (bytes to read), SIOCOUTQ (bytes not acknowledged) and FIONBIO; EINVAL for anything
/// else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_int) -> c_int {
    call(|| {
        let (host, key) = here::named(fd)?;
        if request == libc::FIONBIO {
            // SAFETY: as the header says of pointers.
            let on = unsafe { pointer::get(arg)? };
            host.set_nonblocking(key, on != 0)?;
            return Ok(0);
        }
        let number = host.query(key, request)?;
        // SAFETY: as the header says of pointers.
        unsafe { pointer::put(arg, number)? };
        Ok(0)
    })
}
