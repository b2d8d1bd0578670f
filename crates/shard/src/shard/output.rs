//! Everything that leaves, in turn: ARP and neighbour discovery, answers, datagrams, and the
//! segments of connections.

use millrace_tcp::Instant;
use millrace_wire::offload::Capabilities;

use crate::link::ethernet::Egress;
use crate::memory::Memory;
use crate::shard::Shard;
use crate::tcp::output::Served;

/// Segments to this host itself that one transmit delivers; the rest waits for the next.
const LOCAL_TURN: u32 = 256;

impl<M: Memory> Shard<M> {
    /// Sends everything that may leave now: ARP and answers first, then connections with control
    /// segments and ACKs, then those with data, in turn. Stops when the port is full; the rest
    /// stays for the next call. Traffic to this host itself is delivered on the way, a bounded
    /// number of segments in one call.
    pub fn transmit(&mut self, egress: &mut impl Egress, now: Instant) {
        let capabilities = egress.capabilities();
        let mut local_budget = LOCAL_TURN;
        self.blocked = !self.transmit_until_full(egress, &capabilities, &mut local_budget, now);
    }

    fn transmit_until_full(
        &mut self,
        egress: &mut impl Egress,
        capabilities: &Capabilities,
        local_budget: &mut u32,
        now: Instant,
    ) -> bool {
        if self.tcp.is_stalled() && !self.tcp.resume(&mut self.base, egress, capabilities, now) {
            return false;
        }
        loop {
            while let Some(settled) = self.base.network.neighbours.take_settled() {
                self.tcp.release_waiting(&mut self.base, settled, now);
            }
            while *local_budget > 0
                && let Some(reply) = self.base.network.replies.pop()
            {
                if !self.tcp.send_reply(
                    &mut self.base,
                    reply,
                    egress,
                    capabilities,
                    local_budget,
                    now,
                ) {
                    return false;
                }
            }
            if !self
                .base
                .network
                .send_link_packets(&mut self.base.env, egress)
            {
                return false;
            }
            if self.udp.has_output()
                && !self
                    .udp
                    .send_datagrams(&mut self.base, egress, capabilities, now)
            {
                return false;
            }
            if *local_budget == 0 {
                return true;
            }
            let mut known = None;
            // Connections one after the other, as long as nothing comes up that goes first.
            while self.base.network.replies.is_empty()
                && *local_budget > 0
                && let Some(index) = self.tcp.pop_ready()
            {
                match self.tcp.serve(
                    &mut self.base,
                    index,
                    &mut known,
                    (&mut *egress, capabilities),
                    local_budget,
                    now,
                ) {
                    Served::Idle => {}
                    Served::More => self.tcp.mark_ready(&mut self.base, index),
                    Served::Full => {
                        self.tcp.mark_ready(&mut self.base, index);
                        return false;
                    }
                }
            }
            let is_done =
                !self.tcp.has_output() && !self.udp.has_output() && !self.base.network.has_output();
            if is_done {
                return true;
            }
        }
    }
}
