//! Directories that live as long as a test.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result};

/// Prefix of everything that the harness creates.
pub const PREFIX: &str = "mr-e2e";

/// A directory that everybody may read and that is removed with its owner.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty one.
    pub fn create() -> Result<Directory> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "{PREFIX}-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Directory(path))
    }
}

impl Deref for Directory {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A test that fails has more to say than that its files could not be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes directories whose owner is dead.
pub fn sweep() -> Result<()> {
    for entry in fs::read_dir(std::env::temp_dir())?.flatten() {
        if owner_of(&entry.file_name().to_string_lossy()).is_some_and(is_dead) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// The process that created something named `mr-e2e-PID-N`.
pub fn owner_of(name: &str) -> Option<u32> {
    name.strip_prefix(PREFIX)?
        .strip_prefix('-')?
        .split('-')
        .next()?
        .parse()
        .ok()
}

/// Whether no process has this number.
pub fn is_dead(pid: u32) -> bool {
    !Path::new("/proc").join(pid.to_string()).exists()
}
