//! A Go toolchain for gVisor's adapter. Where the one on the PATH is older than `go.mod` asks for,
//! as Debian's is, it is asked for a newer one: toolchains are modules to it, so it knows where to
//! get them (`GOPROXY`), and what it gets is compared with the sum here.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::command::run;

/// What the adapter asks for.
const MODULE: &str = include_str!("../../../peers/gvisor/go.mod");
/// Toolchains as modules, and their sums as `go.sum` would have them.
const TOOLCHAINS: [(&str, &str); 1] = [(
    "v0.0.1-go1.26.3.linux-amd64",
    "h1:LdHRR8AtYKtOQrWMnd5AbvhZMSVJ7HoO2wrqShPaLV8=",
)];

/// What `go mod download -json` says.
#[derive(Deserialize)]
struct Download {
    #[serde(rename = "Dir")]
    folder: PathBuf,
    #[serde(rename = "Sum")]
    sum: String,
}

/// The program that builds what is in `folder`.
pub fn toolchain(folder: &Path) -> Result<PathBuf> {
    let wanted = wanted()?;
    // From Go 1.21 on it gets what `go.mod` names by itself, unless it was told not to.
    let said = run(Command::new("go").arg("version").current_dir(folder))
        .context("Go is needed; Debian's package golang-go will do")?;
    let said = String::from_utf8(said)?;
    if said.split(' ').nth(2).and_then(version) >= version(wanted) {
        return Ok("go".into());
    }
    download(wanted)
}

/// The version that `go.mod` names.
fn wanted() -> Result<&'static str> {
    let mut lines = MODULE.lines();
    lines
        .find_map(|line| line.strip_prefix("go "))
        .context("go.mod names no version")
}

/// `go1.26.3` or `1.26.3` in numbers; `None` for what is no release.
fn version(text: &str) -> Option<[u32; 3]> {
    let text = text.strip_prefix("go").unwrap_or(text);
    let mut parts = text.trim().split('.').map(str::parse);
    let [major, minor] = [parts.next()?.ok()?, parts.next()?.ok()?];
    Some([major, minor, parts.next().map_or(Some(0), Result::ok)?])
}

/// Gets it into the cache of modules, where it stays; the program in it.
fn download(wanted: &str) -> Result<PathBuf> {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        other => other,
    };
    let release = format!("v0.0.1-go{wanted}.linux-{architecture}");
    let known = TOOLCHAINS.iter().find(|(name, _)| *name == release);
    let (_, sum) = known.with_context(|| {
        format!("Go {wanted} or newer is needed, and the sum of {release} is not known")
    })?;
    println!("  getting Go {wanted}");
    let module = format!("golang.org/toolchain@{release}");
    let said = run(Command::new("go")
        .args(["mod", "download", "-json", &module])
        // Not where there is a go.mod that an older one cannot read.
        .current_dir(env!("CARGO_MANIFEST_DIR")))?;
    let download: Download = serde_json::from_slice(&said).context("reading what go says")?;
    ensure!(
        download.sum == *sum,
        "{module} has the sum {}, not {sum}",
        download.sum
    );
    // A module has no programs to an older one, only files.
    for part in ["bin", "pkg/tool"] {
        make_programs(&download.folder.join(part))?;
    }
    Ok(download.folder.join("bin/go"))
}

/// All files there may be executed, as a newer one would have it.
fn make_programs(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        match path.is_dir() {
            true => make_programs(&path)?,
            false => fs::set_permissions(&path, Permissions::from_mode(0o555))
                .with_context(|| format!("changing {}", path.display()))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_numbers() {
        assert!(version("go1.9.7") < version("1.26.3"));
        assert!(version("go1.26") < version("1.26.3"));
        assert!(version("go1.26.10") > version("1.26.3"));
        assert!(version("devel") < version("1.21"));
    }

    #[test]
    fn the_sum_of_what_go_mod_names_is_known() {
        let wanted = wanted().unwrap();
        let release = format!("v0.0.1-go{wanted}.linux-amd64");
        assert!(TOOLCHAINS.iter().any(|(name, _)| *name == release));
    }
}
