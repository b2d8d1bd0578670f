//! Permits to bind to a privileged port.
//!
//! All processes of a program write to one region, so a request in the region does not say which
//! process made it. The shard refuses a privileged port. Then the shim asks here, on the control
//! socket, where the kernel names the sender of each message.

use millrace_context::SlotRef;
use millrace_context::protocol::Received;
use millrace_shard::Owner;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Answered, Control, words};
use crate::control::command::Command;

impl Control {
    /// Permits a socket to be bound to a port once, if the asking process has the right to that
    /// now.
    pub(super) fn permit(&mut self, number: u64, received: &Received<'_>) -> Result<Answered, i32> {
        let (index, process) = self.member(number)?;
        let program = self.programs[index as usize].as_ref().ok_or(libc::EIO)?;
        let member = program.members.get(&process).ok_or(libc::ESRCH)?;
        let [socket, port, thread, ..] = received.request.arguments;
        let port = u16::try_from(port).map_err(|_| libc::EINVAL)?;
        if port < self.ports.first_unprivileged() {
            // Another process may have sent the message on this connection.
            let sender = received.sender.filter(|(pid, _)| *pid == member.pid);
            let (pid, uid) = sender.ok_or(libc::EACCES)?;
            if !self.ports.may_bind(pid, thread as u32, uid) {
                return Err(libc::EACCES);
            }
            // The rights that were read may be those of another process that has the pid by now.
            let pidfd = member.pidfd.as_ref().ok_or(libc::EACCES)?;
            let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
            if poll(&mut ended, Some(&Timespec::default())) != Ok(0) {
                return Err(libc::EACCES);
            }
        }
        let socket = SlotRef::from_bits(socket);
        self.workers.ask(|_, done| Command::Permit {
            owner: Owner(index),
            socket,
            port,
            done,
        })?;
        Ok((words(&[]), Vec::new()))
    }
}
