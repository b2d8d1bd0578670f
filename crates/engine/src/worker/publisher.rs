//! From what changed in the shard to what programs see: slots, hints, wake-ups.
//!
//! The order is: all slots; a full fence; for each changed slot the threads that block on it and
//! the hints of its pollers; a full fence; the doorbells of pollers whose program sleeps. A
//! program does the reverse: it says that it sleeps or wants room, then a full fence, then it
//! looks at the slot or the ring. So one of the two sees the other.

use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use millrace_context::slot::pack_ring;
use millrace_context::{Poller, Region, Status, futex};
use millrace_shard::{Shard, SocketId, View, ViewFlags};

use crate::doorbell::ring;
use crate::migration::shared_sockets::SharedSockets;
use crate::programs::program::{PollerEntry, Program};
use crate::programs::slot::{ProgramSlot, SocketSlots};
use crate::programs::table::Programs;
use crate::programs::watches::Watch;
use crate::shared::arenas::Arenas;
use crate::worker::counters::WorkerCounters;

const IN: u32 = libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32 | libc::EPOLLRDHUP as u32;
const PRI: u32 = libc::EPOLLPRI as u32;
const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// A hint that went to only one of the pollers that watch a slot exclusively.
#[derive(Clone, Copy, Debug)]
struct ExclusiveHint {
    place: ProgramSlot,
    bits: u32,
    poller: u32,
}

/// The least that a window update should open before the program rings for it, in bytes.
const WINDOW_STEP: u64 = 16 << 10;

/// The state that publishing reads and writes.
pub(crate) struct Output<'a> {
    pub(crate) own: u32,
    pub(crate) shard: &'a mut Shard<Arenas>,
    pub(crate) programs: &'a mut Programs,
    pub(crate) shared_sockets: &'a SharedSockets,
    pub(crate) counters: &'a mut WorkerCounters,
}

/// Slots that are to be published, and where sockets are shown.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    slots: SocketSlots,
    /// Sockets that changed in the shard; empty between calls.
    changed: Vec<SocketId>,
    /// Slots to publish.
    marked: Vec<ProgramSlot>,
    /// Exclusive hints since doorbells were last rung.
    exclusive: Vec<ExclusiveHint>,
}

impl Publisher {
    /// Notes which slot shows a socket.
    pub(crate) fn note_slot(&mut self, id: SocketId, place: ProgramSlot) {
        self.slots.note(id, place);
    }

    /// The slot that shows a socket.
    pub(crate) fn slot_of(&self, id: SocketId, programs: &Programs) -> Option<ProgramSlot> {
        let place = self.slots.get(id)?;
        let entry = programs.get(place.program)?.entries.get(place.slot)?;
        (entry.socket == Some(id)).then_some(place)
    }

    /// Marks a slot to be published in this round.
    pub(crate) fn mark(&mut self, place: ProgramSlot) {
        self.marked.push(place);
    }

    /// Takes the list of sockets that changed in the shard. [`Publisher::keep_list`] brings its
    /// memory back.
    pub(crate) fn take_changed(&mut self, shard: &mut Shard<Arenas>) -> Vec<SocketId> {
        let mut changed = std::mem::take(&mut self.changed);
        shard.take_changed(&mut changed);
        changed
    }

    /// Keeps the memory of a list for the next round.
    pub(crate) fn keep_list(&mut self, list: Vec<SocketId>) {
        self.changed = list;
    }

    /// Publishes all marked slots. Returns whether there were any.
    pub(crate) fn publish(&mut self, io: &mut Output<'_>) -> bool {
        if self.marked.is_empty() {
            return false;
        }
        let mut marked = std::mem::take(&mut self.marked);
        io.shared_sockets.add_other_slots(&mut marked);
        for place in &marked {
            publish_slot(io, *place);
        }
        io.shard.memory_mut().settle();
        fence(Ordering::SeqCst);
        for place in marked.drain(..) {
            self.notify(io, place);
        }
        fence(Ordering::SeqCst);
        self.ring_pollers(io);
        self.marked = marked;
        true
    }

