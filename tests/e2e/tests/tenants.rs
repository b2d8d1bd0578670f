//! Programs that share an engine: what one of them does on purpose leaves the others alone, and the
//! engine as it was.

use std::process::Stdio;

use millrace_e2e::content::Bytes;
use millrace_e2e::engine::{self, Engine};
use millrace_e2e::{
    PEER, Process, Result, SUBJECT, World, compile, ensure, http, load, process, scenario, seconds,
    wait_until, world,
};
use rustix::process::Signal;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;

/// Makes of each named function tests on millrace with one shard and with two.
macro_rules! on_millrace_and_two_shards {
    ($($name:ident),* $(,)?) => { $(
        mod $name {
            #[test]
            fn millrace() {
                millrace_e2e::scenario::run(millrace_e2e::Stack::Millrace, super::$name);
            }
            #[test]
            fn millrace_with_two_shards() {
                millrace_e2e::scenario::run_on_shards(2, super::$name);
            }
        }
    )* };
}

on_millrace_and_two_shards!(
    doorbells_that_are_filled_hold_up_nobody,
    doorbells_that_are_emptied_lose_nothing,
    a_process_cannot_say_that_it_is_its_own_child,
    who_reads_no_answers_is_not_waited_for,
    connections_without_end_keep_nobody_away,
    descriptors_that_take_long_to_close_hold_up_nobody,
    control_messages_at_random_harm_nobody,
    a_program_that_queues_all_it_can_leaves_memory_to_others,
);

/// Makes of each named function tests over AF_XDP, with one shard and with two: where it matters
/// how frames come and go.
macro_rules! over_xdp {
    ($($name:ident as $module:ident),* $(,)?) => { $(
        mod $module {
            #[test]
            fn xdp() {
                millrace_e2e::scenario::run_over(millrace_e2e::Link::Xdp, 1, super::$name);
            }
            #[test]
            fn xdp_with_two_shards() {
                millrace_e2e::scenario::run_over(millrace_e2e::Link::Xdp, 2, super::$name);
            }
        }
    )* };
}

over_xdp!(
    doorbells_that_are_filled_hold_up_nobody as filled_doorbells,
    a_program_that_queues_all_it_can_leaves_memory_to_others as queues_that_fill,
);

millrace_e2e::on_millrace!(
    who_takes_the_name_of_an_engine_is_not_believed,
    users_without_a_directory_of_their_own_have_a_safe_one,
    a_program_in_another_root_directory_finds_its_engine,
    what_happens_at_an_engine_is_written,
);

millrace_e2e::on_both_stacks_and_two_shards!(low_ports_take_a_privilege);

const PORT: u16 = 7600;
/// Bytes that the server is sent before they are read back: what it has room for.
const PIECE: usize = 4096;
const PYTHON: &str = "/usr/bin/python3";

/// An engine, and a program on it that others must not harm.
struct House {
    engine: Engine,
    server: Process,
    descriptors: usize,
}

impl House {
    fn build(world: &World) -> Result<House> {
        let engine = Engine::up(world)?;
        let server = compile::program("server")?;
        let words = [&server[..], "echo", &SUBJECT.to_string(), &PORT.to_string()];
        let mut server = world.start_on_subject(engine.run(&words))?;
        world.wait_for_port(&mut server, PORT)?;
        // What the first connection makes the program take is there from now on.
        converse(world, 50)?;
        let descriptors = scenario::descriptors(engine::pid(world)?)?;
        Ok(House {
            engine,
            server,
            descriptors,
        })
    }

    /// Starts another program on it, which says "ready" when it has done what it does.
    fn attack(&self, world: &World, words: &[&str]) -> Result<Process> {
        let mut run = self.engine.run(words);
        run.stdin(Stdio::piped());
        let mut attacker = world.start_on_subject(run)?;
        wait_until("the other program is ready", seconds(60), || {
            attacker.ensure_not_failed()?;
            Ok(attacker.stdout().contains("ready"))
        })?;
        Ok(attacker)
    }

    /// The server serves: old connections, new ones, and a new program.
    fn ensure_served(&mut self, world: &World) -> Result<()> {
        self.server.ensure_not_failed()?;
        converse(world, 200)?;
        carry(world, 1, 4 << 20)?;
        let ended = world
            .start_on_subject(self.engine.run(&["/bin/true"]))?
            .wait(seconds(20))?;
        ended.success().map(|_| ())
    }

    /// Ends the other program; the engine has nothing of it left.
    fn ensure_as_before(mut self, world: &World, mut attacker: Process) -> Result<()> {
        if attacker.is_running()? {
            attacker.signal(Signal::KILL)?;
        }
        attacker.wait(seconds(20))?;
        self.ensure_served(world)?;
        let pid = engine::pid(world)?;
        wait_until(
            "the engine has the descriptors of before",
            seconds(20),
            || Ok(scenario::descriptors(pid)? <= self.descriptors),
        )?;
        self.server.stop(Signal::TERM, seconds(20))?;
        self.engine.down(world)
    }
}

