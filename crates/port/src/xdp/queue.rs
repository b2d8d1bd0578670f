//! A hardware queue: frames out of its socket's memory and into it.

use std::io;

use super::poller::Poller;
use super::socket::{CHUNK, REQUEST, RING, Socket, WINDOW_MAX};
use crate::Offload;

/// Frames taken before the kernel gets their memory back, unless there are no more.
const BATCH: u32 = 16;
/// `XDP_TXMD_FLAGS_CHECKSUM`.
const FINISH_CHECKSUM: u64 = 2;

/// A socket with what is known of its memory.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) socket: Socket,
    /// Chunks for sending that are free, the one that was used last on top: it is in the cache.
    free: Vec<u64>,
    /// How many of these there are.
    window: u32,
    /// Frames taken since the kernel got memory back.
    held: u32,
    /// Frames that the device dropped although it had taken them.
    pub(super) dropped: u64,
}

/// What the kernel's answer means for what is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It has taken as many as it does in one call, or has no room.
    Busy,
    /// Likewise, and one that it has taken was dropped by the device, whose ring is full or whose
    /// cable is out.
    Dropped,
    /// The device is down. What is queued stays until it is up.
    Down,
}

/// `None`: nothing that has to do with sending. A socket that `copies` has `EBUSY` for one frame
/// that is lost; others for a device that is being set up anew.
fn answer(error: &io::Error, copies: bool) -> Option<Answer> {
    match error.raw_os_error()? {
        libc::EBUSY if copies => Some(Answer::Dropped),
        libc::EAGAIN | libc::EBUSY | libc::ENOBUFS | libc::ENOMEM => Some(Answer::Busy),
        libc::ENETDOWN => Some(Answer::Down),
        _ => None,
    }
}

impl Queue {
    /// Of a socket that has memory for `window` frames, or pieces of frames, between here and where
    /// they are going.
    pub(super) fn new(socket: Socket, window: u32) -> Queue {
        let window = window.min(WINDOW_MAX);
        Queue {
            socket,
            free: (RING..RING + window).rev().map(chunk).collect(),
            window,
            held: 0,
            dropped: 0,
        }
    }

    /// Takes one frame into `buffer`, and what that has no room for into `more`. Says how long it
    /// is.
    pub(super) fn receive(&mut self, buffer: &mut [u8], more: &mut [u8]) -> Option<usize> {
        loop {
            let (count, len) = self.next().or_else(|| self.poll())?;
            let whole = self.copy_out(count, buffer, more);
            self.return_chunks(count);
            if whole {
                return Some(len);
            }
        }
    }

    /// The kernel gets its memory back, and the driver looks for more if its poller is ours to run;
    /// then as [`Queue::next`].
    fn poll(&mut self) -> Option<(u32, usize)> {
        let came = self.held > 0;
        self.refill();
        match self.socket.poller {
            Poller::Ours => {
                self.socket.kick_receive();
                return self.next();
            }
            Poller::Wanted if came => self.socket.find_poller(),
            Poller::Wanted | Poller::None => {}
        }
        None
    }

    /// Of the next frame, how many pieces it has and bytes in all; none if it is not all there yet.
    fn next(&mut self) -> Option<(u32, usize)> {
        let receive = &mut self.socket.rings.receive;
        let (mut count, mut len, mut available) = (0, 0, receive.available());
        loop {
            if count == available {
                if count == 0 {
                    return None;
                }
                receive.look();
                available = receive.available();
                if count == available {
                    return None;
                }
            }
            let piece = receive.peek(count);
            count += 1;
            len += piece.len as usize;
            if piece.options & libc::XDP_PKT_CONTD == 0 {
                return Some((count, len));
            }
        }
    }

    /// Copies the pieces of a frame; `false` if they do not fit, or one is not in the memory.
    fn copy_out(&self, count: u32, to: &mut [u8], more: &mut [u8]) -> bool {
        let (mut to, mut more) = (to, Some(more));
        for at in 0..count {
            let piece = self.socket.rings.receive.peek(at);
            let (mut from, mut len) = (piece.addr, piece.len as usize);
            if len > to.len() {
                let Some(next) = more.take() else {
                    return false;
                };
                if !self.socket.memory.read(from, to) {
                    return false;
                }
                (from, len) = (from + to.len() as u64, len - to.len());
                to = next;
            }
            let Some((part, rest)) = to.split_at_mut_checked(len) else {
                return false;
            };
            if !self.socket.memory.read(from, part) {
                return false;
            }
            to = rest;
        }
        true
    }

    /// The memory of a frame's pieces is for others.
    fn return_chunks(&mut self, count: u32) {
        let rings = &mut self.socket.rings;
        for at in 0..count {
            let start = rings.receive.peek(at).addr & !u64::from(CHUNK - 1);
            // Each chunk was in this ring before, so there is room.
            if rings.fill.has_room(1) {
                rings.fill.push(start);
            }
        }
        rings.receive.take(count);
        self.held += count;
        if self.held >= BATCH {
            self.refill();
        }
    }

    fn refill(&mut self) {
        if self.held == 0 {
            return;
        }
        self.held = 0;
        let rings = &mut self.socket.rings;
        rings.receive.give_back();
        rings.fill.publish();
        if rings.fill.needs_wakeup() {
            self.socket.kick_receive();
        }
    }

