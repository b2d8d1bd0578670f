//! What bad input gets: an error that names the value and the next step, a status other than 0, and
//! nothing left behind.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use millrace_e2e::engine::Engine;
use millrace_e2e::world::{DEVICE, checkout, millrace};
use millrace_e2e::{
    Context as _, Result, World, compile, ensure, on_millrace, process, seconds, wait_until,
};
use rustix::process::Signal;

on_millrace!(
    malformed_flags,
    unknown_link_kind,
    malformed_addresses,
    missing_tun_device,
    unreadable_tun_device,
    no_privilege_to_create_a_device,
    routes_without_a_gateway,
    missing_dashes,
    schedule_without_queues,
    more_shards_than_cores,
    default_address_of_another_engine,
    engine_in_another_namespace,
    no_privilege,
    device_taken,
    address_taken,
    prefix_taken_by_default,
    unknown_engine,
    engine_name_taken,
    program_not_found,
    program_not_executable,
    statically_linked_program,
    go_program,
    set_user_id_program,
    engine_of_another_version,
    missing_shim,
    help_says_all,
);

/// Runs `command`, which must fail with `status` and name each of `parts` on standard error;
/// nothing may be left.
fn fails(world: &World, command: Command, status: i32, parts: &[&str]) -> Result<()> {
    let devices = world.subject_namespace().devices()?;
    let ended = world.start_on_subject(command)?.wait(seconds(20))?;
    let said = ended.error_text();
    ensure!(
        ended.status.code() == Some(status),
        "{}: {}, not {status}; it says:\n{said}",
        ended.name,
        ended.status
    );
    for part in parts {
        ensure!(
            said.contains(part),
            "{} does not name {part:?}; it says:\n{said}",
            ended.name
        );
    }
    ensure!(!said.contains("panicked"), "{said}");
    wait_until("devices are as before", seconds(5), || {
        Ok(world.subject_namespace().devices()? == devices)
    })
}

/// `millrace` with the words of a line.
fn millrace_line(world: &World, line: &str) -> Command {
    let words: Vec<&str> = line.split_whitespace().collect();
    world.millrace(&words)
}

fn malformed_flags(world: &World) -> Result<()> {
    for (line, part) in [
        ("", "Usage"),
        ("fly", "fly"),
        ("run", "PROGRAM"),
        ("run true", "true"),
        ("run --", "PROGRAM"),
        ("run --color -- true", "--color"),
        ("run --shards 0 -- true", "0"),
        ("run --shards many -- true", "many"),
        ("run --mtu 10 -- true", "10"),
        ("run --gateway here -- true", "here"),
        ("run --engine x --link tap -- true", "--link"),
        ("up --link tap:mr0", "--name"),
        ("up --name a/b --link tap:mr0", "a/b"),
        ("down", "--name"),
        ("ss --jason", "--jason"),
    ] {
        fails(world, millrace_line(world, line), 2, &[part])
            .with_context(|| format!("millrace {line}"))?;
    }
    Ok(())
}

fn unknown_link_kind(world: &World) -> Result<()> {
    fails(
        world,
        millrace_line(world, "run --link wire:mr0 -- true"),
        2,
        &["wire", "tap"],
    )?;
    fails(
        world,
        millrace_line(world, "run --link tap:a/b -- true"),
        2,
        &["a/b"],
    )?;
    fails(
        world,
        millrace_line(world, "run --link tap:a-name-that-is-too-long -- true"),
        2,
        &["a-name-that-is-too-long", "15"],
    )
}

