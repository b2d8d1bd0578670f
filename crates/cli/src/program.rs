//! The program to be run: where it is, and whether the shim can work in it.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf;
use object::read::elf::{FileHeader, ProgramHeader};

/// Why a program cannot be run on millrace.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// There is no such file.
    #[error("{0}: not found (looked in PATH); give the path to the program")]
    NotFound(String),
    /// It is there, but may not be executed.
    #[error("{0}: cannot be executed: {1}")]
    NotExecutable(String, String),
    /// The dynamic linker does not load the shim for it.
    #[error(
        "{0} is statically linked: millrace works through the dynamic linker (LD_PRELOAD), which it does not use; use a dynamically linked build"
    )]
    Static(String),
    /// Go calls the kernel itself.
    #[error(
        "{0} is a Go program: Go calls the kernel without the C library, so millrace would see none of its sockets; it is not supported"
    )]
    Go(String),
    /// The dynamic linker ignores LD_PRELOAD for it.
    #[error(
        "{0} is {1}: the dynamic linker ignores LD_PRELOAD for such programs; run a copy without that (cp {0} /tmp && millrace run -- /tmp/...)"
    )]
    Privileged(String, &'static str),
    /// Of another machine.
    #[error("{0} is no 64-bit program of this machine's kind: the shim is")]
    Foreign(String),
}

impl Refused {
    /// As shells have it: 127 not found, 126 cannot be run.
    pub fn exit_status(&self) -> u8 {
        if matches!(self, Refused::NotFound(_)) {
            127
        } else {
            126
        }
    }
}

/// Interpreters of interpreters, at most (Linux's own limit is 5).
const SCRIPTS_MAX: u32 = 5;

/// Finds a program as the shell would, and checks that the shim can work in it.
pub fn check(name: &OsStr) -> Result<PathBuf, Refused> {
    let path = find(name).ok_or_else(|| Refused::NotFound(name.to_string_lossy().into_owned()))?;
    check_file(&path, 0)?;
    Ok(path)
}

fn find(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return path.exists().then_some(path);
    }
    let path = std::env::var_os("PATH")
        .unwrap_or_else(|| "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| {
            candidate.metadata().is_ok_and(|metadata| {
                metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
            })
        })
}

fn check_file(path: &Path, depth: u32) -> Result<(), Refused> {
    let shown = path.display().to_string();
    let unusable = |reason: String| Refused::NotExecutable(shown.clone(), reason);
    let metadata = path
        .metadata()
        .map_err(|error| unusable(error.to_string()))?;
    if metadata.is_dir() {
        return Err(unusable("it is a directory".to_owned()));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err(unusable("no execute permission (chmod +x)".to_owned()));
    }
    let mut data = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(64 << 20).read_to_end(&mut data))
        .map_err(|error| unusable(error.to_string()))?;
    if let Some(script) = data.strip_prefix(b"#!") {
        let line = script
            .split(|byte| *byte == b'\n')
            .next()
            .unwrap_or_default();
        let mut words = line
            .split(|byte| byte.is_ascii_whitespace())
            .filter(|word| !word.is_empty());
        let interpreter = Path::new(OsStr::from_bytes(words.next().unwrap_or_default()));
        if depth >= SCRIPTS_MAX {
            return Err(unusable(
                "its interpreters are nested too deeply".to_owned(),
            ));
        }
        // `#!/usr/bin/env python3` names the real one in its argument.
        if interpreter.file_name() == Some(OsStr::new("env"))
            && let Some(found) = words
                .find(|word| !word.starts_with(b"-"))
                .and_then(|word| find(OsStr::from_bytes(word)))
        {
            return check_file(&found, depth + 1);
        }
        return check_file(interpreter, depth + 1);
    }
    let identity = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != identity.0 {
        return Err(Refused::Privileged(shown, "set-user-id"));
    }
    if metadata.mode() & libc::S_ISGID != 0 && metadata.gid() != identity.1 {
        return Err(Refused::Privileged(shown, "set-group-id"));
    }
    if identity.0 != 0
        && rustix::fs::getxattr(path, "security.capability", &mut [0u8; 64])
            .is_ok_and(|len| len > 0)
    {
        return Err(Refused::Privileged(shown, "given capabilities by its file"));
    }
    check_elf(&shown, &data)
}

fn check_elf(shown: &str, data: &[u8]) -> Result<(), Refused> {
    let Ok(header) = elf::FileHeader64::<object::Endianness>::parse(data) else {
        return if data.starts_with(b"\x7fELF") {
            Err(Refused::Foreign(shown.to_owned()))
        } else {
            Ok(())
        };
    };
    let machine = if cfg!(target_arch = "aarch64") {
        elf::EM_AARCH64
    } else {
        elf::EM_X86_64
    };
    let Ok(endian) = header.endian() else {
        return Err(Refused::Foreign(shown.to_owned()));
    };
    if header.e_machine(endian) != machine {
        return Err(Refused::Foreign(shown.to_owned()));
    }
    let segments = header.program_headers(endian, data).unwrap_or_default();
    let go = segments
        .iter()
        .filter_map(|segment| segment.notes(endian, data).ok().flatten())
        .any(|mut notes| {
            std::iter::from_fn(|| notes.next().ok().flatten()).any(|note| note.name() == b"Go")
        });
    if go {
        return Err(Refused::Go(shown.to_owned()));
    }
    if !segments
        .iter()
        .any(|segment| segment.p_type(endian) == elf::PT_INTERP)
    {
        return Err(Refused::Static(shown.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temporary(name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("millrace-test-{}-{name}", std::process::id()));
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn an_ordinary_program_is_found() {
        assert!(check(OsStr::new("sh")).unwrap().is_absolute());
        assert!(check(OsStr::new("/bin/sh")).is_ok());
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        let refused = check(OsStr::new("no-such-program")).unwrap_err();
        assert_eq!(refused.exit_status(), 127);
        assert!(refused.to_string().contains("no-such-program"));
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let good = temporary("good", b"#!/bin/sh\ntrue\n", 0o755);
        assert!(check(good.as_os_str()).is_ok());
        let env = temporary("env", b"#!/usr/bin/env -S sh\ntrue\n", 0o755);
        assert!(check(env.as_os_str()).is_ok());
        let bad = temporary("bad", b"#!/no/such\n", 0o755);
        assert_eq!(check(bad.as_os_str()).unwrap_err().exit_status(), 126);
        for path in [good, env, bad] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_file_without_permission_is_refused() {
        let path = temporary("plain", b"#!/bin/sh\n", 0o644);
        assert!(
            check(path.as_os_str())
                .unwrap_err()
                .to_string()
                .contains("chmod")
        );
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_static_program_is_refused() {
        // The dynamic linker itself has no interpreter.
        let linker = Path::new("/lib64/ld-linux-x86-64.so.2");
        if linker.exists() {
            assert!(matches!(check(linker.as_os_str()), Err(Refused::Static(_))));
        }
    }
}
