//! Stacks: one shard each, on the thread that took it.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;

use libc::ssize_t;
use millrace::Instant;

use super::pointer;
use crate::outcome::call;
use crate::{engine, here};

/// Takes shard number `shard` (from 0) of an engine that has started: the number of a stack, which
/// is this thread's alone and does all its work inside calls of this thread. New sockets are made
/// in it. Every shard of an engine has to be taken, by a thread each: what comes for one that was
/// not is lost. EBADF for no engine, ENOTCONN before its start, EINVAL for no such shard, EBUSY for
/// one that was taken, EMFILE without descriptors for it, and then it is left to be taken.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_open(engine: c_int, shard: c_int) -> c_int {
    call(|| here::adopt(|| engine::take(engine, shard)))
}

/// Makes another stack of this thread's the one that new sockets are made in. EBADF for any other
/// number.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_use(stack: c_int) -> c_int {
    call(|| here::choose(stack).map(|()| 0))
}

/// Ends a stack: its descriptors are closed, and connections have `timeout_ms` milliseconds at most
/// to say what they were given to say. EBADF for no stack of this thread's.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_close(stack: c_int, timeout_ms: c_int) -> c_int {
    call(|| {
        here::give_up(stack)?.end(timeout_ms);
        Ok(0)
    })
}

/// Does what there is to do now, and returns how much that was; 0 is the time to wait. EBADF.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_poll(stack: c_int) -> c_int {
    call(|| Ok(c_int::try_from(here::stack(stack)?.work()).unwrap_or(c_int::MAX)))
}

/// As mr_stack_poll, at a time of the caller's in nanoseconds from any origin, in steps of 1,000.
/// Time does not go back: an earlier one is taken for the last. EBADF; EINVAL for a stack whose
/// clock is the system's.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_poll_at(stack: c_int, now_ns: u64) -> c_int {
    call(|| {
        let host = here::stack(stack)?;
        if !host.manual {
            return Err(libc::EINVAL);
        }
        host.stack.set_now(Instant::from_micros(now_ns / 1000));
        Ok(c_int::try_from(host.work()).unwrap_or(c_int::MAX))
    })
}

/// When there is something to do even if nothing comes: 1, and in `wait_ns` how many nanoseconds
/// from now; 0 when never. With the caller's clock, now is the last mr_stack_poll_at. EBADF,
/// EFAULT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_stack_deadline(stack: c_int, wait_ns: *mut u64) -> c_int {
    call(|| {
        let host = here::stack(stack)?;
        let now = host.stack.read_clock();
        let deadline = host.stack.deadline();
        let wait = deadline.map_or(0, |at| if at > now { (at - now).as_micros() } else { 0 });
        // SAFETY: as the header says of pointers.
        unsafe { pointer::put(wait_ns, wait.saturating_mul(1000))? };
        Ok(c_int::from(deadline.is_some()))
    })
}

/// A descriptor of the kernel's that can be read when mr_stack_poll has something to do, to wait
/// for until mr_stack_deadline. It is the stack's: neither read it nor close it. EBADF; ENOMEM,
/// ENOSPC.
#[unsafe(no_mangle)]
pub extern "C" fn mr_stack_descriptor(stack: c_int) -> c_int {
    call(|| {
        let host = here::stack(stack)?;
        let descriptor = host.stack.descriptor();
        let descriptor =
            descriptor.map_err(|error| error.raw_os_error().unwrap_or(libc::ENOMEM))?;
        Ok(descriptor.as_raw_fd())
    })
}

/// Takes in one IP packet, on a stack with the link "packets". What it gives rise to comes out of
/// mr_stack_output. EBADF, EFAULT; EOPNOTSUPP for another link, EINVAL for what is neither IPv4 nor
/// IPv6, EMSGSIZE for more than 65,535 bytes. Whatever else is wrong with it is the stack's to
/// judge, as on any link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_stack_input(stack: c_int, packet: *const c_void, len: usize) -> c_int {
    call(|| {
        let host = here::stack(stack)?;
        // SAFETY: as the header says of pointers.
        host.input(unsafe { pointer::bytes(packet, len)? })?;
        Ok(0)
    })
}

/// Takes out the next IP packet, on a stack with the link "packets": its length, 0 when there is
/// none. EBADF, EFAULT; EOPNOTSUPP for another link; EMSGSIZE when it does not fit into `len`
/// bytes, and then it stays.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_stack_output(stack: c_int, packet: *mut c_void, len: usize) -> ssize_t {
    call(|| {
        let host = here::stack(stack)?;
        // SAFETY: as the header says of pointers.
        let len = host.output(unsafe { pointer::bytes_mut(packet, len)? })?;
        Ok(len as ssize_t)
    })
}