fn malformed_addresses(world: &World) -> Result<()> {
    for address in [
        "10.9.0.2",
        "10.9.0.2/33",
        "10.9.0.300/24",
        "10.9.0.0/24",
        "10.9.0.255/24",
        "224.0.0.1/24",
        "nonsense",
        "fe80::1/64",
    ] {
        fails(
            world,
            millrace_line(world, &format!("run --addr {address} -- true")),
            2,
            &[address.split('/').next().unwrap_or(address)],
        )?;
    }
    // Each is an address, but they do not belong together.
    fails(
        world,
        millrace_line(
            world,
            "run --addr 10.9.0.2/24 --host-addr 10.8.0.1/24 -- true",
        ),
        125,
        &["10.8.0.1", "10.9.0.2"],
    )?;
    fails(
        world,
        millrace_line(
            world,
            "run --addr 10.9.0.2/24 --host-addr 10.9.0.2/24 -- true",
        ),
        125,
        &["10.9.0.2"],
    )?;
    fails(
        world,
        millrace_line(world, "run --addr 10.9.0.2/24 --gateway 10.7.0.1 -- true"),
        125,
        &["10.7.0.1"],
    )
}

fn missing_tun_device(world: &World) -> Result<()> {
    let line = format!(
        "mount -t tmpfs none /dev/net && exec {} run -- true",
        millrace().display()
    );
    fails(
        world,
        process::command(&["unshare", "--mount", "sh", "-c", &line]),
        125,
        &["/dev/net/tun"],
    )
}

/// The words that run the command as a user without any right, from a copy that everybody may read:
/// the checkout may lie where only its owner looks.
fn as_nobody(world: &World) -> Result<String> {
    for name in ["millrace", "libmillrace_preload.so"] {
        compile::copy(
            millrace().with_file_name(name),
            world.directory().join(name),
        )?;
    }
    let copy = world.directory().join("millrace");
    Ok(format!(
        "setpriv --reuid=65534 --regid=65534 --clear-groups {}",
        copy.display()
    ))
}

fn unreadable_tun_device(world: &World) -> Result<()> {
    let line = format!(
        "mount -t tmpfs none /dev/net && mknod -m 0600 /dev/net/tun c 10 200 && exec {} run -- true",
        as_nobody(world)?
    );
    fails(
        world,
        process::command(&["unshare", "--mount", "sh", "-c", &line]),
        125,
        &["/dev/net/tun cannot be opened", "chmod 666 /dev/net/tun"],
    )
}

fn no_privilege_to_create_a_device(world: &World) -> Result<()> {
    let line = format!(
        "mount -t tmpfs none /dev/net && mknod -m 0666 /dev/net/tun c 10 200 && exec {} run -- true",
        as_nobody(world)?
    );
    fails(
        world,
        process::command(&["unshare", "--mount", "sh", "-c", &line]),
        125,
        &["no privilege to create a TAP device; run as root"],
    )
}

fn routes_without_a_gateway(world: &World) -> Result<()> {
    for (line, said) in [
        (
            "--route 10.0.0.0/8",
            "--route 10.0.0.0/8 is not of the form",
        ),
        (
            "--route 10.0.0.0/8 via",
            "--route 10.0.0.0/8 via is not of the form",
        ),
        (
            "--route 10.0.0.0/8 --route 10.1.0.0/16 via 10.9.0.1",
            "--route 10.0.0.0/8 is not of the form",
        ),
    ] {
        fails(
            world,
            millrace_line(world, &format!("run {line} -- true")),
            125,
            &[said, "via 10.9.0.1"],
        )?;
    }
    Ok(())
}

fn missing_dashes(world: &World) -> Result<()> {
    fails(
        world,
        millrace_line(world, "run --loopback nginx"),
        2,
        &["If nginx is the program, write `--` before it"],
    )
}

fn schedule_without_queues(world: &World) -> Result<()> {
    for flag in ["--schedule", "--io-schedule"] {
        fails(
            world,
            millrace_line(world, &format!("run --topology rtc {flag} strict -- true")),
            125,
            &[&format!("{flag} strict is for a pipeline")],
        )?;
    }
    Ok(())
}

