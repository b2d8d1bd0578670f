//! The control thread: which process belongs to which program, which processes live, and what the
//! command line asks.
//!
//! Nothing here is on the data path. A process is known by its pid and its pidfd. A readable pidfd
//! means that the process is dead. A closed control connection means nothing: the process may have
//! called exec.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_context::layout::Geometry;
use millrace_context::protocol::{self, Answer, Kind, PACKET_MAX, Received, Request, Token};
use millrace_context::{Region, region};
use millrace_shard::Owner;
use rustix::event::Timespec;
use rustix::event::epoll;

use crate::config::{Config, Limits};
use crate::control::audit::{Audit, Inbox};
use crate::control::clients::Clients;
use crate::control::command::Command;
use crate::control::descriptor_quota::{Charge, DescriptorQuota};
use crate::control::id_allocator::{IdAllocator, POLLERS_REST};
use crate::control::kernel_network::KernelNetwork;
use crate::control::memfd::document;
use crate::control::privileged_ports::PrivilegedPorts;
use crate::control::region_header::RegionHeader;
use crate::control::robust_list::RobustList;
use crate::control::workers::Workers;
use crate::doorbell;
use crate::migration::scale::Scale;
use crate::programs::owners::Process;
use crate::programs::program::SlotShards;
use crate::start::random::token;
use crate::worker::diagnostics;

pub(crate) mod audit;
mod audit_events;
pub(crate) mod clients;
mod closer;
pub mod command;
pub(crate) mod descriptor_quota;
mod fair_shares;
mod id_allocator;
mod in_flight;
pub(crate) mod kernel_network;
mod members;
mod memfd;
mod permits;
mod pollers;
pub(crate) mod privileged_ports;
pub(crate) mod region_header;
mod robust_list;
mod scm_rights;
pub(crate) mod workers;

/// Contexts that each process gets. Its threads spread over them.
const CONTEXTS: u32 = 4;
/// How long an engine that is to end waits for connections that still have data to send.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an engine waits for such connections after `millrace down`.
const PATIENCE_DOWN: Duration = Duration::from_millis(500);
/// How often an engine that is to end checks whether its workers have ended.
const ENDING_CHECK: Duration = Duration::from_millis(5);

/// The words of an answer, and the descriptors that are sent with it.
type Answered = ([u64; 8], Vec<Arc<OwnedFd>>);

#[derive(Debug)]
struct Member {
    /// No other member ever has this number.
    serial: u64,
    /// The program and user that its pidfd counts against.
    charge: Charge,
    pid: u32,
    /// The pidfd, which is in the epoll set. None: the process is only announced.
    pidfd: Option<OwnedFd>,
    contexts: Vec<u32>,
    pollers: Vec<u32>,
    announced: Instant,
    /// The process that announced it, with its serial number. None: it has attached.
    parent: Option<(Process, u64)>,
}

impl Member {
    /// The ticket that announces it. No other member ever has this ticket. The process slot is in
    /// the low bits, and a ticket is never 0.
    fn ticket(&self, process: Process) -> u64 {
        (self.serial + 1) << Process::BITS | u64::from(process)
    }
}

#[derive(Debug)]
struct Program {
    /// No other program ever has this number.
    serial: u64,
    /// The user that it belongs to.
    uid: u32,
    token: Token,
    file: OwnedFd,
    /// The doorbell of each shard, which the program rings.
    doorbells: Vec<Arc<OwnedFd>>,
    region: Arc<Region>,
    slot_shards: Arc<SlotShards>,
    members: BTreeMap<Process, Member>,
    contexts: IdAllocator,
    pollers: IdAllocator,
    /// The program and user that the descriptor of each poller counts against.
    poller_charges: BTreeMap<u32, Charge>,
    processes: IdAllocator,
    /// The command line that started it is still connected.
    guarded: bool,
}

/// How programs and the command line reach the engine, and what they may do.
#[derive(Debug)]
pub(crate) struct Access {
    /// The control socket, by its path and by its alias.
    pub(crate) listeners: Vec<OwnedFd>,
    /// The alias, by which the control socket is reached in other mount namespaces; 0 for none.
    pub(crate) alias: [u8; 16],
    /// The user that opened the control sockets.
    pub(crate) owner: u32,
    pub(crate) ports: PrivilegedPorts,
    pub(crate) audit: Audit,
    /// Events of shards for the audit log.
    pub(crate) inbox: Inbox,
}