/// So many short conversations with the server.
fn converse(world: &World, count: usize) -> Result<()> {
    let peer = world.peer_namespace();
    peer.enter(|| load::short_conversations(world.at(PORT), count))
}

/// At least `len` bytes there and back, each as it was.
fn carry(world: &World, seed: u64, len: usize) -> Result<()> {
    let mut stream = world
        .peer_namespace()
        .enter(|| http::connect(world.at(PORT)))?;
    stream.set_read_timeout(Some(seconds(30)))?;
    let mut bytes = Bytes::from_seed(seed);
    let mut back = vec![0; PIECE];
    for at in (0..len).step_by(PIECE) {
        let piece = bytes.take(PIECE);
        stream.write_all(&piece)?;
        stream.read_exact(&mut back)?;
        ensure!(back == piece, "other bytes came back from {at} on");
    }
    Ok(())
}

fn doorbells(world: &World, what: &str) -> Result<()> {
    let mut house = House::build(world)?;
    let program = compile::program("doorbells")?;
    let attacker = house.attack(world, &[&program, what])?;
    for _ in 0..3 {
        house.ensure_served(world)?;
    }
    house.ensure_as_before(world, attacker)
}

fn doorbells_that_are_filled_hold_up_nobody(world: &World) -> Result<()> {
    doorbells(world, "fill")
}

fn doorbells_that_are_emptied_lose_nothing(world: &World) -> Result<()> {
    doorbells(world, "drain")
}

fn control(world: &World, house: &House, words: &[&str]) -> Result<Process> {
    let script = compile::script("control_socket.py");
    let mut all = vec![PYTHON, &script, words[0], house.engine.name()];
    all.extend(&words[1..]);
    house.attack(world, &all)
}

fn a_process_cannot_say_that_it_is_its_own_child(world: &World) -> Result<()> {
    let mut house = House::build(world)?;
    for _ in 0..3 {
        let attacker = control(world, &house, &["ghosts"])?;
        house.ensure_served(world)?;
        attacker.wait(seconds(20))?;
    }
    let last = control(world, &house, &["ghosts"])?;
    house.ensure_as_before(world, last)
}

fn who_reads_no_answers_is_not_waited_for(world: &World) -> Result<()> {
    let mut house = House::build(world)?;
    let attacker = control(world, &house, &["unread"])?;
    house.ensure_served(world)?;
    house.ensure_as_before(world, attacker)
}

fn connections_without_end_keep_nobody_away(world: &World) -> Result<()> {
    let mut house = House::build(world)?;
    let attacker = control(world, &house, &["connections"])?;
    house.ensure_served(world)?;
    let kept = scenario::descriptors(engine::pid(world)?)?;
    let counters = engine::counters(world)?;
    ensure!(
        counters["control"]["connections_refused"].as_u64() > Some(0),
        "it is counted: {counters}"
    );
    ensure!(
        kept < house.descriptors + 1000,
        "one user makes the engine keep {kept} descriptors, where there were {}",
        house.descriptors
    );
    house.ensure_as_before(world, attacker)
}

fn descriptors_that_take_long_to_close_hold_up_nobody(world: &World) -> Result<()> {
    let mut house = House::build(world)?;
    let attacker = control(world, &house, &["lingering"])?;
    house.ensure_served(world)?;
    // They close as soon as their peers are gone.
    house.ensure_as_before(world, attacker)
}

fn control_messages_at_random_harm_nobody(world: &World) -> Result<()> {
    let mut house = House::build(world)?;
    for seed in 1..=3 {
        let words = ["random", &seed.to_string(), "1500"];
        let attacker = control(world, &house, &words)?;
        house.ensure_served(world)?;
        attacker.wait(seconds(30))?;
    }
    let last = control(world, &house, &["random", "4", "100"])?;
    house.ensure_as_before(world, last)
}

