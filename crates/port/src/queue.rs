//! A descriptor that carries frames with a virtio-net header before each: a queue of a TAP device, or a packet socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use millrace_wire::vnet::{self, VnetHeader};
use rustix::io::Errno;

use crate::{Counters, Offload, PARTS_MAX, Relayed, RxMeta};

/// The descriptor, and what went through it.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) descriptor: OwnedFd,
    pub(crate) counters: Counters,
}

impl Queue {
    pub(crate) fn new(descriptor: OwnedFd) -> Queue {
        Queue {
            descriptor,
            counters: Counters::default(),
        }
    }

    /// As [`crate::Port::receive`].
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let mut head = [0; vnet::LEN];
        loop {
            let mut parts = [IoSliceMut::new(&mut head), IoSliceMut::new(buffer)];
            let read = match rustix::io::readv(&self.descriptor, &mut parts) {
                Ok(read) => read,
                // A packet socket tells once that its device has gone down; it may come up again.
                Err(Errno::AGAIN | Errno::NETDOWN) => return Ok(None),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            // Shorter ones do not exist; were there one, it would be no frame.
            let Some(len) = read.checked_sub(vnet::LEN) else {
                continue;
            };
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
                // As in `send`; or the frame is not one that the device takes, which whoever sent it to be relayed is to blame for.
                Err(
                    Errno::AGAIN
                    | Errno::NOBUFS
                    | Errno::NOMEM
                    | Errno::IO
                    | Errno::NETDOWN
                    | Errno::MSGSIZE
                    | Errno::INVAL,
                ) => {
                    self.counters.tx_dropped += 1;
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
        let vnet = VnetHeader::request(offload, head).emit();
        let parts = [&vnet, head, payload[0], payload[1]].map(IoSlice::new);
        loop {
            return match rustix::io::writev(&self.descriptor, &parts) {
                Ok(written) => {
                    self.counters.tx_frames += 1;
                    self.counters.tx_bytes += (written - vnet::LEN) as u64;
                    Ok(true)
                }
                Err(Errno::INTR) => continue,
                // No room; no memory; the interface is down.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::IO | Errno::NETDOWN) => {
                    self.counters.tx_dropped += 1;
                    Ok(false)
                }
                Err(error) => Err(error.into()),
            };
        }
    }
}
