//! Hooks of socket options.

use std::ffi::{c_int, c_void};

use libc::socklen_t;
use millrace_sockopt::Membership;
use rustix::io::Errno;

use super::{fail, hooks, nothing};
use crate::engine;
use crate::fd::table::{self, Entry, Undecided};
use crate::socket::Socket;
use crate::socket::option_rows::{self, VALUE_MAX};
use crate::socket::options;
use crate::socket::stack_choice;
use crate::socket::{datagram, device_binding};
use crate::sys::Result;
use crate::sys::original;
use crate::sys::user_buffers;

hooks! {
    /// Sets an option.
    fn setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int where settled(fd) {
        if table::is_kernel(fd) {
            return original::setsockopt(fd, level, name, value, len);
        }
        let given = || -> Result<&[u8]> {
            if len as c_int <= -1 {
                return Err(Errno::INVAL);
            }
            let len = (len as usize).min(VALUE_MAX);
            user_buffers::check(value, len)?;
            let value = if len == 0 {
                &[]
            } else {
                std::slice::from_raw_parts(value.cast::<u8>(), len)
            };
            Ok(value)
        };
        match table::get(fd) {
            Entry::Socket(slot) if device_binding::is_option(level, name) => {
                nothing(Socket::get(fd, slot).and_then(|socket| device_binding::set(&socket, name, value, len)))
            }
            Entry::Undecided(undecided) if device_binding::is_option(level, name) => {
                nothing(device_binding::set_undecided(fd, undecided, (name, value, len)))
            }
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                if !options::has_level(&socket, level) {
                    return Err(Errno::NOPROTOOPT);
                }
                let kind = option_rows::kind(socket.is_datagrams());
                options::apply(&socket, option_rows::parse(kind, level, name, given()?)?)
            })),
            entry @ Entry::Undecided(undecided) => {
                let kind = option_rows::kind(undecided.datagrams);
                if level == libc::IPPROTO_IPV6 && !undecided.v6 {
                    return fail(Errno::NOPROTOOPT);
                }
                let opt = given().and_then(|value| option_rows::parse(kind, level, name, value));
                let bit = match opt {
                    Ok(opt) => match opt.membership() {
                        Some(change) => return set_membership(fd, undecided, change, || {
                            original::setsockopt(fd, level, name, value, len)
                        }),
                        None => option_rows::bit(kind, level, name),
                    },
                    Err(errno) => Err(errno),
                };
                let bit = match bit {
                    Ok(bit) => bit,
                    Err(errno) => return fail(errno),
                };
                let result = original::setsockopt(fd, level, name, value, len);
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
            _ => original::setsockopt(fd, level, name, value, len),
        }
    }

    /// Reads an option.
    fn getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int where settled(fd) {
        match table::get(fd) {
            Entry::Socket(slot) => nothing(Socket::get(fd, slot).and_then(|socket| {
                user_buffers::check(len.cast(), size_of::<socklen_t>())?;
                let room = usize::try_from(*len as c_int).map_err(|_| Errno::INVAL)?;
                if !options::has_level(&socket, level) {
                    return Err(Errno::OPNOTSUPP);
                }
                let mut bytes = [0u8; VALUE_MAX];
                let used = options::read(&socket, level, name, &mut bytes)?;
                if name == libc::SO_BINDTODEVICE && level == libc::SOL_SOCKET
                    && used > 0 && room < libc::IFNAMSIZ
                {
                    return Err(Errno::INVAL);
                }
                let kind = option_rows::kind(socket.is_datagrams());
                let row = millrace_sockopt::find(kind, level, name);
                let used = bytes
                    .first_chunk_mut()
                    .map_or(used, |bytes| millrace_sockopt::fit(row, bytes, used, room))
                    .min(room);
                user_buffers::check(value, used)?;
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast::<u8>(), used);
                *len = used as socklen_t;
                Ok(())
            })),
            Entry::Undecided(undecided) if level == libc::IPPROTO_IPV6 && !undecided.v6 => {
                fail(Errno::OPNOTSUPP)
            }
            Entry::Undecided(undecided)
                if !option_rows::is_readable(option_rows::kind(undecided.datagrams), level, name) =>
            {
                fail(option_rows::refusal(option_rows::kind(undecided.datagrams), level))
            }
            Entry::Internal => fail(Errno::BADF),
            _ => original::getsockopt(fd, level, name, value, len),
        }
    }
}

/// A socket whose stack is not chosen yet joins a group: the group's link chooses the stack.
/// `kernel` asks the kernel.
fn set_membership(
    fd: c_int,
    undecided: Undecided,
    change: Membership,
    kernel: impl FnOnce() -> c_int,
) -> c_int {
    match engine::get() {
        Ok(engine) if datagram::multicast::serves(engine, &change) => nothing(
            stack_choice::make_ours(fd, undecided)
                .and_then(|socket| datagram::multicast::apply(&socket, change)),
        ),
        Ok(_) => {
            let result = kernel();
            if result == 0 {
                table::exchange(fd, Entry::Undecided(undecided), Entry::Kernel);
                crate::readiness::epoll_sets::forget_undecided(fd);
            }
            result
        }
        Err(errno) => fail(errno),
    }
}
