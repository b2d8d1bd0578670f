//! Configuration files: what they start, what their errors say, and what a service manager is told.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;

use millrace_e2e::world::checkout;
use millrace_e2e::{Context as _, Result, World, ensure, on_millrace, process, seconds};
use rustix::process::Signal;

on_millrace!(
    a_service_is_ready_when_its_addresses_are_up,
    errors_leave_a_running_engine_alone,
    units_are_sound,
);

/// A file of this engine, with these keys.
fn write(world: &World, name: &str, keys: &str) -> Result<PathBuf> {
    let file = world.directory().join(format!("{name}.toml"));
    fs::write(&file, keys)?;
    Ok(file)
}

fn a_service_is_ready_when_its_addresses_are_up(world: &World) -> Result<()> {
    let name = format!("e2e-service-{}", std::process::id());
    let keys = "addr = [\"10.9.0.2/24\"]\nmtu = 1400\n";
    let file = write(world, &name, keys)?;
    let path = world.directory().join("manager");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(seconds(20)))?;
    let words = ["up", "--foreground", "--config", &file.to_string_lossy()];
    let mut up = world.millrace(&words);
    up.env("NOTIFY_SOCKET", &path);
    let engine = world.start_on_subject(up)?;
    let mut state = [0; 256];
    let len = manager.recv(&mut state).context("no word of the engine")?;
    let state = String::from_utf8_lossy(&state[..len]).into_owned();
    ensure!(
        state.starts_with("READY=1\nSTATUS=10.9.0.2/24 on "),
        "{state}"
    );
    // The file's name is the engine's.
    let shown = world
        .start_on_subject(world.millrace(&["ss", "--engine", &name]))?
        .wait(seconds(10))?;
    shown.success()?;
    engine.stop(Signal::TERM, seconds(15)).map(|_| ())
}

fn errors_leave_a_running_engine_alone(world: &World) -> Result<()> {
    let name = format!("e2e-sound-{}", std::process::id());
    let file = write(world, &name, "loopback = true\nshards = 1\n")?;
    let file_text = file.to_string_lossy().into_owned();
    let run = |words: &[&str]| {
        world
            .start_on_subject(world.millrace(words))?
            .wait(seconds(20))
    };
    run(&["config", "check", &file_text])?.success()?;
    run(&["up", "--config", &file_text])?.success()?;
    write(world, &name, "loopback = true\nshard = 1\n")?;
    for words in [
        &["config", "check", &file_text][..],
        &["config", "show", &file_text],
        &["up", "--config", &file_text],
    ] {
        let said = run(words)?;
        let error = said.error_text();
        ensure!(
            said.status.code() == Some(125)
                && error.contains(".toml:2: there is no key `shard`; the nearest is `shards`"),
            "{words:?}: {error}"
        );
        run(&["ss", "--engine", &name])?.success()?;
    }
    run(&["down", "--name", &name])?.success().map(|_| ())
}

fn units_are_sound(world: &World) -> Result<()> {
    if !PathBuf::from("/usr/bin/systemd-analyze").exists() {
        return Ok(());
    }
    // The unit names the installed command; here its own takes that place.
    let unit = fs::read_to_string(checkout().join("packaging/systemd/millrace@.service"))?;
    let command = millrace_e2e::world::millrace();
    let unit = unit.replace("/usr/bin/millrace", &command.to_string_lossy());
    let file = world.directory().join("millrace@lab.service");
    fs::write(&file, unit)?;
    let words = [
        "systemd-analyze",
        "verify",
        "--man=no",
        &file.to_string_lossy(),
    ];
    let ended = world
        .start_on_subject(process::command(&words))?
        .wait(seconds(20))?;
    let said = ended.error_text();
    ensure!(!said.contains("millrace@lab"), "{said}");
    Ok(())
}
