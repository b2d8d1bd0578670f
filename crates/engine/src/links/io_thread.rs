//! An I/O thread: it owns queues of the device, and no connection.
//!
//! It writes received frames into the virtual queue of their shard, and sends the frames that
//! shards have written into theirs. It never waits for a shard: a frame for which a shard has no
//! room is dropped and counted, as a device does it. It sleeps when there is nothing to do, and is
//! woken only when it sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::mpsc::{Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use millrace_port::xdp::{Gauge, missed};
use millrace_port::{FRAME_MAX, Port};
use millrace_steer::{Groups, Hash, NOBODY, Side, flow_of};
use rustix::event::{Timespec, epoll};

use crate::links::drop_warnings::{CHECK_INTERVAL_US, DropWarnings, queues_json};
use crate::links::link_loss;
use crate::links::virtual_queues::{Waker, offload_out, wake, word_in};
use crate::worker::spin::Spin;

/// Frames taken from the port, or from the queues, in one round.
const BURST: usize = 64;
/// When a port that had no room is tried again. Nothing says when it has room.
const FULL_RETRY: Duration = Duration::from_micros(100);
/// After how many rounds a thread that does not sleep checks for losses.
const CHECK_ROUNDS: u64 = 1 << 14;

/// The counters of an I/O thread, which alone writes them.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    frames_in: AtomicU64,
    frames_out: AtomicU64,
    dropped: AtomicU64,
    port_errors: AtomicU64,
    links_lost: AtomicU64,
    frames_foreign: AtomicU64,
    send_refused: AtomicU64,
    send_dropped: AtomicU64,
    rounds: AtomicU64,
    sleeps: AtomicU64,
    wakeups: AtomicU64,
}

impl IoCounters {
    /// The counters by name, with the kernel's counters for the thread's queues.
    pub(crate) fn json(&self, gauges: &[Gauge]) -> serde_json::Value {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        serde_json::json!({
            "frames_in": get(&self.frames_in),
            "frames_out": get(&self.frames_out),
            // Frames for which a shard's queue had no room, or whose link is lost.
            "dropped": get(&self.dropped),
            "port_errors": get(&self.port_errors),
            "links_lost": get(&self.links_lost),
            "frames_foreign": get(&self.frames_foreign),
            "frames_dropped": missed(gauges),
            "send_refused": get(&self.send_refused),
            "send_dropped": get(&self.send_dropped),
            "rounds": get(&self.rounds),
            "sleeps": get(&self.sleeps),
            "wakeups": get(&self.wakeups),
            "queues": queues_json(gauges),
        })
    }
}

/// The weight of a frame beside its bytes: about the cost of receiving a short frame, in bytes
/// copied.
const FRAME_WEIGHT: u64 = 1000;

/// The load of each bucket: bytes of received frames, and [`FRAME_WEIGHT`] for each frame. Only the
/// I/O thread writes it.
pub(crate) type Load = Arc<[AtomicU64]>;

/// No load, for this many buckets.
pub(crate) fn no_load(buckets: usize) -> Load {
    (0..buckets).map(|_| AtomicU64::new(0)).collect()
}

/// An order to steer by other groups from the next frame on. The answer says how far the queue of
/// each shard was written before.
pub(crate) struct Switch {
    pub(crate) groups: Groups,
    pub(crate) positions: Sender<Vec<usize>>,
}

/// Adds without a locked instruction, since there is one writer.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// The parts of an I/O thread.
pub(crate) struct Io {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) side: Side,
    /// Wakes the threads of the shards.
    pub(crate) shards: Vec<Waker>,
    pub(crate) own: Waker,
    pub(crate) hash: Hash,
    pub(crate) groups: Groups,
    pub(crate) load: Load,
    pub(crate) counters: Arc<IoCounters>,
    pub(crate) flags: Arc<IoFlags>,
}

/// Flags for an I/O thread.
#[derive(Debug, Default)]
pub(crate) struct IoFlags {
    /// Set when the shards have ended.
    pub(crate) stop: AtomicBool,
    /// Set when there is a [`Switch`].
    pub(crate) switch: AtomicBool,
}

