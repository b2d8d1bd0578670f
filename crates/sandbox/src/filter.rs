//! From the table to filters of the kernel's.
//!
//! Each knows two outcomes; of several outcomes the kernel takes the most severe. What is deadly
//! ends the process: that filter is installed once, and all threads inherit it. A thread gets two
//! more for its role: what is not in the role's table is trapped (see `refusals`), what is absent
//! fails with ENOSYS.

use std::collections::BTreeMap;
use std::io;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use crate::Error;
use crate::roles::{self, Argument, Call, Link, Role};

/// Rules by the number of their call; none: whatever its arguments.
type Rules = BTreeMap<c_long, Vec<SeccompRule>>;

/// Whether the kernel knows filters with all that these ask for.
pub(crate) fn is_available() -> io::Result<()> {
    for action in [
        libc::SECCOMP_RET_KILL_PROCESS,
        libc::SECCOMP_RET_TRAP,
        libc::SECCOMP_RET_ERRNO,
    ] {
        seccomp(libc::SECCOMP_GET_ACTION_AVAIL, 0, &action)?;
    }
    Ok(())
}

/// Ends the process when the calling thread, or one that it starts, makes a deadly call. Once,
/// before there are threads: each filter costs its thread a tenth of a millisecond and more.
pub(crate) fn install_deadly() -> Result<(), Error> {
    add(&deadly()?).map_err(Error::Filter)
}

/// Leaves the calling thread, and those that it starts, with the calls of a role.
pub(crate) fn install(role: Role, link: Link) -> Result<(), Error> {
    for program in programs(role, link)? {
        add(&program).map_err(Error::Filter)?;
    }
    Ok(())
}

/// A filter, and the flag that has the kernel log what it refuses.
type Program = (BpfProgram, libc::c_ulong);

fn compile(
    rules: Rules,
    mismatch: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Error> {
    let compile = || {
        let arch = TargetArch::try_from(std::env::consts::ARCH)?;
        BpfProgram::try_from(SeccompFilter::new(rules, mismatch, matched, arch)?)
    };
    compile().map_err(|error| Error::Filter(io::Error::other(error)))
}

/// The rules that these calls meet, whatever their arguments.
fn always(numbers: &[c_long]) -> Rules {
    numbers.iter().map(|&number| (number, Vec::new())).collect()
}

/// The filter of every thread of the process.
fn deadly() -> Result<Program, Error> {
    let (rules, kill) = (always(roles::DEADLY), SeccompAction::KillProcess);
    let program = compile(rules, SeccompAction::Allow, kill)?;
    Ok((program, libc::SECCOMP_FILTER_FLAG_LOG))
}

/// The filters of a role. The last one allows least: the other can be added before it, not after.
fn programs(role: Role, link: Link) -> Result<[Program; 2], Error> {
    let absent = roles::absent(role);
    let calls = roles::calls(role, link);
    let allowed = rules(&calls, absent).map_err(|error| Error::Filter(io::Error::other(error)))?;
    let absence = SeccompAction::Errno(libc::ENOSYS as u32);
    let absent = compile(always(absent), SeccompAction::Allow, absence)?;
    let table = compile(allowed, SeccompAction::Trap, SeccompAction::Allow)?;
    Ok([(absent, 0), (table, libc::SECCOMP_FILTER_FLAG_LOG)])
}

/// The rules of calls. Those that are absent pass here: another filter has them fail, and being
/// trapped would be more severe.
fn rules(calls: &[Call], absent: &[c_long]) -> Result<Rules, seccompiler::BackendError> {
    let mut rules = Rules::new();
    let deadly = roles::DEADLY.iter();
    for &number in absent.iter().chain(deadly) {
        rules.insert(number, Vec::new());
    }
    let mut unlimited = Vec::new();
    for call in calls {
        let own = rules.entry(call.number).or_default();
        if call.arguments.is_empty() {
            unlimited.push(call.number);
        }
        for arguments in call.arguments {
            let conditions: Result<Vec<_>, _> = arguments.iter().map(condition).collect();
            own.push(SeccompRule::new(conditions?)?);
        }
    }
    for number in unlimited {
        rules.insert(number, Vec::new());
    }
    Ok(rules)
}

/// Numbers are of 32 bits to the kernel, or have what matters in the lower half.
fn condition(argument: &Argument) -> Result<SeccompCondition, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    let (index, len, operator, value) = match *argument {
        Argument::Is(index, value) => (index, Dword, SeccompCmpOp::Eq, value),
        Argument::Bits(index, mask, value) => (index, Dword, SeccompCmpOp::MaskedEq(mask), value),
        Argument::OwnProcess(index) => (index, Dword, SeccompCmpOp::Eq, std::process::id().into()),
        Argument::Null(index) => (index, Qword, SeccompCmpOp::Eq, 0),
    };
    SeccompCondition::new(index, len, operator, value)
}

