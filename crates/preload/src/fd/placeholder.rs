//! The placeholder: the kernel socket that every millrace socket of a process is a duplicate of.
//!
//! It is an AF_UNIX stream socket that is bound to a recognisable name and never connected. A
//! program that bypasses the shim, or a child without the shim, finds an unconnected socket.

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::fd::internal::{self, Handle};
use crate::fd::table;
use crate::sys::robust_lock;
use crate::sys::robust_lock::Rank;
use crate::sys::{self, Result};

const PREFIX: &[u8] = b"millrace-placeholder-";

/// The placeholder's handle plus 1; 0 before it exists.
static PLACEHOLDER: AtomicU32 = AtomicU32::new(0);
/// Held while the placeholder is made.
pub static LOCK: AtomicU32 = AtomicU32::new(0);

fn placeholder_fd() -> Result<Handle> {
    if let Some(bits) = PLACEHOLDER.load(Ordering::Acquire).checked_sub(1) {
        return Ok(Handle::from_bits(bits));
    }
    let _guard = robust_lock::take(&LOCK, Rank::Leaf).ok_or(rustix::io::Errno::NFILE)?;
    if let Some(bits) = PLACEHOLDER.load(Ordering::Acquire).checked_sub(1) {
        return Ok(Handle::from_bits(bits));
    }
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    let mut random = [0u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let mut name = [0u8; 48];
    let len = [PREFIX, &digits(u64::from(sys::getpid())), b"-"]
        .into_iter()
        .chain([&digits(u64::from_ne_bytes(random))[..]])
        .fold(0, |at, part| {
            name[at..at + part.len()].copy_from_slice(part);
            at + part.len()
        });
    rustix::net::bind(
        socket.as_fd(),
        &SocketAddrUnix::new_abstract_name(&name[..len])?,
    )?;
    let handle = internal::adopt(socket)?;
    PLACEHOLDER.store(handle.to_bits() + 1, Ordering::Release);
    Ok(handle)
}

/// Eight digits of a number, enough to tell placeholders apart.
fn digits(number: u64) -> [u8; 8] {
    std::array::from_fn(|i| b"0123456789abcdef"[(number >> (4 * (7 - i)) & 15) as usize])
}

/// Makes a descriptor for a millrace socket with the lowest free number. `MFILE` and `NFILE` mean
/// what they mean for any descriptor.
pub fn descriptor(close_on_exec: bool) -> Result<c_int> {
    let command = if close_on_exec {
        libc::F_DUPFD_CLOEXEC
    } else {
        libc::F_DUPFD
    };
    let fd = sys::fcntl(placeholder_fd()?.fd(), command, 0)?;
    if !table::holds(fd) {
        sys::close(fd);
        return Err(rustix::io::Errno::MFILE);
    }
    Ok(fd)
}

/// Replaces an open descriptor with a duplicate of the placeholder.
pub fn put_over(fd: c_int, close_on_exec: bool) -> Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    sys::dup3(placeholder_fd()?.fd(), fd, flags).map(drop)
}

/// Whether this process has a placeholder.
pub fn exists() -> bool {
    PLACEHOLDER.load(Ordering::Relaxed) != 0
}

/// Whether a descriptor that the table does not know is a placeholder all the same. Asks the kernel
/// only if this process has a placeholder.
pub fn is_known(fd: c_int) -> bool {
    exists() && is_one(fd)
}

/// Whether a descriptor is the placeholder of any process.
pub fn is_one(fd: c_int) -> bool {
    is_open_one(fd).unwrap_or(false)
}

/// Whether an open descriptor is the placeholder of any process. `BADF`: it is not open.
pub fn is_open_one(fd: c_int) -> Result<bool> {
    let mut address = [0u8; 110];
    let found = sys::getsockname(fd, &mut address).map(|len| {
        let family = libc::AF_UNIX as u16;
        address[..len]
            .strip_prefix(&family.to_ne_bytes())
            .and_then(|path| path.strip_prefix(b"\0"))
            .is_some_and(|path| path.starts_with(PREFIX))
    });
    match found {
        Err(rustix::io::Errno::BADF) => Err(rustix::io::Errno::BADF),
        found => Ok(found.unwrap_or(false)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_millrace_descriptor_is_a_placeholder() {
        let fd = descriptor(true).unwrap();
        assert!(is_one(fd));
        assert!(!is_one(0));
        assert_eq!(
            sys::fcntl(fd, libc::F_GETFD, 0),
            Ok(libc::FD_CLOEXEC),
            "close-on-exec as asked"
        );
        sys::close(fd);
    }

    #[test]
    fn a_placeholder_takes_another_sockets_place() {
        let (one, _other) = rustix::pipe::pipe().unwrap();
        use std::os::fd::AsRawFd;
        put_over(one.as_raw_fd(), false).unwrap();
        assert!(is_one(one.as_raw_fd()));
    }
}
