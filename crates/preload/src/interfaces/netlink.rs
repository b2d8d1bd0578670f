//! The engine's addresses in the kernel's answer to a netlink dump of addresses (RTM_GETADDR).
//!
//! The program's request is noted in its socket's entry of the table. The shim peeks at the
//! datagram that ends the kernel's answer, and inserts the engine's messages before the final one.

use std::ffi::{c_int, c_void};
use std::net::IpAddr;

use libc::{iovec, msghdr, nlmsghdr, sockaddr, socklen_t};
use rustix::io::Errno;

use crate::fd::table::{self, Asked, Entry};
use crate::interfaces::{Added, Address, broadcast};
use crate::sys::mmap_buffer::MmapBuffer;
use crate::sys::original;
use crate::sys::user_buffers;
use crate::sys::{self, Result};

/// The largest datagram that is peeked at. The kernel makes no larger one for a dump.
const DATAGRAM_MAX: usize = 32 * 1024;
/// Room for the engine's messages in bytes; an address takes less than 100.
const ADDED_MAX: usize = 4096;
const HEADER: usize = size_of::<nlmsghdr>();
const DUMP: u16 = (libc::NLM_F_ROOT | libc::NLM_F_MATCH) as u16;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let bytes = bytes.get(at..at + 4);
    bytes.map_or(0, |bytes| {
        u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    })
}

/// Notes a program's request on a netlink socket.
fn note(fd: c_int, request: &[u8]) {
    let entry = table::get(fd);
    if !matches!(entry, Entry::Netlink(_)) || u16_at(request, 4) != libc::RTM_GETADDR {
        return;
    }
    let asked = Asked {
        dump: u16_at(request, 6) & DUMP != 0,
        family: request.get(HEADER).copied().unwrap_or(0),
        sequence: u32_at(request, 8),
    };
    table::exchange(fd, entry, Entry::Netlink(asked));
}

/// Notes a request in a vector.
///
/// # Safety
/// The requirements of sendmsg hold.
pub unsafe fn note_message(fd: c_int, message: *const msghdr) {
    if user_buffers::check(message.cast(), size_of::<msghdr>()).is_err() {
        return;
    }
    // SAFETY: looked at, as its vector and the vector's first piece are; a request is in one piece.
    unsafe {
        let vector = (*message).msg_iov;
        if (*message).msg_iovlen == 0
            || user_buffers::check(vector.cast(), size_of::<iovec>()).is_err()
        {
            return;
        }
        note_buffer(fd, (*vector).iov_base, (*vector).iov_len);
    }
}

/// Notes a request in a buffer.
///
/// # Safety
/// The requirements of send hold.
pub unsafe fn note_buffer(fd: c_int, buffer: *const c_void, len: usize) {
    if user_buffers::check(buffer, len).is_ok() {
        // SAFETY: looked at.
        note(fd, unsafe {
            std::slice::from_raw_parts(buffer.cast(), len)
        });
    }
}

/// Receives into a buffer: see [`receive`].
///
/// # Safety
/// As recvfrom's.
pub unsafe fn receive_from(
    fd: c_int,
    asked: Asked,
    (buffer, len): (*mut c_void, usize),
    flags: c_int,
    (from, from_len): (*mut sockaddr, *mut socklen_t),
) -> Option<Result<usize>> {
    let mut vector = iovec {
        iov_base: buffer,
        iov_len: len,
    };
    // SAFETY: zeros are a message without anything; the length is looked at.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut vector;
        message.msg_iovlen = 1;
        if !from.is_null() {
            user_buffers::check(from_len.cast(), size_of::<socklen_t>()).ok()?;
            message.msg_name = from.cast();
            message.msg_namelen = *from_len;
        }
        let result = receive(fd, asked, &raw mut message, flags)?;
        if !from.is_null() && result.is_ok() {
            *from_len = message.msg_namelen;
        }
        Some(result)
    }
}

/// Receives on a socket whose program has asked for addresses. `None`: the kernel's answer needs no
/// change and is still to be received.
///
/// # Safety
/// The requirements of recvmsg hold.
pub unsafe fn receive(
    fd: c_int,
    asked: Asked,
    message: *mut msghdr,
    flags: c_int,
) -> Option<Result<usize>> {
    if !asked.dump || user_buffers::check(message.cast(), size_of::<msghdr>()).is_err() {
        return None;
    }
    // SAFETY: looked at; what it points to is the kernel's to look at.
    unsafe {
        let mut datagram = MmapBuffer::<u8>::new(DATAGRAM_MAX).ok()?;
        let mut vector = iovec {
            iov_base: datagram.as_mut_ptr().cast(),
            iov_len: datagram.len(),
        };
        let mut peeked = *message;
        peeked.msg_iov = &raw mut vector;
        peeked.msg_iovlen = 1;
        let len = original::recvmsg(
            fd,
            &raw mut peeked,
            flags | libc::MSG_PEEK | libc::MSG_TRUNC,
        );
        if len < 0 {
            return Some(Err(sys::last_errno()));
        }
        let datagram = datagram.get(..len as usize)?;
        let end = find_end(datagram, asked.sequence)?;
        let added = Added::now()?;
        let mut ours = MmapBuffer::<u8>::new(ADDED_MAX).ok()?;
        let len = write_all(&mut ours, &added, asked, u32_at(datagram, end + 12));
        if flags & libc::MSG_PEEK == 0 {
            let taken = original::recv(fd, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT);
            if taken < 0 {
                return Some(Err(sys::last_errno()));
            }
            table::exchange(fd, Entry::Netlink(asked), Entry::Netlink(Asked::default()));
        }
        let pieces = [&datagram[..end], &ours[..len], &datagram[end..]];
        Some(hand_out(message, &peeked, pieces, flags))
    }
}

