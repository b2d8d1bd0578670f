//! Two ends in memory: what one sends the other receives.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_wire::ethernet::{self, Mac};
use millrace_wire::vnet::{self, VnetHeader};

use crate::{
    Capabilities, ChecksumState, Counters, FRAME_MAX, Offload, Port, Relay, Relayed, RxMeta,
};

/// How the ends are connected.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The largest IP datagram, in bytes.
    pub mtu: u16,
    /// Whether frames may be larger than that and without checksums, as if between two queues of a
    /// virtual machine's device. The other end receives them as they are.
    pub offload: bool,
    /// How many frames may be on the way in each direction.
    pub frames: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            mtu: 1500,
            offload: false,
            frames: 256,
        }
    }
}

/// One end.
#[derive(Debug)]
pub struct Pair {
    config: Config,
    mac: Mac,
    incoming: Arc<Mutex<Queue>>,
    outgoing: Arc<Mutex<Queue>>,
    counters: Counters,
}

/// Makes two ends, which have the addresses 02:00:00:00:00:01 and 02:00:00:00:00:02.
pub fn pair(config: Config) -> (Pair, Pair) {
    let (one, two) = (Arc::default(), Arc::default());
    let end = |last, incoming: &Arc<_>, outgoing: &Arc<_>| Pair {
        config,
        mac: Mac([2, 0, 0, 0, 0, last]),
        incoming: Arc::clone(incoming),
        outgoing: Arc::clone(outgoing),
        counters: Counters::default(),
    };
    (end(1, &one, &two), end(2, &two, &one))
}

impl Port for Pair {
    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<RxMeta>> {
        let mut queue = lock(&self.incoming);
        let Some(slot) = queue.frames.pop_front() else {
            return Ok(None);
        };
        let len = slot.bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&slot.bytes[..len]);
        let meta = RxMeta { len, ..slot.meta };
        queue.spare.push(slot);
        drop(queue);
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        Ok(Some(meta))
    }

    fn send(&mut self, head: &[u8], payload: [&[u8]; 2], offload: Offload) -> io::Result<bool> {
        let len = head.len() + payload[0].len() + payload[1].len();
        let (checksum, segment_size) = match offload {
            Offload::None => (ChecksumState::Unchecked, 0),
            Offload::Checksum { .. } => (ChecksumState::Partial, 0),
            Offload::Segment { segment_size, .. } => (ChecksumState::Partial, segment_size),
        };
        let max = if segment_size == 0 {
            ethernet::HEADER_LEN + usize::from(self.config.mtu)
        } else {
            FRAME_MAX
        };
        if len > max || (offload != Offload::None && !self.config.offload) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "frame of {len} bytes with {offload:?}, where {:?} is spoken",
                    self.capabilities()
                ),
            ));
        }
        let mut queue = lock(&self.outgoing);
        if queue.frames.len() >= self.config.frames {
            self.counters.tx_refused += 1;
            return Ok(false);
        }
        let mut slot = queue.spare.pop().unwrap_or_default();
        slot.bytes.clear();
        slot.bytes.extend_from_slice(head);
        slot.bytes.extend_from_slice(payload[0]);
        slot.bytes.extend_from_slice(payload[1]);
        slot.vnet = VnetHeader::request(offload, head);
        slot.meta = RxMeta {
            len,
            checksum,
            segment_size,
        };
        queue.frames.push_back(slot);
        drop(queue);
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        Ok(true)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: self.mac,
            mtu: self.config.mtu,
            tx_checksum: self.config.offload,
            tx_segmentation_max: if self.config.offload {
                FRAME_MAX as u32
            } else {
                0
            },
            rx_aggregated: self.config.offload,
            trusted_checksum: false,
            queues: 1,
        }
    }

    fn counters(&self) -> Counters {
        self.counters
    }
}

