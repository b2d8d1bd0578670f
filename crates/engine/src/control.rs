//! The control thread: who belongs to which program, who lives, and what the command line asks.
//!
//! Nothing here is on the data path. A process is known by its pid and its pidfd; that its control connection closes means nothing (it may
//! have called exec), that its pidfd becomes readable means that it is dead.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use millrace_context::layout::Geometry;
use millrace_context::protocol::{
    self, Answer, Attached, Kind, PACKET_MAX, Received, Request, Token,
};
use millrace_context::{Region, SlotRef, region};
use millrace_shard::Owner;
use rustix::event::Timespec;
use rustix::event::epoll;

use crate::command::Command;
use crate::config::{Config, Limits};
use crate::doorbell;
use crate::kernels::Kernels;
use crate::numbers::Numbers;
use crate::program::Whereabouts;
use crate::robust_list::RobustList;
use crate::scale::Scale;
use crate::serving::Serving;
use crate::snapshot;
use crate::socket::Process;
use crate::start::token;
use crate::workers::Workers;

/// Contexts that each process gets: its threads spread over them.
const CONTEXTS: u32 = 4;
/// How long a child that was announced may take to attach once its parent is dead.
const ANNOUNCED: Duration = Duration::from_secs(5);
/// How long connections that still have something to say keep an engine that is to end.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same when it was told to end by `down`.
const PATIENCE_DOWN: Duration = Duration::from_millis(500);
/// How often an engine that is to end looks whether it has.
const ENDING_LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
struct Member {
    pid: u32,
    /// Kept for its place in the epoll set; none while the process is only announced.
    pidfd: Option<OwnedFd>,
    contexts: Vec<u32>,
    pollers: Vec<u32>,
    announced: Instant,
    parent: Option<Process>,
    /// What the parent announced it by, 0 if it did not: the process slot in the low bits, above them a number that is used once.
    ticket: u64,
}

#[derive(Debug)]
struct Program {
    token: Token,
    file: OwnedFd,
    /// What it rings each shard by.
    doorbells: Vec<Arc<OwnedFd>>,
    region: Arc<Region>,
    members: BTreeMap<Process, Member>,
    contexts: Numbers,
    pollers: Numbers,
    processes: Numbers,
    /// Forks announced so far.
    forks: u64,
    /// The command line that started it is still there.
    guarded: bool,
}

#[derive(Debug)]
struct Client {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    /// A process of this program, once it attached.
    member: Option<(u32, Process)>,
    /// The program that it guards.
    guards: Option<u32>,
}

/// The control thread's state.
pub struct Control {
    name: String,
    ephemeral: bool,
    loopback: bool,
    limits: Limits,
    serving: Serving,
    listener: OwnedFd,
    workers: Workers,
    epoll: OwnedFd,
    clients: HashMap<u64, Client>,
    next_client: u64,
    programs: Vec<Option<Program>>,
    /// The thread's, made with the first program.
    robust_list: Option<RobustList>,
    had_program: bool,
    ending: bool,
    scale: Scale,
    kernels: Option<Kernels>,
}

const LISTENER: u64 = 0;
const KERNELS: u64 = 1;
/// Tokens of pidfds have this bit, the program in the upper half and the process slot below.
const PIDFD: u64 = 1 << 63;

