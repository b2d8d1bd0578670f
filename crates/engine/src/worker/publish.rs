//! From what changed in the shard to what programs see: slots, hints, wake-ups.
//!
//! In this order: all slots; a full fence; for each changed slot its blocked threads and its pollers' hints; a full fence; the doorbells of pollers
//! whose program sleeps. A program does the reverse (says that it sleeps or wants room, a full fence, looks at the slot or the ring), so one of the two
//! sees the other.

use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use millrace_context::slot::pack_ring;
use millrace_context::{Poller, Region, Status, futex};
use millrace_shard::{Error, SocketId, View, ViewFlags};

use crate::doorbell::ring;
use crate::programs::entry::Waiting;
use crate::programs::owners::Owners;
use crate::programs::program::{PollerEntry, Program};
use crate::programs::watches::Watch;
use crate::worker::{ProgramSlot, Worker};

pub(crate) const IN: u32 =
    libc::EPOLLIN as u32 | libc::EPOLLRDNORM as u32 | libc::EPOLLRDHUP as u32;
pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32 | libc::EPOLLWRNORM as u32;

/// A poller that alone of those who watch a slot exclusively has been told of something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExclusiveHint {
    place: ProgramSlot,
    bits: u32,
    poller: u32,
}

/// The least that a window update should open before the program rings for it, in bytes.
const WINDOW_STEP: u64 = 16 << 10;

impl Worker {
    /// Publishes everything that changed since the last call.
    pub(crate) fn publish(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        self.shard.take_changed(&mut changed);
        let mut touched = std::mem::take(&mut self.touched);
        for id in changed.drain(..) {
            if let Some(place) = self.place(id) {
                if self
                    .shard
                    .view(id)
                    .is_some_and(|view| view.flags.contains(ViewFlags::LISTENING))
                {
                    self.fill_accept_ring(place, &mut touched);
                } else {
                    touched.push(place);
                }
            } else if self.peers.is_some() {
                self.relay_accepted(id, &mut touched);
            }
        }
        self.changed = changed;
        if self.peers.is_some() {
            self.retry_stuck(&mut touched);
        }
        if !touched.is_empty() {
            self.touch_elsewhere(&mut touched);
            for place in &touched {
                self.publish_slot(*place);
            }
            self.shard.memory_mut().settle();
            fence(Ordering::SeqCst);
            for place in touched.drain(..) {
                self.notify(place);
            }
            fence(Ordering::SeqCst);
            self.ring_pollers();
            if self.peers.is_some() {
                self.return_foreign_blocks();
            }
        }
        self.touched = touched;
    }

    /// Where a socket is shown.
    pub(crate) fn place(&self, id: SocketId) -> Option<ProgramSlot> {
        let place = self.places.get(id)?;
        let entry = self
            .programs
            .get(place.program as usize)?
            .as_ref()?
            .entries
            .get(place.slot)?;
        (entry.socket == Some(id)).then_some(place)
    }

    /// Ties a socket to a slot.
    pub(crate) fn attach_socket(&mut self, id: SocketId, place: ProgramSlot) {
        self.places.note(id, place);
        if let Some(program) = self.programs[place.program as usize].as_mut() {
            program.entries[place.slot].socket = Some(id);
        }
    }

    /// Moves established connections from a listener in the shard to its ring in the program's memory, as far as that goes.
    pub(crate) fn fill_accept_ring(&mut self, place: ProgramSlot, touched: &mut Vec<ProgramSlot>) {
        if self.peers.is_some() && !self.fill_accept_ring_from_peers(place, touched) {
            return;
        }
        let Some(program) = self.programs[place.program as usize].as_mut() else {
            return;
        };
        let Some(listener) = program.entries[place.slot].socket else {
            return;
        };
        let mut moved = false;
        while self
            .shard
            .view(listener)
            .is_some_and(|view| view.pending_accepts > 0)
        {
            let Some(queue) = program.entries[place.slot].accepts().copied() else {
                return;
            };
            if !program.has_room(place.slot) {
                if let Some(peers) = &mut self.peers {
                    peers.note_stuck(place);
                }
                break;
            }
            let Some(slot) = program.open_slot() else {
                self.counters.slots_exhausted += 1;
                let now = self.now.as_micros();
                self.audit.limit(place.program, "slots_exhausted", now);
                break;
            };
            let Ok(id) = self.shard.accept(listener) else {
                program.give_back_slot(slot);
                break;
            };
            let entry = &mut program.entries[slot];
            entry.owners = Owners::from(Waiting {
                listener: place.slot,
                position: queue.pushed,
            });
            entry.socket = Some(id);
            program.append_accepted(place.slot, program.reference(slot));
            let accepted = ProgramSlot {
                program: place.program,
                slot,
            };
            self.places.note(id, accepted);
            touched.push(accepted);
            moved = true;
        }
        if moved {
            touched.push(place);
        }
    }

