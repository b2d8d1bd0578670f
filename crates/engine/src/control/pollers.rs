//! Pollers: epoll sets and threads in `poll`, each with a doorbell that the engine rings.

use std::sync::Arc;

use millrace_shard::Owner;

use super::{Answered, Control, words};
use crate::control::command::Command;
use crate::control::descriptor_quota::Charge;
use crate::doorbell;
use crate::programs::owners::Process;

impl Control {
    pub(super) fn poller(&mut self, number: u64) -> Result<Answered, i32> {
        let (index, process) = self.member(number)?;
        let charge = self.charge(number)?;
        self.descriptors.take(charge)?;
        let made = self.new_poller(index, process, charge);
        if made.is_err() {
            self.descriptors.give(charge);
        }
        made
    }

    fn new_poller(
        &mut self,
        index: u32,
        process: Process,
        charge: Charge,
    ) -> Result<Answered, i32> {
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        let poller = program.pollers.take().ok_or(libc::EMFILE)?;
        if let Some((shared, _)) = program.region.poller(poller) {
            shared.reset(self.workers.len());
        }
        let made = doorbell::doorbell().and_then(|doorbell| {
            let listener = doorbell::listener(&doorbell)?;
            Ok((doorbell, Arc::new(listener)))
        });
        let (doorbell, listener) = match made {
            Ok(made) => made,
            Err(error) => {
                program.pollers.give(poller);
                return Err(error.raw_os_error().unwrap_or(libc::EMFILE));
            }
        };
        program.poller_charges.insert(poller, charge);
        if let Some(member) = program.members.get_mut(&process) {
            member.pollers.push(poller);
        }
        self.workers.ask(|_, done| Command::AddPoller {
            owner: Owner(index),
            poller,
            doorbell: doorbell.clone(),
            done,
        })?;
        Ok((words(&[u64::from(poller)]), vec![listener]))
    }

    pub(super) fn poller_gone(&mut self, number: u64, poller: u32) {
        let Ok((index, process)) = self.member(number) else {
            return;
        };
        let Some(program) = self.programs[index as usize].as_mut() else {
            return;
        };
        let Some(member) = program.members.get_mut(&process) else {
            return;
        };
        let Some(at) = member.pollers.iter().position(|own| *own == poller) else {
            return;
        };
        member.pollers.swap_remove(at);
        self.forget_pollers(index, &[poller]);
    }

    /// A process uses these pollers no more. Pollers that no other process uses are released.
    pub(super) fn forget_pollers(&mut self, index: u32, pollers: &[u32]) {
        for poller in pollers {
            let Some(program) = self.programs[index as usize].as_mut() else {
                return;
            };
            let mut members = program.members.values();
            if members.any(|member| member.pollers.contains(poller)) {
                continue;
            }
            program.pollers.give(*poller);
            if let Some(charge) = program.poller_charges.remove(poller) {
                self.descriptors.give(charge);
            }
            self.workers.send(|_| Command::RemovePoller {
                owner: Owner(index),
                poller: *poller,
            });
        }
    }
}
