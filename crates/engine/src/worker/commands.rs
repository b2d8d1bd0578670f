//! What a worker does when the control thread commands it.

use std::os::fd::AsFd as _;

use crate::control::command::Command;
use crate::programs::program::Program;
use crate::worker::Worker;

impl Worker {
    /// Executes a command of the control thread. Requests that come before it have been served.
    pub(super) fn execute(&mut self, command: Command) {
        // Other workers gave before the control thread sent this: take that first.
        self.server.drain_requests();
        match command {
            Command::AddProgram { .. } | Command::RemoveProgram { .. } => {
                self.execute_for_program(command);
            }
            Command::AddProcess { .. }
            | Command::Serve { .. }
            | Command::Fork { .. }
            | Command::Holds { .. }
            | Command::ProcessGone { .. }
            | Command::AddPoller { .. }
            | Command::RemovePoller { .. } => self.execute_for_process(command),
            Command::Share { .. }
            | Command::Transfer { .. }
            | Command::LeaveToSharers { .. }
            | Command::Permit { .. }
            | Command::Arrived { .. } => self.execute_for_socket(command),
            Command::Expect { .. }
            | Command::Give(_)
            | Command::Assign { .. }
            | Command::Renumber { .. } => self.execute_for_shard(command),
            Command::Sockets { reply } => drop(reply.send(self.server.socket_rows())),
            Command::Describe { reply } => drop(reply.send(self.server.describe_json())),
            // The loop of the worker takes it.
            Command::Drain { .. } => {}
        }
    }

    fn execute_for_program(&mut self, command: Command) {
        match command {
            Command::AddProgram {
                owner,
                region,
                slot_shards,
                doorbell,
            } => {
                let own = self.server.own;
                self.server.shard.memory_mut().insert(owner, region.clone());
                if let Err(error) = self.wait_set.add_doorbell(&doorbell) {
                    eprintln!(
                        "millrace: shard {own} cannot hear a program's doorbell: {error}; its requests wait for up to a second (see fs.epoll.max_user_watches)"
                    );
                }
                let program = Program::new(owner, region, slot_shards, doorbell, own);
                self.default_route.tell(&program);
                self.server.programs.insert(program);
            }
            Command::RemoveProgram { owner } => {
                // The program may still have its doorbell open.
                if let Some(program) = self.server.programs.get(owner.0) {
                    self.wait_set.remove(program.doorbell.as_fd());
                }
                self.server.remove_program(owner.0);
            }
            _ => {}
        }
    }

    fn execute_for_process(&mut self, command: Command) {
        let programs = &mut self.server.programs;
        match command {
            Command::AddProcess {
                owner,
                process,
                pid,
                contexts,
                done,
            } => {
                if let Some(program) = programs.get_mut(owner.0) {
                    program.add_process(process, pid, &contexts);
                }
                // The control thread does not wait any more if the process died meanwhile.
                let _ = done.send(());
            }
            // The requests before it have been served, and that is all it asks for.
            Command::Serve { done, .. } => drop(done.send(())),
            Command::Fork {
                owner,
                parent,
                child,
                done,
            } => {
                if let Some(program) = programs.get_mut(owner.0) {
                    program.fork(parent, child);
                }
                let _ = done.send(());
            }
            Command::Holds {
                owner,
                process,
                sockets,
                more,
                done,
            } => {
                self.server.set_held(owner.0, process, &sockets, more);
                let _ = done.send(());
            }
            Command::ProcessGone { owner, process } => {
                self.server.process_gone(owner.0, process);
            }
            Command::AddPoller {
                owner,
                poller,
                doorbell,
                done,
            } => {
                if let Some(program) = programs.get_mut(owner.0) {
                    program.add_poller(poller, doorbell);
                }
                let _ = done.send(());
            }
            Command::RemovePoller { owner, poller } => {
                if let Some(program) = programs.get_mut(owner.0) {
                    program.remove_poller(poller);
                }
            }
            _ => {}
        }
    }

    fn execute_for_socket(&mut self, command: Command) {
        let server = &mut self.server;
        match command {
            Command::Share {
                owner,
                sockets,
                from,
                to,
                done,
            } => drop(done.send(server.share(owner.0, &sockets, from, to))),
            Command::Transfer {
                from,
                socket,
                to,
                process,
                done,
            } => drop(done.send(server.transfer(from.0, socket, to.0, process))),
            Command::LeaveToSharers { owner, done } => {
                server.leave_all_to_sharers(owner.0);
                let _ = done.send(());
            }
            Command::Permit {
                owner,
                socket,
                port,
                done,
            } => {
                if let Ok(place) = server.find(owner.0, socket) {
                    server.port_permits.permit(place, socket.generation, port);
                }
                let _ = done.send(());
            }
            Command::Arrived { owner, socket } => server.arrived(owner.0, socket),
            _ => {}
        }
    }

    fn execute_for_shard(&mut self, command: Command) {
        let server = &mut self.server;
        match command {
            Command::Expect {
                buckets,
                batches,
                taken,
                done,
            } => {
                server.expect_buckets(&buckets, batches, taken);
                let _ = done.send(());
            }
            Command::Give(leaving) => server.bucket_moves.set_leaving(leaving),
            Command::Assign { moves } => {
                for step in moves.iter() {
                    server.shard.assign(&[step.bucket], step.to);
                }
            }
            Command::Renumber { network, done } => {
                server.shard.renumber(network, server.now);
                let _ = done.send(());
            }
            _ => {}
        }
    }
}
