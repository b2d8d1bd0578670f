//! Serves the requests (submissions) of programs.
//!
//! Everything in a ring is hostile input. A request for a slot that the program does not have is
//! answered with an error or dropped. A ring that makes no sense cuts its process off.

use crate::programs::slot::ProgramSlot;
use crate::server::ShardServer;
use std::sync::atomic::Ordering;

use libc::{EBADF, EINVAL};
use millrace_context::submission::{Ask, Nonsense};
use millrace_context::{Operation, Submission, futex};
use millrace_shard::{How, Owner};

use crate::control::command::Command;
use crate::programs::owners::Process;
use crate::requests::outcome::{Outcome, done, to_outcome};

/// Requests that one context may make in one round, so that one thread does not keep others
/// waiting.
const SERVE_BURST: usize = 512;
/// Requests that one program may make in one round, over all its contexts, so that one program does
/// not keep others waiting.
const PROGRAM_BURST: usize = 4 * SERVE_BURST;
/// What a request counts that another shard serves. A program that makes many of those waits
/// longer.
const STRAY_COST: usize = 32;
/// The position of a context when a command came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestMark {
    program: u32,
    context: u32,
    end: u32,
}

impl ShardServer {
    /// Serves one turn of each program. Returns how many requests there were.
    pub(crate) fn serve(&mut self) -> usize {
        let mut served = 0;
        self.shared_sockets.begin_round();
        for program in self.programs.numbers() {
            served += self.serve_program(program);
            self.review_send_memory(program);
        }
        self.counters.submissions += served as u64;
        served
    }

    /// Serves the contexts of one program, beginning where its last turn ended.
    fn serve_program(&mut self, program: u32) -> usize {
        let Some(this) = self.programs.get(program) else {
            return 0;
        };
        let contexts = this.contexts.len();
        let first = Some(this.next_context).filter(|first| *first < contexts);
        let first = first.unwrap_or(0);
        let mut served = 0;
        for turn in 0..contexts {
            let mut context = first + turn;
            if context >= contexts {
                context -= contexts;
            }
            if served >= PROGRAM_BURST {
                self.program(program).next_context = context;
                break;
            }
            served += self.serve_context(program, context);
        }
        served
    }

    /// Publishes the send limits of a program's sockets, when the program comes to hold a large
    /// part of the send memory or holds it no more.
    fn review_send_memory(&mut self, program: u32) {
        if !self.shard.review_send_memory(Owner(program)) {
            return;
        }
        let Some(this) = self.programs.get(program) else {
            return;
        };
        let slots = this.entries.numbers();
        let open = slots.filter(|slot| this.entries[*slot].socket.is_some());
        for slot in open {
            self.publisher.mark(ProgramSlot { program, slot });
        }
        self.counters.send_memory_pressure += 1;
        self.audit_limit(program, "send_memory_pressure");
    }

    /// The positions of the contexts that must be served before a command, if it concerns who holds
    /// which socket or which pollers there are.
    pub(crate) fn marks_before(&self, command: &Command) -> Vec<RequestMark> {
        let owner = command.comes_after_requests_of();
        owner.map_or_else(Vec::new, |owner| self.marks_of(owner.0))
    }

    /// The positions of those contexts of a program that have requests.
    fn marks_of(&self, program: u32) -> Vec<RequestMark> {
        let Some(this) = self.programs.get(program) else {
            return Vec::new();
        };
        let contexts = this.contexts.iter();
        let marks = contexts.filter_map(|entry| {
            let (shared, _) = this.region.context(entry.index)?;
            shared.pending(&entry.cursor).then(|| RequestMark {
                program,
                context: entry.index,
                end: shared.position(),
            })
        });
        marks.collect()
    }

    /// Serves the requests that a program has made until now, as far as one turn goes. Returns
    /// whether none is left.
    pub(crate) fn serve_before(&mut self, program: u32) -> bool {
        let mut marks = self.marks_of(program);
        let contexts = self.program(program).contexts.len();
        let mut served = 0;
        for context in 0..contexts {
            if marks.is_empty() || served >= PROGRAM_BURST {
                break;
            }
            served += self.serve_context(program, context);
            marks.retain(|marks| !self.is_served(marks));
        }
        marks.is_empty()
    }

    /// Whether a context was served up to a mark, in the usual turns of its program. Later requests
    /// are not waited for. The contexts of a process that was cut off count as served.
    pub(crate) fn is_served(&self, marks: &RequestMark) -> bool {
        let this = self.programs.get(marks.program);
        let mut contexts = this.into_iter().flat_map(|this| &this.contexts);
        let found = contexts.find(|entry| entry.index == marks.context);
        found.is_none_or(|entry| entry.cursor.has_taken(marks.end))
    }

