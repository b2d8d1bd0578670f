//! The library as a person would have it: installed, found by pkg-config, used by C and C++ of two
//! compilers, under the address sanitizer and valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Runs a command, which must succeed; what it said.
fn run(command: &mut Command) -> String {
    let run = command.output();
    let output = run.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where the library is installed, once for all tests.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let mut make = Command::new("make");
        make.current_dir(here().join("../.."))
            .args(["-s", "install", "PREFIX=/usr"])
            .arg(format!("DESTDIR={}", root.display()))
            .arg(format!("CARGO={}", env!("CARGO")))
            // What the tests are built with is not what others build with.
            .env_remove("RUSTFLAGS");
        run(&mut make);
        root.join("usr")
    })
}

/// What pkg-config says that a compiler needs.
fn flags(what: &[&str]) -> Vec<String> {
    let root = installed();
    let mut command = Command::new("pkg-config");
    command
        .args(what)
        .arg("millrace")
        .env("PKG_CONFIG_LIBDIR", root.join("lib/pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", root.with_file_name(""));
    let text = run(&mut command);
    text.split_whitespace().map(str::to_owned).collect()
}

fn sources() -> Vec<PathBuf> {
    c_files("tests/c")
}

fn c_files(directory: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(here().join(directory)).expect("programs");
    let mut files: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    files.sort();
    files
}

/// Compiles the programs; warnings are errors.
fn compile(name: &str, compiler: &[&str], files: &[PathBuf], libraries: &[String]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(compiler[0]);
    command
        .args(&compiler[1..])
        .args([
            "-g",
            "-O1",
            "-Wall",
            "-Wextra",
            "-pedantic",
            "-Werror",
            "-pthread",
        ])
        .args(flags(&["--cflags"]))
        .arg("-o")
        .arg(&program)
        .args(files)
        .args(libraries)
        .arg(format!("-Wl,-rpath,{}", installed().join("lib").display()));
    run(&mut command);
    program
}

fn shared() -> Vec<String> {
    flags(&["--libs"])
}

/// The archive by its name, and what it needs.
fn archive() -> Vec<String> {
    let mut libraries = flags(&["--libs", "--static"]);
    for library in &mut libraries {
        if library == "-lmillrace" {
            *library = "-l:libmillrace.a".into();
        }
    }
    libraries
}

#[test]
fn c_with_gcc() {
    let compiler = ["gcc", "-std=gnu11"];
    run(&mut Command::new(compile(
        "gcc",
        &compiler,
        &sources(),
        &shared(),
    )));
}

#[test]
fn c_with_clang() {
    let compiler = ["clang-14", "-std=gnu11"];
    run(&mut Command::new(compile(
        "clang",
        &compiler,
        &sources(),
        &shared(),
    )));
}

#[test]
fn cpp_with_gcc() {
    let compiler = ["g++", "-x", "c++", "-std=gnu++14"];
    run(&mut Command::new(compile(
        "g++",
        &compiler,
        &sources(),
        &shared(),
    )));
}

#[test]
fn cpp_with_clang() {
    let compiler = ["clang++-14", "-x", "c++", "-std=gnu++14"];
    run(&mut Command::new(compile(
        "clang++",
        &compiler,
        &sources(),
        &shared(),
    )));
}

#[test]
fn the_archive_under_the_address_sanitizer() {
    let compiler = [
        "gcc",
        "-std=gnu11",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let program = compile("sanitized", &compiler, &sources(), &archive());
    run(Command::new(program).env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0"));
}

#[test]
fn under_valgrind() {
    let program = compile("valgrind", &["gcc", "-std=gnu11"], &sources(), &shared());
    run(&mut valgrind(&program));
}

/// A program written for mTCP, by every compiler and under every check.
#[test]
fn for_mtcp() {
    let files = c_files("tests/mtcp");
    let compilers: [&[&str]; 4] = [
        &["gcc", "-std=gnu11"],
        &["clang-14", "-std=gnu11"],
        &["g++", "-x", "c++", "-std=gnu++14"],
        &["clang++-14", "-x", "c++", "-std=gnu++14"],
    ];
    for compiler in compilers {
        let name = format!("mtcp-{}", compiler[0]);
        run(&mut Command::new(compile(
            &name,
            compiler,
            &files,
            &shared(),
        )));
    }
    let sanitized = [
        "gcc",
        "-std=gnu11",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ];
    let program = compile("mtcp-sanitized", &sanitized, &files, &archive());
    run(&mut Command::new(program));
    let program = compile("mtcp-valgrind", &["gcc", "-std=gnu11"], &files, &shared());
    run(&mut valgrind(&program));
}

fn valgrind(program: &Path) -> Command {
    let mut command = Command::new("valgrind");
    command
        .args([
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--quiet",
        ])
        .arg(format!(
            "--suppressions={}",
            here().join("tests/valgrind.supp").display()
        ))
        .arg(program);
    command
}

/// The shared object shows the functions of the header with their version, and nothing else.
#[test]
fn what_the_shared_object_shows() {
    let object = installed().join("lib/libmillrace.so");
    let text = run(Command::new("objdump").arg("-T").arg(&object));
    let shown: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(" .text\t"))
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    let versions = std::fs::read_to_string(here().join("millrace.map")).expect("versions");
    let listed = versions
        .lines()
        .filter(|line| line.starts_with("    ") && *line != "    *;");
    let mut listed: Vec<&str> = listed
        .map(|line| line.trim().trim_end_matches(';'))
        .collect();
    let mut shown_sorted = shown.clone();
    shown_sorted.sort_unstable();
    listed.sort_unstable();
    assert_eq!(shown_sorted, listed);
    assert!(
        text.lines()
            .filter(|line| line.contains(" .text\t"))
            .all(|line| line.contains("MILLRACE_0.1"))
    );
    let dynamic = run(Command::new("objdump").arg("-p").arg(&object));
    assert!(dynamic.contains("libmillrace.so.0\n"), "{dynamic}");
}

/// Every function that the shared object shows has a row in a table of misuse.
#[test]
fn every_function_is_misused() {
    let read = |name: &str| std::fs::read_to_string(here().join(name)).expect("a file");
    let tables = read("tests/c/misuse.c") + &read("tests/mtcp/misuse.c");
    let versions = read("millrace.map");
    let listed = versions.lines().filter(|line| line.starts_with("    "));
    let names = listed.filter_map(|line| line.trim().strip_suffix(';'));
    let missing: Vec<&str> = names
        .filter(|name| *name != "*" && !tables.contains(&format!("    ROW({name}, ")))
        .collect();
    assert!(missing.is_empty(), "no row for {missing:?}");
}