/// Adds one. What it refuses is in the kernel's log (type 1326), unless that has been turned off;
/// an engine that stays has no standard error. The kernel need not protect this thread from its
/// own speculation, which it would pay for in each memory access on some machines.
fn add((program, log): &Program) -> io::Result<()> {
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        // The same structure by another name; the kernel only reads it.
        filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut(),
    };
    let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW | log;
    seccomp(libc::SECCOMP_SET_MODE_FILTER, flags, &filter)
}

fn seccomp<T>(operation: libc::c_uint, flags: libc::c_ulong, argument: &T) -> io::Result<()> {
    let argument = std::ptr::from_ref(argument);
    // SAFETY: the argument, and what it may point to, outlives the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, operation, flags, argument) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU8, Ordering};

    use super::*;
    use crate::refusals;

    /// What became of a call.
    const NOT_MADE: u8 = 0;
    const PASSED: u8 = 1;
    const REFUSED: u8 = 2;
    const ABSENT: u8 = 3;
    const ENDED: u8 = 4;

    /// All numbers that kernels have so far, and of other kinds: `execve` and `write` of x32, and
    /// none.
    fn numbers() -> Vec<c_long> {
        (0..=500).chain([0x4000_0001, 0x4000_0208, 4711]).collect()
    }

    /// Calls that do what they are for with any arguments, or would not return; and those of the
    /// kernel's probes (`uretprobe`, `uprobe`), which it lets past all filters and answers by a
    /// signal.
    const NOT_TRIED: [c_long; 5] = [
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_rt_sigreturn,
        335,
        336,
    ];

    /// Memory that this process and its children share.
    fn shared(len: usize) -> &'static [AtomicU8] {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping of zeros, which stays for ever.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::slice::from_raw_parts(at.cast(), len)
        }
    }

    /// The child's: makes the calls from `first` on with arguments that no call accepts.
    fn try_all(
        programs: &[Program],
        numbers: &[c_long],
        first: usize,
        outcomes: &[AtomicU8],
    ) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        refusals::catch()?;
        for program in programs {
            add(program)?;
        }
        for at in first..numbers.len() {
            if NOT_TRIED.contains(&numbers[at]) {
                continue;
            }
            outcomes[at].store(ENDED, Ordering::Relaxed);
            let before = refusals::count();
            // SAFETY: no pointer, descriptor, process or length is -1, so those that are allowed
            // do nothing, too.
            let result = unsafe { libc::syscall(numbers[at], -1, -1, -1, -1, -1, -1) };
            let errno = io::Error::last_os_error().raw_os_error();
            let outcome = match (refusals::count() - before, result, errno) {
                (1, -1, Some(libc::EPERM)) => REFUSED,
                (0, -1, Some(libc::ENOSYS)) if numbers[at] != libc::SYS_futex => ABSENT,
                _ => PASSED,
            };
            outcomes[at].store(outcome, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What becomes of each number in a process with this role.
    fn outcomes(role: Role, link: Link) -> Vec<u8> {
        let [absent, table] = programs(role, link).unwrap();
        let (programs, numbers) = ([deadly().unwrap(), absent, table], numbers());
        let outcomes = shared(numbers.len());
        let mut first = 0;
        loop {
            // SAFETY: the child makes system calls and atomic operations alone, and ends.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // One that hangs in a call ends.
                // SAFETY: plain calls; `_exit` runs nothing of the test's.
                unsafe {
                    libc::alarm(20);
                    let done = try_all(&programs, &numbers, first, outcomes);
                    libc::_exit(done.map_or(1, |()| 0));
                }
            }
            let mut status = 0;
            // SAFETY: the child is this process's and has not been waited for.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            let ended = outcomes[first..]
                .iter()
                .position(|outcome| outcome.load(Ordering::Relaxed) == ENDED);
            let Some(ended) = ended else {
                assert_eq!(status, 0, "{role:?} {link:?}");
                break;
            };
            let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            let number = numbers[first + ended];
            assert_eq!(
                signal,
                Some(libc::SIGSYS),
                "{role:?} {link:?}: call {number}"
            );
            first += ended + 1;
        }
        let outcomes = outcomes.iter();
        outcomes
            .map(|outcome| outcome.load(Ordering::Relaxed))
            .collect()
    }

    #[test]
    fn every_call_that_is_not_in_the_table_is_refused() {
        for (role, link) in Role::ALL
            .into_iter()
            .flat_map(|role| Link::ALL.map(|link| (role, link)))
        {
            let calls = roles::calls(role, link);
            for (number, outcome) in numbers().into_iter().zip(outcomes(role, link)) {
                let whatever_its_arguments =
                    |call: &Call| call.number == number && call.arguments.is_empty();
                let expected = match number {
                    number if NOT_TRIED.contains(&number) => NOT_MADE,
                    number if roles::DEADLY.contains(&number) => ENDED,
                    number if roles::absent(role).contains(&number) => ABSENT,
                    _ if calls.iter().any(whatever_its_arguments) => PASSED,
                    _ => REFUSED,
                };
                assert_eq!(outcome, expected, "{role:?} {link:?}: call {number}");
            }
        }
    }

    #[test]
    fn no_call_is_both_allowed_and_deadly() {
        for role in Role::ALL {
            let calls = roles::calls(role, Link::SharedXdp);
            let numbers = calls.iter().map(|call| call.number);
            for number in numbers {
                assert!(!roles::DEADLY.contains(&number), "{role:?}: call {number}");
                assert!(
                    !roles::absent(role).contains(&number),
                    "{role:?}: call {number}"
                );
            }
        }
    }

    /// The outcome of one call of a child with this role: its result, or the negative error.
    fn outcome(role: Role, call: impl Fn() -> c_long) -> c_long {
        let programs = programs(role, Link::Frames).unwrap();
        let outcome = shared(1);
        // SAFETY: as above.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let entered = rustix::thread::set_no_new_privs(true).is_ok()
                    && refusals::catch().is_ok()
                    && programs.iter().all(|program| add(program).is_ok());
                let done = entered && call() >= 0;
                let refused = entered && refusals::count() == 1;
                outcome[0].store(
                    u8::from(done) * PASSED + u8::from(refused) * REFUSED,
                    Ordering::Relaxed,
                );
                libc::_exit(0);
            }
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
        outcome[0].load(Ordering::Relaxed).into()
    }

    #[test]
    fn arguments_decide() {
        let (passed, refused) = (c_long::from(PASSED), c_long::from(REFUSED));
        let map = |protection: libc::c_int| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new mapping; it is never used.
            move || unsafe { libc::syscall(libc::SYS_mmap, 0, 4096, protection, flags, -1, 0) }
        };
        let socket = |family: libc::c_int| {
            // SAFETY: a call with numbers only.
            move || unsafe {
                libc::syscall(
                    libc::SYS_socketpair,
                    family,
                    libc::SOCK_STREAM,
                    0,
                    [0; 2].as_mut_ptr(),
                )
            }
        };
        let open = |flags: libc::c_int| {
            // SAFETY: the name ends with a zero.
            move || unsafe {
                libc::syscall(
                    libc::SYS_openat,
                    libc::AT_FDCWD,
                    c"/dev/null".as_ptr(),
                    flags,
                )
            }
        };
        let limit = |new: usize| {
            // SAFETY: nothing is written; at the other address there is nothing to read.
            move || unsafe { libc::syscall(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, new, 0) }
        };
        assert_eq!(outcome(Role::Control, limit(0)), passed);
        assert_eq!(outcome(Role::Control, limit(1 << 32)), refused);
        for role in Role::ALL {
            assert_eq!(
                outcome(role, map(libc::PROT_READ | libc::PROT_WRITE)),
                passed,
                "{role:?}"
            );
            assert_eq!(
                outcome(role, map(libc::PROT_READ | libc::PROT_EXEC)),
                refused,
                "{role:?}"
            );
        }
        assert_eq!(outcome(Role::Control, socket(libc::AF_UNIX)), passed);
        assert_eq!(outcome(Role::Control, socket(libc::AF_INET)), refused);
        assert_eq!(
            outcome(Role::Control, open(libc::O_RDONLY | libc::O_CLOEXEC)),
            passed
        );
        assert_eq!(outcome(Role::Control, open(libc::O_RDWR)), refused);
        assert_eq!(
            outcome(Role::Control, open(libc::O_RDONLY | libc::O_TRUNC)),
            refused
        );
    }
}