    fn serve_context(&mut self, program: u32, context: usize) -> usize {
        let Some(this) = self.programs.get(program) else {
            return 0;
        };
        // A command may have removed contexts during this round.
        let Some(entry) = this.contexts.get(context) else {
            return 0;
        };
        let (index, process, mut cursor) = (entry.index, entry.process, entry.cursor);
        let region = this.region.clone();
        let Some((shared, ring)) = region.context(index) else {
            return 0;
        };
        if !shared.pending(&cursor) {
            return 0;
        }
        if let Some(core) = shared.core() {
            self.cpu_follow.program_seen_on(core);
        }
        let mut served = 0;
        while served < SERVE_BURST {
            match shared.take(ring, &mut cursor) {
                Ok(Some(submission)) => {
                    served += 1;
                    let unstage = |at: usize, to: &mut [u8]| region.unstage(index, at, to);
                    let staged = cursor.staged(match submission.operation.is_staged() {
                        true => submission.parameter.into(),
                        false => 0,
                    });
                    let mut outcome =
                        self.carry_out(program, process, &submission, unstage, staged);
                    if matches!(outcome, Err(EBADF)) && self.peers.is_some() {
                        outcome =
                            self.forward_request(program, process, &submission, unstage, staged);
                        served += STRAY_COST;
                    }
                    if submission.operation.is_staged() {
                        cursor.unstage(u64::from(submission.parameter));
                    }
                    if submission.ask.contains(Ask::REPLY) {
                        // The slot must be published before the program reads the reply.
                        self.publish();
                        // A request that was answered counts as taken.
                        shared.publish(&cursor);
                        match outcome {
                            Ok((result, data)) => shared.reply.answer(result, &data),
                            Err(errno) => shared.reply.answer(-i64::from(errno), &[]),
                        }
                        futex::wake(&shared.reply.sequence, 1);
                    }
                }
                Ok(None) => break,
                Err(nonsense) => {
                    self.say_cut_off(program, process, nonsense);
                    self.counters.nonsense += 1;
                    self.process_gone(program, process);
                    return served;
                }
            }
        }
        shared.publish(&cursor);
        if let Some(entry) = self
            .programs
            .get_mut(program)
            .and_then(|this| this.contexts.get_mut(context))
            && entry.index == index
        {
            entry.cursor = cursor;
        }
        served
    }

    /// Counts each process that is cut off, and prints the first of each program. A program could
    /// fill the log otherwise.
    #[cold]
    fn say_cut_off(&mut self, program: u32, process: Process, nonsense: Nonsense) {
        let this = self.program(program);
        let (pid, said) = (
            this.pid(process),
            std::mem::replace(&mut this.cut_off, true),
        );
        self.audit.cut_off(program, pid, nonsense.to_string());
        if !said {
            eprintln!("millrace: process {pid} of program {program} is cut off: {nonsense}");
        }
    }

    /// Carries out a request for a slot that this shard serves. `staged` are the pieces of its
    /// staged bytes.
    pub(crate) fn carry_out(
        &mut self,
        program: u32,
        process: Process,
        submission: &Submission,
        unstage: impl Fn(usize, &mut [u8]),
        staged: [(usize, usize); 2],
    ) -> Outcome {
        match submission.operation {
            Operation::Send => self.send(program, submission, unstage, staged),
            Operation::SendTo => self.send_to(program, submission, unstage, staged),
            _ => self.submit(program, process, submission),
        }
    }

    /// Sends stream bytes. `staged` are the pieces of the staged bytes.
    pub(crate) fn send(
        &mut self,
        program: u32,
        submission: &Submission,
        unstage: impl Fn(usize, &mut [u8]),
        staged: [(usize, usize); 2],
    ) -> Outcome {
        let place = self.find(program, submission.slot)?;
        let entry = &self.program(program).entries[place.slot];
        let id = entry.socket.ok_or(EBADF)?;
        let len = submission.parameter as usize;
        let [(first_at, first_len), (second_at, _)] = staged;
        let mut filled = 0;
        let fill = |to: &mut [u8]| {
            // The staged bytes are in up to two pieces, and so is the send ring.
            let from_first = to.len().min(first_len.saturating_sub(filled));
            unstage(first_at + filled.min(first_len), &mut to[..from_first]);
            if from_first < to.len() {
                unstage(
                    second_at + (filled + from_first - first_len),
                    &mut to[from_first..],
                );
            }
            filled += to.len();
        };
        match self
            .shard
            .send_with(id, len, !submission.ask.contains(Ask::MORE), fill)
        {
            Ok(sent) if sent == len => {
                if submission.ask.contains(Ask::URGENT) {
                    let _ = self.shard.send_urgent(id);
                }
            }
            Ok(_) => {
                // More than the slot allowed, or than there is memory for. Bytes are missing, so
                // the stream must end.
                self.counters.overruns += 1;
                self.audit.limit(program, "overruns", self.now.as_micros());
                let _ = self.shard.abort(id, self.now);
                self.mark_changed(place);
            }
            Err(error) => return Err(error.errno()),
        }
        self.take_consumed(place);
        done()
    }

