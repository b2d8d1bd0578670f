//! What a receiver does that acknowledges ahead of its host.

use millrace_wire::tcp::Flags;
use millrace_wire::vnet::VnetHeader;

use super::Receive;
use crate::ack_proxy::AckProxy;
use crate::counters::Cause;
use crate::filter::{Class, Segment, classify};
use crate::hold;
use crate::pool::NONE;
use crate::time::Instant;
use crate::unit::{HEAD_MAX, Sink};

impl Receive {
    /// What the host sends, if [`crate::Config::active_ack`] is on. `false`: it does not go on to
    /// the wire. Its acknowledgement may have been changed to what the sender was told already.
    pub fn from_host(
        &mut self,
        frame: &mut [u8],
        vnet: &VnetHeader,
        now: Instant,
        sink: &mut impl Sink,
    ) -> bool {
        if self.ack_proxies.is_empty() {
            return true;
        }
        let Class::Segment(segment) = classify(frame, frame.len(), vnet) else {
            return true;
        };
        let key = segment.key.reversed();
        let hash = self.table.hash(&key);
        let syn = segment.flags.contains(Flags::SYN);
        if syn && !self.config.active_ack.takes(&key) {
            return true;
        }
        let index = match self.table.find(&key, hash) {
            Some(index) => index,
            None if syn => match self.take_up(key, hash, now, sink) {
                Some(index) => index,
                None => return true,
            },
            None => return true,
        };
        if segment.flags.contains(Flags::RST) {
            // The host knows nothing of the connection, or no longer.
            self.flush(index, Cause::Order, sink);
            self.forget(index);
            return true;
        }
        let ack_proxy = &mut self.ack_proxies[index as usize];
        if syn {
            ack_proxy.on_host_syn(&segment, frame);
            return true;
        }
        if !ack_proxy.is_known() {
            return true;
        }
        let was_owed = ack_proxy.owed;
        let flow = self.table.flow(index);
        let (passes, again) = ack_proxy.on_host(&segment, flow, frame, vnet, now);
        if ack_proxy.owed && !was_owed {
            self.owing.push(index);
        }
        ack_proxy.release(&mut self.pool);
        self.again_at = self.again_at.min(ack_proxy.again_at());
        if again {
            self.give_again(index, true, now, sink);
        }
        let ack_proxy = &self.ack_proxies[index as usize];
        if ack_proxy.ending && ack_proxy.kept.head == NONE && self.table.flow(index).count == 0 {
            self.forget(index);
        }
        self.counters.acks_suppressed += u64::from(!passes);
        passes
    }

    /// Writes an acknowledgement that is to be sent now, a whole frame, and says how long it is. To
    /// be called until there is none.
    pub fn acknowledgement(&mut self, now: Instant, frame: &mut [u8; HEAD_MAX]) -> Option<usize> {
        let mut at = 0;
        while let Some(&index) = self.owing.get(at) {
            let ack_proxy = &mut self.ack_proxies[index as usize];
            if ack_proxy.may_tell_at() > now {
                at += 1;
                continue;
            }
            self.owing.swap_remove(at);
            // A quarter of the buffers is for what is not promised to anybody.
            let free = self
                .pool
                .free_count()
                .saturating_sub(self.config.buffers / 4);
            let room = u32::try_from(free * self.config.buffer_len / 2).unwrap_or(u32::MAX);
            let flow = self.table.flow(index);
            let told = ack_proxy.tell(flow, &self.pool, room, now, frame);
            self.again_at = self.again_at.min(ack_proxy.again_at());
            if told.is_some() {
                self.counters.active_acks += 1;
                return told;
            }
        }
        None
    }

    /// Gives the host again what it has not acknowledged for long.
    pub fn give_what_is_due(&mut self, now: Instant, sink: &mut impl Sink) {
        if now < self.again_at {
            return;
        }
        for index in 0..self.ack_proxies.len() {
            if self.ack_proxies[index].again_at() <= now {
                self.give_again(index as u32, false, now, sink);
            }
        }
        let times = self.ack_proxies.iter().map(AckProxy::again_at);
        self.again_at = times.min().unwrap_or(Instant(u64::MAX));
    }

    /// The first unit that was promised and that the host has not acknowledged.
    fn give_again(&mut self, index: u32, asked: bool, now: Instant, sink: &mut impl Sink) {
        let ack_proxy = &mut self.ack_proxies[index as usize];
        ack_proxy.note_again(now);
        // What goes beyond may be more than the host's window.
        ack_proxy.release_unpromised(&mut self.pool);
        self.again_at = self.again_at.min(ack_proxy.again_at());
        if ack_proxy.kept.head != NONE {
            hold::show(&self.pool, &self.config, ack_proxy.kept.head, sink);
            *match asked {
                true => &mut self.counters.given_again_asked,
                false => &mut self.counters.given_again_timeout,
            } += 1;
        }
    }

    /// The sender has ended the connection, or broken it off, if that is believed. The flow goes;
    /// one of which something is kept only when the host has acknowledged it, or says that there is
    /// no such connection.
    pub(super) fn end(&mut self, index: u32) {
        match self.ack_proxies.get_mut(index as usize) {
            Some(ack_proxy) if ack_proxy.kept.head != NONE => ack_proxy.ending = true,
            _ => self.forget(index),
        }
    }

    /// The sender repeats what is here.
    pub(super) fn repeated(&mut self, index: u32, segment: &Segment) {
        if let Some(ack_proxy) = self.ack_proxies.get_mut(index as usize) {
            let was_owed = ack_proxy.owed;
            ack_proxy.on_repeated(segment);
            if ack_proxy.owed && !was_owed {
                self.owing.push(index);
            }
        }
    }
}