fn more_shards_than_cores(world: &World) -> Result<()> {
    let name = format!("e2e-crowd-{}", std::process::id());
    let line = format!("up --name {name} --loopback --shards 64");
    let up = world
        .start_on_subject(millrace_line(world, &line))?
        .wait(seconds(20))?;
    let down = millrace_line(world, &format!("down --name {name}"));
    world.start_on_subject(down)?.wait(seconds(15))?.success()?;
    let cores = std::thread::available_parallelism()?.get();
    let said = up.success()?.error_text();
    ensure!(cores >= 64 || said.contains("64 shards on"), "{said}");
    // The log stays.
    let logs = millrace_line(world, &format!("logs --engine {name}"));
    let shown = world.start_on_subject(logs)?.wait(seconds(10))?;
    ensure!(shown.success()?.text() == said, "{said}");
    Ok(())
}

fn default_address_of_another_engine(world: &World) -> Result<()> {
    let name = format!("e2e-first-{}", std::process::id());
    let up = millrace_line(world, &format!("up --name {name}"));
    world.start_on_subject(up)?.wait(seconds(20))?.success()?;
    let second = fails(
        world,
        millrace_line(world, "run -- true"),
        125,
        &[&name, "--engine NAME", "--addr"],
    );
    let down = millrace_line(world, &format!("down --name {name}"));
    world.start_on_subject(down)?.wait(seconds(15))?.success()?;
    second
}

fn engine_in_another_namespace(world: &World) -> Result<()> {
    let engine = Engine::up(world)?;
    let shown = format!(
        "unshare --net {} ss 2>&1; unshare --net {} ss --engine {}",
        millrace().display(),
        millrace().display(),
        engine.name()
    );
    let ended = world
        .start_on_subject(process::command(&["sh", "-c", &shown]))?
        .wait(seconds(20))?
        .success()?;
    let said = ended.text();
    ensure!(
        said.contains("no engine runs in this network namespace") && said.contains(engine.name()),
        "{said}"
    );
    engine.down(world)
}

fn no_privilege(world: &World) -> Result<()> {
    let line = format!("{} run -- true", as_nobody(world)?);
    let words: Vec<&str> = line.split_whitespace().collect();
    fails(world, process::command(&words), 125, &["root"])
}

fn device_taken(world: &World) -> Result<()> {
    let namespace = world.subject_namespace();
    namespace.ip(&format!("link add {DEVICE} type veth peer name d1"))?;
    fails(world, world.on_subject(&["true"]), 125, &[DEVICE])?;
    namespace.ip(&format!("link del {DEVICE}"))?;
    // A TAP device that another engine holds.
    let engine = Engine::up(world)?;
    fails(world, world.on_subject(&["true"]), 125, &[DEVICE])?;
    engine.down(world)
}

fn address_taken(world: &World) -> Result<()> {
    let namespace = world.subject_namespace();
    for address in ["10.9.0.2/24", "10.9.0.1/24", "10.9.0.9/16"] {
        namespace.ip("link add d0 type veth peer name d1")?;
        namespace.ip("link set d0 up")?;
        namespace.ip(&format!("addr add {address} dev d0"))?;
        fails(world, world.on_subject(&["true"]), 125, &["10.9.0.", "d0"])
            .with_context(|| format!("{address} is on d0"))?;
        namespace.ip("link del d0")?;
    }
    Ok(())
}

fn prefix_taken_by_default(world: &World) -> Result<()> {
    let namespace = world.subject_namespace();
    namespace.ip("link add d0 type veth peer name d1")?;
    namespace.ip("link set d0 up")?;
    namespace.ip("addr add 10.9.0.77/24 dev d0")?;
    fails(
        world,
        millrace_line(world, "run -- true"),
        125,
        &["10.9.0.", "d0", "prefix"],
    )?;
    namespace.ip("link del d0").map(|_| ())
}

fn unknown_engine(world: &World) -> Result<()> {
    for line in [
        "run --engine nobody -- true",
        "ss --engine nobody",
        "down --name nobody",
    ] {
        fails(
            world,
            millrace_line(world, line),
            125,
            &["nobody", "millrace up"],
        )?;
    }
    fails(world, millrace_line(world, "ss"), 125, &["millrace up"])
}

