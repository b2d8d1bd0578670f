//! A descriptor that carries frames with a virtio-net header before each: a queue of a TAP device,
//! or a packet socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use millrace_wire::vlan::{self, Tag};
use millrace_wire::vnet::{self, VnetHeader};
use rustix::io::Errno;

use crate::{BUFFER_LEN, Counters, Offload, PARTS_MAX, Relayed, RxMeta};

/// The descriptor, and what went through it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) descriptor: OwnedFd,
    pub(crate) counters: Counters,
    /// The virtual LAN whose tag each frame that is sent gets.
    tag: Option<Tag>,
    /// Whether received frames have their tags in them. If not, somebody has chosen them by their
    /// tags, and taken those off.
    tagged_in: bool,
    /// The last frame was a short one; the next may be, too.
    was_short: bool,
}

/// Frames that are no longer than this are sooner moved than read in two pieces.
const SHORT_MAX: usize = 2048;

/// Frames of other virtual LANs that are passed over in one call.
const FOREIGN_MAX: u32 = 64;

/// Frames that are no longer than this, with what stands before them, are put together first: the
/// kernel takes one piece with less to do than four.
const WHOLE_MAX: usize = 256;

/// The pieces as one, if there is room.
fn whole<'a>(parts: [&[u8]; 4], room: &'a mut [u8; WHOLE_MAX]) -> Option<&'a [u8]> {
    let mut len = 0;
    for part in parts {
        room.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(&room[..len])
}

impl Queue {
    pub(crate) fn new(descriptor: OwnedFd) -> Queue {
        Queue {
            descriptor,
            counters: Counters::default(),
            tag: None,
            tagged_in: false,
            was_short: false,
        }
    }

    /// On the virtual LAN `tag`, if there is one; those above see nothing of it. `tagged_in`:
    /// received frames have the tag in them.
    pub(crate) fn on(self, tag: Option<Tag>, tagged_in: bool) -> Queue {
        Queue {
            tag,
            tagged_in: tagged_in && tag.is_some(),
            ..self
        }
    }