impl Control {
    /// A control thread for workers that run already.
    pub(crate) fn new(
        config: &Config,
        serving: Serving,
        listener: OwnedFd,
        workers: Workers,
        scale: Scale,
        kernels: Option<Kernels>,
    ) -> io::Result<Control> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            epoll::EventFlags::IN,
        )?;
        if let Some(kernels) = &kernels {
            let token = epoll::EventData::new_u64(KERNELS);
            let changes = kernels.descriptor();
            epoll::add(&epoll, changes, token, epoll::EventFlags::IN)?;
        }
        Ok(Control {
            name: config.name.clone(),
            ephemeral: config.ephemeral,
            loopback: config.loopback,
            limits: config.limits.clone(),
            serving,
            listener,
            workers,
            epoll,
            clients: HashMap::new(),
            next_client: KERNELS + 1,
            programs: Vec::new(),
            robust_list: None,
            had_program: false,
            ending: false,
            scale,
            kernels,
        })
    }

    /// Runs until the engine ends.
    pub fn run(&mut self) -> io::Result<()> {
        let mut buffer = vec![0; PACKET_MAX];
        loop {
            if self.workers.have_ended(self.ending) {
                return self.workers.outcome();
            }
            let alone = self.announced_alone().then_some(Duration::from_secs(1));
            let ending = self.ending.then_some(ENDING_LOOK);
            let kernels = self.kernels.as_ref().and_then(Kernels::patience);
            let balance = self.scale.patience().filter(|_| !self.ending);
            let patience = [alone, ending, kernels, balance];
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
                    self.accept();
                } else if token == KERNELS {
                    self.kernels.iter_mut().for_each(Kernels::changed);
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
                self.scale.look(&self.workers);
            }
        }
    }

    /// Tells all that the kernel has other addresses or routes, if it has: first those who send, then those who ask what they can send.
    fn follow_kernel(&mut self) {
        let Some(kernels) = &mut self.kernels else {
            return;
        };
        let Some(link) = kernels.look() else {
            return;
        };
        self.serving.renumber(&link.addresses, &link.routes);
        let network = kernels.network();
        // One that does not answer has ended, which the loop sees next.
        let _ = self.workers.ask(|_, done| Command::Renumber {
            network: network.clone(),
            done,
        });
        for program in self.programs.iter().flatten() {
            self.serving.tell(program.region.header());
        }
    }

    fn accept(&mut self) {
        while let Ok(socket) =
            rustix::net::accept_with(&self.listener, rustix::net::SocketFlags::CLOEXEC)
        {
            let Ok(credentials) = rustix::net::sockopt::socket_peercred(&socket) else {
                continue;
            };
            let pid = credentials.pid.as_raw_nonzero().get() as u32;
            self.add_client(socket, pid, credentials.uid.as_raw());
        }
    }

    /// Whether it is served: not without room to watch it.
    fn add_client(&mut self, socket: OwnedFd, pid: u32, uid: u32) -> bool {
        let token = epoll::EventData::new_u64(self.next_client);
        if epoll::add(&self.epoll, &socket, token, epoll::EventFlags::IN).is_err() {
            return false;
        }
        let client = Client {
            socket,
            pid,
            uid,
            member: None,
            guards: None,
        };
        self.clients.insert(self.next_client, client);
        self.next_client += 1;
        true
    }

    fn client(&mut self, number: u64, buffer: &mut [u8]) {
        let Some(client) = self.clients.get(&number) else {
            return;
        };
        match Request::receive(client.socket.as_fd(), buffer) {
            Ok(Some(received)) => {
                // Only a connection made for a child, which may be anybody's until the child speaks, says who sends.
                if let (Some(pid), Some(client)) = (received.pid, self.clients.get_mut(&number)) {
                    client.pid = pid;
                }
                let answer = self.answer(number, received);
                let (Some((answer, descriptors)), Some(client)) =
                    (answer, self.clients.get(&number))
                else {
                    return;
                };
                let borrowed: Vec<BorrowedFd<'_>> = descriptors
                    .iter()
                    .map(|descriptor| descriptor.as_fd())
                    .collect();
                // Who asks and does not read is not waited for, nor served any more.
                if answer.send(client.socket.as_fd(), &borrowed).is_err() {
                    self.client_gone(number);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(None) | Err(_) => self.client_gone(number),
        }
    }

    fn client_gone(&mut self, number: u64) {
        let client = self.clients.remove(&number);
        let guards = client.and_then(|client| client.guards);
        if let Some(program) = guards.and_then(|index| self.programs[index as usize].as_mut()) {
            program.guarded = false;
        }
    }

    /// What a request comes to; none when nobody waits for an answer.
    fn answer(
        &mut self,
        number: u64,
        received: Received<'_>,
    ) -> Option<(Answer, Vec<Arc<OwnedFd>>)> {
        let Received {
            request,
            payload,
            mut descriptors,
            ..
        } = received;
        let error = |errno: i32| Some((Answer::error(errno), Vec::new()));
        if request.version != millrace_context::VERSION {
            return error(libc::EPROTONOSUPPORT);
        }
        let kind = Kind::from_number(request.kind)?;
        let client = &self.clients[&number];
        let privileged = client.uid == 0 || client.uid == rustix::process::geteuid().as_raw();
        let result = match kind {
            Kind::Attach => self.attach(number, &request),
            Kind::Fork => self.fork(number, request.arguments[0] == 1),
            Kind::Forked => {
                let [ticket, pid, ..] = request.arguments;
                self.forked(number, ticket, pid as u32, descriptors.take(0));
                return None;
            }
            Kind::Poller => self.poller(number),
            Kind::PollerGone => {
                self.poller_gone(number, request.arguments[0] as u32);
                return None;
            }
            Kind::Holds => self.holds(number, payload, request.arguments[0] == 1),
            Kind::Program | Kind::Sockets | Kind::Describe | Kind::Down | Kind::Scale
                if !privileged =>
            {
                Err(libc::EACCES)
            }
            Kind::Program => self.program(number),
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
        match result {
            Ok((words, descriptors)) => Some((Answer::ok(words), descriptors)),
            Err(errno) => error(errno),
        }
    }

    fn program(&mut self, number: u64) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
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
        // SAFETY: nobody else has the region yet.
        unsafe { region.write_header(self.serving.header(geometry, self.scale.serving())) };
        let region = Arc::new(region);
        let index = self
            .programs
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.programs.len());
        let owner = Owner(index as u32);
        let token = token().map_err(errno)?;
        let whereabouts = Arc::new(Whereabouts::new(&region));
        let doorbells: io::Result<Vec<_>> = (0..self.workers.len())
            .map(|_| doorbell::doorbell())
            .collect();
        let doorbells = doorbells.map_err(errno)?;
        self.workers.send(|shard| Command::AddProgram {
            owner,
            region: region.clone(),
            whereabouts: whereabouts.clone(),
            doorbell: doorbells[shard as usize].clone(),
        });
        let program = Program {
            token,
            file,
            doorbells,
            region,
            members: BTreeMap::new(),
            contexts: Numbers::new(limits.processes),
            pollers: Numbers::new(limits.pollers),
            processes: Numbers::new(limits.processes),
            forks: 0,
            guarded: true,
        };
        self.wake_when_over(program.file.as_fd(), owner.0);
        if index == self.programs.len() {
            self.programs.push(Some(program));
        } else {
            self.programs[index] = Some(program);
        }
        self.had_program = true;
        if let Some(client) = self.clients.get_mut(&number) {
            client.guards = Some(index as u32);
        }
        let (high, low) = token.split_at(8);
        let word = |half: &[u8]| u64::from_ne_bytes(half.try_into().unwrap_or_default());
        Ok((words(&[word(high), word(low)]), Vec::new()))
    }

    /// Sleepers of a program are told when the engine ends. Without that they look for themselves, so it is no error.
    fn wake_when_over(&mut self, region: BorrowedFd<'_>, program: u32) {
        if self.robust_list.is_none() {
            self.robust_list = RobustList::new().ok();
        }
        if let Some(list) = &mut self.robust_list {
            list.remove(program);
            let _ = list.add(region, program);
        }
    }

    fn scale_to(&mut self, count: u64) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
        let count = u16::try_from(count).map_err(|_| libc::EINVAL)?;
        let outcome = self.scale.to(count, &self.workers);
        for program in self.programs.iter().flatten() {
            let line = &program.region.header().serving.0;
            line.store(self.scale.serving().into(), Ordering::Relaxed);
        }
        Ok((words(&[outcome? as u64]), Vec::new()))
    }

    fn attach(
        &mut self,
        number: u64,
        request: &Request,
    ) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
        let pid = self.clients[&number].pid;
        let found = self.programs.iter().position(|program| {
            program
                .as_ref()
                .is_some_and(|program| program.token == request.token)
        });
        let index = found.ok_or(libc::EACCES)?;
        let program = self.programs[index].as_mut().ok_or(libc::EACCES)?;
        let [ticket, sharing, ..] = request.arguments;
        let announced = (ticket != 0).then_some(ticket as Process);
        let known = announced.filter(|process| {
            program.members.get(process).is_some_and(|member| {
                member.ticket == ticket && (member.pid == 0 || member.pid == pid)
            })
        });
        let known = known.or_else(|| {
            program
                .members
                .iter()
                .find(|(_, member)| member.pid == pid)
                .map(|(process, _)| *process)
        });
        let process = match known {
            Some(process) => process,
            None => {
                let process = program.processes.take().ok_or(libc::EUSERS)? as Process;
                // The child of a fork that was not announced has its parent's epoll sets.
                let parent = sharing.checked_sub(1).map(|parent| parent as Process);
                let parent = parent.and_then(|parent| program.members.get(&parent));
                let pollers = parent.map_or_else(Vec::new, |parent| parent.pollers.clone());
                program.members.insert(
                    process,
                    Member {
                        pid,
                        pidfd: None,
                        contexts: Vec::new(),
                        pollers,
                        announced: Instant::now(),
                        parent: None,
                        ticket: 0,
                    },
                );
                process
            }
        };
        let member = program.members.get_mut(&process).ok_or(libc::EIO)?;
        member.pid = pid;
        if member.contexts.is_empty() {
            let block = program.contexts.take().ok_or(libc::EUSERS)?;
            let contexts = CONTEXTS * self.workers.len();
            member.contexts = (block * contexts..(block + 1) * contexts).collect();
        }
        let contexts = member.contexts.clone();
        let doorbells = program.doorbells.clone();
        let geometry = *program.region.geometry();
        let file = Arc::new(program.file.try_clone().map_err(|_| libc::EMFILE)?);
        self.watch_pid(index as u32, process, pid, None);
        if let Some(client) = self.clients.get_mut(&number) {
            client.member = Some((index as u32, process));
        }
        let first = contexts[0];
        // In turn, as `Attached::contexts` says.
        let every = self.workers.len() as usize;
        self.workers.ask(|shard, done| {
            let own = contexts.iter().skip(shard as usize).step_by(every);
            Command::AddProcess {
                owner: Owner(index as u32),
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
        Ok((attached.to_words(), descriptors.collect()))
    }

    /// Watches for a process's death: by `given`, which its parent has opened, or by its pid.
    fn watch_pid(&mut self, index: u32, process: Process, pid: u32, given: Option<OwnedFd>) {
        let Some(member) = self.programs[index as usize]
            .as_mut()
            .and_then(|program| program.members.get_mut(&process))
        else {
            return;
        };
        if member.pidfd.is_some() {
            return;
        }
        let open = || {
            let pid = rustix::process::Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH)?;
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
        };
        let opened = given.map_or_else(open, Ok);
        let data = epoll::EventData::new_u64(PIDFD | u64::from(index) << 16 | u64::from(process));
        match opened {
            Ok(pidfd) if epoll::add(&self.epoll, &pidfd, data, epoll::EventFlags::IN).is_ok() => {
                member.pidfd = Some(pidfd);
            }
            // It is dead already.
            _ => self.process_gone(index, process),
        }
    }

    fn member(&self, number: u64) -> Result<(u32, Process), i32> {
        self.clients
            .get(&number)
            .and_then(|client| client.member)
            .ok_or(libc::ENOTCONN)
    }

    fn fork(&mut self, number: u64, connected: bool) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
        let (index, parent) = self.member(number)?;
        let program = self.programs[index as usize].as_mut().ok_or(libc::EIO)?;
        let child = program.processes.take().ok_or(libc::EUSERS)? as Process;
        program.forks += 1;
        let ticket = program.forks << Process::BITS | u64::from(child);
        // An epoll set is one for both from now on, whoever of them ends first.
        let pollers = program
            .members
            .get(&parent)
            .map_or_else(Vec::new, |member| member.pollers.clone());
        program.members.insert(
            child,
            Member {
                pid: 0,
                pidfd: None,
                contexts: Vec::new(),
                pollers,
                announced: Instant::now(),
                parent: Some(parent),
                ticket,
            },
        );
        self.workers.ask(|_, done| Command::Fork {
            owner: Owner(index),
            parent,
            child,
            done,
        })?;
        // Nobody's until the child speaks. Without it the child connects like any process.
        let made = connected.then(protocol::pair).and_then(Result::ok);
        let connection = made
            .and_then(|(own, other)| self.add_client(own, 0, u32::MAX).then(|| Arc::new(other)));
        Ok((words(&[ticket]), connection.into_iter().collect()))
    }

    fn forked(&mut self, number: u64, ticket: u64, pid: u32, pidfd: Option<OwnedFd>) {
        let Ok((index, _)) = self.member(number) else {
            return;
        };
        let child = ticket as Process;
        let program = self.programs[index as usize].as_ref();
        let member = program.and_then(|program| program.members.get(&child));
        // A child that has attached is known better; one that is gone may have left its slot to another.
        if member.is_none_or(|member| member.ticket != ticket || member.pidfd.is_some()) {
            return;
        }
        if pid == 0 {
            self.process_gone(index, child);
        } else {
            self.watch_pid(index, child, pid, pidfd);
        }
    }

    fn poller(&mut self, number: u64) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
        let (index, process) = self.member(number)?;
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

    fn poller_gone(&mut self, number: u64, poller: u32) {
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

    /// A process does not need these pollers any more: those that no other has are free.
    fn forget_pollers(&mut self, index: u32, pollers: &[u32]) {
        for poller in pollers {
            let Some(program) = self.programs[index as usize].as_mut() else {
                return;
            };
            let mut members = program.members.values();
            if members.any(|member| member.pollers.contains(poller)) {
                continue;
            }
            program.pollers.give(*poller);
            self.workers.send(|_| Command::RemovePoller {
                owner: Owner(index),
                poller: *poller,
            });
        }
    }

    fn holds(
        &mut self,
        number: u64,
        payload: &[u8],
        more: bool,
    ) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
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

    fn process_gone(&mut self, index: u32, process: Process) {
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
        let has_children = program
            .members
            .values()
            .any(|other| other.parent == Some(process) && other.pidfd.is_none());
        if has_children {
            for other in program
                .members
                .values_mut()
                .filter(|other| other.parent == Some(process) && other.pidfd.is_none())
            {
                other.announced = Instant::now();
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
    }

    /// Whether a child has been announced whose parent is dead.
    fn announced_alone(&self) -> bool {
        self.programs.iter().flatten().any(|program| {
            program
                .members
                .values()
                .any(|member| Self::alone(program, member))
        })
    }

    fn alone(program: &Program, member: &Member) -> bool {
        member.pidfd.is_none()
            && member
                .parent
                .is_some_and(|parent| !program.members.contains_key(&parent))
    }

    fn forget_announced(&mut self) {
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

    fn forget_programs(&mut self) {
        for index in 0..self.programs.len() {
            if self.programs[index]
                .as_ref()
                .is_some_and(|program| !program.guarded && program.members.is_empty())
            {
                self.programs[index] = None;
                if let Some(list) = &mut self.robust_list {
                    list.remove(index as u32);
                }
                self.workers.send(|_| Command::RemoveProgram {
                    owner: Owner(index as u32),
                });
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
        snapshot::sockets_json(shards).map_err(|_| libc::EIO)
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
            "address": self.serving.own.first().map_or_else(String::new, ToString::to_string),
            "addresses": self.serving.own,
            "mtu": self.serving.mtu,
            "loopback": self.loopback,
            "topology": self.workers.topology(),
            "io_threads": self.workers.io_json(),
            "buckets": self.workers.can_move_flows().then(|| self.scale.json(&self.workers)),
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

/// Gives the memory back that a listing of many sockets took: the allocator would keep it for the next one, for each that there ever were at once.
fn give_back() {
    // SAFETY: it may be called at any time by any thread; it looks at the allocator's own state alone.
    unsafe { libc::malloc_trim(0) };
}

/// A text of any length, as a descriptor of a file in memory.
fn document(text: &str) -> Result<([u64; 8], Vec<Arc<OwnedFd>>), i32> {
    let errno = |errno: rustix::io::Errno| errno.raw_os_error();
    let file = rustix::fs::memfd_create(protocol::ENV_ENGINE, rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(errno)?;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest).map_err(errno)?;
        rest = &rest[written..];
    }
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0)).map_err(errno)?;
    Ok((words(&[text.len() as u64]), vec![Arc::new(file)]))
}