fn engine_name_taken(world: &World) -> Result<()> {
    let engine = Engine::up(world)?;
    let again = format!(
        "up --name {} --link tap:mr7 --addr 10.7.0.2/24 --host-addr 10.7.0.1/24",
        engine.name()
    );
    fails(world, millrace_line(world, &again), 125, &[engine.name()])?;
    engine.down(world)
}

fn program_not_found(world: &World) -> Result<()> {
    fails(
        world,
        world.on_subject(&["no-such-program"]),
        127,
        &["no-such-program", "PATH"],
    )?;
    fails(
        world,
        world.on_subject(&["/no/such/program"]),
        127,
        &["/no/such/program"],
    )
}

fn program_not_executable(world: &World) -> Result<()> {
    let file = world.directory().join("data");
    fs::write(&file, "no program")?;
    let name = file.to_string_lossy();
    fails(
        world,
        world.on_subject(&[&name[..]]),
        126,
        &[&name, "chmod"],
    )?;
    fails(
        world,
        world.on_subject(&["/usr"]),
        126,
        &["/usr", "directory"],
    )
}

fn statically_linked_program(world: &World) -> Result<()> {
    let program = compile::static_program("true")?;
    fails(
        world,
        world.on_subject(&[&program]),
        126,
        &[&program, "static"],
    )
}

fn go_program(world: &World) -> Result<()> {
    let program = compile::program("marked_go")?;
    fails(world, world.on_subject(&[&program]), 126, &[&program, "Go"])
}

fn set_user_id_program(world: &World) -> Result<()> {
    let program = world.directory().join("privileged");
    compile::copy(compile::program("true")?, &program)?;
    chown(&program, Some(65534), Some(65534))?;
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755))?;
    let name = program.to_string_lossy();
    fails(
        world,
        world.on_subject(&[&name[..]]),
        126,
        &[&name, "set-user-id"],
    )
}

fn engine_of_another_version(world: &World) -> Result<()> {
    let other = world.peer(&[
        "/usr/bin/python3",
        &compile::script("other_version.py"),
        "other",
    ])?;
    wait_until("it listens", seconds(10), || {
        Ok(other.stdout().contains("ready"))
    })?;
    for line in [
        "run --engine other -- true",
        "ss --engine other",
        "down --name other",
    ] {
        fails(world, millrace_line(world, line), 125, &["version"])?;
    }
    other.stop(Signal::TERM, seconds(10)).map(|_| ())
}

fn missing_shim(world: &World) -> Result<()> {
    let copy = world.directory().join("millrace");
    compile::copy(millrace(), &copy)?;
    fails(
        world,
        process::command(&[&copy.to_string_lossy()[..], "run", "--", "true"]),
        125,
        &["libmillrace_preload.so", "MILLRACE_PRELOAD"],
    )?;
    let mut command = millrace_line(world, "run -- true");
    command.env("MILLRACE_PRELOAD", "/no/such/shim.so");
    fails(world, command, 125, &["/no/such/shim.so"])
}

fn help_says_all(world: &World) -> Result<()> {
    let top = world
        .start_on_subject(millrace_line(world, "--help"))?
        .wait(seconds(10))?
        .success()?
        .text();
    for command in ["run", "up", "down", "ss"] {
        ensure!(
            top.contains(&format!("  {command} ")),
            "`millrace --help` does not show {command}"
        );
        let text = world
            .start_on_subject(world.millrace(&[command, "--help"]))?
            .wait(seconds(10))?
            .success()?
            .text();
        ensure!(
            text.contains("Usage: millrace"),
            "`millrace {command} --help`:\n{text}"
        );
    }
    let version = world
        .start_on_subject(millrace_line(world, "--version"))?
        .wait(seconds(10))?
        .success()?
        .text();
    let manifest = fs::read_to_string(checkout().join("Cargo.toml"))?;
    let number = version
        .trim()
        .strip_prefix("millrace ")
        .context("`millrace --version` names itself")?;
    ensure!(
        manifest.contains(&format!("version = \"{number}\"")),
        "{version}"
    );
    Ok(())
}
