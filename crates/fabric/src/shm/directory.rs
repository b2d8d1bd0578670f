//! Where ports find each other: a directory of Unix sockets, and what is said there.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sockopt,
};

use crate::types::PortName;

/// Why a port cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has that port.
    #[error("port {0} is taken by another process")]
    NameTaken(PortName),
    /// The last port of a node is its IP port.
    #[error("port {0} is the IP port of its node: take another number")]
    Reserved(PortName),
    /// Others than its user can write to the directory.
    #[error(
        "{0}: not a directory that only its user can enter: remove it, or name another one (XDG_RUNTIME_DIR)"
    )]
    Directory(PathBuf),
    /// Anything else that the kernel says.
    #[error("{0}: {1}")]
    Io(PathBuf, io::Error),
}

/// A directory of ports.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

/// The greeting's first word.
const MAGIC: u32 = 0x6d72_6662;
/// The version of greeting and memory.
const VERSION: u32 = 1;
/// Bytes of a greeting.
const GREETING_LEN: usize = 20;
/// Descriptors that come with one.
const DESCRIPTORS: usize = 2;

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// A request: no answer yet.
    Asks = 0,
    Accepted = 1,
    /// There are as many peers as the port takes, or a session with that name is alive.
    Refused = 2,
    /// The port has asked itself, and has the smaller name: its request goes on.
    Crossed = 3,
}

/// What both say first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    pub verdict: Verdict,
    pub from: PortName,
    pub to: PortName,
}

impl Greeting {
    fn to_bytes(self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        let word = |name: PortName| u32::from(name.node) << 16 | u32::from(name.port);
        let words = [
            MAGIC,
            VERSION,
            self.verdict as u32,
            word(self.from),
            word(self.to),
        ];
        for (at, word) in words.into_iter().enumerate() {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        let (words, _) = bytes.as_chunks::<4>();
        let word = |at: usize| u32::from_ne_bytes(words[at]);
        let name = |word: u32| PortName::new((word >> 16) as u16, word as u16);
        let verdict = match word(2) {
            0 => Verdict::Asks,
            1 => Verdict::Accepted,
            2 => Verdict::Refused,
            3 => Verdict::Crossed,
            _ => return None,
        };
        (word(0) == MAGIC && word(1) == VERSION).then_some(Greeting {
            verdict,
            from: name(word(3)),
            to: name(word(4)),
        })
    }

    /// Sends it. Nothing blocks: a socket that takes no greeting is of no use.
    pub fn send(self, socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&self.to_bytes())],
            &mut control,
            flags,
        )?;
        Ok(())
    }

    /// Receives one, with up to two descriptors; none if there is none yet.
    pub fn receive(socket: &OwnedFd) -> io::Result<Option<(Greeting, Vec<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; GREETING_LEN + 1];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = match rustix::net::recvmsg(socket, &mut slices, &mut control, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let mut descriptors = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let is_whole =
            !received.flags.contains(ReturnFlags::TRUNC) && descriptors.iter().all(closes_at_once);
        Greeting::from_bytes(&bytes[..received.bytes])
            .filter(|_| is_whole)
            .map(|greeting| Some((greeting, descriptors)))
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// Whether closing a peer's descriptor cannot wait for anybody. A socket waits as long as its
/// sender likes (SO_LINGER), so it is told not to.
fn closes_at_once(descriptor: &OwnedFd) -> bool {
    if sockopt::socket_type(descriptor).is_err() {
        return true;
    }
    let _ = sockopt::set_socket_linger(descriptor, Some(std::time::Duration::ZERO));
    false
}

/// Whether the process at the other end is of our user.
pub fn is_own_user(socket: &OwnedFd) -> bool {
    let own = rustix::process::geteuid();
    sockopt::socket_peercred(socket).is_ok_and(|credentials| credentials.uid == own)
}

impl Directory {
    /// The user's: `millrace-fabric` in `XDG_RUNTIME_DIR`, or else `millrace-fabric-UID` in the
    /// directory for temporary files.
    pub fn of_user() -> Directory {
        let uid = rustix::process::geteuid().as_raw();
        Directory(match std::env::var_os("XDG_RUNTIME_DIR") {
            Some(runtime) if !runtime.is_empty() => Path::new(&runtime).join("millrace-fabric"),
            _ => std::env::temp_dir().join(format!("millrace-fabric-{uid}")),
        })
    }

    /// Another one.
    pub fn at(path: impl Into<PathBuf>) -> Directory {
        Directory(path.into())
    }

    fn socket(&self, name: PortName) -> PathBuf {
        self.0.join(name.to_string())
    }

    fn failed(path: PathBuf) -> impl Fn(io::Error) -> OpenError {
        move |error| OpenError::Io(path.clone(), error)
    }

    /// Creates it if it is not there; it must be its user's alone.
    fn prepare(&self) -> Result<(), OpenError> {
        let created = fs::DirBuilder::new().mode(0o700).create(&self.0);
        match created {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(OpenError::Io(self.0.clone(), error));
            }
            _ => {}
        }
        let found = fs::symlink_metadata(&self.0).map_err(Self::failed(self.0.clone()))?;
        let is_private = found.is_dir()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.mode() & 0o077 == 0;
        is_private
            .then_some(())
            .ok_or_else(|| OpenError::Directory(self.0.clone()))
    }

    /// Takes a name, and listens there. The name is ours as long as the second descriptor is open.
    pub(super) fn listen(&self, name: PortName) -> Result<(OwnedFd, OwnedFd), OpenError> {
        self.prepare()?;
        let path = self.socket(name);
        let lock_path = path.with_extension(format!("{}.lock", name.port));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::open(&lock_path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| OpenError::Io(lock_path.clone(), errno.into()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::NameTaken(name)),
            outcome => outcome.map_err(|errno| OpenError::Io(lock_path, errno.into()))?,
        }
        let listener = || -> io::Result<OwnedFd> {
            // What a process that is gone has left.
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let socket = socket()?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
            rustix::net::listen(&socket, 64)?;
            Ok(socket)
        };
        let listener = listener().map_err(Self::failed(path.clone()))?;
        Ok((listener, lock))
    }

    /// Connects to a port. [`io::ErrorKind::WouldBlock`]: later.
    pub(super) fn connect(&self, name: PortName) -> io::Result<OwnedFd> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(self.socket(name))?)?;
        match is_own_user(&socket) {
            true => Ok(socket),
            false => Err(io::ErrorKind::PermissionDenied.into()),
        }
    }

    /// Gives a name up.
    pub(super) fn leave(&self, name: PortName) {
        // Another one may have removed it; nothing depends on it.
        let _ = fs::remove_file(self.socket(name));
    }

    /// The ports that processes have here.
    ///
    /// # Errors
    /// Those of reading the directory; one that is not there has no ports.
    pub fn list(&self) -> io::Result<Vec<PortName>> {
        let entries = match fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry?.file_name();
            let Some(name) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let lock = self.0.join(format!("{name}.lock"));
            let is_held = rustix::fs::open(&lock, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .is_ok_and(|lock| {
                    rustix::fs::flock(lock.as_fd(), FlockOperation::NonBlockingLockShared).is_err()
                });
            if is_held {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}
