//! Rules for source text: size, unfinished work, `unsafe`, and what sans-IO code may name.

use crate::checkout::{File, Problem, contains_word};

/// A file has one subject and is read top to bottom; beyond this it has more than one.
const LINES_MAX: usize = 800;
/// What `make bench` publishes.
const REPORT: &str = "docs/results.md";

/// Crates that take frames, requests and the time, and return frames, events and the next deadline.
const SANS_IO: [&str; 7] = ["sockopt", "wire", "tcp", "offload", "steer", "shard", "sim"];
/// The one of them with a ring for two threads, which denies `unsafe` everywhere else.
const WITH_RING: &str = "steer";

/// Where `unsafe` may stand: what C calls, shared memory and rings, drivers, mappings, hooks, and
/// the harness that makes namespaces.
const UNSAFE_ALLOWED: [&str; 13] = [
    "crates/capi/src/boundary/",
    "crates/capi/src/mtcp/",
    "crates/capi/src/outcome.rs",
    "crates/context/",
    "crates/fabric/src/shm/memory.rs",
    "crates/steer/src/ring.rs",
    "crates/port/",
    "crates/engine/",
    "crates/preload/",
    "crates/sandbox/",
    "tests/",
    "bench/",
    "fuzz/",
];

/// What code without clock, system call, thread or global does not name.
const NOT_SANS_IO: [&str; 13] = [
    "std::time::Instant",
    "Instant::now",
    "SystemTime",
    "std::thread",
    "std::fs",
    "std::process",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "thread_local!",
    "static mut",
    "OnceLock",
    "LazyLock",
];

/// Extensions (and names without one) of what people write here.
fn is_source(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match name.rsplit_once('.') {
        Some((_, extension)) => matches!(
            extension,
            "rs" | "c" | "h" | "py" | "sh" | "md" | "toml" | "yml" | "conf"
        ),
        None => name == "Makefile" || path.starts_with("scripts/") || path.starts_with(".ci/"),
    }
}

/// Applies this module's rules to one file.
pub fn check(file: &File, problems: &mut Vec<Problem>) {
    if !is_source(&file.path) {
        return;
    }
    check_length(file, problems);
    check_finished(file, problems);
    if file.path.ends_with(".rs") {
        check_unsafe(file, problems);
        check_sans_io(file, problems);
    }
}

/// At most [`LINES_MAX`] lines; but a list of requirements is as long as what it lists, and a
/// report as what it reports.
fn check_length(file: &File, problems: &mut Vec<Problem>) {
    let lines = file.text.lines().count();
    let listing = file.path.starts_with(crate::compliance::LISTS) || file.path == REPORT;
    if lines > LINES_MAX && !listing {
        problems.push(Problem::whole(
            &file.path,
            format!("{lines} lines; split it by subject, {LINES_MAX} is the most"),
        ));
    }
}

/// Nothing unfinished, no debugging aid, no test that does not run.
fn check_finished(file: &File, problems: &mut Vec<Problem>) {
    // In two halves, so that this file does not speak of itself.
    let marks = [
        concat!("FIX", "ME"),
        concat!("XX", "X"),
        concat!("TO", "DO"),
        concat!("HA", "CK"),
    ];
    let macros = [
        concat!("to", "do!"),
        concat!("unimplement", "ed!"),
        concat!("db", "g!"),
    ];
    let tests = [
        concat!("#[ign", "ore"),
        concat!("```ign", "ore"),
        concat!("#[cfg_attr(miri, ign", "ore"),
    ];
    for (number, line) in numbered(&file.text) {
        for mark in marks.iter().chain(&macros) {
            if has_word(line, mark) {
                problems.push(Problem::at(
                    &file.path,
                    number,
                    format!("`{mark}`: finish it or take it out"),
                ));
            }
        }
        for test in tests {
            if line.contains(test) {
                problems.push(Problem::at(
                    &file.path,
                    number,
                    "a test that does not run is no test: fix it or remove it",
                ));
            }
        }
    }
}

/// `unsafe` only where it is argued; the sans-IO crates forbid it in so many words.
fn check_unsafe(file: &File, problems: &mut Vec<Problem>) {
    for name in SANS_IO {
        let root = format!("crates/{name}/src/lib.rs");
        let level = if name == WITH_RING { "deny" } else { "forbid" };
        let said = format!("#![{level}(unsafe_code)]");
        if file.path == root && !file.text.contains(&said) {
            problems.push(Problem::whole(&root, format!("add `{said}`")));
        }
    }
    if UNSAFE_ALLOWED
        .iter()
        .any(|directory| file.path.starts_with(directory))
    {
        return;
    }
    for (number, line) in numbered(&file.text) {
        if has_word(&code_of(line), "unsafe") {
            problems.push(Problem::at(
                &file.path,
                number,
                "`unsafe` belongs in context, port, engine, preload or what C calls",
            ));
        }
    }
}

/// No clock, system call, thread or global in sans-IO crates.
fn check_sans_io(file: &File, problems: &mut Vec<Problem>) {
    if !SANS_IO
        .iter()
        .any(|name| file.path.starts_with(&format!("crates/{name}/src/")))
    {
        return;
    }
    for (number, line) in numbered(&file.text) {
        for name in NOT_SANS_IO {
            if has_word(&code_of(line), name) {
                problems.push(Problem::at(
                    &file.path,
                    number,
                    format!(
                        "`{name}` in a sans-IO crate: take the time and the bytes as arguments"
                    ),
                ));
            }
        }
    }
}

/// Lines with their numbers from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line))
}

/// A Rust line without its `//` comment and without what its string literals hold. Literals over
/// several lines are not followed, so there a rule may see a word that is none of code.
fn code_of(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let mut rest = line;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let step = match c {
            '\\' if in_string => rest.chars().take(2).map(char::len_utf8).sum(),
            '\'' if !in_string && rest.starts_with("'\"'") => 3,
            '/' if !in_string && rest.starts_with("//") => break,
            '"' => {
                in_string = !in_string;
                1
            }
            c => {
                if !in_string {
                    code.push(c);
                }
                c.len_utf8()
            }
        };
        rest = &rest[step..];
    }
    code
}

/// Whether an identifier or a path of them stands in a line.
fn has_word(line: &str, word: &str) -> bool {
    contains_word(line, word, |c| c.is_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests;
