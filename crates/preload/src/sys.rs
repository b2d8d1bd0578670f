//! System calls for the shim itself: they bypass its hooks, allocate nothing and return errors as
//! values.

pub mod mmap_buffer;
pub mod original;
pub mod robust_lock;
pub mod thread_sanitizer;
pub mod user_buffers;
pub mod wipe_on_fork;

use std::ffi::{CStr, c_int, c_long, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::io::Errno;

/// The result of a call.
pub type Result<T> = core::result::Result<T, Errno>;

/// The bytes of a signal set in the kernel's form.
pub const SIGNAL_SET: c_long = 8;

/// The kernel's return value as a result.
pub fn check(result: c_long) -> Result<usize> {
    if (-4095..0).contains(&result) {
        Err(Errno::from_raw_os_error(-result as i32))
    } else {
        Ok(result as usize)
    }
}

/// Makes a system call by its number and six arguments; returns the kernel's value. The C library's
/// `syscall` cannot be used, because the shim replaces it.
///
/// # Safety
/// The requirements of the system call hold.
#[inline]
unsafe fn enter(words: [c_long; 7]) -> c_long {
    let [number, a, b, c, d, e, f] = words;
    let result: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's convention: rcx and r11 are lost, everything else is kept.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's convention: every register but x0 is kept.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack));
    }
    result
}

/// Makes a system call as the C library's `syscall` does: -1 and errno on failure.
///
/// # Safety
/// The requirements of the system call hold.
pub unsafe fn raw(words: [c_long; 7]) -> c_long {
    // SAFETY: the caller's promise.
    match check(unsafe { enter(words) }) {
        Ok(result) => result as c_long,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        let mut words: [c_long; 7] = [0; 7];
        let given = [$number as c_long $(, $argument as c_long)*];
        words[..given.len()].copy_from_slice(&given);
        // SAFETY: each wrapper below passes what its system call asks for; pointers are from
        // references or checked by the kernel.
        check(unsafe { enter(words) })
    }};
}

/// Sets the C library's errno.
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library's errno is always there.
    unsafe { *libc::__errno_location() = errno.raw_os_error() };
}

/// Closes a descriptor. No caller can use an error.
pub fn close(fd: c_int) {
    let _ = call!(libc::SYS_close, fd);
}

/// Calls `fcntl` with a number.
pub fn fcntl(fd: c_int, command: c_int, argument: c_long) -> Result<c_int> {
    call!(libc::SYS_fcntl, fd, command, argument).map(|result| result as c_int)
}

/// Calls `dup3`.
pub fn dup3(from: c_int, to: c_int, flags: c_int) -> Result<c_int> {
    call!(libc::SYS_dup3, from, to, flags).map(|fd| fd as c_int)
}

/// Adds 1 to an eventfd. This fails only if the counter is full; then the eventfd is readable
/// already.
pub fn ring(eventfd: c_int) {
    let one = 1u64;
    let _ = call!(libc::SYS_write, eventfd, &raw const one, 8);
}

/// A new eventfd.
pub fn eventfd() -> Result<OwnedFd> {
    let flags = libc::EFD_CLOEXEC | libc::EFD_NONBLOCK;
    let fd = call!(libc::SYS_eventfd2, 0, flags)? as c_int;
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Resets an eventfd to 0.
pub fn silence(eventfd: c_int) {
    let mut count = 0u64;
    let _ = call!(libc::SYS_read, eventfd, &raw mut count, 8);
}

/// Writes to a descriptor, as much as it takes.
pub fn write(fd: c_int, bytes: &[u8]) {
    let _ = call!(libc::SYS_write, fd, bytes.as_ptr(), bytes.len());
}

/// Opens a file for reading.
pub fn open_at(directory: c_int, path: &CStr) -> Result<c_int> {
    // If the path is a pipe, the open must not wait for a writer.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    call!(libc::SYS_openat, directory, path.as_ptr(), flags).map(|fd| fd as c_int)
}

/// Whether a file can be read by this process.
pub fn is_readable(path: &CStr) -> bool {
    call!(
        libc::SYS_faccessat,
        libc::AT_FDCWD,
        path.as_ptr(),
        libc::R_OK
    )
    .is_ok()
}

/// The number in a file of the kernel; `None` if it cannot be read.
pub fn number_in(path: &CStr) -> Option<u32> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = call!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags).ok()? as c_int;
    let mut text = [0u8; 16];
    let len = call!(libc::SYS_read, fd, text.as_mut_ptr(), text.len());
    close(fd);
    let text = text.get(..len.ok()? as usize)?;
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// The calling thread's id.
pub fn gettid() -> u32 {
    call!(libc::SYS_gettid).unwrap_or(0) as u32
}

/// The calling process's id.
pub fn getpid() -> u32 {
    call!(libc::SYS_getpid).unwrap_or(0) as u32
}