fn a_program_that_queues_all_it_can_leaves_memory_to_others(world: &World) -> Result<()> {
    const SINK: u16 = 9200;

    const CONNECTIONS: usize = 200;
    let mut house = House::build(world)?;
    // It never reads.
    let sink = world
        .peer_namespace()
        .enter(|| TcpListener::bind((PEER, SINK)))?;
    let kept = std::thread::spawn(move || sink.incoming().take(CONNECTIONS).collect::<Vec<_>>());
    let script = compile::script("send_memory.py");
    let (address, port, count) = (PEER.to_string(), SINK.to_string(), CONNECTIONS.to_string());
    let words = [PYTHON, &script, &address, &port, &count];
    let pid = engine::pid(world)?;
    let before = scenario::resident(pid)?;
    let attacker = house.attack(world, &words)?;
    for seed in 0..3 {
        carry(world, seed, 8 << 20)?;
    }
    house.ensure_served(world)?;
    let counters = engine::counters(world)?;
    let sum = |name: &str| -> u64 {
        let shards = counters["shards"].as_array().into_iter().flatten();
        let counts = shards.filter_map(|shard| shard["worker"][name].as_u64());
        counts.sum()
    };
    ensure!(
        sum("send_memory_pressure") > 0 && sum("overruns") == 0,
        "the program was held up, not cut off: {counters}"
    );
    let most = scenario::resident(pid)?;
    ensure!(
        most > before + (128 << 20),
        "the engine has grown from {before} to {most} bytes"
    );
    drop(kept.join().expect("accepting does not panic"));
    attacker.signal(Signal::KILL)?;
    // Pools keep 16 MB for each shard; with what lies between blocks, a quarter of the growth at
    // most.
    wait_until("memory is given back", seconds(60), || {
        Ok(scenario::resident(pid)? < before + (most - before) / 4)
    })?;
    house.ensure_as_before(world, attacker)
}

/// What a command that has failed says.
fn refused(world: &World, words: &[&str]) -> Result<String> {
    let ended = world
        .start_on_subject(world.millrace(words))?
        .wait(seconds(20))?;
    ensure!(
        ended.status.code() == Some(125),
        "{words:?} is refused: {}",
        ended.text()
    );
    Ok(ended.error_text())
}

fn who_takes_the_name_of_an_engine_is_not_believed(world: &World) -> Result<()> {
    for how in ["abstract", "fallen"] {
        let name = format!("squatted-{}-{how}", std::process::id());
        let script = compile::script("squatter.py");
        let mut squatter =
            world.start_on_subject(process::command(&[PYTHON, &script, how, &name]))?;
        wait_until("the name is taken", seconds(20), || {
            squatter.ensure_not_failed()?;
            Ok(squatter.stdout().contains("ready"))
        })?;
        let reason = match how {
            "abstract" => "no engine is named",
            _ => "is not believed",
        };
        for words in [
            &["run", "--engine", &name, "--", "/bin/true"][..],
            &["ss", "--engine", &name],
            &["scale", "--engine", &name],
            &["down", "--name", &name],
        ] {
            let said = refused(world, words)?;
            ensure!(said.contains(reason), "{words:?} says why: {said}");
        }
        // Whose name nobody has to know needs none.
        world
            .subject(&["/bin/true"])?
            .wait(seconds(20))?
            .success()?;
        ensure!(
            !squatter.stdout().contains("believed"),
            "nothing is asked of it"
        );
        squatter.stop(Signal::KILL, seconds(10))?;
        if how == "fallen" {
            std::fs::remove_file(format!("/run/millrace/{name}"))?;
        }
    }
    Ok(())
}

/// A number that no user of the machine has.
const STRANGER: u32 = 3_000_000_017;

fn users_without_a_directory_of_their_own_have_a_safe_one(world: &World) -> Result<()> {
    let squatted = format!("/tmp/millrace-{STRANGER}");
    std::fs::create_dir(&squatted)?;
    let uid = STRANGER.to_string();
    let millrace = world::millrace();
    let run = process::command(&[
        "/usr/bin/env",
        "-u",
        "XDG_RUNTIME_DIR",
        "setpriv",
        "--reuid",
        &uid,
        "--clear-groups",
        &millrace.to_string_lossy(),
        "run",
        "--loopback",
        "--",
        PYTHON,
        "-c",
        "import os, socket; socket.create_server(('127.0.0.1', 8000)); print(os.environ['MILLRACE_ENGINE'])",
    ]);
    let ended = world.start_on_subject(run)?.wait(seconds(20));
    std::fs::remove_dir(&squatted)?;
    let ended = ended?.success()?;
    let (said, why) = (
        String::from_utf8_lossy(&ended.stdout).into_owned(),
        ended.error_text(),
    );
    ensure!(
        said.contains(&format!("{squatted}-")),
        "another directory is made: {said}"
    );
    ensure!(
        why.contains("belongs to user 0; it is not used"),
        "it is said why: {why}"
    );
    let own = said
        .trim()
        .rsplit_once(':')
        .and_then(|(_, path)| path.rsplit_once('/'));
    let (own, _) = own.expect("a path");
    let left: Vec<_> = std::fs::read_dir(own)?.flatten().collect();
    std::fs::remove_dir_all(own)?;
    ensure!(
        left.len() == 1 && left[0].file_name() == "@lock",
        "the engine leaves nothing behind: {left:?}"
    );
    Ok(())
}

