//! The places of control sockets, and the checks that decide which process is believed there.
//!
//! A control socket lies in a directory that only its owner can write: `/run/millrace` for root,
//! `$XDG_RUNTIME_DIR/millrace` for other users, or `/tmp/millrace-UID` without one. So nobody else
//! can take an engine's name. A lock on the file `NAME@lock` beside the socket shows that its
//! engine lives; the files of a dead engine are replaced.
//!
//! Programs may see other files than their engine does (chroot, mount namespaces), so an engine has
//! a second socket with an abstract name that nobody can guess. Anybody can take that name after
//! the engine's end. So a client checks the peer's user (`SO_PEERCRED`) on either socket before it
//! sends or believes anything.

use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, chmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// The longest name of an engine, in bytes.
pub const NAME_MAX: usize = 64;
/// The longest text of an [`Address`], in bytes.
pub const ADDRESS_MAX: usize = 192;
/// Root's directory.
const SYSTEM: &str = "/run/millrace";
/// The directory of users without a runtime directory.
const TEMPORARY: &str = "/tmp";
/// The beginning of every abstract name.
const ALIAS: &str = "millrace/";
/// The end of a lock file's name. No engine's name has an `@`.
const LOCK: &str = "@lock";
/// The longest path of a socket: the kernel's `sun_path` without the final 0 byte.
const PATH_MAX: usize = 107;
/// The user id that stands for users whom a user namespace does not map.
const OVERFLOW: u32 = 65534;

/// The process at the other end of a connection, or behind a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The process id; 0 if it is in a PID namespace that this process does not see.
    pub pid: u32,
    /// The user id. For an engine, the user that started it, even if it has changed its user since.
    pub uid: u32,
}

/// Returns the process at the other end (SO_PEERCRED).
pub fn peer(socket: &OwnedFd) -> io::Result<Peer> {
    let mut credentials = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, integers, into the structure.
    let outcome = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    };
    match outcome {
        0 => Ok(Peer {
            pid: credentials.pid.max(0) as u32,
            uid: credentials.uid,
        }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The network namespace of this process, by a number that is unique while the namespace exists.
pub fn network() -> Option<u64> {
    Some(fs::metadata("/proc/self/ns/net").ok()?.ino())
}

/// An engine's address: `UID:ALIAS:PATH`. A program and its children have it in their environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// The engine's user.
    pub owner: u32,
    /// The engine's abstract name, without the common beginning.
    pub alias: &'a str,
    /// The path of the engine's control socket.
    pub path: &'a str,
}

impl fmt::Display for Address<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.owner, self.alias, self.path)
    }
}

impl<'a> Address<'a> {
    /// The address from its text.
    pub fn parse(text: &'a str) -> Option<Address<'a>> {
        let (owner, rest) = text.split_once(':')?;
        let (alias, path) = rest.split_once(':')?;
        Some(Address {
            owner: owner.parse().ok()?,
            alias,
            path,
        })
    }

    /// The engine's name.
    pub fn name(&self) -> &'a str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    /// Connects to the engine. Allocates nothing, because the shim calls it inside any call of a
    /// program. `EPERM`: another user's process answers in the engine's place. `peer`: the function
    /// [`peer`], or one that does the same without the C library.
    pub fn connect(&self, peer: impl Fn(&OwnedFd) -> io::Result<Peer>) -> io::Result<OwnedFd> {
        let believe = |socket: OwnedFd, protected| match self.believes(peer(&socket)?, protected) {
            true => Ok(socket),
            false => Err(io::Error::from_raw_os_error(libc::EPERM)),
        };
        let by_path = SocketAddrUnix::new(self.path.as_bytes())
            .map_err(io::Error::from)
            .and_then(|address| connect_to(&address, SocketType::SEQPACKET))
            .and_then(|socket| believe(socket, true));
        let first = match by_path {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        // The engine may have another root directory.
        match alias_address(self.alias)
            .and_then(|address| connect_to(&address, SocketType::SEQPACKET))
            .and_then(|socket| believe(socket, false))
        {
            Ok(socket) => Ok(socket),
            Err(second) if is_refusal(&second) => Err(second),
            Err(_) => Err(first),
        }
    }

    /// Whether the peer is believed to be the engine. `protected`: only the engine's user can have
    /// made the socket.
    fn believes(&self, Peer { uid, .. }: Peer, protected: bool) -> bool {
        let is_engines = uid == 0 || uid == self.owner;
        is_engines || (is_in_user_namespace() && is_mapped_owner(uid, protected))
    }
}

fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EPERM)
}

/// A user namespace maps users to other numbers. The engine's user is then this process's own, or
/// one that the namespace does not map.
fn is_mapped_owner(uid: u32, protected: bool) -> bool {
    uid == rustix::process::geteuid().as_raw() || (protected && uid == OVERFLOW)
}

