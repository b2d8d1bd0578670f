//! Connections that processes have in common: what the peer sees when they are made, used and end
//! in any order, by every way that there is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use millrace_e2e::content::{ensure_same, write_file};
use millrace_e2e::{
    Context as _, Process, Result, SUBJECT, World, bail, compile, ensure, http,
    on_both_stacks_and_two_shards, on_millrace, seconds, wait_until,
};
use rustix::process::{Pid, Signal, kill_process};

on_both_stacks_and_two_shards!(
    a_tree_of_processes_closes_as_on_the_kernel,
    vsftpd_serves_with_its_defaults,
);

on_millrace!(what_there_is_no_room_for_is_refused_and_said);

const PORT: u16 = 7001;
/// The engine's, while there is one.
const DEVICE: &str = "mr0";
const PROCESSES: usize = 10;
const CONNECTIONS: usize = 4;
/// Steps of a seed.
const STEPS: usize = 60;

/// Ways to make a process. One that is made in a way of the second list, by an exec or past the
/// shim, connects to the engine by itself: that needs the network namespace that the engine is in.
const WAYS: &[&str] = &[
    "fork",
    "clone-call",
    "clone-net",
    "clone3-call",
    "clone",
    "double",
    "daemon",
    "thread",
    "handler",
    "sleepers",
];
const WAYS_AT_HOME: &[&str] = &["vfork", "spawn", "clone-vfork", "past"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % bound as u64) as usize
    }

    fn choose<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())])
    }
}

/// Whether a process has ended. Its parent, or whoever has taken it in, may not have asked for its
/// status yet.
fn has_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.map_or(true, |stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.starts_with(" Z"))
    })
}

/// A process as the kernel would have it.
#[derive(Clone, Default)]
struct Member {
    pid: i32,
    listens: bool,
    connections: BTreeSet<usize>,
    /// It is in another network namespace.
    away: bool,
}

struct Connection {
    stream: TcpStream,
    /// The peer has sent what nobody has read.
    unread: bool,
}

struct Tree<'a> {
    world: &'a World,
    root: Process,
    random: Random,
    members: BTreeMap<usize, Member>,
    connections: BTreeMap<usize, Connection>,
    sequence: usize,
    said: Vec<String>,
}

