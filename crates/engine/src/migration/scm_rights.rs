//! Sockets in messages (SCM_RIGHTS), as a shard sees them. [`IN_FLIGHT`] holds a socket once for
//! each stand-in. The control thread keeps the stand-ins (`control::scm_rights`).

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::collections::HashSet;

use millrace_context::SlotRef;

use crate::programs::owners::{IN_FLIGHT, Process};

/// How often one process may hold one socket. A process that receives a socket which it has already
/// releases it at once, so this is the number of its threads that receive at one moment.
const HELD_MAX: usize = 256;
/// Bursts of requests that are served first. That is more than the rings hold, unless programs keep
/// writing.
const BURSTS: usize = 16;

impl ShardServer {
    /// Has `to` hold the sockets that `from` holds. Returns for each whether it does.
    pub(crate) fn share(
        &mut self,
        program: u32,
        sockets: &[SlotRef],
        from: Process,
        to: Process,
    ) -> Vec<bool> {
        // A connection may have been accepted just now, and the request that says so may wait in a
        // ring.
        let mut bursts = 0;
        while bursts < BURSTS && self.serve() > 0 {
            bursts += 1;
        }
        let Some(this) = self.programs.get_mut(program) else {
            return vec![false; sockets.len()];
        };
        let share = |socket: &SlotRef| {
            let Some(slot) = this.find(*socket) else {
                return false;
            };
            let owners = &mut this.entries[slot].owners;
            let holders = owners.holders();
            let times = || holders.iter().filter(|holder| **holder == to).count();
            if !holders.contains(&from) || (to != IN_FLIGHT && times() >= HELD_MAX) {
                return false;
            }
            owners.hold(to);
            true
        };
        sockets.iter().map(share).collect()
    }

    /// A process holds `sockets` and no others of those that it held. `more`: it also takes hold of
    /// those that it did not hold.
    pub(crate) fn set_held(
        &mut self,
        program: u32,
        process: Process,
        sockets: &[SlotRef],
        more: bool,
    ) {
        let Some(this) = self.programs.get_mut(program) else {
            return;
        };
        if more {
            this.take_hold(process, sockets);
        }
        // A list may name as many sockets as a program may have: each is looked up at once.
        let kept: HashSet<u32> = sockets.iter().filter_map(|it| this.find(*it)).collect();
        let lost: Vec<u32> = this
            .held_by(process)
            .filter(|slot| !kept.contains(slot))
            .collect();
        for slot in lost {
            self.release_wholly(ProgramSlot { program, slot }, process);
        }
    }

    /// Releases one hold of the messages on a socket.
    pub(crate) fn arrived(&mut self, program: u32, socket: SlotRef) {
        if let Ok(place) = self.find(program, socket) {
            self.release(place, IN_FLIGHT);
        }
    }

    /// Releases all holds of a process on a socket.
    pub(crate) fn release_wholly(&mut self, place: ProgramSlot, process: Process) {
        let owners = &self.program(place.program).entries[place.slot].owners;
        let holds = |holder: &&Process| **holder == process;
        let times = owners.holders().iter().filter(holds).count();
        for _ in 0..times {
            self.release(place, process);
        }
    }
}
