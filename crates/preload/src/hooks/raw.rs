//! `syscall`: programs that call the kernel by number, through the C library, without its function
//! of that name.
//!
//! libuv closes descriptors so, and would leave the table with sockets that are gone. Numbers of
//! calls that can concern a socket go where the function of that name goes; all others go to the
//! kernel as they are.

use std::ffi::{c_int, c_long};

use libc::{fd_set, sigset_t, timespec};
use rustix::io::Errno;

use super::{descriptor, epoll, fail, hooks, io, message, options, poll, process, socket, uring};
use crate::process::fork;
use crate::sys;
use crate::sys::user_buffers;

hooks! {
    /// Defined with all the arguments that any call has: for a variadic function those not given
    /// are words without meaning, which are handed on as such.
    fn syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long {
        let fd = a as c_int;
        match number {
            libc::SYS_close => c_long::from(descriptor::close(fd)),
            libc::SYS_close_range => c_long::from(descriptor::close_range(a as u32, b as u32, c as c_int)),
            libc::SYS_dup => c_long::from(descriptor::dup(fd)),
            libc::SYS_dup3 => c_long::from(descriptor::dup3(fd, b as c_int, c as c_int)),
            libc::SYS_fcntl => c_long::from(descriptor::fcntl(fd, b as c_int, c as u64)),
            libc::SYS_ioctl => c_long::from(descriptor::ioctl(fd, b as u64, c as *mut _)),
            libc::SYS_read => io::read(fd, b as *mut _, c as usize) as c_long,
            libc::SYS_write => io::write(fd, b as *const _, c as usize) as c_long,
            libc::SYS_readv => io::readv(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_writev => io::writev(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_sendto => io::sendto(fd, b as *const _, c as usize, d as c_int, e as *const _, f as u32) as c_long,
            libc::SYS_recvfrom => io::recvfrom(fd, b as *mut _, c as usize, d as c_int, e as *mut _, f as *mut _) as c_long,
            libc::SYS_sendfile => io::sendfile64(fd, b as c_int, c as *mut _, d as usize) as c_long,
            libc::SYS_sendmsg => message::sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_recvmsg => message::recvmsg(fd, b as *mut _, c as c_int) as c_long,
            libc::SYS_sendmmsg => c_long::from(message::sendmmsg(fd, b as *mut _, c as u32, d as c_int)),
            libc::SYS_recvmmsg => c_long::from(message::recvmmsg(fd, b as *mut _, c as u32, d as c_int, e as *mut _)),
            libc::SYS_pidfd_getfd => c_long::from(message::pidfd_getfd(fd, b as c_int, c as u32)),
            libc::SYS_socket => c_long::from(socket::socket(fd, b as c_int, c as c_int)),
            libc::SYS_bind => c_long::from(socket::bind(fd, b as *const _, c as u32)),
            libc::SYS_listen => c_long::from(socket::listen(fd, b as c_int)),
            libc::SYS_connect => c_long::from(socket::connect(fd, b as *const _, c as u32)),
            libc::SYS_accept => c_long::from(socket::accept(fd, b as *mut _, c as *mut _)),
            libc::SYS_accept4 => c_long::from(socket::accept4(fd, b as *mut _, c as *mut _, d as c_int)),
            libc::SYS_getsockname => c_long::from(socket::getsockname(fd, b as *mut _, c as *mut _)),
            libc::SYS_getpeername => c_long::from(socket::getpeername(fd, b as *mut _, c as *mut _)),
            libc::SYS_shutdown => c_long::from(socket::shutdown(fd, b as c_int)),
            libc::SYS_setsockopt => c_long::from(options::setsockopt(fd, b as c_int, c as c_int, d as *const _, e as u32)),
            libc::SYS_getsockopt => c_long::from(options::getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _)),
            libc::SYS_epoll_create1 => c_long::from(epoll::epoll_create1(fd)),
            libc::SYS_epoll_ctl => c_long::from(epoll::epoll_ctl(fd, b as c_int, c as c_int, d as *mut _)),
            libc::SYS_epoll_pwait => c_long::from(epoll::epoll_pwait(fd, b as *mut _, c as c_int, d as c_int, e as *const _)),
            libc::SYS_epoll_pwait2 => c_long::from(epoll::epoll_pwait2(fd, b as *mut _, c as c_int, d as *const _, e as *const _)),
            libc::SYS_ppoll => c_long::from(poll::ppoll(a as *mut _, b as u64, c as *const _, d as *const _)),
            libc::SYS_pselect6 => c_long::from(pselect6(fd, [b as *mut _, c as *mut _, d as *mut _], e as *const _, f as *const _)),
            libc::SYS_io_uring_setup if uring::is_refused() => fail(Errno::NOSYS).into(),
            libc::SYS_splice => io::splice(fd, b as *mut _, c as c_int, d as *mut _, e as usize, f as u32) as c_long,
            libc::SYS_clone => process::clone_call([a, b, c, d, e]),
            libc::SYS_clone3 => process::clone3_call(a as *const u64, b as usize),
            libc::SYS_execve => c_long::from(process::execve(a as *const _, b as *const _, c as *const _)),
            libc::SYS_execveat => c_long::from(process::execveat(fd, b as *const _, c as *const _, d as *const _, e as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork | libc::SYS_vfork => c_long::from(fork::fork(|| sys::raw([libc::SYS_fork, 0, 0, 0, 0, 0, 0]) as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_create => c_long::from(epoll::epoll_create(fd)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => c_long::from(poll::select(fd, b as *mut _, c as *mut _, d as *mut _, e as *mut _)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => c_long::from(descriptor::dup2(fd, b as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => c_long::from(epoll::epoll_wait(fd, b as *mut _, c as c_int, d as c_int)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => c_long::from(poll::poll(a as *mut _, b as u64, c as c_int)),
            _ => sys::raw([number, a, b, c, d, e, f]),
        }
    }
}

/// The call has its mask behind a pointer, with a length. The time is left as it is, as by the
/// function.
///
/// # Safety
/// As the call's.
unsafe fn pselect6(
    count: c_int,
    [read, write, except]: [*mut fd_set; 3],
    timeout: *const timespec,
    mask: *const *const sigset_t,
) -> c_int {
    let mut signals = std::ptr::null();
    if !mask.is_null() {
        if let Err(errno) = user_buffers::check(mask.cast(), size_of::<*const sigset_t>()) {
            return super::fail(errno);
        }
        // SAFETY: the caller's promise.
        signals = unsafe { *mask };
    }
    // SAFETY: likewise.
    unsafe { poll::pselect(count, read, write, except, timeout, signals) }
}
