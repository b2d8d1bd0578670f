//! The processes of programs: attach, fork, exec, exit.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_context::SlotRef;
use millrace_context::protocol::{self, Attached, Request};
use millrace_shard::Owner;
use rustix::event::epoll;

use super::{Answered, CONTEXTS, Control, Member, PIDFD, Program, words};
use crate::control::clients::{Membership, parent_of, pid_of};
use crate::control::command::Command;
use crate::control::descriptor_quota::Charge;
use crate::programs::owners::Process;

/// How long an announced child may take to attach after its parent has died.
const ANNOUNCED: Duration = Duration::from_secs(5);

impl Control {
    pub(super) fn attach(&mut self, number: u64, request: &Request) -> Result<Answered, i32> {
        let client = self.clients.get(number).ok_or(libc::EIO)?;
        let (pid, uid, charged) = (client.pid, client.uid, client.charged.is_some());
        let found = self.programs.iter().position(|program| {
            program
                .as_ref()
                .is_some_and(|program| program.token == request.token)
        });
        let index = found.ok_or(libc::EACCES)?;
        let program = self.programs[index].as_ref().ok_or(libc::EACCES)?;
        let charge = Charge {
            program: program.serial,
            uid,
        };
        if !charged {
            self.descriptors.take(charge)?;
        }
        let [ticket, sharing, ..] = request.arguments;
        let attached = self.attach_process(index as u32, charge, pid, [ticket, sharing]);
        match attached {
            Ok((member, answer)) => {
                self.clients.attached(number, member, charge);
                Ok(answer)
            }
            Err(errno) => {
                if !charged {
                    self.descriptors.give(charge);
                }
                Err(errno)
            }
        }
    }

    /// The member for a process that attaches: the one that `ticket` announced, unless another
    /// process has attached with it; else the one with this pid; else a new one. A new member is
    /// the child of a fork that was not announced. It gets the epoll sets of member `sharing` - 1.
    fn member_of(
        &mut self,
        index: u32,
        charge: Charge,
        pid: u32,
        [ticket, sharing]: [u64; 2],
    ) -> Result<Process, i32> {
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        let announced = Some(ticket as Process).filter(|process| {
            let member = program.members.get(process);
            member.is_some_and(|member| member.ticket(*process) == ticket)
        });
        let known = announced.filter(|process| {
            program
                .members
                .get(process)
                .is_some_and(|member| member.pid == 0 || member.pid == pid)
        });
        let known = known.or_else(|| {
            program
                .members
                .iter()
                .find(|(_, member)| member.pid == pid)
                .map(|(process, _)| *process)
        });
        match known {
            Some(process) => Ok(process),
            None => {
                let parent = sharing.checked_sub(1).map(|parent| parent as Process);
                let parent = parent.and_then(|parent| program.members.get(&parent));
                let pollers = parent.map_or_else(Vec::new, |parent| parent.pollers.clone());
                self.new_member(index, charge, pid, None, pollers)
            }
        }
    }

    /// Adds a member to a program. The workers do not know it yet.
    fn new_member(
        &mut self,
        index: u32,
        charge: Charge,
        pid: u32,
        parent: Option<(Process, u64)>,
        pollers: Vec<u32>,
    ) -> Result<Process, i32> {
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        self.descriptors.take(charge)?;
        let Some(process) = program.processes.take() else {
            self.descriptors.give(charge);
            return Err(libc::EUSERS);
        };
        let member = Member {
            serial: self.next_serial,
            charge,
            pid,
            pidfd: None,
            contexts: Vec::new(),
            pollers,
            announced: Instant::now(),
            parent,
        };
        self.next_serial += 1;
        program.members.insert(process as Process, member);
        Ok(process as Process)
    }