    /// Tells the shard how far the program has read a stream.
    pub(crate) fn take_consumed(&mut self, place: ProgramSlot) {
        let Some(program) = self.programs.get(place.program) else {
            return;
        };
        let entry = &program.entries[place.slot];
        let Some(id) = entry.socket.filter(|_| entry.accepts().is_none()) else {
            return;
        };
        let consumed = program
            .slot(place.slot)
            .app
            .consumed
            .load(Ordering::Acquire);
        if self.shard.consumed(id, consumed, self.now).is_err() {
            // The program claims to have read what was not received, so its stream must end.
            self.counters.nonsense += 1;
            self.audit_limit(place.program, "nonsense");
            let _ = self.shard.abort(id, self.now);
        }
        self.mark_changed(place);
    }

    pub(crate) fn submit(
        &mut self,
        program: u32,
        process: Process,
        submission: &Submission,
    ) -> Outcome {
        match submission.operation {
            Operation::Nop => return done(),
            Operation::Socket if submission.parameter == 1 => {
                return self.datagram(program, process);
            }
            Operation::Socket => return self.socket(program, process),
            _ => {}
        }
        let place = self.find(program, submission.slot)?;
        let asks = matches!(
            submission.operation,
            Operation::Bind | Operation::Listen | Operation::Connect | Operation::Disconnect
        );
        if !asks || self.peers.is_none() {
            return self.submit_for(place, process, submission);
        }
        self.asking_for.push(place);
        let outcome = self.submit_for(place, process, submission);
        self.asking_for.pop();
        outcome
    }

    fn submit_for(
        &mut self,
        place: ProgramSlot,
        process: Process,
        submission: &Submission,
    ) -> Outcome {
        let program = place.program;
        let entry = &self.program(program).entries[place.slot];
        let (datagrams, elsewhere) = (entry.datagrams, entry.is_elsewhere());
        if elsewhere && !may_ask_elsewhere(submission.operation) {
            return Err(libc::EAGAIN);
        }
        match submission.operation {
            Operation::Nop | Operation::Socket | Operation::Send | Operation::SendTo => done(),
            Operation::Bind if datagrams => self.bind_datagram(place, submission),
            Operation::Connect if datagrams => self.connect_datagram(place, submission),
            Operation::Disconnect if datagrams => self.disconnect_datagram(place),
            Operation::TakeFailure => self.take_failure(place),
            Operation::Membership => self.membership(place, submission),
            Operation::Listen | Operation::Accepted if datagrams => Err(libc::EOPNOTSUPP),
            Operation::Bind => self.bind(place, submission),
            Operation::Listen => self.listen(place, submission.parameter),
            Operation::Connect => self.connect(place, submission),
            Operation::Accepted => self.accepted(place, process),
            Operation::Consumed => {
                self.take_consumed(place);
                done()
            }
            Operation::Shutdown => {
                let how = match submission.parameter {
                    0 => How::Read,
                    1 => How::Write,
                    2 => How::Both,
                    _ => return Err(EINVAL),
                };
                let entry = &self.program(program).entries[place.slot];
                let listens = entry.accepts().is_some();
                let id = entry.socket.ok_or(libc::ENOTCONN)?;
                self.mark_changed(place);
                let outcome = self.shard.shutdown(id, how, self.now);
                if listens && how != How::Write {
                    self.stop_accepting(place);
                }
                to_outcome(outcome)
            }
            Operation::Close => {
                self.release(place, process);
                done()
            }
            Operation::Watch => self.watch(place, submission),
            Operation::Unwatch => {
                self.program(program).entries[place.slot]
                    .watches
                    .unwatch(submission.parameter, submission.arguments[2] as u32);
                done()
            }
            Operation::SetOption => self.set_option(place, submission),
            Operation::GetOption => self.get_option(place, submission),
            Operation::Disconnect => self.disconnect(place),
            Operation::Recall => self.recall(place),
        }
    }
}

/// Whether a program may ask this for a socket that another program has.
fn may_ask_elsewhere(operation: Operation) -> bool {
    use Operation::{Close, Consumed, Recall, Unwatch, Watch};
    matches!(operation, Close | Consumed | Recall | Unwatch | Watch)
}
