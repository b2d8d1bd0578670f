//! The frames of one shard: where they come from, where they go, and whether the link is lost.

use std::io;
use std::os::fd::BorrowedFd;

use millrace_offload::Train;
use millrace_port::Port;
use millrace_port::xdp::{Gauge, missed};
use millrace_shard::Shard;
use millrace_tcp::Instant;
use millrace_wire::ethernet::Mac;
use millrace_wire::offload::{Capabilities, Frame, Offload};

use crate::links::drop_warnings::DropWarnings;
use crate::links::egress::PortEgress;
use crate::links::link_loss;
use crate::links::virtual_queues::{MixedPort, PendingFrames, VirtualQueues};
use crate::shared::arenas::Arenas;
use crate::worker::counters::WorkerCounters;

/// Frames taken from the port in one round.
const RECEIVE_BURST: usize = 64;
/// The largest frame: 64 KB of IP and an Ethernet header, with room for a VLAN tag.
const FRAME_MAX: usize = 65_536 + 64;

/// Where the frames of a shard come from and go to.
pub(crate) enum ShardPort {
    /// Queues of the device that this shard owns.
    Device(Box<dyn Port + Send>),
    /// Virtual queues, from and to I/O threads.
    Queues(Box<VirtualQueues>),
    /// Queues of the device, and virtual queues that only bring frames.
    Mixed(Box<MixedPort>),
}

impl ShardPort {
    fn port(&self) -> &dyn Port {
        match self {
            ShardPort::Device(port) => port.as_ref(),
            ShardPort::Queues(queues) => queues.as_ref(),
            ShardPort::Mixed(mixed) => mixed.as_ref(),
        }
    }

    fn port_mut(&mut self) -> &mut dyn Port {
        match self {
            ShardPort::Device(port) => port.as_mut(),
            ShardPort::Queues(queues) => queues.as_mut(),
            ShardPort::Mixed(mixed) => mixed.as_mut(),
        }
    }

    fn queues(&self) -> Option<&VirtualQueues> {
        match self {
            ShardPort::Device(_) => None,
            ShardPort::Queues(queues) => Some(queues),
            ShardPort::Mixed(mixed) => Some(&mixed.queues),
        }
    }
}

/// The link of a shard, with what happened to it.
pub(crate) struct ShardLink {
    /// None: the engine has no link.
    port: Option<ShardPort>,
    buffer: Box<[u8]>,
    /// Joins the segments of a port that gives them one by one.
    train: Option<Box<Train>>,
    /// The port may have frames.
    readable: bool,
    /// The port had no room for all that was to be sent.
    full: bool,
    /// The device of the port is gone.
    lost: bool,
    /// The descriptor of a lost port must leave the epoll set.
    unwatch: bool,
    drop_warnings: DropWarnings,
    /// The name of the thread in messages.
    thread: String,
}

impl ShardLink {
    /// The link of shard `own`. `join`: segments that the port gives one by one are joined.
    pub(crate) fn new(port: Option<ShardPort>, own: u32, join: bool) -> ShardLink {
        let gives_segments = port.as_ref().is_some_and(|it| it.port().gives_segments());
        ShardLink {
            train: (join && gives_segments).then(Box::default),
            port,
            buffer: vec![0; FRAME_MAX].into_boxed_slice(),
            readable: true,
            full: false,
            lost: false,
            unwatch: false,
            drop_warnings: DropWarnings::default(),
            thread: format!("shard {own}"),
        }
    }