    /// As [`crate::Port::receive`].
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let mut head = [0; vnet::LEN];
        let mut foreign = 0;
        loop {
            let mut bytes = [0; vlan::LEN];
            // The tag is read past the frame, which then is as if it had none.
            let read = if self.tagged_in {
                let (addresses, rest) = buffer.split_at_mut(vlan::START);
                rustix::io::readv(
                    &self.descriptor,
                    &mut [
                        IoSliceMut::new(&mut head),
                        IoSliceMut::new(addresses),
                        IoSliceMut::new(&mut bytes),
                        IoSliceMut::new(rest),
                    ],
                )
            } else {
                self.read(&mut head, buffer)
            };
            let read = match read {
                Ok(read) => read,
                // A packet socket tells once that its device has gone down; it may come up again.
                Err(Errno::AGAIN | Errno::NETDOWN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // Shorter ones do not exist; were there one, it would be no frame.
            let Some(mut len) = read.checked_sub(vnet::LEN) else {
                continue;
            };
            if self.tagged_in {
                let is_ours =
                    len >= vlan::START + vlan::LEN && self.tag.is_some_and(|tag| tag.is(bytes));
                if !is_ours {
                    self.counters.rx_foreign += 1;
                    foreign += 1;
                    // Whoever floods the link with them does not keep the shard from its work.
                    if foreign == FOREIGN_MAX {
                        return Ok(None);
                    }
                    continue;
                }
                len -= vlan::LEN;
            }
            let Ok((head, _)) = VnetHeader::parse(&head) else {
                continue;
            };
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += len as u64;
            return Ok(Some(RxMeta {
                len,
                checksum: head.checksum_state(),
                segment_size: head.segment_size(),
            }));
        }
    }

    /// Reads a frame and what stands before it. Where short ones come, in one piece, which the
    /// kernel has less to do with than with two; then the frame is moved to its place.
    fn read(&mut self, head: &mut [u8; vnet::LEN], buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let read = if self.was_short && buffer.len() >= BUFFER_LEN {
            let read = rustix::io::read(&self.descriptor, &mut *buffer)?;
            if read >= vnet::LEN {
                head.copy_from_slice(&buffer[..vnet::LEN]);
                buffer.copy_within(vnet::LEN..read, 0);
            }
            read
        } else {
            let mut parts = [IoSliceMut::new(head), IoSliceMut::new(buffer)];
            rustix::io::readv(&self.descriptor, &mut parts)?
        };
        self.was_short = read <= SHORT_MAX;
        Ok(read)
    }

    /// As [`crate::Relay::receive_parts`].
    pub(crate) fn receive_parts(
        &mut self,
        buffer: &mut [u8],
        rest: &mut [u8],
    ) -> io::Result<Option<Relayed>> {
        let room = buffer.len();
        let mut head = [0; vnet::LEN];
        loop {
            let mut parts = [&mut head[..], &mut *buffer, &mut *rest].map(IoSliceMut::new);
            let read = match rustix::io::readv(&self.descriptor, &mut parts) {
                Ok(read) => read,
                Err(Errno::AGAIN | Errno::NETDOWN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            let (Some(len), Ok((vnet, _))) =
                (read.checked_sub(vnet::LEN), VnetHeader::parse(&head))
            else {
                continue;
            };
            self.received(len);
            return Ok(Some(Relayed {
                start: 0,
                len: len.min(room),
                rest: len.saturating_sub(room),
                vnet,
            }));
        }
    }

    /// Counts a frame received.
    pub(crate) fn received(&mut self, len: usize) {
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
    }

    /// As [`crate::Relay::send_parts`].
    pub(crate) fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        let vnet = vnet.emit();
        let mut parts = [IoSlice::new(&[]); PARTS_MAX + 1];
        parts[0] = IoSlice::new(&vnet);
        parts[1] = IoSlice::new(head);
        let count = payload.len() + 2;
        for (part, slice) in parts[2..count].iter_mut().zip(payload) {
            *part = IoSlice::new(slice);
        }
        loop {
            return match rustix::io::writev(&self.descriptor, &parts[..count]) {
                Ok(written) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += (written - vnet::LEN) as u64;
                    Ok(true)
                }
                Err(Errno::INTR) => continue,
                // As in `send`; or the frame is not one that the device takes, which whoever sent
                // it to be relayed is to blame for.
                Err(
                    Errno::AGAIN
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::IO
                    | Errno::NETDOWN
                    | Errno::MSGSIZE
                    | Errno::INVAL,
                ) => {
                    self.counters.tx_refused += 1;
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            };
        }
    }

    /// As [`crate::Port::send`].
    pub(crate) fn send(
        &mut self,
        head: &[u8],
        payload: [&[u8]; 2],
        offload: Offload,
    ) -> io::Result<bool> {
        self.write(head, payload, &VnetHeader::request(offload, head))
    }

    /// As [`crate::Port::send`], for a frame whose Ethernet header has been taken off; `offload`
    /// reckons with it.
    pub(crate) fn send_packet(
        &mut self,
        head: &[u8],
        payload: [&[u8]; 2],
        offload: Offload,
    ) -> io::Result<bool> {
        self.write(head, payload, &VnetHeader::request_of_packet(offload, head))
    }

    fn write(&mut self, head: &[u8], payload: [&[u8]; 2], vnet: &VnetHeader) -> io::Result<bool> {
        let written = || match self.tag {
            None => {
                let vnet = vnet.emit();
                let parts = [&vnet, head, payload[0], payload[1]];
                match whole(parts, &mut [0; WHOLE_MAX]) {
                    Some(whole) => rustix::io::write(&self.descriptor, whole),
                    None => rustix::io::writev(&self.descriptor, &parts.map(IoSlice::new)),
                }
            }
            Some(tag) => {
                let (vnet, tag) = (vnet.moved_by(vlan::LEN as u16).emit(), tag.emit());
                let (addresses, rest) = head.split_at(vlan::START.min(head.len()));
                let parts = [&vnet, addresses, &tag, rest, payload[0], payload[1]];
                rustix::io::writev(&self.descriptor, &parts.map(IoSlice::new))
            }
        };
        loop {
            return match written() {
                Ok(written) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += (written - vnet::LEN) as u64;
                    Ok(true)
                }
                Err(Errno::INTR) => continue,
                // No room; no memory; the interface is down.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::IO | Errno::NETDOWN) => {
                    self.counters.tx_refused += 1;
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_become_one_as_far_as_there_is_room() {
        let long = [7; WHOLE_MAX];
        let mut room = [0; WHOLE_MAX];
        let parts = [&b"ab"[..], b"", b"c", b"de"];
        assert_eq!(whole(parts, &mut room), Some(&b"abcde"[..]));
        let parts = [&long[..200], &long[..56], b"", b""];
        assert_eq!(whole(parts, &mut room), Some(&long[..]));
        let parts = [&long[..200], &long[..56], b"", b"x"];
        assert_eq!(whole(parts, &mut room), None);
    }
}