    /// Writes a slot.
    fn publish_slot(&mut self, place: ProgramSlot) {
        let Some(program) = self.programs[place.program as usize].as_mut() else {
            return;
        };
        let index = place.slot;
        // It may have been closed, or have moved, since it was touched.
        let Some(entry) = program.entries.get_mut(index).filter(|entry| entry.open) else {
            return;
        };
        let slot = program
            .region
            .slot(index)
            .expect("entries are made only for slots that exist");
        if entry.is_elsewhere() {
            return self.show_elsewhere(place);
        }
        let Some(view) = entry.socket.and_then(|id| self.shard.view(id)) else {
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
                // It has been handed over: the next one is another, also if it is the same.
                self.shard.take_error(id);
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

    /// Wakes threads blocked on a slot, and hints its pollers.
    fn notify(&mut self, place: ProgramSlot) {
        let Some(program) = self.programs[place.program as usize].as_mut() else {
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
            self.counters.wakeups += 1;
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
        // Room to send is news only to who has asked for it, and worth it from a third of the buffer (Linux's sk_stream_is_writeable).
        let wanted = slot.app.send_wanted.load(Ordering::Acquire);
        let low = u64::from(slot.cold.notsent_low.load(Ordering::Relaxed));
        if wanted != entry.send_wanted {
            let limit = u64::from(slot.engine.send_limit.load(Ordering::Relaxed));
            let queued = slot.app.queued.load(Ordering::Acquire);
            let used = queued.saturating_sub(acked);
            let unsent = queued.saturating_sub(slot.engine.sent.load(Ordering::Relaxed));
            // With a bound on what was not sent yet: from half of it.
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
                // One that has had a hint in this round has enough to do.
                let entry = pollers.get(poller as usize).and_then(Option::as_ref);
                entry.is_some_and(|entry| !entry.touched)
                    && region
                        .poller(poller)
                        .is_some_and(|(shared, _)| shared.has_waiting_thread())
            },
            |pollers, watch| {
                let hints = &mut self.counters.hints;
                give_hint(region, pollers, (self.own, place.slot), watch, hints);
            },
        );
        if let Some(poller) = chosen {
            self.chosen.push(ExclusiveHint {
                place,
                bits,
                poller,
            });
        }
    }

    /// Rings the pollers that had hints and whose program sleeps. A full fence has followed the hints.
    fn ring_pollers(&mut self) {
        self.ring_touched();
        if self.chosen.is_empty() {
            return;
        }
        // A thread that was counted when its poller was chosen may have left since, for its time or a signal, without having seen the hint. One that
        // is still counted looks before it leaves.
        let mut chosen = std::mem::take(&mut self.chosen);
        let mut others = false;
        for ExclusiveHint {
            place,
            bits,
            poller,
        } in chosen.drain(..)
        {
            let Some(program) = self.programs[place.program as usize].as_mut() else {
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
                let hints = &mut self.counters.hints;
                give_hint(
                    region,
                    &mut program.pollers,
                    (self.own, place.slot),
                    watch,
                    hints,
                );
            });
        }
        self.chosen = chosen;
        if others {
            fence(Ordering::SeqCst);
            self.ring_touched();
        }
    }

    fn ring_touched(&mut self) {
        for program in self.programs.iter_mut().flatten() {
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
                    self.counters.wakeups += 1;
                }
            }
        }
    }

    /// Marks a slot to be published in this round.
    pub(crate) fn mark_changed(&mut self, place: ProgramSlot) {
        self.touched.push(place);
    }

    /// Sets a slot's error word: a request failed that nobody waits for.
    pub(crate) fn fail(&mut self, place: ProgramSlot, error: Error) {
        if let Some(program) = self.programs[place.program as usize].as_mut() {
            let entry = &mut program.entries[place.slot];
            entry.error = (entry.error >> 16).wrapping_add(1) << 16 | error.errno() as u32;
            let slot = program.slot(place.slot);
            slot.engine
                .error
                .store(program.entries[place.slot].error, Ordering::Release);
            slot.engine
                .status
                .store(Status::OPEN.bits(), Ordering::Release);
        }
        self.mark_changed(place);
    }
}

/// Leaves a hint for the poller of a watch, unless one stands there already that has not been taken.
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

pub(crate) fn status(view: &View) -> Status {
    let mut status = Status::OPEN;
    let has = |flag| view.flags.contains(flag);
    // To an address alone, too (IP_BIND_ADDRESS_NO_PORT).
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