/// The state of the control thread.
pub struct Control {
    name: String,
    ephemeral: bool,
    loopback: bool,
    /// The user that started the engine.
    owner: u32,
    alias: [u8; 16],
    limits: Limits,
    region_header: RegionHeader,
    workers: Workers,
    epoll: OwnedFd,
    clients: Clients,
    /// Descriptors that the engine keeps for programs and users.
    descriptors: DescriptorQuota,
    next_serial: u64,
    /// Control messages that were refused, since their sender may not send them.
    refused: u64,
    /// Requests that were refused, since their sender has no right to them.
    denied: u64,
    programs: Vec<Option<Program>>,
    /// The list of this thread. It is made with the first program.
    robust_list: Option<RobustList>,
    had_program: bool,
    ending: bool,
    scale: Scale,
    kernel_network: Option<KernelNetwork>,
    in_flight: in_flight::InFlight,
    ports: PrivilegedPorts,
    audit: Audit,
    inbox: Inbox,
}

const LISTENER: u64 = 0;
const KERNEL_NETWORK: u64 = 1;
const IN_FLIGHT: u64 = 2;
const AUDIT: u64 = 3;
/// The token of a pidfd has this bit; the program is in bits 16 to 47, the process slot below.
const PIDFD: u64 = 1 << 63;

