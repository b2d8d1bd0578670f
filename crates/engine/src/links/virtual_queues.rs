//! The virtual queues of a shard, which bring frames from I/O threads and take frames to them. A
//! shard uses them like a port.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use millrace_context::layout::{ASLEEP, AWAKE, Line};
use millrace_port::xdp::Gauge;
use millrace_port::{Counters, Port, RxMeta};
use millrace_steer::{Hash, Side, flow_of};
use millrace_wire::offload::{Capabilities, ChecksumState, Frame, Offload};
use rustix::thread::sched_getcpu;

use crate::doorbell::ring;

/// Wakes a thread at the other end of virtual queues.
#[derive(Clone, Debug)]
pub(crate) struct Waker {
    pub(crate) doorbell: Arc<OwnedFd>,
    /// [`ASLEEP`] while the thread sleeps. The bits from [`CORE_SHIFT`] on are its last core, plus
    /// 1.
    pub(crate) state: Arc<Line>,
}

const CORE_SHIFT: u32 = 8;

impl Waker {
    pub(crate) fn new(doorbell: Arc<OwnedFd>) -> Waker {
        Waker {
            doorbell,
            state: Arc::default(),
        }
    }

    /// Sets whether this thread sleeps. If it sleeps, a full fence and a check of its queues must
    /// follow.
    pub(crate) fn sleeps(&self, asleep: bool) {
        let state = if asleep { ASLEEP } else { AWAKE };
        let core = sched_getcpu() as u32 + 1;
        self.state
            .0
            .store(state | core << CORE_SHIFT, Ordering::Relaxed);
    }

    fn is_asleep(&self) -> bool {
        self.state.0.load(Ordering::Relaxed) & ((1 << CORE_SHIFT) - 1) == ASLEEP
    }

    /// Whether the thread was last seen on the core of the calling thread.
    pub(crate) fn shares_core(&self) -> bool {
        let core = self.state.0.load(Ordering::Relaxed) >> CORE_SHIFT;
        core == sched_getcpu() as u32 + 1
    }
}

/// Wakes those threads that sleep, of the threads whose bit is set in `given`. Returns how many.
pub(crate) fn wake(threads: &[Waker], given: u64) -> u64 {
    if given == 0 {
        return 0;
    }
    // A thread says that it sleeps before it checks its queues again.
    fence(Ordering::SeqCst);
    let mut woken = 0;
    for (at, thread) in threads.iter().enumerate() {
        if given >> at & 1 == 1 && thread.is_asleep() {
            ring(thread.doorbell.as_fd());
            woken += 1;
        }
    }
    woken
}

/// Packs the description of a received frame into a word.
pub(crate) fn word_in(meta: &RxMeta) -> u64 {
    let checksum = match meta.checksum {
        ChecksumState::Unchecked => 0,
        ChecksumState::Valid => 1,
        ChecksumState::Partial => 2,
    };
    checksum | u64::from(meta.segment_size) << 16
}

fn frame_in(word: u64, bytes: &[u8]) -> Frame<'_> {
    Frame {
        bytes,
        checksum: match word & 3 {
            0 => ChecksumState::Unchecked,
            1 => ChecksumState::Valid,
            _ => ChecksumState::Partial,
        },
        segment_size: (word >> 16) as u16,
    }
}

/// Packs the offload of a frame to send into a word. No transport header starts at 0, and no
/// segment size is 0.
fn word_out(offload: Offload) -> u64 {
    let word = |start, offset, header_len, segment_size| {
        u64::from(start)
            | u64::from(offset) << 16
            | u64::from(header_len) << 32
            | u64::from(segment_size) << 48
    };
    match offload {
        Offload::None => 0,
        Offload::Checksum { start, offset } => word(start, offset, 0u16, 0u16),
        Offload::Segment {
            start,
            offset,
            header_len,
            segment_size,
        } => word(start, offset, header_len, segment_size),
    }
}

/// Unpacks the offload of a frame to send.
pub(crate) fn offload_out(word: u64) -> Offload {
    let (start, offset) = (word as u16, (word >> 16) as u16);
    let (header_len, segment_size) = ((word >> 32) as u16, (word >> 48) as u16);
    match (start, segment_size) {
        (0, _) => Offload::None,
        (_, 0) => Offload::Checksum { start, offset },
        _ => Offload::Segment {
            start,
            offset,
            header_len,
            segment_size,
        },
    }
}