    fn attach_process(
        &mut self,
        index: u32,
        charge: Charge,
        pid: u32,
        named: [u64; 2],
    ) -> Result<(Membership, Answered), i32> {
        let process = self.member_of(index, charge, pid, named)?;
        if let Err(errno) = self.watch_pid(index, process, pid) {
            self.process_gone(index, process);
            return Err(errno);
        }
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        let member = program.members.get_mut(&process).ok_or(libc::ESRCH)?;
        if member.contexts.is_empty() {
            let block = program.contexts.take().ok_or(libc::EUSERS)?;
            let contexts = CONTEXTS * self.workers.len();
            member.contexts = (block * contexts..(block + 1) * contexts).collect();
        }
        let membership = Membership {
            program: index,
            process,
            serial: member.serial,
        };
        let contexts = member.contexts.clone();
        let doorbells = program.doorbells.clone();
        let geometry = *program.region.geometry();
        let file = Arc::new(program.file.try_clone().map_err(|_| libc::EMFILE)?);
        let first = contexts[0];
        // The contexts of the shards alternate, as `Attached::contexts` says.
        let every = self.workers.len() as usize;
        self.workers.ask(|shard, done| {
            let own = contexts.iter().skip(shard as usize).step_by(every);
            Command::AddProcess {
                owner: Owner(index),
                process,
                pid,
                contexts: own.copied().collect(),
                done,
            }
        })?;
        let attached = Attached {
            geometry,
            process: u32::from(process),
            context: first,
            contexts: CONTEXTS,
            engine_pid: std::process::id(),
        };
        let descriptors = std::iter::once(file).chain(doorbells);
        Ok((membership, (attached.to_words(), descriptors.collect())))
    }

