//! Descriptors in messages (SCM_RIGHTS). A millrace socket cannot be passed to another process yet: it is refused, since the receiver would
//! find the anchor, a socket that is not connected.

use std::ffi::c_int;

use libc::msghdr;

use crate::table::{self, Entry};

/// Whether a message carries a millrace socket.
///
/// # Safety
/// The message is good as sendmsg wants it.
pub unsafe fn carries_ours(message: &msghdr) -> bool {
    if message.msg_control.is_null() || message.msg_controllen == 0 {
        return false;
    }
    // SAFETY: the caller's promise; the walk stays inside the control data, as CMSG_NXTHDR checks.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(message);
        while !head.is_null() {
            if (*head).cmsg_level == libc::SOL_SOCKET && (*head).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(head).cast::<c_int>();
                let before = data as usize - head as usize;
                let count = ((*head).cmsg_len as usize).saturating_sub(before) / size_of::<c_int>();
                for at in 0..count {
                    let fd = data.add(at).read_unaligned();
                    if matches!(table::get(fd), Entry::Socket(_)) {
                        return true;
                    }
                }
            }
            head = libc::CMSG_NXTHDR(message, head);
        }
    }
    false
}