    /// Wakes threads blocked on a slot, and hints its pollers.
    fn notify(&mut self, io: &mut Output<'_>, place: ProgramSlot) {
        let Some(program) = io.programs.get_mut(place.program) else {
            return;
        };
        let Program {
            region,
            entries,
            pollers,
            ..
        } = program;
        let (Some(entry), Some(slot)) = (entries.get_mut(place.slot), region.slot(place.slot))
        else {
            return;
        };
        if futex::change(&slot.engine.sequence, &slot.app.waiters) {
            io.counters.wakeups += 1;
        }
        let mut seen = entry.seen;
        let acked = slot.engine.acked.load(Ordering::Relaxed);
        if entry.is_elsewhere() {
            let (received, ready) = slot.engine.elsewhere();
            (seen.received, seen.status) = (received as u32, ready as u16);
        } else {
            seen.received = slot.engine.received.load(Ordering::Relaxed) as u32;
            seen.status = slot.engine.status.load(Ordering::Relaxed) as u16;
        }
        seen.errors = (entry.error >> 16) as u16;
        let mut bits = 0;
        if seen.status != entry.seen.status || seen.errors != entry.seen.errors {
            bits |= IN | OUT | PRI | (libc::EPOLLHUP | libc::EPOLLERR) as u32;
        }
        if seen.received != entry.seen.received {
            bits |= IN | PRI;
        }
        // Room to send concerns only a program that has asked for it, and counts from a third of
        // the buffer (Linux's sk_stream_is_writeable).
        let wanted = slot.app.send_wanted.load(Ordering::Acquire);
        let low = u64::from(slot.cold.notsent_low.load(Ordering::Relaxed));
        if wanted != entry.send_wanted {
            let limit = u64::from(slot.engine.send_limit.load(Ordering::Relaxed));
            let queued = slot.app.queued.load(Ordering::Acquire);
            let used = queued.saturating_sub(acked);
            let unsent = queued.saturating_sub(slot.engine.sent.load(Ordering::Relaxed));
            // With a limit on unsent bytes: from half of that limit.
            if used <= limit * 2 / 3 && (low == 0 || unsent.saturating_mul(2) < low) {
                entry.send_wanted = wanted;
                bits |= OUT;
            }
        }
        entry.seen = seen;
        if bits == 0 || entry.watches.as_slice().is_empty() {
            return;
        }
        let chosen = entry.watches.hint(
            bits,
            pollers,
            |pollers, poller| {
                // A poller that got a hint in this round has enough to do.
                let entry = pollers.get(poller as usize).and_then(Option::as_ref);
                entry.is_some_and(|entry| !entry.touched)
                    && region
                        .poller(poller)
                        .is_some_and(|(shared, _)| shared.has_waiting_thread())
            },
            |pollers, watch| {
                let hints = &mut io.counters.hints;
                give_hint(region, pollers, (io.own, place.slot), watch, hints);
            },
        );
        if let Some(poller) = chosen {
            self.exclusive.push(ExclusiveHint {
                place,
                bits,
                poller,
            });
        }
    }

    /// Rings the pollers that got hints and whose program sleeps. A full fence must separate the
    /// hints from this.
    fn ring_pollers(&mut self, io: &mut Output<'_>) {
        ring_touched(io);
        if self.exclusive.is_empty() {
            return;
        }
        // The thread for which a poller was chosen may have left since, by time-out or signal,
        // without having seen the hint. A thread that still waits checks before it leaves.
        let mut chosen = std::mem::take(&mut self.exclusive);
        let mut others = false;
        for ExclusiveHint {
            place,
            bits,
            poller,
        } in chosen.drain(..)
        {
            let Some(program) = io.programs.get_mut(place.program) else {
                continue;
            };
            let region = &program.region;
            let waits = |(shared, _): (&Poller, _)| shared.has_waiting_thread();
            if region.poller(poller).is_some_and(waits) {
                continue;
            }
            let Some(entry) = program.entries.get_mut(place.slot) else {
                continue;
            };
            others = true;
            entry.watches.hint_rest(bits, poller, |watch| {
                let hints = &mut io.counters.hints;
                give_hint(
                    region,
                    &mut program.pollers,
                    (io.own, place.slot),
                    watch,
                    hints,
                );
            });
        }
        self.exclusive = chosen;
        if others {
            fence(Ordering::SeqCst);
            ring_touched(io);
        }
    }
}

