//! Frames with the tags of their virtual LANs, which the kernel takes off before a packet socket
//! sees them, and tells beside them.

use std::ffi::c_int;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};

use millrace_wire::vnet::{self, VnetHeader};

use crate::relay::{Relayed, TAG_LEN};

/// `PACKET_AUXDATA`: a control message with what is known of a frame.
pub(super) const PACKET_AUXDATA: c_int = 8;
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TPID_VALID: u32 = 1 << 6;
const ETH_P_8021Q: u16 = 0x8100;
/// Two link-layer addresses: where a tag stands.
const TAG_AT: usize = 12;

/// Receives a frame, its tag put back where it was. `None` when there is none now.
pub(super) fn receive(
    socket: &OwnedFd,
    buffer: &mut [u8],
    rest: &mut [u8],
) -> io::Result<Option<Relayed>> {
    let mut head = [0; vnet::LEN];
    let Some((read, tag)) = receive_message(socket, &mut head, &mut buffer[TAG_LEN..], rest)?
    else {
        return Ok(None);
    };
    let Some(len) = read.checked_sub(vnet::LEN) else {
        return Ok(Some(Relayed::default()));
    };
    let mut vnet =
        VnetHeader::parse(&head).map_or_else(|_| VnetHeader::default(), |(vnet, _)| vnet);
    let room = buffer.len() - TAG_LEN;
    let mut relayed = Relayed {
        start: TAG_LEN,
        len: len.min(room),
        rest: len.saturating_sub(room),
        vnet,
    };
    if let Some((kind, control)) = tag
        && len >= TAG_AT
    {
        buffer.copy_within(TAG_LEN..TAG_LEN + TAG_AT, 0);
        buffer[TAG_AT..TAG_AT + 2].copy_from_slice(&kind.to_be_bytes());
        buffer[TAG_AT + 2..TAG_AT + 4].copy_from_slice(&control.to_be_bytes());
        if vnet.flags.contains(vnet::Flags::NEEDS_CSUM) {
            vnet.csum_start += TAG_LEN as u16;
        }
        if vnet.header_len > 0 {
            vnet.header_len += TAG_LEN as u16;
        }
        relayed = Relayed {
            start: 0,
            len: relayed.len + TAG_LEN,
            vnet,
            ..relayed
        };
    }
    Ok(Some(relayed))
}

/// Bytes received, virtio-net header included, and the tag: protocol and control information.
type Message = (usize, Option<(u16, u16)>);

fn receive_message(
    socket: &OwnedFd,
    head: &mut [u8],
    buffer: &mut [u8],
    rest: &mut [u8],
) -> io::Result<Option<Message>> {
    let mut parts = [
        IoSliceMut::new(head),
        IoSliceMut::new(buffer),
        IoSliceMut::new(rest),
    ];
    // Room for one control message, aligned as its header.
    let mut control = [0u64; 8];
    loop {
        // SAFETY: zeros are a message header without anything.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        // An `IoSliceMut` is laid out as a `struct iovec`, as its documentation promises.
        message.msg_iov = parts.as_mut_ptr().cast();
        message.msg_iovlen = parts.len();
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        // SAFETY: the parts and the room for control messages are exclusively ours, outlive the
        // call, and are as long as is said.
        let read =
            unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if read < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EAGAIN | libc::ENETDOWN) => return Ok(None),
                // A frame that cannot be described to us is gone; the next one is there.
                Some(libc::EINTR | libc::EINVAL) => continue,
                _ => return Err(error),
            }
        }
        return Ok(Some((read as usize, tag_of(&message))));
    }
}

/// The tag among the control messages.
fn tag_of(message: &libc::msghdr) -> Option<(u16, u16)> {
    // SAFETY: the kernel has filled in the message, and its room for control messages is still
    // there.
    let control = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: null, or within that room.
    let header = unsafe { control.as_ref() }?;
    let wanted = size_of::<libc::tpacket_auxdata>();
    // SAFETY: only computes a length.
    let len = unsafe { libc::CMSG_LEN(wanted as u32) } as usize;
    if (header.cmsg_level, header.cmsg_type) != (libc::SOL_PACKET, PACKET_AUXDATA)
        || header.cmsg_len < len
    {
        return None;
    }
    // SAFETY: the message has as many bytes as were just asked for, and any bytes are a value of
    // this type.
    let data: libc::tpacket_auxdata = unsafe {
        libc::CMSG_DATA(control)
            .cast::<libc::tpacket_auxdata>()
            .read_unaligned()
    };
    if data.tp_status & VLAN_VALID == 0 {
        return None;
    }
    let kind = if data.tp_status & VLAN_TPID_VALID != 0 {
        data.tp_vlan_tpid
    } else {
        ETH_P_8021Q
    };
    Some((kind, data.tp_vlan_tci))
}
