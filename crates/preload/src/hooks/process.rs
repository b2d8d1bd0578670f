//! Hooks of fork, exec and spawn.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

use libc::{X_OK, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rustix::io::Errno;

use super::{fail, hooks};
use crate::process::{exec, executable, fork as forking, spawn};
use crate::sys;
use crate::sys::mmap_buffer::MmapBuffer;
use crate::sys::{original, user_buffers};

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The longest path that execvp makes.
const PATH_MAX: usize = 4096;

hooks! {
    /// Forks.
    fn fork() -> pid_t {
        forking::fork(|| original::fork())
    }

    /// An alias of the function above.
    fn __fork() -> pid_t {
        forking::fork(|| original::fork())
    }

    /// Forks without the handlers of pthread_atfork.
    fn _Fork() -> pid_t {
        forking::fork(|| original::_Fork())
    }

    /// Forks. A function cannot return twice into its caller's frame, so vfork costs what fork
    /// costs.
    fn vfork() -> pid_t {
        forking::fork(|| original::fork())
    }

    /// An alias of the function above.
    fn __vfork() -> pid_t {
        forking::fork(|| original::fork())
    }

    /// Makes a process or a thread. It is defined with all arguments that any flags need; the words
    /// of absent ones have no meaning.
    fn clone(
        function: Option<extern "C" fn(*mut c_void) -> c_int>,
        stack: *mut c_void,
        flags: c_int,
        argument: *mut c_void,
        parent_tid: *mut c_void,
        tls: *mut c_void,
        child_tid: *mut c_void,
    ) -> c_int {
        let Some(function) = function.filter(|_| !stack.is_null()) else {
            return fail(Errno::INVAL);
        };
        let clone = |function, argument, flags| {
            original::clone(function, stack, flags, argument, parent_tid, tls, child_tid)
        };
        match forking::with_own_memory(flags as u64) {
            Some(flags) => forking::clone(function, argument, |function, argument| {
                clone(function, argument, flags as c_int)
            }),
            None => clone(function, argument, flags),
        }
    }

    /// Forks with a terminal for the child. The C library's own function would fork without the
    /// shim.
    fn forkpty(
        master: *mut c_int,
        name: *mut c_char,
        termios: *const libc::termios,
        size: *const libc::winsize,
    ) -> pid_t {
        let (mut own, mut other) = (-1, -1);
        if libc::openpty(&raw mut own, &raw mut other, name, termios, size) < 0 {
            return -1;
        }
        match fork() {
            -1 => {
                let errno = sys::last_errno();
                super::descriptor::close(own);
                super::descriptor::close(other);
                fail(errno)
            }
            0 => {
                super::descriptor::close(own);
                libc::setsid();
                if libc::ioctl(other, libc::TIOCSCTTY, 0) < 0 {
                    libc::_exit(1);
                }
                for fd in 0..3 {
                    super::descriptor::dup2(other, fd);
                }
                if other > 2 {
                    super::descriptor::close(other);
                }
                0
            }
            pid => {
                *master = own;
                super::descriptor::close(other);
                pid
            }
        }
    }

    /// Continues in the background. The C library's own function would fork without the shim.
    fn daemon(stay: c_int, keep_streams: c_int) -> c_int {
        match fork() {
            -1 => return -1,
            0 => {}
            _ => libc::_exit(0),
        }
        if libc::setsid() < 0 {
            return -1;
        }
        if stay == 0 && libc::chdir(c"/".as_ptr()) < 0 {
            return -1;
        }
        if keep_streams == 0 {
            let null = original::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0);
            if null < 0 {
                return -1;
            }
            for fd in 0..3 {
                super::descriptor::dup2(null, fd);
            }
            if null > 2 {
                super::descriptor::close(null);
            }
        }
        0
    }

    /// Executes a program.
    fn execve(
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int {
        executable::report(libc::AT_FDCWD, path, environment);
        exec::exec(
            || looks_executable(path),
            environment,
            |environment| original::execve(path, arguments, environment),
        )
    }

    /// Executes a program.
    fn execv(path: *const c_char, arguments: *const *const c_char) -> c_int {
        execve(path, arguments, environ)
    }

    /// Executes a program that is found in PATH.
    fn execvp(file: *const c_char, arguments: *const *const c_char) -> c_int {
        execvpe(file, arguments, environ)
    }

    /// Executes a program that is found in PATH.
    fn execvpe(
        file: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int {
        search(CStr::from_ptr(file), |path| {
            let result = execve(path, arguments, environment);
            if sys::last_errno() == Errno::NOEXEC {
                return shell(path, arguments, environment);
            }
            result
        })
    }

    /// Executes an open file.
    fn fexecve(
        fd: c_int,
        arguments: *const *const c_char,
        environment: *const *const c_char,
    ) -> c_int {
        executable::report_file(fd, environment);
        exec::exec(
            || true,
            environment,
            |environment| original::fexecve(fd, arguments, environment),
        )
    }

    /// Executes a program, relative to a directory.
    fn execveat(
        directory: c_int,
        path: *const c_char,
        arguments: *const *const c_char,
        environment: *const *const c_char,
        flags: c_int,
    ) -> c_int {
        if flags & libc::AT_EMPTY_PATH != 0 {
            executable::report_file(directory, environment);
        } else {
            executable::report(directory, path, environment);
        }
        exec::exec(
            || true,
            environment,
            |environment| original::execveat(directory, path, arguments, environment, flags),
        )
    }

    /// Spawns a process.
    fn posix_spawn(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        executable::report(libc::AT_FDCWD, path, environment.cast());
        spawn::spawn(pid, actions, environment, |pid, environment| {
            original::posix_spawn(pid, path, actions, attributes, arguments, environment)
        })
    }

    /// Spawns a program that is found in PATH.
    fn posix_spawnp(
        pid: *mut pid_t,
        path: *const c_char,
        actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t,
        arguments: *const *mut c_char,
        environment: *const *mut c_char,
    ) -> c_int {
        search(CStr::from_ptr(path), |path| {
            let is_there = executable::report(libc::AT_FDCWD, path, environment.cast());
            fail(if is_there { Errno::NOEXEC } else { Errno::NOENT })
        });
        spawn::spawn(pid, actions, environment, |pid, environment| {
            original::posix_spawnp(pid, path, actions, attributes, arguments, environment)
        })
    }
}

/// `clone` as a system call. A child on a stack of its own does not return from it: such a child is
/// a thread.
///
/// # Safety
/// As the call's.
pub unsafe fn clone_call([flags, stack, c, d, e]: [c_long; 5]) -> c_long {
    let raw = |flags: c_long| {
        // SAFETY: the caller's promise.
        unsafe { sys::raw([libc::SYS_clone, flags, stack, c, d, e, 0]) }
    };
    match forking::with_own_memory(flags as u64) {
        Some(flags) if stack == 0 => c_long::from(forking::fork(|| raw(flags as c_long) as pid_t)),
        _ => raw(flags),
    }
}

/// `clone3` as a system call.
///
/// # Safety
/// As the call's.
pub unsafe fn clone3_call(arguments: *const u64, size: usize) -> c_long {
    /// The words of the structure that matter here: the first is the flags, the sixth the stack.
    const STACK: usize = 5;
    let mut words = [0u64; 16];
    let raw = |at: *const u64| {
        // SAFETY: the caller's promise, or a copy of what it is about.
        unsafe { sys::raw([libc::SYS_clone3, at as c_long, size as c_long, 0, 0, 0, 0]) }
    };
    if size <= STACK * 8
        || size > size_of_val(&words)
        || user_buffers::check(arguments.cast(), size).is_err()
    {
        return raw(arguments);
    }
    // SAFETY: memory of the program's, which has just been looked at, and room of our own.
    unsafe {
        std::ptr::copy_nonoverlapping(arguments.cast::<u8>(), words.as_mut_ptr().cast(), size);
    };
    match forking::with_own_memory(words[0]) {
        Some(flags) if words[STACK] == 0 => {
            words[0] = flags;
            c_long::from(forking::fork(|| raw(words.as_ptr()) as pid_t))
        }
        _ => raw(arguments),
    }
}

/// Whether an exec of this file is likely to succeed.
///
/// # Safety
/// The path is a string, or no good pointer.
unsafe fn looks_executable(path: *const c_char) -> bool {
    // SAFETY: the caller's promise; zeros are a stat.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        libc::access(path, X_OK) == 0
            && libc::stat(path, &mut stat) == 0
            && stat.st_mode & libc::S_IFMT == libc::S_IFREG
    }
}

/// Calls `go` for each place in PATH that may have the file. Returns only if the exec failed.
///
/// # Safety
/// The requirements of execvp hold.
unsafe fn search(file: &CStr, mut go: impl FnMut(*const c_char) -> c_int) -> c_int {
    let name = file.to_bytes();
    if name.is_empty() {
        return fail(Errno::NOENT);
    }
    if name.contains(&b'/') {
        return go(file.as_ptr());
    }
    // SAFETY: a name that ends with 0; the value is used before the environment can change.
    let path = unsafe {
        let path = libc::getenv(c"PATH".as_ptr());
        if path.is_null() {
            &b"/bin:/usr/bin"[..]
        } else {
            CStr::from_ptr(path).to_bytes()
        }
    };
    let Ok(mut room) = MmapBuffer::<u8>::new(PATH_MAX) else {
        return fail(Errno::NOMEM);
    };
    let mut denied = false;
    for directory in path.split(|byte| *byte == b':') {
        let directory = if directory.is_empty() {
            b"."
        } else {
            directory
        };
        let len = directory.len() + 1 + name.len();
        if len >= PATH_MAX {
            continue;
        }
        room[..directory.len()].copy_from_slice(directory);
        room[directory.len()] = b'/';
        room[directory.len() + 1..len].copy_from_slice(name);
        room[len] = 0;
        go(room.as_ptr().cast());
        match sys::last_errno() {
            Errno::ACCESS => denied = true,
            Errno::NOENT | Errno::NOTDIR | Errno::STALE | Errno::NODEV | Errno::TIMEDOUT => {}
            errno => return fail(errno),
        }
    }
    fail(if denied { Errno::ACCESS } else { Errno::NOENT })
}

/// The shell runs a file without a `#!` line, as in the C library's execvp.
///
/// # Safety
/// The requirements of execve hold.
unsafe fn shell(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    // SAFETY: the caller's promise: the array ends with a null pointer.
    let count = unsafe {
        (0..)
            .take_while(|at| !(*arguments.add(*at)).is_null())
            .count()
    };
    let Ok(mut all) = MmapBuffer::<*const c_char>::new(count + 3) else {
        return fail(Errno::NOMEM);
    };
    all[0] = c"/bin/sh".as_ptr();
    all[1] = path;
    for at in 1..count {
        // SAFETY: below the count.
        all[at + 1] = unsafe { *arguments.add(at) };
    }
    // SAFETY: the array ends with the null pointer that the room began with.
    unsafe { execve(c"/bin/sh".as_ptr(), all.as_ptr(), environment) }
}

#[cfg(target_arch = "x86_64")]
mod variadic {
    //! execl, execlp and execle: their arguments are where the calling convention puts them, five
    //! in registers after the path, then on the stack.

    use std::arch::naked_asm;
    use std::ffi::{c_char, c_int};

    use rustix::io::Errno;

    use super::{environ, execve, execvpe, fail};
    use crate::sys::mmap_buffer::MmapBuffer;

    /// The number of arguments in registers.
    const REGISTERS: usize = 5;

    /// The arguments as an array, and their end.
    ///
    /// # Safety
    /// The arguments end with a null pointer.
    unsafe fn collect(
        registers: *const *const c_char,
        stack: *const *const c_char,
    ) -> Option<(MmapBuffer<*const c_char>, usize)> {
        let get = |at: usize| {
            // SAFETY: the caller's promise: nothing is read beyond the null pointer.
            unsafe {
                if at < REGISTERS {
                    *registers.add(at)
                } else {
                    *stack.add(at - REGISTERS)
                }
            }
        };
        let count = (0..).take_while(|at| !get(*at).is_null()).count();
        let mut all = MmapBuffer::<*const c_char>::new(count + 2).ok()?;
        for (at, to) in all.iter_mut().take(count).enumerate() {
            *to = get(at);
        }
        Some((all, count))
    }

    macro_rules! variadic {
        ($(#[$attribute:meta])* $name:ident, $inner:ident) => {
            $(#[$attribute])*
            ///
            /// # Safety
            /// As the C library's.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() -> c_int {
                naked_asm!(
                    "lea rax, [rsp + 8]",
                    "sub rsp, 56",
                    "mov [rsp], rsi",
                    "mov [rsp + 8], rdx",
                    "mov [rsp + 16], rcx",
                    "mov [rsp + 24], r8",
                    "mov [rsp + 32], r9",
                    "mov rsi, rsp",
                    "mov rdx, rax",
                    "call {inner}",
                    "add rsp, 56",
                    "ret",
                    inner = sym $inner,
                )
            }
        };
    }

    variadic! {
        /// Executes a program with a list of arguments.
        execl, execl_with
    }
    variadic! {
        /// Executes a program that is found in PATH with a list of arguments.
        execlp, execlp_with
    }
    variadic! {
        /// Executes a program with a list of arguments and an environment.
        execle, execle_with
    }

    unsafe extern "C" fn execl_with(
        path: *const c_char,
        registers: *const *const c_char,
        stack: *const *const c_char,
    ) -> c_int {
        // SAFETY: the program's promise.
        unsafe {
            match collect(registers, stack) {
                Some((all, _)) => execve(path, all.as_ptr(), environ),
                None => fail(Errno::NOMEM),
            }
        }
    }

    unsafe extern "C" fn execlp_with(
        file: *const c_char,
        registers: *const *const c_char,
        stack: *const *const c_char,
    ) -> c_int {
        // SAFETY: the program's promise.
        unsafe {
            match collect(registers, stack) {
                Some((all, _)) => execvpe(file, all.as_ptr(), environ),
                None => fail(Errno::NOMEM),
            }
        }
    }

    unsafe extern "C" fn execle_with(
        path: *const c_char,
        registers: *const *const c_char,
        stack: *const *const c_char,
    ) -> c_int {
        // SAFETY: the program's promise: the environment stands behind the null pointer.
        unsafe {
            let Some((all, count)) = collect(registers, stack) else {
                return fail(Errno::NOMEM);
            };
            let at = count + 1;
            let environment = if at < REGISTERS {
                *registers.add(at)
            } else {
                *stack.add(at - REGISTERS)
            };
            execve(path, all.as_ptr(), environment.cast())
        }
    }
}
