//! Detection of programs into which the dynamic linker will not load the shim. Their sockets are
//! the kernel's, which is reported and counted. `millrace run` refuses such programs, but a program
//! on millrace may start any.

use std::ffi::{CStr, c_char, c_int};

use millrace_context::Bypass;

use crate::engine::bypass;
use crate::process::environment::{self, Environment, value_of};
use crate::process::exec;
use crate::sys;

/// The bytes that are read of a file: its header and, where linkers put them, its program headers.
const HEAD: usize = 4096;
/// The bytes of a program header.
const SEGMENT: usize = 56;
/// The bytes that are read of a note segment.
const NOTES: usize = 1024;
/// The longest chain of interpreters that is followed.
const SCRIPTS_MAX: u32 = 4;

const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;

/// The reason why the shim will not be in a program.
type Reason = (Bypass, &'static str);

/// Reports if the shim will not be in a file that is about to be executed with this environment.
/// Returns whether the file exists.
///
/// # Safety
/// The path is a string; `given` is an array of strings that ends with a null pointer, or null.
pub unsafe fn report(directory: c_int, path: *const c_char, given: *const *const c_char) -> bool {
    let Some(environment) = environment::get() else {
        return true;
    };
    if path.is_null() {
        return false;
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let Ok(fd) = sys::open_at(directory, path) else {
        return false;
    };
    // SAFETY: the caller's promise.
    unsafe { report_open(environment, fd, path, given) };
    sys::close(fd);
    true
}

/// Does what [`report`] does, for an open file.
///
/// # Safety
/// The requirements of [`report`] hold.
pub unsafe fn report_file(fd: c_int, given: *const *const c_char) {
    if let Some(environment) = environment::get() {
        // SAFETY: the caller's promise.
        unsafe { report_open(environment, fd, c"a program", given) };
    }
}

/// # Safety
/// As [`report`].
unsafe fn report_open(
    environment: &Environment,
    fd: c_int,
    path: &CStr,
    given: *const *const c_char,
) {
    // SAFETY: the caller's promise.
    let lines = || unsafe { exec::lines(given) };
    // Valgrind's tools are static, and load the program and its preloaded libraries themselves.
    if lines().any(|line| value_of(line, "VALGRIND_LAUNCHER").is_some()) {
        return;
    }
    let preload = lines().find_map(|line| value_of(line, "LD_PRELOAD"));
    let reason = of_file(fd, path, 0).or_else(|| of_shim(environment, preload));
    if let Some((kind, why)) = reason {
        bypass::note_with(kind, |line| {
            line.push(path.to_bytes());
            line.push(b" goes to the kernel: ");
            line.push(why.as_bytes());
        });
    }
}

/// The reason why the shim cannot be in the next program, however good that program is.
fn of_shim(environment: &Environment, preload: Option<&[u8]>) -> Option<Reason> {
    let is_separator = |byte: &u8| matches!(byte, b':' | b' ');
    let shim = environment.preload.bytes().split(is_separator).next()?;
    if shim.is_empty() {
        return None;
    }
    if preload.is_some_and(|given| !given.split(is_separator).any(|library| library == shim)) {
        return Some((
            Bypass::NoShim,
            "it is started with an LD_PRELOAD without libmillrace_preload.so",
        ));
    }
    let mut path = [0u8; HEAD];
    path.get_mut(..shim.len())?.copy_from_slice(shim);
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    (!sys::is_readable(path)).then_some((
        Bypass::NoShim,
        "libmillrace_preload.so cannot be read from where it is started (chroot?); put the file at the same path there",
    ))
}

fn of_file(fd: c_int, path: &CStr, depth: u32) -> Option<Reason> {
    let mut head = [0u8; HEAD];
    // SAFETY: the room is the array's.
    let len = unsafe { sys::read_file(fd, head.as_mut_ptr(), HEAD, Some(0)) }.ok()?;
    let head = &head[..len];
    if let Some(line) = head.strip_prefix(b"#!") {
        return of_interpreter(line, depth);
    }
    of_privileges(fd).or_else(|| of_elf(fd, path, head))
}

/// A script runs in its interpreter.
fn of_interpreter(line: &[u8], depth: u32) -> Option<Reason> {
    let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii();
    let name = line.split(u8::is_ascii_whitespace).next()?;
    let mut path = [0u8; 256];
    path.get_mut(..name.len())?.copy_from_slice(name);
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    if depth >= SCRIPTS_MAX {
        return None;
    }
    let fd = sys::open_at(libc::AT_FDCWD, path).ok()?;
    let reason = of_file(fd, path, depth + 1);
    sys::close(fd);
    reason
}

fn of_privileges(fd: c_int) -> Option<Reason> {
    // SAFETY: only for the call; it is open.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(file).ok()?;
    let (user, group) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let gains = stat.st_mode & libc::S_ISUID != 0 && stat.st_uid != user
        || stat.st_mode & libc::S_ISGID != 0 && stat.st_gid != group
        || user != 0
            && rustix::fs::fgetxattr(file, c"security.capability", &mut [0u8; 64])
                .is_ok_and(|len| len > 0);
    gains.then_some((
        Bypass::PrivilegedProgram,
        "it gains privileges, so the dynamic linker does not preload the shim",
    ))
}

fn of_elf(fd: c_int, path: &CStr, head: &[u8]) -> Option<Reason> {
    const MACHINE: u16 = if cfg!(target_arch = "aarch64") {
        183
    } else {
        62
    };
    if !head.starts_with(b"\x7fELF") || head.len() < 64 {
        return None;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    // The file is of 64 bits and little endian.
    if head[4..6] != [2, 1] || half(18) != MACHINE {
        return Some((
            Bypass::ForeignProgram,
            "it is no 64-bit program of this architecture, and the shim is",
        ));
    }
    let first = usize::try_from(word(&head[32..])?).ok()?;
    let segments = || head.get(first..).unwrap_or_default().chunks_exact(SEGMENT);
    let count = usize::from(half(56));
    let of_kind = |kind: u32| {
        segments()
            .take(count)
            .filter(move |segment| segment[..4] == kind.to_le_bytes())
    };
    if of_kind(PT_NOTE).any(|segment| is_go_note(fd, segment)) {
        return Some((
            Bypass::GoProgram,
            "it is a Go program, which makes its system calls itself",
        ));
    }
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next()?;
    // The dynamic linker has no interpreter, but preloads libraries.
    let is_linker = [&b"ld-linux"[..], b"ld.so"]
        .iter()
        .any(|it| name.starts_with(it));
    let is_static = segments().len() >= count && of_kind(PT_INTERP).next().is_none();
    (is_static && !is_linker).then_some((
        Bypass::StaticProgram,
        "it is linked statically, so no dynamic linker loads the shim",
    ))
}

fn word(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Whether a segment begins with a note of Go's linker.
fn is_go_note(fd: c_int, segment: &[u8]) -> bool {
    let mut notes = [0u8; NOTES];
    let (Some(offset), Some(size)) = (word(&segment[8..]), word(&segment[32..])) else {
        return false;
    };
    let len = NOTES.min(size as usize);
    // SAFETY: the room is the array's.
    let read = unsafe { sys::read_file(fd, notes.as_mut_ptr(), len, Some(offset as i64)) };
    let mut rest = &notes[..read.unwrap_or(0)];
    while let Some((header, behind)) = rest.split_first_chunk::<12>() {
        let length = |at: usize| {
            let length =
                u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            (length as usize).next_multiple_of(4)
        };
        if behind.starts_with(b"Go\0\0") {
            return true;
        }
        rest = behind.get(length(0) + length(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn of(path: &CStr) -> Option<Bypass> {
        let file = std::fs::File::open(path.to_str().unwrap()).unwrap();
        of_file(file.as_raw_fd(), path, 0).map(|(kind, _)| kind)
    }

    fn of_bytes(content: &[u8]) -> Option<Bypass> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("/tmp/millrace-executable-{}-{number}", std::process::id());
        std::fs::write(&name, content).unwrap();
        let kind = of(&std::ffi::CString::new(name.clone()).unwrap());
        std::fs::remove_file(name).unwrap();
        kind
    }

    #[test]
    fn ordinary_programs_and_scripts_have_the_shim() {
        assert_eq!(of(c"/bin/sh"), None);
        assert_eq!(of_bytes(b"#! /bin/sh -e\ntrue\n"), None);
        assert_eq!(of_bytes(b"#!/no/such/file\n"), None);
        assert_eq!(of_bytes(b"#!"), None);
        assert_eq!(of_bytes(b""), None);
    }

    #[test]
    fn programs_without_a_dynamic_linker_or_of_another_machine_do_not() {
        let mut header = vec![0u8; 64 + SEGMENT];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        header[18] = if cfg!(target_arch = "aarch64") {
            183
        } else {
            62
        };
        header[32] = 64;
        header[56] = 1;
        header[64] = 1;
        assert_eq!(of_bytes(&header), Some(Bypass::StaticProgram));
        header[64] = PT_INTERP as u8;
        assert_eq!(of_bytes(&header), None);
        header[18] = 40;
        assert_eq!(of_bytes(&header), Some(Bypass::ForeignProgram));
        header[18] = 62;
        header[4] = 1;
        assert_eq!(of_bytes(&header), Some(Bypass::ForeignProgram));
    }
}