impl Relay for Pair {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        let mut queue = lock(&self.incoming);
        let Some(slot) = queue.frames.pop_front() else {
            return Ok(None);
        };
        let len = slot.bytes.len().min(buffer.len());
        let (first, second) = slot.bytes.split_at(len);
        buffer[..len].copy_from_slice(first);
        rest[..second.len()].copy_from_slice(second);
        let relayed = Relayed {
            start: 0,
            len,
            rest: second.len(),
            vnet: slot.vnet,
        };
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += slot.bytes.len() as u64;
        queue.spare.push(slot);
        Ok(Some(relayed))
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        let len = head.len() + payload.iter().map(|slice| slice.len()).sum::<usize>();
        let unfinished = vnet.flags.contains(vnet::Flags::NEEDS_CSUM);
        let mut queue = lock(&self.outgoing);
        if queue.frames.len() >= self.config.frames || unfinished && !self.config.offload {
            self.counters.tx_refused += 1;
            return Ok(false);
        }
        let mut slot = queue.spare.pop().unwrap_or_default();
        slot.bytes.clear();
        slot.bytes.extend_from_slice(head);
        for slice in payload {
            slot.bytes.extend_from_slice(slice);
        }
        slot.vnet = *vnet;
        slot.meta = RxMeta {
            len,
            checksum: vnet.checksum_state(),
            segment_size: vnet.segment_size(),
        };
        queue.frames.push_back(slot);
        drop(queue);
        self.counters.tx_frames += 1;
        self.counters.tx_bytes += len as u64;
        Ok(true)
    }
}

/// Frames in one direction.
#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Slot>,
    /// Slots that were received, kept for their buffers.
    spare: Vec<Slot>,
}

#[derive(Debug, Default)]
struct Slot {
    bytes: Vec<u8>,
    meta: RxMeta,
    vnet: VnetHeader,
}

/// A queue is whole between any two steps, so one that a panic left is, too.
fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKSUM: Offload = Offload::Checksum {
        start: 34,
        offset: 16,
    };
    const SEGMENT: Offload = Offload::Segment {
        start: 34,
        offset: 16,
        header_len: 54,
        segment_size: 1460,
    };

    #[test]
    fn frames_arrive_in_order_whole_and_once() {
        let (mut a, mut b) = pair(Config::default());
        let mut buffer = vec![0; FRAME_MAX];
        for round in 0..3 {
            for i in 0..100u8 {
                assert!(
                    a.send(&[i; 14], [&[round], &[i, 9]], Offload::None)
                        .expect("sound")
                );
            }
            for i in 0..100 {
                let meta = b.receive(&mut buffer).expect("sound").expect("a frame");
                assert_eq!(
                    meta,
                    RxMeta {
                        len: 17,
                        ..RxMeta::default()
                    }
                );
                assert_eq!(
                    (&buffer[..14], &buffer[14..17]),
                    (&[i; 14][..], &[round, i, 9][..])
                );
            }
            assert_eq!(b.receive(&mut buffer).expect("sound"), None);
        }
        assert_eq!(
            (a.counters().tx_frames, b.counters().rx_bytes),
            (300, 300 * 17)
        );
        assert_eq!(
            a.receive(&mut buffer).expect("sound"),
            None,
            "nothing comes back"
        );
    }

    #[test]
    fn a_full_queue_refuses_and_counts() {
        let (mut a, mut b) = pair(Config {
            frames: 2,
            ..Config::default()
        });
        let mut send = || a.send(&[0; 14], [&[]; 2], Offload::None).expect("sound");
        assert_eq!([send(), send(), send()], [true, true, false]);
        assert!(b.receive(&mut [0; 14]).expect("sound").is_some());
        assert!(send());
        assert_eq!(a.counters().tx_refused, 1);
    }

    #[test]
    fn offloads_only_where_declared() {
        let large = vec![7; 60_000];
        let (mut plain, _other) = pair(Config::default());
        for (payload, offload) in [
            (&large[..], Offload::None),
            (&[], CHECKSUM),
            (&large, SEGMENT),
        ] {
            let error = plain
                .send(&[0; 54], [payload, &[]], offload)
                .expect_err("not declared");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
        let (mut a, mut b) = pair(Config {
            offload: true,
            ..Config::default()
        });
        let mut buffer = vec![0; FRAME_MAX];
        assert!(a.send(&[0; 54], [&large, &[]], SEGMENT).expect("declared"));
        assert!(a.send(&[0; 54], [&[], &[]], CHECKSUM).expect("declared"));
        assert!(
            a.send(&[0; 54], [&large, &[]], CHECKSUM).is_err(),
            "too large for one segment"
        );
        let mut receive = || b.receive(&mut buffer).expect("sound").expect("a frame");
        assert_eq!(
            receive(),
            RxMeta {
                len: 60_054,
                checksum: ChecksumState::Partial,
                segment_size: 1460
            }
        );
        assert_eq!(
            receive(),
            RxMeta {
                len: 54,
                checksum: ChecksumState::Partial,
                segment_size: 0
            }
        );
    }
}
