//! An I/O thread: it owns queues of the device, and no connection. Frames that come it puts into the virtual queue of their group; frames that shards have
//! put into theirs it sends.
//!
//! It never waits for a shard: what a shard has no room for is dropped and counted, as a device does. It sleeps when there is nothing to do, and those who give
//! it something wake it only then.

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
/// How soon a port that had no room is tried again: nothing says when it has.
const FULL_RETRY: Duration = Duration::from_micros(100);
/// How many rounds a thread that does not sleep runs until it looks for losses.
const CHECK_ROUNDS: u64 = 1 << 14;

/// What an I/O thread counts; it is the only one that writes these.
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
    /// By name, with what the kernel has counted at the thread's queues.
    pub(crate) fn json(&self, gauges: &[Gauge]) -> serde_json::Value {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        serde_json::json!({
            "frames_in": get(&self.frames_in),
            "frames_out": get(&self.frames_out),
            // For want of room in a shard's queue, and because the link is lost.
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

/// What a frame weighs beside its bytes: about what it costs to receive a short one, in bytes that are copied.
const FRAME_WEIGHT: u64 = 1000;

/// What each bucket had: bytes of received frames, and [`FRAME_WEIGHT`] for each. The I/O thread alone writes it.
pub(crate) type Load = Arc<[AtomicU64]>;

/// None so far, for so many buckets.
pub(crate) fn no_load(buckets: usize) -> Load {
    (0..buckets).map(|_| AtomicU64::new(0)).collect()
}

/// Other groups, from the next frame on. The answer is where the queue of each shard was until then.
pub(crate) struct Switch {
    pub(crate) groups: Groups,
    pub(crate) positions: Sender<Vec<usize>>,
}

/// Adds without a locked instruction: there is one writer.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}

/// What an I/O thread is made of.
pub(crate) struct Io {
    pub(crate) port: Box<dyn Port + Send>,
    pub(crate) side: Side,
    /// The threads of the shards.
    pub(crate) shards: Vec<Waker>,
    pub(crate) own: Waker,
    pub(crate) hash: Hash,
    pub(crate) groups: Groups,
    pub(crate) load: Load,
    pub(crate) counters: Arc<IoCounters>,
    pub(crate) flags: Arc<IoFlags>,
}

/// What an I/O thread is told, beside what comes by its queues.
#[derive(Debug, Default)]
pub(crate) struct IoFlags {
    /// Set when the shards have ended.
    pub(crate) stop: AtomicBool,
    /// Set when there is a [`Switch`].
    pub(crate) switch: AtomicBool,
}

/// A thread that runs.
pub(crate) struct IoHandle {
    pub(crate) thread: JoinHandle<()>,
    pub(crate) doorbell: Arc<OwnedFd>,
    pub(crate) counters: Arc<IoCounters>,
    pub(crate) gauges: Vec<Gauge>,
    pub(crate) load: Load,
    pub(crate) switches: Sender<Switch>,
    pub(crate) flags: Arc<IoFlags>,
}

/// An [`Io`] at work.
pub(crate) struct IoThread {
    io: Io,
    switches: Receiver<Switch>,
    buffer: Box<[u8]>,
    epoll: OwnedFd,
    /// The port had no room for the frame that comes next, or has some that have not left.
    full: bool,
    /// What said that the port's device is gone.
    gone: Option<io::Error>,
    /// It is, and that has been said.
    lost: bool,
    drop_warnings: DropWarnings,
    /// When it looked for losses last.
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

    /// Runs until told to stop, and all is sent that the port takes.
    pub(crate) fn run(&mut self) {
        loop {
            let stopping = self.io.flags.stop.load(Ordering::Acquire);
            if self.io.flags.switch.load(Ordering::Acquire) {
                self.switch();
            }
            let moved = self.receive() + self.transmit();
            add(&self.io.counters.rounds, 1);
            // One that never sleeps looks here.
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

    /// The device is gone: its descriptor, which would be ready for ever, is waited for no more, and what shards send by it is dropped.
    fn lose_link(&mut self, error: &io::Error) {
        if self.lost {
            return;
        }
        self.lost = true;
        self.full = false;
        add(&self.io.counters.links_lost, 1);
        if let Some(descriptor) = self.io.port.descriptor() {
            // If the kernel has taken it out already, all is well.
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        link_loss::tell_lost("an I/O thread", error);
    }

    /// Goes by other groups. All that was written has been committed, so what comes after the positions goes by the new ones.
    #[cold]
    fn switch(&mut self) {
        self.io.flags.switch.store(false, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        while let Ok(Switch { groups, positions }) = self.switches.try_recv() {
            self.io.groups = groups;
            // Nobody waits for it any more if that took too long.
            let _ = positions.send(self.io.side.outbound.positions());
        }
    }

    /// A burst from the port to the shards. How many frames that were.
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
                    // What is of no flow every shard hears from the one that has it.
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

    /// A burst from the shards to the port. How many frames that were.
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
                // It stays where it is; when queues are full the shards notice.
                Ok(false) => {
                    side.inbound.again();
                    self.full = true;
                    break;
                }
                // Lost as on any link.
                Err(error) => {
                    add(&counters.port_errors, 1);
                    self.gone = Some(error).filter(link_loss::is_gone).or(self.gone.take());
                }
            }
        }
        // Without anything new, too: a device that was busy has kept what it was given before.
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

    /// Says what the link has lost, if that is new and it has not looked for a while.
    fn check_for_drops(&mut self, now: Instant) {
        if now - self.looked >= Duration::from_micros(CHECK_INTERVAL_US) {
            self.looked = now;
            self.drop_warnings.look("an I/O thread", &*self.io.port);
        }
    }

    /// Whether what came and went of late is bulk.
    fn carries_bulk(&mut self, now: Instant) -> bool {
        let counters = self.io.port.counters();
        let carried = counters.rx_bytes + counters.tx_bytes;
        let now = now.duration_since(self.began).as_micros() as u64;
        self.spin.is_bulk(now, carried)
    }

    fn sleep(&mut self) {
        let start = Instant::now();
        self.check_for_drops(start);
        // While sleeps turn out to be short it looks instead, and lets others have the core between looks.
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
        // Whatever it says, the next round looks at everything.
        let _ = epoll::wait(&self.epoll, &mut events, timeout.as_ref());
        self.io.own.sleeps(false);
        self.spin.wait_ended(start.elapsed().as_micros() as u64);
    }
}
