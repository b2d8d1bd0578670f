//! The events of the control thread in the audit log.

use millrace_context::protocol::{Kind, Received};

use super::{Control, Member};
use crate::control::audit::Line;
use crate::control::clients::VISITORS;

impl Control {
    /// Writes a request of a client, with the errno if it was refused. `refused_before` counts the
    /// descriptors that were refused before it.
    pub(super) fn tell_of_request(
        &mut self,
        number: u64,
        kind: Kind,
        received: &Received<'_>,
        errno: Option<i32>,
        refused_before: u64,
    ) {
        if !self.audit.is_on() {
            return;
        }
        let Some(client) = self.clients.get(number) else {
            return;
        };
        // The connection may have been passed to another user.
        let (pid, uid) = received.sender.unwrap_or((client.pid, client.uid));
        let request = &received.request;
        let of_program = |index: u32| self.programs.get(index as usize)?.as_ref();
        let index = client.guards.or(client.member.map(|member| member.program));
        let program = index.and_then(of_program).map(|program| program.serial);
        let with_program = |line: Line| match program {
            Some(serial) => line.word("program", serial),
            None => line,
        };
        let Some(errno) = errno else {
            let line = || match kind {
                Kind::Attach => Some(with_program(Line::new("attach"))),
                Kind::Program => Some(with_program(Line::new("program"))),
                Kind::Scale => Some(Line::new("scale").word("shards", request.arguments[0])),
                Kind::Down => Some(Line::new("stop")),
                Kind::Permit => Some(Line::new("permit").word("port", request.arguments[1])),
                _ => None,
            };
            match (kind, line()) {
                (Kind::Scale | Kind::Down, Some(line)) => {
                    self.audit.write_always(|| line.process(pid, uid));
                }
                (_, Some(line)) => self.audit.write(uid, || line.process(pid, uid)),
                (_, None) => {}
            }
            return;
        };
        let limit =
            |line: Line, limit: &str, value: u32| line.word("limit", limit).word("value", value);
        let line = Line::new("refused").word("what", format_args!("{kind:?}"));
        let line = match (kind, errno) {
            _ if self.descriptors.refused() > refused_before => line.word("limit", "descriptors"),
            (Kind::Attach | Kind::Fork, libc::EUSERS) => {
                limit(line, "processes", self.limits.processes)
            }
            (Kind::Poller, libc::EMFILE) => limit(line, "pollers", self.limits.pollers),
            (Kind::Attach, libc::EACCES) => line.word("right", "token"),
            (Kind::Permit, libc::EACCES) => line
                .word("right", "port")
                .word("value", request.arguments[1]),
            (_, libc::EACCES) => line.word("right", "user"),
            _ => line,
        };
        let line = with_program(line.word("errno", errno));
        self.audit.write(uid, || line.process(pid, uid));
    }

    /// Writes that a client speaks another version of the protocol.
    pub(super) fn tell_of_version(&mut self, number: u64, version: u32) {
        let (pid, uid) = self.sender(number);
        self.audit.write(uid, || {
            let line = Line::new("refused").word("what", "version");
            line.word("value", version).process(pid, uid)
        });
    }

    /// Writes that a client sent a message that it may not send.
    pub(super) fn tell_of_message(&mut self, number: u64, what: &str) {
        let (pid, uid) = self.sender(number);
        self.audit.write(uid, || {
            let line = Line::new("refused").word("what", "message");
            line.text("why", what.as_bytes()).process(pid, uid)
        });
    }

    fn sender(&self, number: u64) -> (u32, u32) {
        let client = self.clients.get(number);
        client.map_or((0, 0), |client| (client.pid, client.uid))
    }

    /// Writes the connections that were closed or could not be accepted.
    pub(super) fn tell_of_visitors(&mut self) {
        for uid in self.clients.take_turned_away() {
            self.audit.write(uid, || {
                let line = Line::new("refused").word("what", "connection");
                line.word("limit", "connections")
                    .word("value", VISITORS)
                    .word("uid", uid)
            });
        }
        if self.clients.take_exhausted() {
            self.audit.write(0, || {
                let line = Line::new("refused").word("what", "connection");
                line.word("limit", "engine_descriptors")
            });
        }
    }

    /// Writes what shards have refused, and which processes they have cut off.
    pub(super) fn tell_of_shards(&mut self) {
        while let Ok(event) = self.inbox.events.try_recv() {
            let program = self.programs.get(event.program as usize);
            let Some(program) = program.and_then(Option::as_ref) else {
                continue;
            };
            let (uid, serial) = (program.uid, program.serial);
            self.audit.write(uid, || {
                let line = match (event.pid, event.why) {
                    (Some(pid), why) => Line::new("cut_off")
                        .text("why", why.unwrap_or_default().as_bytes())
                        .process(pid, uid),
                    (None, _) => Line::new("refused")
                        .word("limit", event.what)
                        .word("count", event.count)
                        .word("uid", uid),
                };
                line.word("program", serial)
            });
        }
    }

    /// Writes that a process has ended.
    pub(super) fn tell_of_end(&mut self, program: u64, member: &Member) {
        if member.pid != 0 {
            let uid = member.charge.uid;
            self.audit.write(uid, || {
                let line = Line::new("exit").word("pid", member.pid);
                line.word("uid", uid).word("program", program)
            });
        }
    }
}