/// Publishes the state of a slot.
fn publish_slot(io: &mut Output<'_>, place: ProgramSlot) {
    let Some(program) = io.programs.get_mut(place.program) else {
        return;
    };
    let index = place.slot;
    // It may have been closed, or have moved, since it was marked.
    let Some(entry) = program.entries.get_mut(index).filter(|entry| entry.open) else {
        return;
    };
    let slot = program
        .region
        .slot(index)
        .expect("entries are made only for slots that exist");
    if entry.is_elsewhere() {
        return show_elsewhere(io, place);
    }
    let Some(view) = entry.socket.and_then(|id| io.shard.view(id)) else {
        let status = if entry.socket.is_some() {
            Status::OPEN | Status::DEAD
        } else {
            Status::OPEN
        };
        slot.engine.status.store(status.bits(), Ordering::Release);
        return;
    };
    let datagrams = view.flags.contains(ViewFlags::DATAGRAM);
    if view.error != 0 && (datagrams || entry.error & 0xffff != view.error as u32) {
        entry.error = (entry.error >> 16).wrapping_add(1) << 16 | view.error as u32;
        if let Some(id) = entry.socket.filter(|_| datagrams) {
            // The error is published. The next one counts as another, even if it is the same.
            io.shard.take_error(id);
        }
    }
    let status = status(&view);
    if datagrams {
        slot.cold.mtu.store(view.mtu.into(), Ordering::Relaxed);
    }
    if datagrams || entry.seen.status != status.bits() as u16 {
        slot.cold
            .set_addresses(view.local.into(), view.remote.into());
    }
    slot.engine.error.store(entry.error, Ordering::Release);
    slot.engine
        .send_limit
        .store(view.send_limit, Ordering::Release);
    slot.cold
        .notsent_low
        .store(view.notsent_low, Ordering::Relaxed);
    if let Some(queue) = entry.accepts() {
        slot.engine
            .ring
            .store(pack_ring(queue.at, queue.log2), Ordering::Release);
        slot.engine.received.store(queue.pushed, Ordering::Release);
    } else {
        let (ring, step) = view.ring.map_or((0, WINDOW_STEP), |block| {
            (
                pack_ring(block.at, block.log2),
                (block.len() as u64 / 4).max(WINDOW_STEP),
            )
        });
        slot.engine
            .consume_wake
            .store(view.consumed + step, Ordering::Relaxed);
        slot.engine.ring.store(ring, Ordering::Release);
        if let Some(mark) = view.urgent {
            slot.cold.urgent.store(mark, Ordering::Relaxed);
            slot.engine
                .status
                .fetch_or(Status::URGENT.bits(), Ordering::Release);
        }
        slot.engine.received.store(view.received, Ordering::Release);
        slot.engine.sent.store(view.sent, Ordering::Relaxed);
        slot.engine.acked.store(view.acked, Ordering::Release);
    }
    slot.engine.status.store(status.bits(), Ordering::Release);
}

fn ring_touched(io: &mut Output<'_>) {
    for program in io.programs.iter_mut() {
        for (index, poller) in program.pollers.iter_mut().enumerate() {
            let Some(poller) = poller.as_mut().filter(|poller| poller.touched) else {
                continue;
            };
            poller.touched = false;
            if program
                .region
                .poller(index as u32)
                .is_some_and(|(shared, _)| shared.has_sleepers())
            {
                ring(poller.doorbell.as_fd());
                io.counters.wakeups += 1;
            }
        }
    }
}