/// Copies a datagram to the program.
///
/// # Safety
/// The requirements of recvmsg hold; `peeked` has what the kernel says about the sender.
unsafe fn hand_out(
    message: *mut msghdr,
    peeked: &msghdr,
    pieces: [&[u8]; 3],
    flags: c_int,
) -> Result<usize> {
    let all: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut copied = 0;
    // SAFETY: the caller's promise; each piece of the vector is looked at first.
    unsafe {
        (*message).msg_namelen = peeked.msg_namelen;
        (*message).msg_controllen = peeked.msg_controllen;
        (*message).msg_flags = peeked.msg_flags & !libc::MSG_TRUNC;
        for at in 0..(*message).msg_iovlen {
            let room = &*(*message).msg_iov.add(at);
            user_buffers::check(room.iov_base, room.iov_len)?;
            let mut to = std::slice::from_raw_parts_mut(room.iov_base.cast::<u8>(), room.iov_len);
            while !to.is_empty() && copied < all {
                let mut before = copied;
                let from = pieces.iter().find_map(|piece| {
                    let rest = piece.get(before..).filter(|rest| !rest.is_empty());
                    before = before.saturating_sub(piece.len());
                    rest
                });
                let Some(from) = from else { break };
                let len = from.len().min(to.len());
                to[..len].copy_from_slice(&from[..len]);
                copied += len;
                to = &mut to[len..];
            }
        }
        if copied < all {
            (*message).msg_flags |= libc::MSG_TRUNC;
        }
    }
    let whole = flags & libc::MSG_TRUNC != 0;
    Ok(if whole { all } else { copied })
}

/// The position of the message that ends the answer to this request.
fn find_end(datagram: &[u8], sequence: u32) -> Option<usize> {
    let mut at = 0;
    while at + HEADER <= datagram.len() {
        let len = u32_at(datagram, at) as usize;
        let done = u16_at(datagram, at + 4) == libc::NLMSG_DONE as u16;
        if done && u32_at(datagram, at + 8) == sequence {
            return Some(at);
        }
        if len < HEADER {
            return None;
        }
        at += len.next_multiple_of(4);
    }
    None
}

/// Writes a message for each address of the requested family; returns their length. `port` is the
/// socket's port, by which the kernel addresses it.
fn write_all(to: &mut [u8], added: &Added, asked: Asked, port: u32) -> usize {
    let mut at = 0;
    for address in added.addresses() {
        let family = match address.ip {
            IpAddr::V4(_) => libc::AF_INET as u8,
            IpAddr::V6(_) => libc::AF_INET6 as u8,
        };
        if asked.family != 0 && asked.family != family {
            continue;
        }
        let mut message = Message {
            to: &mut to[at..],
            len: 0,
        };
        if message
            .write(added, address, family, asked.sequence, port)
            .is_err()
        {
            break;
        }
        at += message.len;
    }
    at
}

struct Message<'a> {
    to: &'a mut [u8],
    len: usize,
}

impl Message<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        let end = self.len + bytes.len();
        let to = self.to.get_mut(self.len..end).ok_or(Errno::NOBUFS)?;
        to.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) -> Result<()> {
        self.put(&(4 + value.len() as u16).to_ne_bytes())?;
        self.put(&kind.to_ne_bytes())?;
        self.put(value)?;
        self.put(&[0; 3][..value.len().next_multiple_of(4) - value.len()])
    }

    fn write(
        &mut self,
        added: &Added,
        address: Address,
        family: u8,
        sequence: u32,
        port: u32,
    ) -> Result<()> {
        self.put(&[0; 4])?;
        self.put(&libc::RTM_NEWADDR.to_ne_bytes())?;
        self.put(&(libc::NLM_F_MULTI as u16).to_ne_bytes())?;
        self.put(&sequence.to_ne_bytes())?;
        self.put(&port.to_ne_bytes())?;
        let permanent = libc::IFA_F_PERMANENT;
        self.put(&[
            family,
            address.bits,
            permanent as u8,
            libc::RT_SCOPE_UNIVERSE,
        ])?;
        self.put(&added.index.to_ne_bytes())?;
        match address.ip {
            IpAddr::V4(ip) => {
                self.attribute(libc::IFA_ADDRESS, &ip.octets())?;
                self.attribute(libc::IFA_LOCAL, &ip.octets())?;
                self.attribute(libc::IFA_BROADCAST, &broadcast(ip, address.bits).octets())?;
                let mut label = [0; libc::IFNAMSIZ];
                label[..added.name().len()].copy_from_slice(added.name());
                self.attribute(libc::IFA_LABEL, &label[..=added.name().len()])?;
            }
            IpAddr::V6(ip) => self.attribute(libc::IFA_ADDRESS, &ip.octets())?,
        }
        // The preferred and valid lifetimes are infinite; the times of creation and change are
        // unknown.
        let mut life = [0xff; 16];
        life[8..].fill(0);
        self.attribute(libc::IFA_CACHEINFO, &life)?;
        const IFA_FLAGS: u16 = 8;
        self.attribute(IFA_FLAGS, &permanent.to_ne_bytes())?;
        let len = (self.len as u32).to_ne_bytes();
        self.to[..4].copy_from_slice(&len);
        Ok(())
    }
}