    /// The descriptor that is readable when the port has frames.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.port.as_ref()?.port().descriptor()
    }

    /// The descriptor of a port that was lost since the last call. It would be ready for ever.
    pub(crate) fn take_lost_descriptor(&mut self) -> Option<BorrowedFd<'_>> {
        std::mem::take(&mut self.unwatch).then(|| self.descriptor())?
    }

    /// The port may have frames.
    pub(crate) fn set_readable(&mut self) {
        self.readable = true;
    }

    /// Whether the port had no room for all that was to be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Whether virtual queues have brought frames.
    pub(crate) fn has_queued_frames(&mut self) -> bool {
        match &mut self.port {
            None | Some(ShardPort::Device(_)) => false,
            Some(ShardPort::Queues(queues)) => queues.check(),
            Some(ShardPort::Mixed(mixed)) => mixed.queues.check(),
        }
    }

    /// Tells the I/O threads whether this thread sleeps.
    pub(crate) fn set_asleep(&self, asleep: bool) {
        if let Some(queues) = self.port.as_ref().and_then(ShardPort::queues) {
            queues.own.sleeps(asleep);
        }
    }

    /// Takes a burst of frames, each of which goes to `input`. Returns how many frames came.
    pub(crate) fn receive(
        &mut self,
        counters: &mut WorkerCounters,
        input: impl FnMut(&Frame<'_>, &mut WorkerCounters),
    ) -> usize {
        match &mut self.port {
            Some(ShardPort::Queues(queues)) => self.readable = queues.check(),
            Some(ShardPort::Mixed(mixed)) => self.readable |= mixed.queues.check(),
            _ => {}
        }
        if !self.readable || self.lost {
            return 0;
        }
        match &self.port {
            None => 0,
            Some(_) if self.train.is_some() => self.receive_segments(counters, input),
            Some(ShardPort::Device(_) | ShardPort::Mixed(_)) => {
                self.receive_frames(counters, input)
            }
            Some(ShardPort::Queues(_)) => self.receive_queued(counters, input),
        }
    }

    /// From virtual queues, where frames need not be copied.
    fn receive_queued(
        &mut self,
        counters: &mut WorkerCounters,
        mut input: impl FnMut(&Frame<'_>, &mut WorkerCounters),
    ) -> usize {
        let Some(ShardPort::Queues(queues)) = &mut self.port else {
            return 0;
        };
        for count in 0..RECEIVE_BURST {
            let Some(frame) = queues.next() else {
                return count;
            };
            counters.frames_in += 1;
            input(&frame, counters);
        }
        RECEIVE_BURST
    }

    /// From queues of the device.
    fn receive_frames(
        &mut self,
        counters: &mut WorkerCounters,
        mut input: impl FnMut(&Frame<'_>, &mut WorkerCounters),
    ) -> usize {
        let Some(port) = &mut self.port else {
            return 0;
        };
        let port = port.port_mut();
        for count in 0..RECEIVE_BURST {
            match port.receive(&mut self.buffer) {
                Ok(Some(meta)) => {
                    let frame = Frame {
                        bytes: &self.buffer[..meta.len],
                        checksum: meta.checksum,
                        segment_size: meta.segment_size,
                    };
                    counters.frames_in += 1;
                    input(&frame, counters);
                }
                Ok(None) => {
                    self.readable = false;
                    return count;
                }
                Err(error) => {
                    self.readable = false;
                    self.count_error(&error, counters);
                    return count;
                }
            }
        }
        RECEIVE_BURST
    }

    /// From a port that gives segments one by one.
    fn receive_segments(
        &mut self,
        counters: &mut WorkerCounters,
        mut input: impl FnMut(&Frame<'_>, &mut WorkerCounters),
    ) -> usize {
        let (Some(port), Some(train)) = (&mut self.port, &mut self.train) else {
            return 0;
        };
        let port = port.port_mut();
        let mut count = 0;
        let mut failed = None;
        let mut join = |frame: &Frame<'_>| input(frame, counters);
        while count < RECEIVE_BURST {
            match port.receive(train.buffer()) {
                Ok(Some(meta)) => {
                    train.frame(meta.len, meta.checksum, meta.segment_size, &mut join);
                    count += 1;
                }
                Ok(None) => {
                    self.readable = false;
                    break;
                }
                Err(error) => {
                    self.readable = false;
                    failed = Some(error);
                    break;
                }
            }
        }
        if count > 0 {
            train.end_of_burst(&mut join);
        }
        counters.frames_in += count as u64;
        if let Some(error) = failed {
            self.count_error(&error, counters);
        }
        count
    }

    /// The port refused to be read.
    fn count_error(&mut self, error: &io::Error, counters: &mut WorkerCounters) {
        counters.port_errors += 1;
        if link_loss::is_gone(error) {
            self.lose(error, counters);
        }
    }

    /// The device is gone. For connections it is as if a cable had been pulled.
    fn lose(&mut self, error: &io::Error, counters: &mut WorkerCounters) {
        self.lost = true;
        self.unwatch = true;
        counters.links_lost += 1;
        link_loss::tell_lost(&self.thread, error);
    }

    /// Sends what the shard has to send. Returns how many frames left.
    pub(crate) fn transmit(
        &mut self,
        shard: &mut Shard<Arenas>,
        counters: &mut WorkerCounters,
        now: Instant,
    ) -> usize {
        let Some(port) = &mut self.port else {
            shard.transmit(&mut { NO_LINK }, now);
            return 0;
        };
        let port = port.port_mut();
        if self.lost {
            shard.transmit(&mut Discard(port.capabilities()), now);
            return 0;
        }
        let mut egress = PortEgress {
            port: &mut *port,
            errors: &mut counters.port_errors,
            gone: None,
            sent: 0,
            full: false,
        };
        shard.transmit(&mut egress, now);
        counters.frames_out += egress.sent;
        self.full = egress.full;
        let sent = egress.sent as usize;
        let mut gone = egress.gone;
        match port.flush() {
            Ok(all) => self.full |= !all,
            Err(error) => {
                counters.port_errors += 1;
                gone = Some(error).filter(link_loss::is_gone).or(gone);
            }
        }
        if let Some(error) = gone {
            self.full = false;
            self.lose(&error, counters);
        }
        sent
    }

    /// Says what the link has lost, the first time.
    pub(crate) fn check_for_drops(&mut self) {
        if let Some(port) = &self.port {
            self.drop_warnings.check(&self.thread, port.port());
        }
    }

    /// What the kernel has counted at the queues of this shard.
    pub(crate) fn gauges(&self) -> Vec<Gauge> {
        let port = self.port.as_ref().map(ShardPort::port);
        port.map_or_else(Vec::new, Port::gauges)
    }

    /// Adds what the port and the joining of segments have counted.
    pub(crate) fn complete(&self, counters: WorkerCounters) -> WorkerCounters {
        let port = self.port.as_ref().map(|it| it.port().counters());
        let port = port.unwrap_or_default();
        let joined = self.train.as_ref().map(|train| train.counters());
        let joined = joined.unwrap_or_default();
        WorkerCounters {
            segments_joined: joined.segments,
            units_joined: joined.units,
            frames_foreign: port.rx_foreign,
            frames_dropped: port.rx_dropped + missed(&self.gauges()),
            send_refused: port.tx_refused,
            send_dropped: port.tx_dropped,
            ..counters
        }
    }

    /// Keeps frames of `buckets`, which are on their way to this shard. There are `count` buckets.
    pub(crate) fn hold_frames_of(&mut self, buckets: &[usize], count: usize) {
        if let Some(ShardPort::Queues(queues)) = &mut self.port {
            queues.awaited = Some(Box::new(PendingFrames::new(count, buckets)));
        }
    }

    /// Gives `input` the frames that were kept for `buckets`, which have come. After the last
    /// buckets no frames are kept.
    pub(crate) fn release_frames_of(
        &mut self,
        buckets: &[usize],
        last: bool,
        counters: &mut WorkerCounters,
        mut input: impl FnMut(&Frame<'_>, &mut WorkerCounters),
    ) {
        let Some(ShardPort::Queues(queues)) = &mut self.port else {
            return;
        };
        let Some(pending) = &mut queues.awaited else {
            return;
        };
        pending.arrived(buckets);
        pending.take(|frame| {
            counters.frames_in += 1;
            input(frame, counters);
        });
        if last {
            queues.awaited = None;
        }
    }

    /// Whether everything was received that came before these positions of the virtual queues.
    pub(crate) fn has_received_up_to(&self, positions: &[usize]) -> bool {
        match &self.port {
            Some(ShardPort::Queues(queues)) => queues.side.inbound.has_passed(positions),
            _ => true,
        }
    }

    /// Whether the I/O threads have taken all that was sent.
    pub(crate) fn is_drained(&self) -> bool {
        match &self.port {
            Some(ShardPort::Queues(queues)) => queues.side.outbound.is_read(),
            _ => true,
        }
    }
}

/// Drops all frames, where there is no link or the link is lost. Loopback traffic never leaves
/// the shard.
struct Discard(Capabilities);

/// The capabilities of an engine that never had a link.
const NO_LINK: Discard = Discard(Capabilities {
    mac: Mac([2, 0, 0, 0, 0, 1]),
    mtu: 65_535,
    tx_checksum: true,
    tx_segmentation_max: 65_536,
    rx_aggregated: true,
    trusted_checksum: true,
    queues: 1,
});

impl millrace_shard::Egress for Discard {
    fn send(&mut self, _head: &[u8], _payload: [&[u8]; 2], _offload: Offload) -> bool {
        true
    }
    fn capabilities(&self) -> Capabilities {
        self.0
    }
}
