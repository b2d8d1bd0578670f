//! Engines: what they are to be, and their start.

use std::ffi::{c_char, c_int};

use super::pointer;
use crate::engine;
use crate::outcome::{call, explain, text};

/// The version of the library, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn mr_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// What the last call of this thread that failed for want of sense had to say: which key, which
/// value, which file and line. Valid until the next call; never null.
#[unsafe(no_mangle)]
pub extern "C" fn mr_error_text() -> *const c_char {
    text()
}

/// Makes an engine that is nothing yet: its number, which any thread may use. EMFILE when there are
/// 256.
#[unsafe(no_mangle)]
pub extern "C" fn mr_engine_new() -> c_int {
    call(engine::new)
}

/// Says one thing about an engine before its start. Keys:
///
/// link: none (the default: loopback), packets (the caller's: see mr_stack_input), tap, tap:NAME,
/// tun, tun:NAME, packet:NAME, macvtap:NAME, xdp:NAME; one for each engine, a second is EINVAL
/// until the first is taken back by none; host: the kernel's address at the other end of a TAP or
/// TUN device, as 10.77.0.1/24, as often as there are; address: one of ours, likewise; route:
/// "10.0.0.0/8 via 10.77.0.1"; gateway: for all that has no route; mtu: the largest packet, 576 to
/// 65535; shards: 1 to 64, each with a queue of the link and for a thread of its own; any_address,
/// loopback: on or off; clock: system or caller (see mr_stack_poll_at); congestion: cubic, reno,
/// dctcp or bbr, for new sockets; ecn: off, accept or ask; sockets, half_open, time_wait, orphans,
/// neighbours: how many at once; send_memory, receive_memory: bytes, of all connections together;
/// send_buffer, receive_buffer: bytes of a connection at first; send_buffer_max,
/// receive_buffer_max: when it has grown; time_wait_seconds: 1 to 240; secret: 64 hexadecimal
/// digits, for runs that must repeat.
///
/// EBADF for no engine, EBUSY once it has started, EINVAL for a key or a value that is none:
/// mr_error_text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_engine_set(
    engine: c_int,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: as the header says of text.
        let (key, value) = unsafe { (pointer::text(key)?, pointer::text(value)?) };
        engine::configure(engine, |settings| settings.set(key, value))?;
        Ok(0)
    })
}

/// Says what a file says, in lines of a key and a value ("KEY = VALUE" or "KEY VALUE"; what follows
/// # is a comment). As mr_engine_set, and the errors of reading a file. mr_error_text names the
/// file, the line and the key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mr_engine_read(engine: c_int, path: *const c_char) -> c_int {
    call(|| {
        // SAFETY: as the header says of text.
        let path = unsafe { pointer::text(path)? };
        let text = std::fs::read_to_string(path).map_err(|error| {
            explain(format!("{path}: {error}"));
            error.raw_os_error().unwrap_or(libc::EILSEQ)
        })?;
        engine::configure(engine, |settings| settings.read(path, &text))?;
        Ok(0)
    })
}

/// Opens the link. EBADF for no engine, EBUSY when it has started, EINVAL for what does not fit
/// together or does not open: mr_error_text.
#[unsafe(no_mangle)]
pub extern "C" fn mr_engine_start(engine: c_int) -> c_int {
    call(|| engine::start(engine).map(|()| 0))
}

/// Forgets an engine. Stacks that were taken from it go on; shards that nobody took are lost. EBADF
/// for no engine.
#[unsafe(no_mangle)]
pub extern "C" fn mr_engine_close(engine: c_int) -> c_int {
    call(|| engine::close(engine).map(|()| 0))
}
