//! Starts processes for `millrace run`: session, signals, inherited descriptors.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Starts the command in its own session, so that signals of the terminal do not reach it.
pub fn detach(command: &mut Command) {
    // SAFETY: setsid is async-signal-safe; nothing else happens between fork and exec.
    unsafe {
        command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
    }
}

/// Lets the command inherit a descriptor under a number of at least `least`, if the limit allows.
pub fn inherit(command: &mut Command, descriptor: BorrowedFd<'_>, least: i32) {
    let descriptor = descriptor.as_raw_fd();
    // SAFETY: fcntl is async-signal-safe, and a descriptor that is open in the parent is open in
    // the child.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(descriptor, libc::F_DUPFD, least) < 0 {
                // The limit is lower: it keeps its number.
                libc::fcntl(descriptor, libc::F_SETFD, 0);
            }
            Ok(())
        });
    }
}

/// Signals that this process reads from a descriptor.
#[derive(Debug)]
pub struct Signals {
    descriptor: OwnedFd,
    before: libc::sigset_t,
}

/// One signal.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    /// Its number.
    pub number: i32,
    /// The kernel sent it to the whole foreground process group of a terminal, children included.
    pub from_terminal: bool,
}

impl Signals {
    /// Blocks `numbers` from now on. Must be called before the first thread is started.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn take(numbers: &[i32]) -> io::Result<Signals> {
        // SAFETY: the sets are local variables, and this process owns the descriptor that signalfd
        // returns.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            let mut before: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for number in numbers {
                libc::sigaddset(&raw mut set, *number);
            }
            if libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before) != 0 {
                return Err(io::Error::last_os_error());
            }
            let descriptor = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC);
            if descriptor < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Signals {
                descriptor: OwnedFd::from_raw_fd(descriptor),
                before,
            })
        }
    }

    /// The command starts with the signal mask from before [`Signals::take`].
    pub fn release_in(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: sigprocmask is async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                match libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
                {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn next(&self) -> io::Result<Signal> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&self.descriptor, &mut info)?;
        // SAFETY: the kernel filled exactly one siginfo, which consists of integers.
        let info = unsafe {
            info.as_ptr()
                .cast::<libc::signalfd_siginfo>()
                .read_unaligned()
        };
        Ok(Signal {
            number: info.ssi_signo as i32,
            from_terminal: info.ssi_code == libc::SI_KERNEL,
        })
    }
}