    /// Queues a frame of `len` bytes, which are `parts` in a row; `false` if there is no memory
    /// left for it.
    pub(super) fn send<'a>(
        &mut self,
        parts: impl Iterator<Item = &'a [u8]>,
        len: usize,
        offload: Offload,
    ) -> io::Result<bool> {
        let room = CHUNK as usize - REQUEST;
        let count = len.div_ceil(room).max(1);
        if (self.free.len() < count || !self.socket.rings.transmit.has_room(count as u32))
            && !self.make_room(count)?
        {
            return Ok(false);
        }
        let mut bytes = Bytes { parts, left: &[] };
        for at in 0..count {
            let Some(start) = self.free.pop() else { break };
            let start = start + REQUEST as u64;
            let mut options = 0;
            if let (
                0,
                Offload::Checksum {
                    start: from,
                    offset,
                },
            ) = (at, offload)
            {
                let mut request = [0; REQUEST];
                request[..8].copy_from_slice(&FINISH_CHECKSUM.to_ne_bytes());
                request[8..10].copy_from_slice(&from.to_ne_bytes());
                request[10..12].copy_from_slice(&offset.to_ne_bytes());
                self.socket.memory.write(start - REQUEST as u64, &request);
                options |= libc::XDP_TX_METADATA;
            }
            if at + 1 < count {
                options |= libc::XDP_PKT_CONTD;
            }
            let written = bytes.write(start, room, &mut self.socket);
            self.socket.rings.transmit.push(libc::xdp_desc {
                addr: start,
                len: written as u32,
                options,
            });
        }
        Ok(true)
    }

    /// Has the kernel send, and takes back what it has sent.
    fn make_room(&mut self, count: usize) -> io::Result<bool> {
        self.reclaim();
        let has_room = |queue: &mut Queue| {
            queue.free.len() >= count && queue.socket.rings.transmit.has_room(count as u32)
        };
        if !has_room(self) {
            self.flush()?;
            self.reclaim();
        }
        Ok(has_room(self))
    }

    fn reclaim(&mut self) {
        let completion = &mut self.socket.rings.completion;
        completion.look();
        let count = completion.available();
        for at in 0..count {
            let start = completion.peek(at) & !u64::from(CHUNK - 1);
            // No more than there are, whatever the ring says.
            let ours = chunk(RING)..chunk(RING + self.window);
            if self.free.len() < self.window as usize && ours.contains(&start) {
                self.free.push(start);
            }
        }
        completion.take(count);
        completion.give_back();
    }

    /// Sends what was queued: one call for all of it. `false` if some is left that the device has
    /// no room for now.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        self.socket.rings.transmit.publish();
        let all = self.give();
        if self.free.len() < self.window as usize / 2 {
            self.reclaim();
        }
        all
    }

    fn give(&mut self) -> io::Result<bool> {
        let mut left = self.socket.rings.transmit.pending();
        // Older kernels take 32 frames in a call.
        for _ in 0..=RING / 32 {
            if left == 0 || !self.socket.rings.transmit.needs_wakeup() {
                return Ok(true);
            }
            let kicked = self.socket.kick();
            let before = left;
            left = self.socket.rings.transmit.pending();
            let Err(error) = kicked else { continue };
            match answer(&error, self.socket.copies) {
                Some(Answer::Busy) if left != before => {}
                Some(Answer::Busy) => return Ok(false),
                // It has been too fast for whoever takes them out of the device's ring, so the
                // others wait.
                Some(Answer::Dropped) => {
                    self.dropped += 1;
                    return Ok(left == 0);
                }
                Some(Answer::Down) => return Ok(true),
                None => return Err(error),
            }
        }
        Ok(left == 0)
    }
}

/// Where a chunk starts.
fn chunk(number: u32) -> u64 {
    u64::from(number * CHUNK)
}

/// What of a frame is still to be written.
struct Bytes<'a, I> {
    parts: I,
    /// Of the part that was begun.
    left: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a [u8]>> Bytes<'a, I> {
    /// Writes up to `room` bytes at `at`. How many it were.
    fn write(&mut self, at: u64, room: usize, socket: &mut Socket) -> usize {
        let mut written = 0;
        while written < room {
            if self.left.is_empty() {
                let Some(part) = self.parts.next() else { break };
                self.left = part;
            }
            let (now, later) = self.left.split_at(self.left.len().min(room - written));
            socket.memory.write(at + written as u64, now);
            self.left = later;
            written += now.len();
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_that_the_kernel_took_and_the_device_did_not_is_told_from_one_that_waits() {
        let told = |number, copies| answer(&io::Error::from_raw_os_error(number), copies);
        assert_eq!(told(libc::EBUSY, true), Some(Answer::Dropped));
        assert_eq!(told(libc::EBUSY, false), Some(Answer::Busy));
        for copies in [true, false] {
            for number in [libc::EAGAIN, libc::ENOBUFS, libc::ENOMEM] {
                assert_eq!(told(number, copies), Some(Answer::Busy));
            }
            assert_eq!(told(libc::ENETDOWN, copies), Some(Answer::Down));
            assert_eq!(told(libc::ENXIO, copies), None);
        }
    }
}