/// The virtual queues of a shard, from and to each port.
#[derive(Debug)]
pub(crate) struct VirtualQueues {
    pub(crate) side: Side,
    /// Wakes the threads of the ports.
    pub(crate) io: Vec<Waker>,
    /// The state of this shard's own thread.
    pub(crate) own: Waker,
    pub(crate) hash: Hash,
    /// The capabilities of the ports, which are all on one device.
    pub(crate) capabilities: Capabilities,
    pub(crate) gives_segments: bool,
    pub(crate) counters: Counters,
    /// Frames that wait for buckets on their way to this shard.
    pub(crate) awaited: Option<Box<PendingFrames>>,
}

/// Bytes of frames that wait; further frames are dropped and counted.
const KEPT_MAX: usize = 1 << 22;

/// Frames that wait for buckets on their way to this shard.
#[derive(Debug)]
pub(crate) struct PendingFrames {
    /// For each bucket, whether it is on its way.
    buckets: Vec<bool>,
    kept: VecDeque<Kept>,
    bytes: usize,
    /// The last frame of another bucket.
    other: Vec<u8>,
}

/// A frame that waits.
#[derive(Debug)]
struct Kept {
    bucket: usize,
    word: u64,
    bytes: Vec<u8>,
}

impl PendingFrames {
    /// Waits for `buckets`, which are some of `of` buckets.
    pub(crate) fn new(of: usize, buckets: &[usize]) -> PendingFrames {
        let mut awaited = PendingFrames {
            buckets: vec![false; of],
            kept: VecDeque::new(),
            bytes: 0,
            other: Vec::new(),
        };
        for &bucket in buckets {
            awaited.buckets[bucket] = true;
        }
        awaited
    }

    /// Keeps a frame if its bucket is on its way. Returns whether it is.
    fn keep(&mut self, hash: &Hash, word: u64, bytes: &[u8], dropped: &mut u64) -> bool {
        // The I/O thread computes the bucket in the same way.
        let tag = flow_of(bytes).map_or(0, |flow| hash.tag(&flow));
        let bucket = tag as usize % self.buckets.len();
        if !self.buckets[bucket] {
            return false;
        }
        if self.bytes + bytes.len() > KEPT_MAX {
            *dropped += 1;
            return true;
        }
        self.bytes += bytes.len();
        let bytes = bytes.to_vec();
        self.kept.push_back(Kept {
            bucket,
            word,
            bytes,
        });
        true
    }

    /// These buckets have come.
    pub(crate) fn arrived(&mut self, buckets: &[usize]) {
        for &bucket in buckets {
            self.buckets[bucket] = false;
        }
    }

    /// Takes the frames whose buckets have come, in their order.
    pub(crate) fn take(&mut self, mut each: impl FnMut(&Frame<'_>)) {
        for kept in std::mem::take(&mut self.kept) {
            if self.buckets[kept.bucket] {
                self.kept.push_back(kept);
            } else {
                self.bytes -= kept.bytes.len();
                each(&frame_in(kept.word, &kept.bytes));
            }
        }
    }
}

impl VirtualQueues {
    /// Whether there is a frame to receive. Must be called before each burst.
    pub(crate) fn check(&mut self) -> bool {
        self.side.inbound.look()
    }

    /// The next frame of the burst, in place.
    pub(crate) fn next(&mut self) -> Option<Frame<'_>> {
        if self.awaited.is_some() {
            return self.next_of_others();
        }
        let (_, word, bytes) = self.side.inbound.next()?;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += bytes.len() as u64;
        Some(frame_in(word, bytes))
    }

    /// The next frame that need not wait.
    #[cold]
    fn next_of_others(&mut self) -> Option<Frame<'_>> {
        let VirtualQueues {
            side,
            hash,
            counters,
            awaited,
            ..
        } = self;
        let awaited = awaited.as_deref_mut()?;
        loop {
            let (_, word, bytes) = side.inbound.next()?;
            counters.rx_frames += 1;
            counters.rx_bytes += bytes.len() as u64;
            if !awaited.keep(hash, word, bytes, &mut counters.rx_dropped) {
                awaited.other.clear();
                awaited.other.extend_from_slice(bytes);
                return Some(frame_in(word, &awaited.other));
            }
        }
    }

    /// The port that sends a flow. It is always the same, so frames keep their order, and the
    /// device learns which queue the answers belong to.
    fn port_of(&self, head: &[u8]) -> usize {
        match self.side.outbound.len() {
            0 | 1 => 0,
            // These bits differ from those that chose the group.
            ports => flow_of(head).map_or(0, |flow| (self.hash.tag(&flow) >> 16) as usize % ports),
        }
    }
}