/// Whether a thread with this id lives.
pub fn thread_lives(tid: u32) -> bool {
    call!(libc::SYS_tkill, tid, 0) != Err(Errno::SRCH)
}

/// Opens a pidfd. `SRCH`: there is no such process.
pub fn pidfd_open(pid: libc::pid_t) -> Result<OwnedFd> {
    let fd = call!(libc::SYS_pidfd_open, pid.max(0), 0)? as c_int;
    // SAFETY: the kernel has just made it for us; it is closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Sets and reads the kernel's action for a signal, in the kernel's structures.
pub fn signal_action(signal: c_int, new: *const c_void, old: *mut c_void) -> Result<()> {
    call!(libc::SYS_rt_sigaction, signal, new, old, SIGNAL_SET).map(drop)
}

/// Sends a signal to the calling thread.
pub fn raise(signal: c_int) {
    let _ = call!(libc::SYS_tgkill, getpid(), gettid(), signal);
}

/// Lets another thread run.
pub fn sched_yield() {
    let _ = call!(libc::SYS_sched_yield);
}

/// Sleeps.
pub fn sleep_us(us: u32) {
    let time = timespec(u64::from(us));
    let _ = call!(libc::SYS_nanosleep, &raw const time, 0);
}

/// Microseconds as a `timespec`.
pub fn timespec(us: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (us / 1_000_000) as libc::time_t,
        tv_nsec: (us % 1_000_000 * 1000) as c_long,
    }
}

/// The kernel's function that reads the clock without a system call, if [`find_clock`] has found
/// it.
static CLOCK: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the kernel's function that reads the clock, by the dynamic linker: under valgrind the
/// kernel's object is not mapped, and the linker does not have it. The C library's own function is
/// not used, because other libraries may replace it (ThreadSanitizer, libfaketime).
pub fn find_clock() {
    const NAME: &CStr = if cfg!(target_arch = "aarch64") {
        c"__kernel_clock_gettime"
    } else {
        c"__vdso_clock_gettime"
    };
    // SAFETY: names that end with 0; nothing is loaded that is not there, and what is there stays.
    unsafe {
        let object = libc::dlopen(
            c"linux-vdso.so.1".as_ptr(),
            libc::RTLD_LAZY | libc::RTLD_NOLOAD,
        );
        if !object.is_null() {
            CLOCK.store(libc::dlsym(object, NAME.as_ptr()), Ordering::Relaxed);
        }
    }
}

/// The monotonic time in microseconds.
pub fn now_us() -> u64 {
    let mut time = timespec(0);
    let clock = CLOCK.load(Ordering::Relaxed);
    if clock.is_null() {
        // This call never fails for this clock.
        let _ = call!(
            libc::SYS_clock_gettime,
            libc::CLOCK_MONOTONIC,
            &raw mut time
        );
    } else {
        // SAFETY: the kernel's function of this name has this type.
        unsafe {
            let clock: unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> c_int =
                std::mem::transmute(clock);
            clock(libc::CLOCK_MONOTONIC, &mut time);
        }
    }
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// The core on which the thread runs.
pub fn core() -> u32 {
    // SAFETY: no argument; it reads the thread's own area or asks the kernel.
    unsafe { libc::sched_getcpu() }.max(0) as u32
}

/// Sleeps while `word` is `value`, for `us` microseconds at most. Returns `TIMEDOUT` or `INTR`; a
/// word that differs already is no error.
pub fn futex_wait(word: &AtomicU32, value: u32, us: u64) -> Result<()> {
    let time = timespec(us);
    match call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAIT,
        value,
        &raw const time,
        0,
        0
    ) {
        Ok(_) | Err(Errno::AGAIN) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Maps zeroed memory, which takes room only where it is touched. Children of a fork share it if
/// `shared`.
pub fn map(len: usize, shared: bool) -> Result<*mut c_void> {
    let kind = if shared {
        libc::MAP_SHARED
    } else {
        libc::MAP_PRIVATE
    };
    call!(
        libc::SYS_mmap,
        0,
        len,
        libc::PROT_READ | libc::PROT_WRITE,
        kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        -1,
        0
    )
    .map(|address| address as *mut c_void)
}

/// Unmaps memory.
///
/// # Safety
/// Nothing refers to the range any more.
pub unsafe fn unmap(at: *mut c_void, len: usize) {
    let _ = call!(libc::SYS_munmap, at, len);
}

/// The soft limit of descriptor numbers.
pub fn descriptor_limit() -> u64 {
    rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX)
}

/// Calls `epoll_ctl`.
pub fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: &mut libc::epoll_event,
) -> Result<()> {
    call!(
        libc::SYS_epoll_ctl,
        epoll,
        operation,
        fd,
        std::ptr::from_mut(event)
    )
    .map(drop)
}