impl Control {
    /// The control thread of workers that run already.
    pub(crate) fn new(
        config: &Config,
        region_header: RegionHeader,
        access: Access,
        workers: Workers,
        scale: Scale,
        kernel_network: Option<KernelNetwork>,
    ) -> io::Result<Control> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let Access {
            listeners,
            alias,
            owner,
            ports,
            audit,
            inbox,
        } = access;
        let clients = Clients::new(&epoll, listeners, LISTENER, AUDIT + 1)?;
        if let Some(kernel_network) = &kernel_network {
            let token = epoll::EventData::new_u64(KERNEL_NETWORK);
            let changes = kernel_network.descriptor();
            epoll::add(&epoll, changes, token, epoll::EventFlags::IN)?;
        }
        let in_flight = in_flight::InFlight::new()?;
        epoll::add(
            &epoll,
            in_flight.descriptor(),
            epoll::EventData::new_u64(IN_FLIGHT),
            epoll::EventFlags::IN,
        )?;
        let doorbell = epoll::EventData::new_u64(AUDIT);
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &inbox.doorbell, doorbell, edge)?;
        Ok(Control {
            name: config.name.clone(),
            ephemeral: config.ephemeral,
            loopback: config.loopback,
            owner,
            alias,
            limits: config.limits.clone(),
            region_header,
            workers,
            epoll,
            clients,
            descriptors: DescriptorQuota::new(),
            next_serial: 0,
            refused: 0,
            denied: 0,
            programs: Vec::new(),
            robust_list: None,
            had_program: false,
            ending: false,
            scale,
            kernel_network,
            in_flight,
            ports,
            audit,
            inbox,
        })
    }

    /// Runs until the engine ends.
    pub fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; PACKET_MAX];
        loop {
            if self.workers.have_ended(self.ending) {
                self.tell_of_shards();
                self.audit.end();
                return self.workers.outcome();
            }
            let alone = self.announced_alone().then_some(Duration::from_secs(1));
            let ending = self.ending.then_some(ENDING_CHECK);
            let kernel_network = self
                .kernel_network
                .as_ref()
                .and_then(KernelNetwork::patience);
            let balance = self.scale.patience().filter(|_| !self.ending);
            let accept = self.clients.resume(&self.epoll);
            let audit = self.audit.check();
            let patience = [alone, ending, kernel_network, balance, accept, audit];
            let patience = patience.into_iter().flatten().min();
            let timeout = patience.map(|patience| Timespec {
                tv_sec: patience.as_secs() as i64,
                tv_nsec: patience.subsec_nanos().into(),
            });
            let mut events = [const { std::mem::MaybeUninit::uninit() }; 64];
            let ready: Vec<u64> = match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
                Ok((events, _)) => events.iter().map(|event| event.data.u64()).collect(),
                Err(rustix::io::Errno::INTR) => Vec::new(),
                Err(errno) => return Err(errno.into()),
            };
            for token in ready {
                if token == LISTENER {
                    self.clients.accept(&self.epoll);
                    self.tell_of_visitors();
                } else if token == KERNEL_NETWORK {
                    self.kernel_network
                        .iter_mut()
                        .for_each(KernelNetwork::changed);
                } else if token == IN_FLIGHT {
                    self.messages_gone();
                } else if token == AUDIT {
                    self.tell_of_shards();
                } else if token & PIDFD != 0 {
                    self.process_gone((token & !PIDFD) as u32 >> 16, token as Process);
                } else {
                    self.client(token, &mut buffer);
                }
            }
            self.follow_kernel();
            self.forget_announced();
            self.forget_programs();
            if !self.ending {
                self.scale.check(&self.workers);
            }
        }
    }

    /// Follows the kernel's addresses and routes, if they have changed. The shards, which send, are
    /// told first; then the programs, which ask where they can send.
    fn follow_kernel(&mut self) {
        let Some(kernel_network) = &mut self.kernel_network else {
            return;
        };
        let Some(link) = kernel_network.check() else {
            return;
        };
        self.region_header.renumber(&link.addresses, &link.routes);
        let network = kernel_network.network();
        // A shard that does not answer has ended. The loop notices that next.
        let _ = self.workers.ask(|_, done| Command::Renumber {
            network: network.clone(),
            done,
        });
        for program in self.programs.iter().flatten() {
            self.region_header.tell(program.region.header());
        }
    }

    fn client(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(client) = self.clients.get(number) else {
            return;
        };
        let uid = client.uid;
        let mut came = protocol::Descriptors::default();
        let received = Request::receive(client.socket.as_fd(), buffer, &mut came);
        self.request(number, received, &came);
        self.clients.dispose(uid, came);
    }

    fn request(
        &mut self,
        number: u64,
        received: io::Result<Option<Received<'_>>>,
        came: &protocol::Descriptors,
    ) {
        match received {
            Ok(Some(received)) => {
                if let Some((pid, _)) = received.sender {
                    self.clients.note_pid(number, pid);
                }
                let answer = self.answer(number, &received, came);
                let (Some((answer, descriptors)), Some(client)) =
                    (answer, self.clients.get(number))
                else {
                    return;
                };
                let borrowed: Vec<BorrowedFd<'_>> = descriptors
                    .iter()
                    .map(|descriptor| descriptor.as_fd())
                    .collect();
                // A client that asks and does not read is disconnected.
                if answer.send(client.socket.as_fd(), &borrowed).is_err() {
                    self.client_gone(number);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => self.client_gone(number),
        }
    }

    fn client_gone(&mut self, number: u64) {
        let (charged, guards) = self.clients.remove(number);
        if let Some(charge) = charged {
            self.descriptors.give(charge);
        }
        if let Some(program) = guards.and_then(|index| self.programs[index as usize].as_mut()) {
            program.guarded = false;
        }
    }

    /// Serves a request. Returns the answer; none if the client does not wait for one.
    fn answer(
        &mut self,
        number: u64,
        received: &Received<'_>,
        came: &protocol::Descriptors,
    ) -> Option<(Answer, Vec<Arc<OwnedFd>>)> {
        let Received {
            request, payload, ..
        } = received;
        let error = |errno: i32| Some((Answer::error(errno), Vec::new()));
        if request.version != millrace_context::VERSION {
            self.tell_of_version(number, request.version);
            return error(libc::EPROTONOSUPPORT);
        }
        let kind = Kind::from_number(request.kind)?;
        let client = self.clients.get(number)?;
        let privileged = !client.for_child && (client.uid == 0 || client.uid == self.owner);
        let refused = self.descriptors.refused();
        let result = match kind {
            Kind::Attach => {
                // The sysctl may have been changed.
                self.ports.first_unprivileged();
                self.attach(number, request)
            }
            Kind::Fork => self.fork(number, request.arguments[0] == 1),
            Kind::Forked => {
                let [ticket, pid, ..] = request.arguments;
                self.forked(number, ticket, pid as u32, came.get(0));
                return None;
            }
            Kind::Poller => self.poller(number),
            Kind::PollerGone => {
                self.poller_gone(number, request.arguments[0] as u32);
                return None;
            }
            Kind::Holds => self.holds(number, payload, request.arguments[0] == 1),
            Kind::Pass => self.pass(number, payload),
            Kind::Claim => self.claim(number, came),
            Kind::Permit => self.permit(number, received),
            Kind::Program | Kind::Sockets | Kind::Describe | Kind::Down | Kind::Scale
                if !privileged =>
            {
                Err(libc::EACCES)
            }
            Kind::Program => self.program(number, request.arguments[0] == 1),
            Kind::Sockets => {
                let answer = self.sockets().and_then(|text| document(&text));
                give_back();
                answer
            }
            Kind::Describe => self.describe().and_then(|text| document(&text)),
            Kind::Scale => self.scale_to(request.arguments[0]),
            Kind::Down => {
                self.end(PATIENCE_DOWN);
                Ok((words(&[u64::from(std::process::id())]), Vec::new()))
            }
        };
        self.denied += u64::from(matches!(result, Err(libc::EACCES)));
        self.tell_of_request(
            number,
            kind,
            received,
            result.as_ref().err().copied(),
            refused,
        );
        match result {
            Ok((words, descriptors)) => Some((Answer::ok(words), descriptors)),
            Err(errno) => error(errno),
        }
    }

    fn program(&mut self, number: u64, quiet: bool) -> Result<Answered, i32> {
        if self
            .clients
            .get(number)
            .is_some_and(|client| client.guards.is_some())
        {
            return Err(libc::EBUSY);
        }
        let limits = &self.limits;
        let geometry = Geometry {
            slots: limits.sockets,
            contexts: limits.processes * CONTEXTS * self.workers.len(),
            pollers: limits.pollers,
            shards: self.workers.len(),
            arena: limits.memory,
        };
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        let file = region::create(&geometry).map_err(errno)?;
        let region = Region::map(file.as_fd(), geometry).map_err(errno)?;
        let header = self
            .region_header
            .header(geometry, self.scale.serving(), quiet);
        // SAFETY: the region is new, and no other code has it yet.
        unsafe { region.write_header(header) };
        let region = Arc::new(region);
        let index = self
            .programs
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.programs.len());
        let owner = Owner(index as u32);
        let token = token().map_err(errno)?;
        let slot_shards = Arc::new(SlotShards::new(&region));
        let doorbells: io::Result<Vec<_>> = (0..self.workers.len())
            .map(|_| doorbell::doorbell())
            .collect();
        let doorbells = doorbells.map_err(errno)?;
        self.workers.send(|shard| Command::AddProgram {
            owner,
            region: region.clone(),
            slot_shards: slot_shards.clone(),
            doorbell: doorbells[shard as usize].clone(),
        });
        let program = Program {
            serial: self.next_serial,
            uid: self.clients.get(number).map_or(0, |client| client.uid),
            token,
            file,
            doorbells,
            region,
            slot_shards,
            members: BTreeMap::new(),
            contexts: IdAllocator::new(limits.processes),
            pollers: IdAllocator::resting(limits.pollers, POLLERS_REST),
            poller_charges: BTreeMap::new(),
            processes: IdAllocator::new(limits.processes),
            guarded: true,
        };
        self.next_serial += 1;
        self.wake_when_over(program.file.as_fd(), owner.0);
        if index == self.programs.len() {
            self.programs.push(Some(program));
        } else {
            self.programs[index] = Some(program);
        }
        self.had_program = true;
        self.clients.guards(number, index as u32);
        let halves = |token: Token| {
            let word = |at: usize| token[at..at + 8].try_into().map(u64::from_ne_bytes);
            [word(0).unwrap_or_default(), word(8).unwrap_or_default()]
        };
        let [high, low] = halves(token);
        let [alias_high, alias_low] = halves(self.alias);
        let told = [high, low, alias_high, alias_low];
        Ok((words(&told), Vec::new()))
    }

    /// Has the kernel wake the program's sleepers when the engine ends. Without that the sleepers
    /// check from time to time, so a failure is no error.
    fn wake_when_over(&mut self, region: BorrowedFd<'_>, program: u32) {
        if self.robust_list.is_none() {
            self.robust_list = RobustList::new().ok();
        }
        if let Some(list) = &mut self.robust_list {
            list.remove(program);
            let _ = list.add(region, program);
        }
    }

    fn scale_to(&mut self, count: u64) -> Result<Answered, i32> {
        let count = u16::try_from(count).map_err(|_| libc::EINVAL)?;
        let outcome = self.scale.to(count, &self.workers);
        for program in self.programs.iter().flatten() {
            let line = &program.region.header().serving.0;
            line.store(self.scale.serving().into(), Ordering::Relaxed);
        }
        Ok((words(&[outcome? as u64]), Vec::new()))
    }

    /// Counts and logs a message that its sender may not send.
    fn refuse(&mut self, number: u64, what: &str) {
        self.refused += 1;
        self.tell_of_message(number, what);
        if self.refused == 1 {
            let (pid, uid) = self
                .clients
                .get(number)
                .map_or((0, 0), |client| (client.pid, client.uid));
            eprintln!("millrace: refused: process {pid} of user {uid} {what}");
        }
    }

    /// Forgets programs that have ended. A program stays as long as messages hold sockets of it
    /// that another program may still receive.
    fn forget_programs(&mut self) {
        let over = |program: &&Program| !program.guarded && program.members.is_empty();
        let programs = self.programs.iter().flatten();
        let alone = programs.filter(|program| !over(program)).count() == 0;
        for index in 0..self.programs.len() {
            let program = self.programs[index].as_ref();
            let waits = !(alone && self.ephemeral) && self.in_flight.has_any_of(index as u32);
            if program.filter(over).is_some() && !waits {
                let owner = Owner(index as u32);
                // A shard that does not answer has ended. The loop notices that next.
                let leave = |_, done| Command::LeaveToSharers { owner, done };
                let _ = self.workers.ask(leave);
                self.programs[index] = None;
                self.in_flight.forget(index as u32);
                if let Some(list) = &mut self.robust_list {
                    list.remove(index as u32);
                }
                self.workers.send(|_| Command::RemoveProgram { owner });
            }
        }
        if self.ephemeral
            && self.had_program
            && !self.ending
            && self.programs.iter().all(Option::is_none)
        {
            self.end(PATIENCE);
        }
    }

    fn end(&mut self, patience: Duration) {
        self.ending = true;
        self.workers.send(|_| Command::Drain {
            patience_ms: patience.as_millis() as u64,
        });
    }

    fn sockets(&self) -> Result<String, i32> {
        let shards = self.workers.ask(|_, reply| Command::Sockets { reply })?;
        diagnostics::sockets_json(shards).map_err(|_| libc::EIO)
    }

    fn describe(&self) -> Result<String, i32> {
        let shards = self.workers.ask(|_, reply| Command::Describe { reply })?;
        let shards: Result<Vec<serde_json::Value>, _> = shards
            .iter()
            .map(|text| serde_json::from_str(text))
            .collect();
        let shards = shards.map_err(|_| libc::EIO)?;
        let description = serde_json::json!({
            "name": self.name,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "address": self.region_header.own.first().map_or_else(String::new, ToString::to_string),
            "addresses": self.region_header.own,
            "mtu": self.region_header.mtu,
            "loopback": self.loopback,
            "process": {
                "user": rustix::process::geteuid().as_raw(),
                "calls_filtered": millrace_sandbox::is_filtered(),
                "calls_refused": millrace_sandbox::refused_calls(),
            },
            "in_flight": self.in_flight.json(),
            "topology": self.workers.topology(),
            "io_threads": self.workers.io_json(),
            "control": {
                "connections_refused": self.clients.refused,
                "connections_without_descriptor": self.clients.exhausted,
                "descriptors_refused": self.descriptors.refused(),
                "messages_refused": self.refused,
                "requests_denied": self.denied,
            },
            "buckets": self.workers.can_move_flows().then(|| self.scale.json(&self.workers)),
            "bypasses": diagnostics::bypasses_json(self.programs.iter().flatten().map(|program| &*program.region)),
            "shards": shards,
        });
        Ok(description.to_string())
    }
}

fn words(from: &[u64]) -> [u64; 8] {
    let mut words = [0; 8];
    words[..from.len()].copy_from_slice(from);
    words
}

/// Gives the memory of a long socket list back to the machine. The allocator would keep it.
fn give_back() {
    // SAFETY: any thread may call it at any time. It touches only the allocator's own state.
    unsafe { libc::malloc_trim(0) };
}
