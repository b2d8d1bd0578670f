//! Privileged ports, as in Linux: ports below `net.ipv4.ip_unprivileged_port_start` of the engine's
//! network namespace take CAP_NET_BIND_SERVICE in the user namespace that owns the network
//! namespace.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The sysctl for the first unprivileged port.
const SYSCTL: &str = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
/// The default of the sysctl.
const FIRST_UNPRIVILEGED: u32 = 1024;
/// The bit of CAP_NET_BIND_SERVICE in a set of capabilities.
const NET_BIND_SERVICE: u64 = 1 << 10;
/// The ioctl for the user namespace that owns a namespace.
const NS_GET_USERNS: libc::c_ulong = 0xb701;

/// The first unprivileged port, as the control thread last read it. Shards read it too.
pub(crate) type FirstUnprivileged = Arc<AtomicU32>;

/// Which process may bind to which port.
#[derive(Debug)]
pub(crate) struct PrivilegedPorts {
    first: FirstUnprivileged,
    sysctl: Option<File>,
    /// The inode of the user namespace that owns the network namespace. None: this process may not
    /// know it.
    owner: Option<u64>,
}

impl PrivilegedPorts {
    /// For the network namespace of this process.
    pub(crate) fn new() -> PrivilegedPorts {
        let ports = PrivilegedPorts {
            first: Arc::new(AtomicU32::new(FIRST_UNPRIVILEGED)),
            sysctl: File::open(SYSCTL).ok(),
            owner: owner_of_network().ok(),
        };
        ports.first_unprivileged();
        ports
    }

    /// The value that shards read.
    pub(crate) fn shared(&self) -> FirstUnprivileged {
        self.first.clone()
    }

    /// Reads the first unprivileged port.
    pub(crate) fn first_unprivileged(&self) -> u16 {
        let mut text = [0; 16];
        let read = self.sysctl.as_ref().and_then(|file| {
            let len = rustix::io::pread(file, &mut text, 0).ok()?;
            std::str::from_utf8(&text[..len]).ok()?.trim().parse().ok()
        });
        let first: u16 = read.unwrap_or(FIRST_UNPRIVILEGED as u16);
        self.first.store(first.into(), Ordering::Relaxed);
        first
    }

    /// Whether a thread of process `pid` has the capability now. `uid` is the real user of the
    /// process when it asked. A process that has executed a set-user-ID program since then has the
    /// rights of that program, which did not ask.
    pub(crate) fn may_bind(&self, pid: u32, thread: u32, uid: u32) -> bool {
        let status = fs::read_to_string(format!("/proc/{pid}/task/{thread}/status"));
        // A thread in another PID namespace does not know its number here.
        let status = status.or_else(|_| fs::read_to_string(format!("/proc/{pid}/status")));
        let Some(rights) = status.ok().and_then(|status| Rights::parse(&status)) else {
            return false;
        };
        let is_of_another = rights.real != uid || (rights.effective == 0 && rights.real != 0);
        rights.capabilities & NET_BIND_SERVICE != 0 && !is_of_another && self.is_in_owner(pid)
    }

    /// Whether a process is in the user namespace that owns the network namespace.
    fn is_in_owner(&self, pid: u32) -> bool {
        let number = |pid: &str| Some(fs::metadata(format!("/proc/{pid}/ns/user")).ok()?.ino());
        let (own, its) = (number("self"), number(&pid.to_string()));
        match its {
            Some(_) => its == self.owner,
            // An engine without privileges may not read this link. A user namespace below has
            // another uid_map, unless a privileged process has given it the same one.
            None => {
                let map = |pid: &str| fs::read_to_string(format!("/proc/{pid}/uid_map")).ok();
                own == self.owner
                    && map("self").is_some_and(|own| Some(own) == map(&pid.to_string()))
            }
        }
    }
}

/// The user namespace that owns the network namespace of this process.
fn owner_of_network() -> io::Result<u64> {
    let network = File::open("/proc/self/ns/net")?;
    // SAFETY: the request has no argument and returns a descriptor that this process owns.
    let owner = unsafe {
        match libc::ioctl(network.as_raw_fd(), NS_GET_USERNS) {
            -1 => return Err(io::Error::last_os_error()),
            descriptor => OwnedFd::from_raw_fd(descriptor),
        }
    };
    Ok(File::from(owner).metadata()?.ino())
}

/// The rights of a thread.
#[derive(Debug, PartialEq, Eq)]
struct Rights {
    real: u32,
    effective: u32,
    capabilities: u64,
}

impl Rights {
    /// From `/proc/PID/status`.
    fn parse(status: &str) -> Option<Rights> {
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let mut users = line("Uid:")?.split_ascii_whitespace();
        Some(Rights {
            real: users.next()?.parse().ok()?,
            effective: users.next()?.parse().ok()?,
            capabilities: u64::from_str_radix(line("CapEff:")?.trim(), 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_status() {
        let status = "Name:\tnginx\nUid:\t0\t33\t0\t33\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000000400\n";
        let rights = Rights::parse(status).unwrap();
        assert_eq!((rights.real, rights.effective), (0, 33));
        assert_eq!(rights.capabilities, NET_BIND_SERVICE);
        assert_eq!(Rights::parse("Name:\tnginx\n"), None);
    }

    #[test]
    fn what_a_process_may_is_what_the_kernel_says_of_it() {
        let ports = PrivilegedPorts::new();
        let pid = std::process::id();
        let uid = rustix::process::getuid().as_raw();
        let own = Rights::parse(&fs::read_to_string("/proc/self/status").unwrap()).unwrap();
        let number = fs::metadata("/proc/self/ns/user").unwrap().ino();
        let may = own.capabilities & NET_BIND_SERVICE != 0 && ports.owner == Some(number);
        assert_eq!(ports.may_bind(pid, pid, uid), may);
        assert!(
            !ports.may_bind(pid, pid, uid + 1),
            "it was another one that asked"
        );
        assert!(!ports.may_bind(u32::MAX, 1, uid));
    }
}