    /// Watches for the death of a process. `ESRCH`: it is dead already.
    fn watch_pid(&mut self, index: u32, process: Process, pid: u32) -> Result<(), i32> {
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        let member = program.members.get_mut(&process).ok_or(libc::ESRCH)?;
        if member.pidfd.is_some() {
            return Ok(());
        }
        let errno = |errno: rustix::io::Errno| errno.raw_os_error();
        let number = rustix::process::Pid::from_raw(pid as i32).ok_or(libc::ESRCH)?;
        let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty());
        let pidfd = pidfd.map_err(errno)?;
        let data = epoll::EventData::new_u64(PIDFD | u64::from(index) << 16 | u64::from(process));
        epoll::add(&self.epoll, &pidfd, data, epoll::EventFlags::IN).map_err(errno)?;
        member.pid = pid;
        member.pidfd = Some(pidfd);
        Ok(())
    }

    /// The program and process slot of a client, if it is a member.
    pub(super) fn member(&self, number: u64) -> Result<(u32, Process), i32> {
        let client = self.clients.get(number).ok_or(libc::ENOTCONN)?;
        let member = client.member.ok_or(libc::ENOTCONN)?;
        // Another process may have the slot by now, and another program the number.
        self.programs
            .get(member.program as usize)
            .and_then(Option::as_ref)
            .and_then(|program| program.members.get(&member.process))
            .filter(|this| this.serial == member.serial)
            .ok_or(libc::ENOTCONN)?;
        Ok((member.program, member.process))
    }

    /// The program and user that the descriptors of a client count against.
    pub(super) fn charge(&self, number: u64) -> Result<Charge, i32> {
        let client = self.clients.get(number).ok_or(libc::ENOTCONN)?;
        client.charged.ok_or(libc::ENOTCONN)
    }

    pub(super) fn fork(&mut self, number: u64, connected: bool) -> Result<Answered, i32> {
        let (index, parent) = self.member(number)?;
        let charge = self.charge(number)?;
        let program = self.programs[index as usize].as_ref().ok_or(libc::EIO)?;
        // From now on both processes share the epoll sets, whichever ends first.
        let member = program.members.get(&parent).ok_or(libc::EIO)?;
        let (parents, pollers) = ((parent, member.serial), member.pollers.clone());
        let child = self.new_member(index, charge, 0, Some(parents), pollers)?;
        // One shard may have passed a request on to another. That request must be served before any
        // shard makes the child a holder.
        if self.workers.len() > 1 {
            self.workers.ask(|_, done| Command::Serve {
                owner: Owner(index),
                done,
            })?;
        }
        self.workers.ask(|_, done| Command::Fork {
            owner: Owner(index),
            parent,
            child,
            done,
        })?;
        let program = self.programs[index as usize].as_ref().ok_or(libc::EIO)?;
        let member = program.members.get(&child).ok_or(libc::EIO)?;
        let ticket = member.ticket(child);
        // If this fails, the child connects like any process.
        let made = connected.then(protocol::pair).and_then(Result::ok);
        let connection = made.and_then(|(own, other)| {
            self.descriptors.take(charge).ok()?;
            let added = self.clients.add_for_child(&self.epoll, own, charge);
            if !added {
                self.descriptors.give(charge);
            }
            added.then(|| Arc::new(other))
        });
        Ok((words(&[ticket]), connection.into_iter().collect()))
    }

    /// A parent reports what became of a child that it announced. Only the parent may report that.
    pub(super) fn forked(&mut self, number: u64, ticket: u64, pid: u32, pidfd: Option<&OwnedFd>) {
        let Ok((index, parent)) = self.member(number) else {
            return;
        };
        let child = ticket as Process;
        let members = self.programs[index as usize]
            .as_ref()
            .map(|program| &program.members);
        let get = |process| members.and_then(|members| members.get(process));
        // The child may have ended, and its slot may have gone to another process.
        let Some(member) = get(&child).filter(|member| member.ticket(child) == ticket) else {
            return;
        };
        if member.parent.map(|parent| parent.1) != get(&parent).map(|parent| parent.serial) {
            return self.refuse(number, "says what became of a child that is not its own");
        }
        // A process that has attached has told its pid itself.
        if member.pid != 0 {
            return;
        }
        let seen = || pidfd.map(|pidfd| pid_of(pidfd.as_fd()));
        let pid = seen().unwrap_or(Some(pid));
        let Some(pid) = pid else {
            return;
        };
        if pid == 0 {
            return self.process_gone(index, child);
        }
        let sender = self.clients.get(number).map_or(0, |client| client.pid);
        // A process that cannot be seen to be the child, for example in another PID namespace,
        // stays announced until it attaches or its parent ends.
        match parent_of(pid) {
            Some(parent) if parent == sender => {}
            // The child has ended, and no other event would report that.
            _ if seen() == Some(Some(0)) => return self.process_gone(index, child),
            Some(_) => return self.refuse(number, "names a process that is not its child"),
            None => return,
        }
        if self.watch_pid(index, child, pid) == Err(libc::ESRCH) {
            self.process_gone(index, child);
        }
    }

    pub(super) fn holds(
        &mut self,
        number: u64,
        payload: &[u8],
        more: bool,
    ) -> Result<Answered, i32> {
        let (index, process) = self.member(number)?;
        let sockets: Vec<SlotRef> = payload
            .chunks_exact(8)
            .map(|word| SlotRef::from_bits(u64::from_ne_bytes(word.try_into().unwrap_or_default())))
            .collect();
        self.workers.ask(|_, done| Command::Holds {
            owner: Owner(index),
            process,
            sockets: sockets.clone(),
            more,
            done,
        })?;
        Ok((words(&[]), Vec::new()))
    }

    pub(super) fn process_gone(&mut self, index: u32, process: Process) {
        let Some(program) = self
            .programs
            .get_mut(index as usize)
            .and_then(Option::as_mut)
        else {
            return;
        };
        let Some(member) = program.members.remove(&process) else {
            return;
        };
        let serial = program.serial;
        self.descriptors.give(member.charge);
        let gone = Some((process, member.serial));
        for child in program.members.values_mut() {
            if child.parent == gone && child.pid == 0 {
                child.announced = Instant::now();
            }
        }
        if let Some(first) = member.contexts.first() {
            program
                .contexts
                .give(first / (CONTEXTS * self.workers.len()));
        }
        program.processes.give(u32::from(process));
        self.workers.send(|_| Command::ProcessGone {
            owner: Owner(index),
            process,
        });
        self.forget_pollers(index, &member.pollers);
        self.tell_of_end(serial, &member);
    }

    /// Whether a child is announced whose parent is dead.
    pub(super) fn announced_alone(&self) -> bool {
        self.programs.iter().flatten().any(|program| {
            program
                .members
                .values()
                .any(|member| Self::alone(program, member))
        })
    }

    fn alone(program: &Program, member: &Member) -> bool {
        let is_there = |(parent, serial): (Process, u64)| {
            let parent = program.members.get(&parent);
            parent.is_some_and(|parent| parent.serial == serial)
        };
        member.pid == 0 && member.parent.is_some_and(|parent| !is_there(parent))
    }

    pub(super) fn forget_announced(&mut self) {
        for index in 0..self.programs.len() {
            let Some(program) = self.programs[index].as_ref() else {
                continue;
            };
            let late: Vec<Process> = program
                .members
                .iter()
                .filter(|(_, member)| {
                    Self::alone(program, member) && member.announced.elapsed() > ANNOUNCED
                })
                .map(|(process, _)| *process)
                .collect();
            for process in late {
                self.process_gone(index as u32, process);
            }
        }
    }
}
