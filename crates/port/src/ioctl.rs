//! Calls about network devices that take a `struct ifreq`.

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `struct ifreq`: a name and a union.
#[repr(C, align(8))]
pub(crate) struct Request {
    name: [u8; libc::IFNAMSIZ],
    value: [u8; 24],
}

const _: () = assert!(
    size_of::<Request>() == size_of::<libc::ifreq>()
        && align_of::<Request>() == align_of::<libc::ifreq>()
);

impl Request {
    /// A request about the device `name`, which is cut to what a name can be.
    pub fn about(name: &str) -> Request {
        let mut request = Request {
            name: [0; libc::IFNAMSIZ],
            value: [0; 24],
        };
        let len = name.len().min(libc::IFNAMSIZ - 1);
        request.name[..len].copy_from_slice(&name.as_bytes()[..len]);
        request
    }

    /// With a number of 16 bits, such as flags.
    pub fn short(mut self, value: u16) -> Request {
        self.value[..2].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// With a number of 32 bits.
    pub fn int(mut self, value: u32) -> Request {
        self.value[..4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    /// With the address of what is asked for.
    fn pointer<T>(mut self, to: *mut T) -> Request {
        self.value[..size_of::<usize>()].copy_from_slice(&(to as usize).to_ne_bytes());
        self
    }

    /// The name, which some calls fill in.
    pub fn name(&self) -> String {
        let len = self
            .name
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(self.name.len());
        String::from_utf8_lossy(&self.name[..len]).into_owned()
    }

    /// The first number of 32 bits, which some calls fill in.
    pub fn number(&self) -> u32 {
        let [a, b, c, d, ..] = self.value;
        u32::from_ne_bytes([a, b, c, d])
    }

    /// The link-layer address, which some calls fill in behind the kind of hardware.
    pub fn hardware_address(&self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f, ..] = self.value;
        [a, b, c, d, e, f]
    }

    /// The first number of 16 bits, which some calls fill in.
    pub fn flags(&self) -> u16 {
        u16::from_ne_bytes([self.value[0], self.value[1]])
    }
}

/// Calls `operation`, one of those that take a `struct ifreq`.
pub(crate) fn interface_call(
    socket: BorrowedFd<'_>,
    operation: libc::Ioctl,
    request: &mut Request,
) -> io::Result<()> {
    // SAFETY: every operation passed here reads and writes at most one `struct ifreq`, as which
    // `request` is laid out, and what that points to; both outlive the call.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), operation, std::ptr::from_mut(request)) })
        .map(drop)
}

/// Asks the driver of a device (`SIOCETHTOOL`): `question` begins with the command, and is as long
/// as that one's structure.
pub(crate) fn ask_driver<const N: usize>(
    socket: BorrowedFd<'_>,
    device: &str,
    question: &mut [u32; N],
) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    let mut request = Request::about(device).pointer(question.as_mut_ptr());
    interface_call(socket, SIOCETHTOOL, &mut request)
}

/// What a call that says -1 for a failure has said.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