/// Publishes the state of a slot whose socket is in another program: what can be known without
/// recalling it.
fn show_elsewhere(io: &mut Output<'_>, place: ProgramSlot) {
    let of = |place: ProgramSlot| {
        let program = io.programs.get(place.program)?;
        Some((program, program.entries.get(place.slot)?))
    };
    let at = io.shared_sockets.of(place).last().copied().unwrap_or(place);
    let (Some((program, _)), Some((other, entry))) = (of(place), of(at)) else {
        return;
    };
    let slot = program.slot(place.slot);
    let consumed = slot.app.consumed.load(Ordering::Relaxed);
    let app = &other.slot(at.slot).app;
    let taken = app.consumed.load(Ordering::Relaxed);
    let (received, ready) = match (entry.accepts(), entry.socket) {
        (Some(queue), _) => (queue.pushed, if queue.pushed > taken { IN } else { 0 }),
        (None, Some(id)) => {
            let view = io.shard.view(id);
            let seen = app.error_seen.load(Ordering::Relaxed) == entry.error;
            let failed = entry.error & 0xffff != 0 && !seen;
            view.map_or((0, HUP | ERR), |view| {
                (view.received, ready(&view, taken, failed))
            })
        }
        (None, None) => (0, OUT | HUP),
    };
    slot.engine.show_elsewhere(consumed, received, ready);
}

/// Leaves a hint for the poller of a watch, unless its last hint is still in the ring.
#[inline]
fn give_hint(
    region: &Region,
    pollers: &mut [Option<PollerEntry>],
    (shard, slot): (u32, u32),
    watch: &mut Watch,
    count: &mut u64,
) {
    let Some(Some(poller)) = pollers.get_mut(watch.poller as usize) else {
        return;
    };
    let Some((shared, hints)) = region.poller(watch.poller) else {
        return;
    };
    poller.touched = true;
    if watch
        .hint()
        .is_some_and(|hint| shared.still_pending(shard, poller.tail, hint))
    {
        return;
    }
    watch.hinted_at(shared.push(hints, shard, &mut poller.tail, slot));
    *count += 1;
}

fn status(view: &View) -> Status {
    let mut status = Status::OPEN;
    let has = |flag| view.flags.contains(flag);
    // A socket may be bound to an address alone (IP_BIND_ADDRESS_NO_PORT).
    let bound = view.local.port() != 0 || !view.local.ip().is_unspecified();
    status.set(Status::BOUND, bound);
    status.set(Status::LISTENING, has(ViewFlags::LISTENING));
    status.set(Status::DATAGRAM, has(ViewFlags::DATAGRAM));
    status.set(Status::FAILURES, has(ViewFlags::REPORTS));
    status.set(Status::CONNECTING, has(ViewFlags::CONNECTING));
    status.set(Status::CONNECTED, has(ViewFlags::CONNECTED));
    status.set(Status::READ_CLOSED, has(ViewFlags::END_OF_STREAM));
    status.set(Status::URGENT, view.urgent.is_some());
    status.set(Status::WRITE_CLOSED, has(ViewFlags::WRITE_SHUT));
    status.set(
        Status::DEAD,
        matches!(view.state, Some(millrace_tcp::State::Closed)),
    );
    status
}

/// What a socket is ready for when `taken` bytes have been read, as in Linux's `tcp_poll` and
/// `udp_poll`. The program corrects it when it has recalled the socket.
fn ready(view: &View, taken: u64, failed: bool) -> u32 {
    let status = status(view);
    let dead = status.contains(Status::DEAD);
    let fresh = !status
        .intersects(Status::CONNECTING | Status::CONNECTED | Status::DATAGRAM | Status::DEAD);
    let read_closed = dead || status.contains(Status::READ_CLOSED);
    let write_closed = dead || status.contains(Status::WRITE_CLOSED);
    let room = (view.queued - view.acked) * 3 <= u64::from(view.send_limit) * 2;
    let mut ready = 0;
    let mut set = |holds: bool, bits: u32| ready |= if holds { bits } else { 0 };
    set(view.received > taken, IN & !RDHUP);
    set(read_closed, IN);
    set(fresh || read_closed && write_closed, HUP);
    set(status.contains(Status::URGENT), PRI);
    let connecting = status.contains(Status::CONNECTING);
    set(fresh || write_closed || room && !connecting, OUT);
    let datagrams = status.contains(Status::DATAGRAM);
    set(failed && (dead || fresh || datagrams), ERR);
    set(status.contains(Status::FAILURES), ERR);
    ready
}