impl Tree<'_> {
    fn start(world: &World, seed: u64) -> Result<Tree<'_>> {
        let program = compile::program("tree")?;
        let directory = world.directory().join(format!("tree-{seed}"));
        fs::create_dir_all(&directory)?;
        for process in 0..PROCESSES {
            let path = directory.join(process.to_string());
            rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU)?;
        }
        let mut command = world.on_subject(&[
            program.as_str(),
            &directory.to_string_lossy(),
            &SUBJECT.to_string(),
            &PORT.to_string(),
        ]);
        command.stdin(Stdio::piped());
        let mut tree = Tree {
            world,
            root: world.start_on_subject(command)?,
            random: Random(seed),
            members: BTreeMap::new(),
            connections: BTreeMap::new(),
            sequence: 0,
            said: vec![directory.to_string_lossy().into_owned()],
        };
        let pid = tree.wait_until_up(0)?;
        let member = Member {
            pid,
            listens: true,
            ..Member::default()
        };
        tree.members.insert(0, member);
        Ok(tree)
    }

    /// Waits until a process has said what begins so; the rest of the line.
    fn wait_for(&mut self, beginning: &str) -> Result<String> {
        let mut found = None;
        let root = &mut self.root;
        wait_until(beginning, seconds(20), || {
            root.ensure_not_failed()?;
            let errors = root.stderr();
            ensure!(!errors.contains("tree "), "{errors}");
            let said = root.stdout();
            let mut lines = said.lines().rev();
            found = lines.find_map(|line| Some(line.strip_prefix(beginning)?.to_owned()));
            Ok(found.is_some())
        })?;
        found.context("it was said")
    }

    /// The pid of a process that has begun. Of those that had its name before it, none has this
    /// pid.
    fn wait_until_up(&mut self, process: usize) -> Result<i32> {
        let pid = self.wait_for(&format!("up {process} "))?;
        Ok(pid.trim().parse()?)
    }

    fn command(&mut self, process: usize, line: &str) -> Result<()> {
        self.said.push(format!("{process}: {line}"));
        let path = format!("{}/{process}", self.said[0]);
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut pipe = fs::OpenOptions::new()
            .write(true)
            .custom_flags(flags)
            .open(path)?;
        Ok(writeln!(pipe, "{line}")?)
    }

    /// A command, until it is carried out.
    fn carry_out(&mut self, process: usize, line: &str) -> Result<()> {
        self.sequence += 1;
        let sequence = self.sequence;
        self.command(process, &format!("{line} {sequence}"))?;
        self.wait_for(&format!("done {sequence}")).map(drop)
    }

    fn make(&mut self, process: usize) -> Result<()> {
        let mut free = (0..PROCESSES).filter(|number| !self.members.contains_key(number));
        let Some(number) = free.next() else {
            return Ok(());
        };
        let away = self.members[&process].away;
        let at_home = if away { &[] } else { WAYS_AT_HOME };
        let ways = [WAYS, at_home].concat();
        let how = self.random.choose(&ways).context("a way")?;
        let before = self.root.stdout().matches(&format!("up {number} ")).count();
        self.command(process, &format!("make {number} {how}"))?;
        let root = &mut self.root;
        let said = &self.said;
        wait_until("the child is up", seconds(20), || {
            root.ensure_not_failed()?;
            let errors = root.stderr();
            ensure!(!errors.contains("tree "), "{errors}, {said:?}");
            let up = root.stdout().matches(&format!("up {number} ")).count();
            Ok(up > before)
        })?;
        let pid = self.wait_until_up(number)?;
        let child = Member {
            pid,
            away: away || how == "clone-net",
            ..self.members[&process].clone()
        };
        self.members.insert(number, child);
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let listening: Vec<usize> = self.those(|member| member.listens);
        let free = (0..CONNECTIONS).find(|number| !self.connections.contains_key(number));
        let (Some(process), Some(number)) = (self.random.choose(&listening), free) else {
            return Ok(());
        };
        let at = self.world.at(PORT);
        let stream = self.world.peer_namespace().enter(|| http::connect(at))?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        self.carry_out(process, &format!("accept {number}"))?;
        let member = self.members.get_mut(&process).context("it")?;
        member.connections.insert(number);
        let unread = false;
        self.connections
            .insert(number, Connection { stream, unread });
        Ok(())
    }

    fn those(&self, which: impl Fn(&Member) -> bool) -> Vec<usize> {
        let members = self.members.iter().filter(|(_, member)| which(member));
        members.map(|(number, _)| *number).collect()
    }

    fn step(&mut self) -> Result<()> {
        let all: Vec<usize> = self.members.keys().copied().collect();
        let process = self.random.choose(&all).context("a process")?;
        let held: Vec<usize> = self.members[&process].connections.iter().copied().collect();
        let held = self.random.choose(&held);
        match self.random.below(14) {
            0..4 => self.make(process)?,
            4..7 => self.connect()?,
            7 => {
                let how = self
                    .random
                    .choose(&["leave", "close", "replace"])
                    .unwrap_or("leave");
                self.carry_out(process, &format!("pass {how}"))?;
            }
            8 => {
                let Some(number) = held else { return Ok(()) };
                let connection = self.connections.get_mut(&number).context("it")?;
                connection.stream.write_all(b"unread")?;
                connection.unread = true;
                self.carry_out(process, &format!("await {number}"))?;
            }
            9..11 => {
                let Some(number) = held else { return Ok(()) };
                self.carry_out(process, &format!("close {number}"))?;
                let member = self.members.get_mut(&process).context("it")?;
                member.connections.remove(&number);
            }
            // One stays, or there is nothing more to see.
            _ if all.len() > 1 && self.those(|member| member.listens) != [process] => {
                let how = self
                    .random
                    .choose(&["kill", "exit", "_exit", "abort"])
                    .unwrap_or("kill");
                let pid = Pid::from_raw(self.members[&process].pid).context("a pid")?;
                if how == "kill" {
                    self.said.push(format!("{process}: killed"));
                    kill_process(pid, Signal::KILL)?;
                } else {
                    self.command(process, &format!("end {how}"))?;
                }
                wait_until("it is gone", seconds(20), || Ok(has_ended(pid)))?;
                self.members.remove(&process);
            }
            _ => {}
        }
        Ok(())
    }

    /// What the peer sees: what nobody has any more has ended as it had to, and what somebody has
    /// is open.
    fn look(&mut self) -> Result<()> {
        for number in 0..CONNECTIONS {
            let holders = self.those(|member| member.connections.contains(&number));
            let Some(connection) = self.connections.get(&number) else {
                continue;
            };
            let mut byte = [0];
            if let Some(holder) = self.random.choose(&holders) {
                let letter = char::from(b'a' + self.random.below(26) as u8);
                let mut stream = connection.stream.try_clone()?;
                self.carry_out(holder, &format!("write {number} {letter}"))?;
                let read = stream.read(&mut byte);
                ensure!(
                    read.as_ref().is_ok_and(|len| *len == 1) && byte[0] == letter as u8,
                    "connection {number}, which {holder} has: {read:?}"
                );
                continue;
            }
            let seen = match (&connection.stream).read(&mut byte) {
                Ok(0) => "FIN",
                Err(error) if error.kind() == ErrorKind::ConnectionReset => "RST",
                other => bail!("connection {number}, which nobody has, shows {other:?}"),
            };
            let expected = if connection.unread { "RST" } else { "FIN" };
            ensure!(
                seen == expected,
                "connection {number}: {seen}, not {expected}"
            );
            self.connections.remove(&number);
        }
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        for _ in 0..STEPS {
            let done = self.step().and_then(|()| self.look());
            done.with_context(|| format!("{:#?}\n{}", self.said, self.root.stderr()))?;
        }
        for member in std::mem::take(&mut self.members).into_values() {
            kill_process(Pid::from_raw(member.pid).context("a pid")?, Signal::KILL)?;
        }
        self.look()
            .with_context(|| format!("{:#?}\n{}", self.said, self.root.stderr()))
    }
}