/// The control thread's side of an I/O thread.
pub(crate) struct IoHandle {
    pub(crate) thread: JoinHandle<()>,
    pub(crate) doorbell: Arc<OwnedFd>,
    pub(crate) counters: Arc<IoCounters>,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) load: Load,
    pub(crate) switches: Sender<Switch>,
    pub(crate) flags: Arc<IoFlags>,
}

/// An I/O thread at work.
pub(crate) struct IoThread {
    io: Io,
    switches: Receiver<Switch>,
    buffer: Box<[u8]>,
    epoll: OwnedFd,
    /// The port had no room for the next frame, or holds frames that have not left.
    full: bool,
    /// The error that says that the device is gone.
    gone: Option<io::Error>,
    /// The device is gone, and that was printed.
    lost: bool,
    drop_warnings: DropWarnings,
    /// When it last checked for losses.
    looked: Instant,
    began: Instant,
    spin: Spin,
}

impl IoThread {
    pub(crate) fn new(io: Io, switches: Receiver<Switch>) -> io::Result<IoThread> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nothing = epoll::EventData::new_u64(0);
        let doorbell = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &io.own.doorbell, nothing, doorbell)?;
        if let Some(descriptor) = io.port.descriptor() {
            epoll::add(&epoll, descriptor, nothing, epoll::EventFlags::IN)?;
        }
        Ok(IoThread {
            io,
            switches,
            buffer: vec![0; FRAME_MAX].into(),
            epoll,
            full: false,
            gone: None,
            lost: false,
            drop_warnings: DropWarnings::default(),
            looked: Instant::now(),
            began: Instant::now(),
            spin: Spin::default(),
        })
    }

    /// Runs until it is told to stop and has sent all that the port takes.
    pub(crate) fn run(&mut self) {
        loop {
            let stopping = self.io.flags.stop.load(Ordering::Acquire);
            if self.io.flags.switch.load(Ordering::Acquire) {
                self.switch();
            }
            let moved = self.receive() + self.transmit();
            add(&self.io.counters.rounds, 1);
            // A thread that never sleeps checks for losses here.
            let rounds = self.io.counters.rounds.load(Ordering::Relaxed);
            if rounds.is_multiple_of(CHECK_ROUNDS) {
                self.check_for_drops(Instant::now());
            }
            if let Some(error) = self.gone.take() {
                self.lose_link(&error);
            }
            if moved > 0 && !stopping {
                continue;
            }
            if stopping && (self.full || !self.io.side.inbound.look()) {
                return;
            }
            self.sleep();
        }
    }

    /// The device is gone. Its descriptor, which would be ready for ever, leaves the epoll set.
    /// Frames that shards send are dropped.
    fn lose_link(&mut self, error: &io::Error) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.full = false;
        add(&self.io.counters.links_lost, 1);
        if let Some(descriptor) = self.io.port.descriptor() {
            // The kernel may have removed it already.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        link_loss::tell_lost("an I/O thread", error);
    }

    /// Steers by other groups. All frames before the reported positions were committed under the
    /// old groups.
    #[cold]
    fn switch(&mut self) {
        self.io.flags.switch.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while let Ok(Switch { groups, positions }) = self.switches.try_recv() {
            self.io.groups = groups;
            // The control thread does not wait any more if that took too long.
            let _ = positions.send(self.io.side.outbound.positions());
        }
    }

    /// Moves a burst from the port to the shards. Returns the number of frames.
    fn receive(&mut self) -> u64 {
        if self.lost {
            return 0;
        }
        let Io {
            port,
            side,
            shards,
            hash,
            groups,
            load,
            counters,
            ..
        } = &mut self.io;
        let mut count = 0;
        while count < BURST as u64 {
            match port.receive(&mut self.buffer) {
                Ok(Some(meta)) => {
                    let frame = &self.buffer[..meta.len];
                    // A frame without a flow goes to the first bucket. Its shard hands it to all
                    // others.
                    let tag = flow_of(frame).map_or(0, |flow| hash.tag(&flow));
                    let bucket = groups.bucket(tag);
                    add(&load[bucket], FRAME_WEIGHT + frame.len() as u64);
                    let group = groups.of_bucket(bucket).unwrap_or(NOBODY);
                    if !side.outbound.write(group.into(), word_in(&meta), [frame]) {
                        add(&counters.dropped, 1);
                    }
                    count += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    add(&counters.port_errors, 1);
                    self.gone = Some(error).filter(link_loss::is_gone);
                    break;
                }
            }
        }
        if count > 0 {
            add(&counters.frames_in, count);
            let woken = wake(shards, side.outbound.commit());
            add(&counters.wakeups, woken);
        }
        count
    }

    /// Moves a burst from the shards to the port. Returns the number of frames.
    fn transmit(&mut self) -> u64 {
        let Io {
            port,
            side,
            counters,
            ..
        } = &mut self.io;
        self.full = false;
        side.inbound.look();
        let (mut taken, mut count) = (0, 0);
        while taken < BURST {
            let Some((_, word, frame)) = side.inbound.next() else {
                break;
            };
            taken += 1;
            if self.lost {
                add(&counters.dropped, 1);
                continue;
            }
            match port.send(frame, [&[]; 2], offload_out(word)) {
                Ok(true) => count += 1,
                // The frame stays in its queue. When queues are full, the shards notice.
                Ok(false) => {
                    side.inbound.again();
                    self.full = true;
                    break;
                }
                // The frame is lost as on any link.
                Err(error) => {
                    add(&counters.port_errors, 1);
                    self.gone = Some(error).filter(link_loss::is_gone).or(self.gone.take());
                }
            }
        }
        // Even without new frames: a busy device has kept earlier ones.
        if !self.lost {
            match port.flush() {
                Ok(all) => self.full |= !all,
                Err(error) => {
                    add(&counters.port_errors, 1);
                    self.gone = Some(error).filter(link_loss::is_gone).or(self.gone.take());
                }
            }
        }
        add(&counters.frames_out, count);
        let port = port.counters();
        counters
            .frames_foreign
            .store(port.rx_foreign, Ordering::Relaxed);
        counters
            .send_refused
            .store(port.tx_refused, Ordering::Relaxed);
        counters
            .send_dropped
            .store(port.tx_dropped, Ordering::Relaxed);
        count
    }

    /// Prints new losses of the link, unless it checked a short while ago.
    fn check_for_drops(&mut self, now: Instant) {
        if now - self.looked >= Duration::from_micros(CHECK_INTERVAL_US) {
            self.looked = now;
            self.drop_warnings.check("an I/O thread", &*self.io.port);
        }
    }

    /// Whether recent traffic is bulk.
    fn carries_bulk(&mut self, now: Instant) -> bool {
        let counters = self.io.port.counters();
        let carried = counters.rx_bytes + counters.tx_bytes;
        let now = now.duration_since(self.began).as_micros() as u64;
        self.spin.is_bulk(now, carried)
    }

    fn sleep(&mut self) {
        let start = Instant::now();
        self.check_for_drops(start);
        // While sleeps are short it spins instead, and yields the core between polls.
        let looks = !self.io.shards.iter().any(Waker::shares_core) || self.carries_bulk(start);
        let until = Duration::from_micros(if looks { self.spin.duration_us() } else { 0 });
        while start.elapsed() < until {
            if self.receive() + self.transmit() > 0 {
                return;
            }
            rustix::thread::sched_yield();
        }
        self.io.own.sleeps(true);
        fence(Ordering::SeqCst);
        let flags = &self.io.flags;
        let told = flags.stop.load(Ordering::Acquire) || flags.switch.load(Ordering::Relaxed);
        if told || (!self.full && self.io.side.inbound.look()) {
            self.io.own.sleeps(false);
            return;
        }
        add(&self.io.counters.sleeps, 1);
        let timeout = self.full.then(|| Timespec {
            tv_sec: 0,
            tv_nsec: FULL_RETRY.as_nanos() as i64,
        });
        let start = Instant::now();
        let mut events = [const { std::mem::MaybeUninit::uninit() }; 4];
        // Whatever the wait returns, the next round checks everything.
        let _ = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
        self.io.own.sleeps(false);
        self.spin.wait_ended(start.elapsed().as_micros() as u64);
    }
}