/// Whether this process is in a user namespace that does not map all users. Allocates nothing.
fn is_in_user_namespace() -> bool {
    let mut map = [0; 64];
    let read = rustix::fs::open(
        c"/proc/self/uid_map",
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        Mode::empty(),
    )
    .and_then(|file| rustix::io::read(&file, &mut map));
    let Ok(len) = read else {
        return true;
    };
    let mut words = map[..len]
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let is_full = words.next() == Some(b"0")
        && words.next() == Some(b"0")
        && words.next() == Some(b"4294967295");
    !is_full
}

fn alias_address(alias: &str) -> io::Result<SocketAddrUnix> {
    let mut name = [0; ALIAS.len() + 32];
    if alias.len() != 32 {
        return Err(io::ErrorKind::NotFound.into());
    }
    name[..ALIAS.len()].copy_from_slice(ALIAS.as_bytes());
    name[ALIAS.len()..].copy_from_slice(alias.as_bytes());
    Ok(SocketAddrUnix::new_abstract_name(&name)?)
}

fn connect_to(address: &SocketAddrUnix, kind: SocketType) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

/// Connects to a socket by its path.
pub fn connect(path: &Path, kind: SocketType) -> io::Result<OwnedFd> {
    connect_to(&SocketAddrUnix::new(path)?, kind)
}

/// A directory of control sockets that only its owner can write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    owner: u32,
}

/// A socket in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The engine's name.
    pub name: String,
    /// The socket's path.
    pub path: PathBuf,
    /// The network namespace in which it was made, if this process may know.
    pub network: Option<u64>,
}

impl Directory {
    /// This user's directory, which is made if needed, and a note for each directory that somebody
    /// else has made in its place.
    pub fn own() -> io::Result<(Directory, Vec<String>)> {
        let uid = rustix::process::geteuid().as_raw();
        let mut notes = Vec::new();
        let mut last = None;
        for (path, mode) in places(uid) {
            match make(&path, mode).and_then(|()| check(&path, uid)) {
                Ok(()) => return Ok((Directory { path, owner: uid }, notes)),
                Err(error) => {
                    if path.starts_with(TEMPORARY) {
                        notes.push(format!("{}: {error}; it is not used", path.display()));
                    }
                    last = Some(error);
                }
            }
        }
        if let Some(directory) = temporary(uid).pop() {
            return Ok((directory, notes));
        }
        let path = Path::new(TEMPORARY).join(format!("millrace-{uid}-{}", random_name()?));
        make(&path, 0o700)?;
        check(&path, uid).map_err(|error| last.unwrap_or(error))?;
        Ok((Directory { path, owner: uid }, notes))
    }

    /// The safe directories of a user.
    pub fn all_of(uid: u32) -> Vec<Directory> {
        let safe = |path: PathBuf| {
            check(&path, uid).ok()?;
            Some(Directory { path, owner: uid })
        };
        let mut all: Vec<Directory> = places(uid)
            .into_iter()
            .filter_map(|(path, _)| safe(path))
            .collect();
        all.extend(temporary(uid));
        all
    }

    /// The directory's owner.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The path of the socket with this name, whether or not it exists.
    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// The sockets in the directory that have a listener.
    pub fn sockets(&self, kind: SocketType) -> Vec<Found> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let mut found: Vec<Found> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let path = entry.path();
                if name.ends_with(LOCK) || connect(&path, kind).is_err() {
                    return None;
                }
                let network = fs::read_to_string(lock_of(&path)).ok();
                let network = network.and_then(|text| text.trim().parse().ok());
                Some(Found {
                    name,
                    path,
                    network,
                })
            })
            .collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    /// Waits until no other process takes or removes a name. The directory itself cannot serve as
    /// the lock, because everybody who can read it may lock it.
    fn lock(&self) -> io::Result<File> {
        let file = open_lock(&self.path.join(LOCK))?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(file)
    }

    /// Removes the files of dead engines. The directory is locked.
    fn sweep(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(name) = name.to_str().and_then(|name| name.strip_suffix(LOCK)) else {
                continue;
            };
            if name.is_empty() {
                continue;
            }
            // Dropping the lock removes both files.
            drop(Held::take(&self.path.join(name)));
        }
    }
}

/// The possible directories of a user, the best first, each with its mode.
fn places(uid: u32) -> Vec<(PathBuf, u32)> {
    let mut places = Vec::new();
    if uid == 0 {
        places.push((PathBuf::from(SYSTEM), 0o755));
    }
    let runtime = if uid == rustix::process::geteuid().as_raw() {
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
    } else {
        Some(PathBuf::from(format!("/run/user/{uid}")))
    };
    // A long path leaves no room for a socket's name.
    let fits = |path: &PathBuf| path.as_os_str().len() + 1 + NAME_MAX <= PATH_MAX;
    let runtime = runtime.filter(|path| path.is_absolute() && check(path, uid).is_ok());
    let runtime = runtime.map(|path| path.join("millrace")).filter(fits);
    places.extend(runtime.map(|path| (path, 0o700)));
    let temporary = Path::new(TEMPORARY).join(format!("millrace-{uid}"));
    places.push((temporary, 0o700));
    places
}