fn a_tree_of_processes_closes_as_on_the_kernel(world: &World) -> Result<()> {
    let given = std::env::var("MILLRACE_TREE_SEEDS").ok();
    let seeds = given.map_or(Ok(1..4), |given| -> Result<std::ops::Range<u64>> {
        let (from, to) = given.split_once("..").context("FROM..TO")?;
        Ok(from.parse()?..to.parse()?)
    })?;
    for seed in seeds {
        let mut tree = Tree::start(world, seed)?;
        tree.run().with_context(|| format!("seed {seed}"))?;
        drop(tree.root.stdin());
        tree.root.wait(seconds(20))?.success()?;
        wait_until("the engine has ended", seconds(20), || {
            let devices = world.peer_namespace().devices()?;
            Ok(!devices.iter().any(|device| device == DEVICE))
        })?;
    }
    Ok(())
}

/// Reads until as much has come.
fn expect(stream: &mut TcpStream, expected: &str) -> Result<()> {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).context(expected.to_owned())?;
    ensure!(bytes == expected.as_bytes(), "{bytes:?}, not {expected}");
    Ok(())
}

fn what_there_is_no_room_for_is_refused_and_said(world: &World) -> Result<()> {
    let at = world.at(PORT);
    let script = compile::script("crowd.py");
    let words = [
        "/usr/bin/python3",
        &script,
        &SUBJECT.to_string(),
        &PORT.to_string(),
    ];
    let mut server = world.subject(&words)?;
    wait_until("it listens", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().contains("ready"))
    })?;
    let connect = || -> Result<TcpStream> {
        let stream = world.peer_namespace().enter(|| http::connect(at))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(stream)
    };
    let outcome = (|| {
        let mut stream = connect()?;
        for (said, answer) in [("refused", b"1"), ("again", b"2"), ("limited", b"3")] {
            expect(&mut stream, said)?;
            stream.write_all(answer)?;
        }
        ensure!(
            stream.read(&mut [0])? == 0,
            "closed, though a process has it that cannot use it"
        );
        let mut stream = connect()?;
        stream.write_all(b"4")?;
        expect(&mut stream, "still")
    })();
    outcome.with_context(|| format!("{}{}", server.stdout(), server.stderr()))?;
    let ended = server.wait(seconds(20))?.success()?;
    let said = ended.error_text();
    ensure!(said.contains("no room for another process"), "{said}");
    ensure!(ended.text().contains("done"), "{}", ended.text());
    Ok(())
}

/// With Debian's configuration but for who may log in: a process for each session in a network
/// namespace of its own, with little memory, which gets its connections from another in messages.
fn vsftpd_serves_with_its_defaults(world: &World) -> Result<()> {
    let root = world.directory().join("ftp");
    let empty = world.directory().join("empty");
    fs::create_dir_all(root.join("pub"))?;
    fs::create_dir_all(&empty)?;
    let file = root.join("pub/file");
    write_file(&file, 5, 10_000_003)?;
    let config = world.directory().join("vsftpd.conf");
    let text = format!(
        "listen=YES\nlisten_ipv6=NO\nlocal_enable=NO\nanonymous_enable=YES\nno_anon_password=YES\nanon_root={}\ndirmessage_enable=YES\n\
         use_localtime=YES\nxferlog_enable=YES\nxferlog_file={}/log\nvsftpd_log_file={}/log2\nconnect_from_port_20=YES\n\
         secure_chroot_dir={}\npam_service_name=vsftpd\nssl_enable=NO\nbackground=NO\n",
        root.display(),
        world.directory().display(),
        world.directory().display(),
        empty.display()
    );
    fs::write(&config, text)?;
    let words = ["/usr/sbin/vsftpd", &config.to_string_lossy()];
    let server = world.serve(&words, 21)?;
    let got = world.directory().join("got");
    for mode in ["", "--ftp-port -", ""] {
        let line = format!(
            "curl -sS --max-time 50 {mode} -o {} ftp://{SUBJECT}/pub/file",
            got.display()
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        let ended = world.run_on_peer(&words, seconds(60));
        ended.with_context(|| format!("{mode}: {}", server.stderr()))?;
        ensure_same(&file, &got)?;
    }
    server.stop(Signal::TERM, seconds(10)).map(drop)
}
