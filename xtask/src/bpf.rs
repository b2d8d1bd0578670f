//! The XDP program, from C to the object that is committed: whoever builds millrace needs no
//! compiler for it.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, ensure};

/// Where it lies.
const DIRECTORY: &str = "crates/port/src/xdp";
/// Debian 12's; another one makes another object of the same source.
const COMPILER: &str = "clang-14";
const STRIP: &str = "llvm-strip-14";

/// Compiles the program and writes the object.
pub fn run(root: &Path) -> ExitCode {
    let made = compile(root).and_then(|object| {
        fs::write(root.join(DIRECTORY).join("program.o"), object).context("writing program.o")
    });
    match made {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bpf: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The object that the source makes.
fn compile(root: &Path) -> anyhow::Result<Vec<u8>> {
    let made = std::env::temp_dir().join(format!("millrace-bpf-{}.o", std::process::id()));
    // Without the headers of the kernel for this machine's kind there is no asm/types.h.
    let headers = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new(COMPILER);
    clang
        .current_dir(root.join(DIRECTORY))
        .args([
            "-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror",
        ])
        .args(["-idirafter", &headers, "-fdebug-compilation-dir=."])
        .args(["-c", "program.c", "-o"])
        .arg(&made);
    execute(&mut clang)?;
    execute(Command::new(STRIP).arg("-g").arg(&made))?;
    let object = fs::read(&made).context("reading the object")?;
    fs::remove_file(&made)?;
    Ok(object)
}

fn execute(command: &mut Command) -> anyhow::Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("running {name}: `make deps` installs it"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_is_what_the_source_makes() {
        if Command::new(COMPILER).arg("--version").output().is_err() {
            return;
        }
        let committed = fs::read(crate::root().join(DIRECTORY).join("program.o")).unwrap();
        let made = compile(crate::root()).unwrap();
        assert!(
            made == committed,
            "run `cargo xtask bpf` and commit program.o"
        );
    }
}