impl Port for VirtualQueues {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        Ok(self.next().map(|frame| {
            let len = frame.bytes.len().min(buffer.len());
            buffer[..len].copy_from_slice(&frame.bytes[..len]);
            RxMeta {
                len,
                checksum: frame.checksum,
                segment_size: frame.segment_size,
            }
        }))
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        let port = self.port_of(head);
        let body = [head, payload[0], payload[1]];
        if !self.side.outbound.write(port, word_out(offload), body) {
            self.counters.tx_refused += 1;
            return Ok(false);
        }
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += (head.len() + payload[0].len() + payload[1].len()) as u64;
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let given = self.side.outbound.commit();
        wake(&self.io, given);
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn gives_segments(&self) -> bool {
        self.gives_segments
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

/// Queues of the device that a shard owns and sends by, and virtual queues that bring frames from
/// I/O threads.
pub(crate) struct MixedPort {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) queues: VirtualQueues,
    /// Which source is read next, and for how many frames more. So neither source waits while the
    /// other has frames.
    from_queues: bool,
    left: u32,
}

/// Frames in a row from one of two sources.
const TURN: u32 = 32;

impl MixedPort {
    pub(crate) fn new(port: Box<dyn Port + Send>, queues: VirtualQueues) -> MixedPort {
        MixedPort {
            port,
            queues,
            from_queues: false,
            left: TURN,
        }
    }

    fn next_turn(&mut self) {
        self.from_queues = !self.from_queues;
        self.left = TURN;
    }

    fn take(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        match self.from_queues {
            true => self.queues.receive(buffer),
            false => self.port.receive(buffer),
        }
    }
}

impl Port for MixedPort {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        if self.left == 0 {
            self.next_turn();
        }
        self.left -= 1;
        if let Some(meta) = self.take(buffer)? {
            return Ok(Some(meta));
        }
        self.next_turn();
        self.take(buffer)
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        self.port.send(head, payload, offload)
    }

    fn flush(&mut self) -> io::Result<bool> {
        self.port.flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.descriptor()
    }

    fn gives_segments(&self) -> bool {
        self.port.gives_segments()
    }

    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn counters(&self) -> Counters {
        // The counters of the device. Frames are counted where they are received.
        self.port.counters()
    }

    fn gauges(&self) -> Vec<Gauge> {
        self.port.gauges()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_frames_passes_through_a_word() {
        for checksum in [
            ChecksumState::Unchecked,
            ChecksumState::Valid,
            ChecksumState::Partial,
        ] {
            let meta = RxMeta {
                len: 3,
                checksum,
                segment_size: 1448,
            };
            let frame = frame_in(word_in(&meta), b"abc");
            assert_eq!((frame.checksum, frame.segment_size), (checksum, 1448));
        }
        for offload in [
            Offload::None,
            Offload::Checksum {
                start: 34,
                offset: 16,
            },
            Offload::Segment {
                start: 54,
                offset: 16,
                header_len: 86,
                segment_size: u16::MAX,
            },
        ] {
            assert_eq!(offload_out(word_out(offload)), offload);
        }
    }

    #[test]
    fn a_thread_says_whether_it_sleeps_and_where() {
        let sleeper = Waker::new(crate::doorbell::doorbell().unwrap());
        assert!(!sleeper.is_asleep() && !sleeper.shares_core());
        sleeper.sleeps(true);
        assert!(sleeper.is_asleep());
        assert_eq!(wake(std::slice::from_ref(&sleeper), 0b10), 0);
        assert_eq!(wake(std::slice::from_ref(&sleeper), 0b01), 1);
        sleeper.sleeps(false);
        assert!(!sleeper.is_asleep());
        assert_eq!(wake(std::slice::from_ref(&sleeper), 0b01), 0);
        let mut own = rustix::thread::CpuSet::new();
        own.set(sched_getcpu());
        rustix::thread::sched_setaffinity(None, &own).unwrap();
        sleeper.sleeps(true);
        assert!(sleeper.shares_core());
    }
}