fn a_program_in_another_root_directory_finds_its_engine(world: &World) -> Result<()> {
    // Nothing is attached to before the change, and nothing of the engine's is to be seen after it.
    let script = "import os, socket, encodings.idna; os.chroot('/var/empty' if os.path.isdir('/var/empty') else '/proc/self/task'); os.chdir('/'); \
        s = socket.socket(); s.bind(('10.9.0.2', 7601)); s.listen(); print(s.getsockname()); \
        c = socket.socket(); c.connect_ex(('10.9.0.2', 7602)); print('done')";
    let ended = world
        .subject(&[PYTHON, "-c", script])?
        .wait(seconds(20))?
        .success()?;
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    ensure!(
        said.contains("7601") && said.contains("done"),
        "{said}, {}",
        ended.error_text()
    );
    Ok(())
}

/// What each kind of process is answered, on every stack.
const LOW_PORTS: &str = "\
root: stream -1=ok +0=ok +1=ok
root: datagrams -1=ok +0=ok +1=ok
nobody: stream -1=EACCES +0=ok +1=ok
nobody: datagrams -1=EACCES +0=ok +1=ok
nobody with the capability: stream -1=ok +0=ok +1=ok
nobody with the capability: datagrams -1=ok +0=ok +1=ok
root without the capability: stream -1=EACCES +0=ok +1=ok
root without the capability: datagrams -1=EACCES +0=ok +1=ok
root of a user namespace: stream -1=EACCES +0=ok +1=ok
root of a user namespace: datagrams -1=EACCES +0=ok +1=ok
effective nobody: stream -1=EACCES +0=ok +1=ok
effective nobody: datagrams -1=EACCES +0=ok +1=ok
effective nobody in place: stream -1=EACCES +0=ok +1=ok
effective nobody in place: datagrams -1=EACCES +0=ok +1=ok
root again: stream -1=ok +0=ok +1=ok
root again: datagrams -1=ok +0=ok +1=ok
a socket of root's: EACCES
the same in root's hands: ok
nobody for good: stream -1=EACCES +0=ok +1=ok
nobody for good: datagrams -1=EACCES +0=ok +1=ok
";

fn low_ports_take_a_privilege(world: &World) -> Result<()> {
    let script = compile::script("low_ports.py");
    for first in ["1024", "80", "500"] {
        world
            .subject_namespace()
            .set("ipv4.ip_unprivileged_port_start", first)?;
        let words = [PYTHON, &script, &SUBJECT.to_string(), first];
        let ended = world.subject(&words)?.wait(seconds(30))?.success()?;
        ensure!(
            ended.text() == LOW_PORTS,
            "from port {first} on: {}",
            ended.text()
        );
    }
    Ok(())
}

fn what_happens_at_an_engine_is_written(world: &World) -> Result<()> {
    let path = world.directory().join("audit");
    let file = path.to_string_lossy().into_owned();
    let engine = Engine::up_with(world, &["--audit", &file])?;
    let script = compile::script("audited.py");
    let words = [PYTHON, &script, engine.name()];
    let ended = world
        .start_on_subject(engine.run(&words))?
        .wait(seconds(30))?
        .success()?;
    ensure!(
        ended.text() == "no port\nno token 13\nno right 13\nready\n",
        "it is refused: {}",
        ended.text()
    );
    // Of that user so much was written that its end may be suppressed. Of this one it is not.
    let bind = "import socket; socket.socket().bind(('10.9.0.2', 7610))";
    world
        .start_on_subject(engine.run(&[PYTHON, "-c", bind]))?
        .wait(seconds(30))?
        .success()?;
    let read = || std::fs::read_to_string(&path);
    wait_until("an end is written", seconds(20), || {
        Ok(read()?.contains("event=exit"))
    })?;
    engine.down(world)?;
    let said = read()?;
    for (part, more) in [
        ("event=program", "comm=\"millrace\""),
        ("event=attach", "comm=\"a\\x0aevent=b\""),
        ("event=refused what=Permit right=port value=80", "uid=65534"),
        ("event=refused what=version value=0", "uid=65534"),
        ("event=refused what=Attach right=token", "uid=65534"),
        ("event=refused what=Down right=user", "uid=65534"),
        (
            "event=refused what=connection limit=connections value=256",
            "uid=65534",
        ),
        ("event=exit", "program="),
        ("event=suppressed", "uid=65534"),
        ("event=stop", "uid=0"),
        ("event=end", "engine=e2e-"),
    ] {
        ensure!(
            said.lines()
                .any(|line| line.contains(part) && line.contains(more)),
            "there is a line with {part} and {more}: {said}"
        );
    }
    ensure!(
        said.lines()
            .all(|line| line.starts_with("millrace-audit time=")),
        "nobody writes a line of his own: {said}"
    );
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path)?);
    ensure!(mode & 0o777 == 0o600, "only its owner reads it: {mode:o}");
    Ok(())
}
