//! Python's own tests of its socket modules, under `millrace run --loopback`: what passes on the
//! kernel passes on millrace, but for a list of exceptions, each with its reason.

use std::collections::BTreeMap;
use std::fs;

use millrace_e2e::{Context as _, Result, World, command, compile, ensure, on_millrace, seconds};
use serde_json::Value;

on_millrace!(
    test_socket,
    test_socketserver,
    test_httplib,
    test_asyncio_events,
    test_asyncio_streams,
    test_asyncio_tasks,
    test_asyncio_subprocess
);

const PYTHON: &str = "/usr/bin/python3";

/// Tests that fail on millrace, with the reason. One that passes after all must leave the list.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Test classes of `test_socket` that use TCP.
const TCP_CLASSES: &str = "TCP|Connect|FileObject|BufferIO|Sendfile|ContextManagers|CreateServer|GeneralModule|NonBlocking|Inherit|ThreadSafe";

/// Name of a test, and its outcome with what it says.
type Outcomes = BTreeMap<String, (String, String)>;

/// Runs a module of tests, by `launcher` if that is not empty.
fn run(world: &World, launcher: &[&str], module: &str, classes: &str) -> Result<Outcomes> {
    let output = world
        .directory()
        .join("outcomes")
        .to_string_lossy()
        .into_owned();
    let script = compile::script("python_suite.py");
    let words = [launcher, &[PYTHON, &script, &output, module, classes]].concat();
    let mut python = command(&words);
    python.current_dir(world.directory());
    world
        .start_on_subject(python)?
        .wait(seconds(240))?
        .success()?;
    let outcomes: Value = serde_json::from_slice(&fs::read(&output)?)?;
    fs::remove_file(&output)?;
    let of = |value: &Value, index: usize| value[index].as_str().unwrap_or_default().to_string();
    let outcomes = outcomes.as_object().context("outcomes are an object")?;
    Ok(outcomes
        .iter()
        .map(|(name, value)| (name.clone(), (of(value, 0), of(value, 1))))
        .collect())
}

/// Fails if a test that passes on the kernel does not on millrace.
fn compare(world: &World, modules: &[&str], classes: &str, least: usize) -> Result<()> {
    let millrace = millrace_e2e::world::millrace();
    let launcher = [&millrace.to_string_lossy()[..], "run", "--loopback", "--"];
    let (mut count, mut wrong) = (0, Vec::new());
    for module in modules {
        let on_kernel = run(world, &[], module, classes)?;
        let on_millrace = run(world, &launcher, module, classes)
            .with_context(|| format!("{module} on millrace"))?;
        for (name, _) in on_kernel.iter().filter(|(_, (outcome, _))| outcome == "ok") {
            count += 1;
            let (outcome, detail) = on_millrace
                .get(name)
                .cloned()
                .unwrap_or_else(|| ("absent".into(), String::new()));
            let exception = EXCEPTIONS.iter().find(|(exception, _)| exception == name);
            match (outcome == "ok", exception) {
                (true, Some((_, reason))) => wrong.push(format!(
                    "{name} passes; take it from the exceptions ({reason})"
                )),
                (false, None) => wrong.push(format!("{name} {outcome}\n{detail}")),
                _ => {}
            }
        }
    }
    ensure!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    ensure!(count >= least, "only {count} tests ran");
    Ok(())
}

fn test_socket(world: &World) -> Result<()> {
    compare(world, &["test.test_socket"], TCP_CLASSES, 200)
}

fn test_socketserver(world: &World) -> Result<()> {
    compare(world, &["test.test_socketserver"], ".", 20)
}

fn test_httplib(world: &World) -> Result<()> {
    compare(world, &["test.test_httplib"], ".", 100)
}

fn test_asyncio_events(world: &World) -> Result<()> {
    let modules = [
        "base_events",
        "events",
        "selector_events",
        "sock_lowlevel",
        "sendfile",
        "server",
        "unix_events",
        "runners",
        "timeouts",
    ];
    let modules: Vec<String> = modules
        .iter()
        .map(|name| format!("test.test_asyncio.test_{name}"))
        .collect();
    compare(
        world,
        &modules.iter().map(String::as_str).collect::<Vec<_>>(),
        ".",
        500,
    )
}

fn test_asyncio_streams(world: &World) -> Result<()> {
    let modules = [
        "streams",
        "ssl",
        "sslproto",
        "transports",
        "buffered_proto",
        "pep492",
    ];
    let modules: Vec<String> = modules
        .iter()
        .map(|name| format!("test.test_asyncio.test_{name}"))
        .collect();
    compare(
        world,
        &modules.iter().map(String::as_str).collect::<Vec<_>>(),
        ".",
        100,
    )
}

fn test_asyncio_tasks(world: &World) -> Result<()> {
    compare(world, &["test.test_asyncio.test_tasks"], ".", 800)
}

fn test_asyncio_subprocess(world: &World) -> Result<()> {
    compare(world, &["test.test_asyncio.test_subprocess"], ".", 100)
}
