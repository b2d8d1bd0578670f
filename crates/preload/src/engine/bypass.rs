//! Traffic and programs that bypass the engine. Each case is counted in the region, and the first
//! of its kind in a program is reported on standard error.

use std::ffi::c_int;

use millrace_context::Bypass;

use crate::process::environment;
use crate::{engine, sys};

/// Room of one line in bytes; a longer line is cut.
const LINE_MAX: usize = 512;

/// A line of text that allocates nothing.
pub struct Line {
    bytes: [u8; LINE_MAX],
    len: usize,
}

impl Line {
    /// A line that begins with the library's name.
    pub fn new() -> Line {
        let mut line = Line {
            bytes: [0; LINE_MAX],
            len: 0,
        };
        line.push(b"millrace: ");
        line
    }

    /// Appends as much as fits. The last byte is kept for the line's end.
    pub fn push(&mut self, bytes: &[u8]) {
        let len = bytes.len().min(LINE_MAX - 1 - self.len);
        self.bytes[self.len..self.len + len].copy_from_slice(&bytes[..len]);
        self.len += len;
    }

    /// Writes the line to standard error, if that takes it without harm.
    pub fn say(mut self) {
        self.bytes[self.len] = b'\n';
        if is_for_messages(libc::STDERR_FILENO) {
            sys::write(libc::STDERR_FILENO, &self.bytes[..=self.len]);
        }
    }
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Counts a bypass, and reports it if it is the first of its kind in the program. Reports nothing
/// without an engine, or after `--quiet`.
pub fn note(kind: Bypass, parts: &[&str]) {
    note_with(kind, |line| {
        for part in parts {
            line.push(part.as_bytes());
        }
    });
}

/// Does what [`note`] does, and makes the line only when it is reported.
pub fn note_with(kind: Bypass, write: impl FnOnce(&mut Line)) {
    if environment::get().is_none() {
        return;
    }
    // The child of a fork has its parent's mapping, which is enough to count.
    let Some(engine) = engine::mapped().or_else(|| engine::get().ok()) else {
        return;
    };
    let header = engine.region.header();
    if header.bypasses.count(kind) && header.quiet == 0 {
        let mut line = Line::new();
        write(&mut line);
        line.say();
    }
}

/// Whether a message on this descriptor does no harm. It must be a terminal, a pipe that has a
/// reader and room, or a file opened for writing only. A connection carries a protocol of its own,
/// and a file that the program reads from is data.
fn is_for_messages(fd: c_int) -> bool {
    // SAFETY: only for the call; a descriptor that is not open is an error.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    let Ok(stat) = rustix::fs::fstat(borrowed) else {
        return false;
    };
    let is_good = match stat.st_mode & libc::S_IFMT {
        libc::S_IFCHR | libc::S_IFIFO => true,
        libc::S_IFREG => sys::fcntl(fd, libc::F_GETFL, 0)
            .is_ok_and(|flags| flags & libc::O_ACCMODE == libc::O_WRONLY),
        _ => false,
    };
    let mut polled = [libc::pollfd {
        fd,
        events: libc::POLLOUT,
        revents: 0,
    }];
    is_good && sys::poll_now(&mut polled) == Ok(1) && polled[0].revents == libc::POLLOUT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn a_line_is_cut_and_ends() {
        let mut line = Line::new();
        for _ in 0..LINE_MAX {
            line.push(b"four");
        }
        assert_eq!(line.len, LINE_MAX - 1);
    }

    #[test]
    fn nothing_is_written_to_what_is_not_for_messages() {
        let (reader, writer) = std::io::pipe().unwrap();
        assert!(is_for_messages(writer.as_raw_fd()));
        drop(reader);
        assert!(!is_for_messages(writer.as_raw_fd()), "nobody reads it");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!is_for_messages(socket.as_raw_fd()));
        assert!(!is_for_messages(1 << 20), "it is not open");
    }
}
