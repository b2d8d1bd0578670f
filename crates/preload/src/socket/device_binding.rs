//! Devices that programs name: SO_BINDTODEVICE, SO_BINDTOIFINDEX and the scope of an address.
//!
//! The kernel knows the devices and decides who may name them. The engine serves its link, which is
//! a device to the kernel, and loopback.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use libc::{SOL_SOCKET, socklen_t};
use millrace_context::{Bypass, Status};
use millrace_sockopt::numbers::SO_BINDTOIFINDEX;
use rustix::io::Errno;

use crate::engine::bypass;
use crate::engine::{self, Engine};
use crate::fd::table::{self, Entry, Undecided};
use crate::readiness::epoll_sets;
use crate::socket::Socket;

use crate::socket::option_rows::{self, VALUE_MAX};
use crate::sys::{self, Result};

/// The loopback device.
pub const LOOPBACK: u32 = 1;
/// The word of [`millrace_context::slot::AppCold::options`] with the device's index; 0 for none.
const WORD: usize = 7;

/// Whether the engine serves a device.
pub fn is_served(engine: &Engine, index: u32) -> bool {
    let header = engine.region.header();
    match index {
        0 => false,
        LOOPBACK => header.loopback == 1,
        index => header.device_index == index,
    }
}

/// The index of the device that a socket is bound to; 0 for none.
pub fn of(socket: &Socket) -> u32 {
    socket.slot.app_cold.options[WORD].load(Ordering::Relaxed)
}

/// The bits of a bind request that name the device.
pub fn bind_bits(socket: &Socket) -> u64 {
    match of(socket) {
        0 => 0,
        LOOPBACK => 2 << 3,
        _ => 1 << 3,
    }
}

/// Whether a socket can reach an address by the device that it is bound to.
pub fn reaches(socket: &Socket, ip: IpAddr) -> bool {
    match of(socket) {
        0 => true,
        LOOPBACK => ip.is_loopback(),
        _ => !ip.is_loopback(),
    }
}

/// Whether this option names a device.
pub fn is_option(level: c_int, name: c_int) -> bool {
    level == SOL_SOCKET && matches!(name, libc::SO_BINDTODEVICE | SO_BINDTOIFINDEX)
}

fn bit(undecided: Undecided) -> Result<u64> {
    option_rows::bit(
        option_rows::kind(undecided.datagrams),
        SOL_SOCKET,
        SO_BINDTOIFINDEX,
    )
}

/// The device that a socket of the kernel is bound to.
pub fn of_kernels(fd: c_int) -> u32 {
    sys::getsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX).unwrap_or(0) as u32
}

/// Counts and reports that a socket goes to the kernel because of its device.
pub fn note_foreign() {
    bypass::note(
        Bypass::Device,
        &[
            "a socket that is bound to a device goes to the kernel: the engine does not serve that device",
        ],
    );
}

/// Binds a socket whose stack is not chosen yet to a device. A device that the engine does not
/// serve makes it the kernel's.
///
/// # Safety
/// The requirements of setsockopt hold.
pub unsafe fn set_undecided(
    fd: c_int,
    undecided: Undecided,
    (name, value, len): (c_int, *const c_void, socklen_t),
) -> Result<()> {
    let engine = engine::get()?;
    // SAFETY: the caller's promise.
    unsafe { sys::setsockopt(fd, SOL_SOCKET, name, value, len) }?;
    let (entry, index) = (Entry::Undecided(undecided), of_kernels(fd));
    if index != 0 && !is_served(engine, index) {
        note_foreign();
        table::exchange(fd, entry, Entry::Kernel);
        epoll_sets::forget_undecided(fd);
    } else if let Ok(bit) = bit(undecided) {
        let options = undecided.options | bit;
        let set = Undecided {
            options,
            ..undecided
        };
        table::exchange(fd, entry, Entry::Undecided(set));
    }
    Ok(())
}

/// Binds a millrace socket to a device.
///
/// # Safety
/// The requirements of setsockopt hold.
pub unsafe fn set(
    socket: &Socket,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<()> {
    // A kernel socket with the same binding gets the same answer from the kernel.
    let probe = bound_as(socket)?;
    // SAFETY: the caller's promise.
    let said = unsafe { sys::setsockopt(probe, SOL_SOCKET, name, value, len) };
    let index = of_kernels(probe);
    sys::close(probe);
    said?;
    apply(socket, index)
}

/// Makes a kernel socket that is bound to the same device.
fn bound_as(socket: &Socket) -> Result<c_int> {
    let probe = sys::datagram_socket()?;
    let index = of(socket) as c_int;
    // SAFETY: a number of our own. A device that is gone is none.
    let _ = unsafe {
        sys::setsockopt(
            probe,
            SOL_SOCKET,
            SO_BINDTOIFINDEX,
            (&raw const index).cast(),
            4,
        )
    };
    Ok(probe)
}

/// Binds a millrace socket to the device with this index; 0 for none. A socket that has an address
/// keeps its device.
pub fn apply(socket: &Socket, index: u32) -> Result<()> {
    if index != 0 && !is_served(socket.engine, index) {
        return Err(Errno::NODEV);
    }
    let settled = Status::BOUND | Status::LISTENING | Status::CONNECTING | Status::CONNECTED;
    if index != of(socket) && socket.status().intersects(settled) {
        return Err(Errno::INVAL);
    }
    socket.slot.app_cold.options[WORD].store(index, Ordering::Relaxed);
    Ok(())
}

/// The value of SO_BINDTODEVICE: the name and a 0 byte, or nothing without a device.
pub fn name(socket: &Socket, out: &mut [u8; VALUE_MAX]) -> Result<usize> {
    let probe = bound_as(socket)?;
    let len = sys::getsockopt_bytes(probe, SOL_SOCKET, libc::SO_BINDTODEVICE, out);
    sys::close(probe);
    len
}

/// Whether the scope of a group's address names a device that the engine does not serve.
pub fn is_foreign_scope(scope: u32) -> bool {
    scope != 0 && engine::get().is_ok_and(|engine| !is_served(engine, scope))
}
