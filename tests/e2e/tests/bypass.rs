//! What goes past millrace: io_uring is refused; sockets and programs that are the kernel's are
//! said once and counted.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

use millrace_e2e::{
    Result, Stack, World, compile, engine, ensure, on_both_stacks, on_millrace, seconds, wait_until,
};

on_both_stacks!(io_uring_is_refused_and_said_once);

on_millrace!(
    traffic_of_the_kernels_is_said_once_and_counted,
    nothing_is_said_when_quiet,
);

/// A user without rights.
const NOBODY: u32 = 65534;
const PYTHON: &str = "/usr/bin/python3";

/// What is said of each way, and how often it is counted.
const WAYS: [(&str, &str, u64); 7] = [
    ("to 127.0.0.1", "address_not_served", 4),
    ("SOCK_RAW", "protocol_not_served", 2),
    ("bound to a device", "device_not_served", 2),
    ("linked statically", "static_program", 4),
    ("a Go program", "go_program", 1),
    ("gains privileges", "privileged_program", 1),
    ("without libmillrace_preload.so", "no_shim", 3),
];

fn io_uring_is_refused_and_said_once(world: &World) -> Result<()> {
    let program = compile::program("uring")?;
    let ended = world.run_on_subject(&[&program], seconds(15))?;
    let expected = match world.stack {
        Stack::Kernel => "a ring",
        Stack::Millrace => "ENOSYS",
    };
    let said = ended.text();
    for way in ["library", "instruction", "child"] {
        ensure!(said.contains(&format!("{way}: {expected}\n")), "{said}");
    }
    let lines = ended.error_text().matches("io_uring is refused").count();
    let expected = usize::from(world.stack == Stack::Millrace);
    ensure!(lines == expected, "{}", ended.error_text());
    Ok(())
}

/// A directory with a program and its libraries, and nothing else.
fn root(world: &World) -> Result<String> {
    let root = world.directory().join("root");
    let copy = |from: &str, to: &str| -> Result<()> {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap_or(Path::new("/")))?;
        compile::copy(from, &to)
    };
    copy("/bin/true", "true")?;
    let libraries = Command::new("ldd").arg("/bin/true").output()?;
    for word in String::from_utf8_lossy(&libraries.stdout).split_whitespace() {
        if word.starts_with('/') {
            copy(word, word)?;
        }
    }
    Ok(root.to_string_lossy().into_owned())
}

/// A program that runs as another user.
fn privileged(world: &World) -> Result<String> {
    let path = world.directory().join("privileged");
    compile::copy("/bin/true", &path)?;
    chown(&path, Some(NOBODY), Some(NOBODY))?;
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4755))?;
    Ok(path.to_string_lossy().into_owned())
}

/// The program's command line, by `run` with these flags more.
fn words(world: &World, flags: &[&str]) -> Result<Command> {
    let mut run = world.millrace(&["run"]);
    run.args(world.link_arguments()).args(flags).args([
        "--",
        PYTHON,
        &compile::script("to_the_kernel.py"),
        &root(world)?,
        &compile::static_program("true")?,
        &compile::program("marked_go")?,
        &privileged(world)?,
    ]);
    run.stdin(Stdio::piped());
    Ok(run)
}

fn traffic_of_the_kernels_is_said_once_and_counted(world: &World) -> Result<()> {
    let mut program = world.start_on_subject(words(world, &[])?)?;
    wait_until("the program has done all", seconds(20), || {
        program.ensure_not_failed()?;
        Ok(program.stdout().contains("done"))
    })?;
    let counters = engine::counters(world)?;
    drop(program.stdin());
    let said = program.wait(seconds(15))?.success()?.error_text();
    for (text, counter, count) in WAYS {
        let lines = said.lines().filter(|line| line.contains(text)).count();
        ensure!(lines == 1, "{lines} lines with {text:?}:\n{said}");
        let counted = &counters["bypasses"][counter];
        ensure!(counted == count, "{counter} is {counted}, not {count}");
    }
    Ok(())
}

fn nothing_is_said_when_quiet(world: &World) -> Result<()> {
    let mut program = world.start_on_subject(words(world, &["--quiet"])?)?;
    drop(program.stdin());
    let said = program.wait(seconds(20))?.success()?.error_text();
    // The dynamic linker says something of its own in the chroot.
    ensure!(!said.contains("millrace:"), "{said}");
    Ok(())
}
