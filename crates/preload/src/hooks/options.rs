//! Socket options.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use rustix::io::Errno;

use super::{fail, hooks, nothing};
use crate::memory;
use crate::options::{self, VALUE_MAX};
use crate::real;
use crate::socket::Socket;
use crate::table::{self, Entry, Undecided};

hooks! {
    /// Sets an option.
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int {
        if table::is_kernel(fd) {
            return real::setsockopt(fd, level, name, value, len);
        }
        let parse = || {
            if len as c_int <= -1 {
                return Err(Errno::INVAL);
            }
            let len = (len as usize).min(VALUE_MAX);
            memory::check(value, len)?;
            let value = if len == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(value.cast::<u8>(), len)
            };
            options::parse(level, name, value)
        };
        match table::get(fd) {
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                if !options::has_level(&socket, level) {
                    return Err(Errno::NOPROTOOPT);
                }
                options::apply(&socket, parse()?)
            })),
            entry @ Entry::Undecided(undecided) => {
                let bit = match parse().and_then(|_| options::bit(level, name)) {
                    Ok(bit) => bit,
                    Err(errno) => return fail(errno),
                };
                let result = real::setsockopt(fd, level, name, value, len);
                if result == 0 {
                    let set = Undecided {
                        options: undecided.options | bit,
                        ..undecided
                    };
                    table::exchange(fd, entry, Entry::Undecided(set));
                }
                result
            }
            Entry::Internal => fail(Errno::BADF),
            _ => real::setsockopt(fd, level, name, value, len),
        }
    }

    /// Reads an option.
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int {
        match table::get(fd) {
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                memory::check(len.cast(), size_of::<socklen_t>())?;
                let room = usize::try_from(*len as c_int).map_err(|_| Errno::INVAL)?;
                if !options::has_level(&socket, level) {
                    return Err(Errno::NOPROTOOPT);
                }
                let mut bytes = [0u8; VALUE_MAX];
                let used = options::read(&socket, level, name, &mut bytes)?;
                let used = options::fit(level, name, &mut bytes, used, room);
                memory::check(value, used)?;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), used);
                *len = used as socklen_t;
                Ok(())
            })),
            Entry::Undecided(_) if !options::is_readable(level, name) => fail(Errno::NOPROTOOPT),
            Entry::Internal => fail(Errno::BADF),
            _ => real::getsockopt(fd, level, name, value, len),
        }
    }
}