/// The present events of an epoll set, without waiting.
pub fn epoll_now(epoll: c_int, events: &mut [libc::epoll_event]) -> Result<usize> {
    let len = events.len().min(c_int::MAX as usize);
    let no_mask = std::ptr::null::<libc::sigset_t>();
    call!(
        libc::SYS_epoll_pwait,
        epoll,
        events.as_mut_ptr(),
        len,
        0,
        no_mask,
        SIGNAL_SET
    )
}

/// The present events of descriptors, without waiting. A signal that is about to be handled ends
/// the kernel's `ppoll` with EINTR if nothing is ready, even a `ppoll` that does not wait. The call
/// is then repeated: the sleep of the program's call decides whether a handler ends it.
pub fn poll_now(fds: &mut [libc::pollfd]) -> Result<usize> {
    let no_mask = std::ptr::null::<libc::sigset_t>();
    loop {
        let mut at_once = timespec(0);
        let found = call!(
            libc::SYS_ppoll,
            fds.as_mut_ptr(),
            fds.len(),
            &raw mut at_once,
            no_mask,
            SIGNAL_SET
        );
        if found != Err(Errno::INTR) {
            return found;
        }
    }
}

/// Reads a number by `getsockopt`.
pub fn getsockopt(fd: c_int, level: c_int, name: c_int) -> Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    call!(
        libc::SYS_getsockopt,
        fd,
        level,
        name,
        &raw mut value,
        &raw mut len
    )
    .map(|_| value)
}

/// Reads bytes by `getsockopt`; returns how many.
pub fn getsockopt_bytes(fd: c_int, level: c_int, name: c_int, out: &mut [u8]) -> Result<usize> {
    let mut len = out.len() as libc::socklen_t;
    call!(
        libc::SYS_getsockopt,
        fd,
        level,
        name,
        out.as_mut_ptr(),
        &raw mut len
    )
    .map(|_| len as usize)
}

/// Calls `setsockopt`.
///
/// # Safety
/// The requirements of the C library's function hold.
pub unsafe fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> Result<()> {
    call!(libc::SYS_setsockopt, fd, level, name, value, len).map(drop)
}

/// Makes a kernel datagram socket, for questions to the kernel.
pub fn datagram_socket() -> Result<c_int> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    call!(libc::SYS_socket, libc::AF_INET, kind, 0).map(|fd| fd as c_int)
}

/// Whether a new datagram socket can be bound to an address.
pub fn can_bind(family: c_int, address: *const c_void, len: libc::socklen_t) -> bool {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let Ok(fd) = call!(libc::SYS_socket, family, kind, 0) else {
        return false;
    };
    let bound = call!(libc::SYS_bind, fd, address, len).is_ok();
    close(fd as c_int);
    bound
}

/// Calls `getsockname`; returns the length of the address.
pub fn getsockname(fd: c_int, out: &mut [u8]) -> Result<usize> {
    let mut len = out.len() as libc::socklen_t;
    call!(libc::SYS_getsockname, fd, out.as_mut_ptr(), &raw mut len)
        .map(|_| (len as usize).min(out.len()))
}

/// Reads a file to `to`, from `offset` or from the file's position.
///
/// # Safety
/// `to` is valid for `len` bytes.
pub unsafe fn read_file(fd: c_int, to: *mut u8, len: usize, offset: Option<i64>) -> Result<usize> {
    match offset {
        Some(offset) => call!(libc::SYS_pread64, fd, to, len, offset),
        None => call!(libc::SYS_read, fd, to, len),
    }
}

/// The C library's errno.
pub fn last_errno() -> Errno {
    // SAFETY: the C library's errno is always there.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Signals have numbers below this.
pub const SIGNALS: usize = 65;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero() {
        let at = map(1 << 30, false).unwrap();
        // SAFETY: mapped above, used by nobody else.
        unsafe {
            assert_eq!(*at.cast::<u64>().add(12345), 0);
            unmap(at, 1 << 30);
        }
    }

    #[test]
    fn the_time_is_the_kernels_with_and_without_its_function() {
        let by_call = now_us();
        find_clock();
        assert!(!CLOCK.load(Ordering::Relaxed).is_null());
        let by_function = now_us();
        assert!(by_function >= by_call && by_function - by_call < 3_600_000_000);
    }

    #[test]
    fn threads_live_and_die() {
        assert!(thread_lives(gettid()));
        let tid = std::thread::spawn(gettid).join().unwrap();
        // The kernel releases a joined thread shortly after it has woken the joiner.
        while thread_lives(tid) {
            sched_yield();
        }
    }

    #[test]
    fn errors_are_values() {
        assert_eq!(fcntl(-1, libc::F_GETFD, 0), Err(Errno::BADF));
    }
}