/// The directories of a user that were made because somebody else had taken the usual name.
fn temporary(uid: u32) -> Vec<Directory> {
    let prefix = format!("millrace-{uid}-");
    let entries = fs::read_dir(TEMPORARY).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_bytes().starts_with(prefix.as_bytes()))
        .map(|entry| entry.path())
        .filter(|path| check(path, uid).is_ok())
        .map(|path| Directory { path, owner: uid })
        .collect()
}

/// Makes a directory unless it exists. The mode is not masked.
fn make(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(chmod(path, Mode::from_raw_mode(mode))?),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Checks that a path is a directory, not a link to one, that this user owns and no other user can
/// write.
fn check(path: &Path, uid: u32) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    let problem = if !found.is_dir() {
        "is not a directory".to_owned()
    } else if found.uid() != uid {
        format!("belongs to user {}", found.uid())
    } else if found.mode() & 0o022 != 0 {
        format!("can be written by others (mode {:o})", found.mode() & 0o777)
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, problem))
}

fn open_lock(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW);
    options.open(path)
}

fn lock_of(path: &Path) -> PathBuf {
    let mut lock = path.as_os_str().to_owned();
    lock.push(LOCK);
    lock.into()
}

/// The lock of a socket. Dropping it removes the lock and the socket, if this process still may.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    file: File,
}

impl Held {
    /// Takes the lock. `EADDRINUSE`: another process has it.
    fn take(path: &Path) -> io::Result<Held> {
        let lock = lock_of(path);
        loop {
            let file = open_lock(&lock)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
            }
            // The former holder may have removed the file since it was opened here.
            let is_the_one = fs::symlink_metadata(&lock).is_ok_and(|there| {
                file.metadata()
                    .is_ok_and(|here| (here.dev(), here.ino()) == (there.dev(), there.ino()))
            });
            if is_the_one {
                let path = path.to_owned();
                return Ok(Held { path, file });
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A process that has given up its privileges may not remove the files. The next start
        // removes them.
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(lock_of(&self.path));
    }
}

/// A listening socket in a directory.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub socket: OwnedFd,
    /// The lock that keeps its name.
    pub held: Held,
}

/// Listens under a name in a directory. `EADDRINUSE`: a living process has the name.
pub fn listen(directory: &Directory, name: &str, kind: SocketType) -> io::Result<Listener> {
    let is_name = !name.is_empty()
        && name.len() <= NAME_MAX
        && !name.starts_with('.')
        && !name.contains(['/', '\0', ':'])
        && !name.ends_with(LOCK);
    if !is_name {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let path = directory.path_of(name);
    let mut held = {
        let _alone = directory.lock()?;
        directory.sweep();
        Held::take(&path)?
    };
    if let Some(network) = network() {
        writeln!(held.file, "{network}")?;
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = listen_at(&SocketAddrUnix::new(&path)?, kind, || {
        // The processes of programs may be of any user; they have to show their token.
        Ok(chmod(&path, Mode::from_raw_mode(0o666))?)
    })?;
    Ok(Listener { socket, held })
}

/// Listens under an abstract name that nobody can guess. Returns the socket and the name for
/// [`Address::alias`].
pub fn listen_by_alias() -> io::Result<(OwnedFd, [u8; 16])> {
    let mut alias = [0; 16];
    fill_randomly(&mut alias)?;
    let address = alias_address(&crate::protocol::format_token(&alias))?;
    let socket = listen_at(&address, SocketType::SEQPACKET, || Ok(()))?;
    Ok((socket, alias))
}

fn listen_at(
    address: &SocketAddrUnix,
    kind: SocketType,
    before: impl FnOnce() -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)?;
    rustix::net::bind(&socket, address)?;
    before()?;
    crate::protocol::accept_descriptors(&socket, false);
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

fn fill_randomly(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        done += rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// 16 hexadecimal digits that nobody can guess.
pub fn random_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    fill_randomly(&mut bytes)?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// The id of a user, given as a number or as a name in /etc/passwd.
pub fn user(text: &str) -> Option<u32> {
    if let Ok(uid) = text.parse() {
        return Some(uid);
    }
    let mut table = String::new();
    File::open("/etc/passwd")
        .ok()?
        .read_to_string(&mut table)
        .ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next()? == text).then(|| fields.nth(1)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests;
