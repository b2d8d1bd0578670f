//! The kernel's stack, behind a TAP device in a namespace of its own.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use millrace_port::tap::{self, Tap};
use millrace_port::{FRAME_MAX, Offload, Port};
use millrace_wire::ethernet::Mac;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType};

use super::answer::Status;
use super::script::{Do, Subject};
use crate::namespace::Namespace;

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const PEER: (Mac, Ipv4Addr) = (Mac([2, 0, 0, 0, 0, 2]), Ipv4Addr::new(10, 9, 0, 2));
const DEVICE: &str = "mr0";
/// Longer than an acknowledgement may be put off (40 ms), shorter than the first retransmission
/// (200 ms).
const PAUSE: Duration = Duration::from_millis(120);

/// The device and the programs' sockets. The namespace must be that of the thread.
pub struct Kernel {
    tap: Tap,
    mac: Mac,
    listeners: BTreeMap<usize, OwnedFd>,
    connections: BTreeMap<usize, OwnedFd>,
    buffer: Vec<u8>,
}

impl Kernel {
    /// Makes the device in the namespace, which the calling thread is in.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(namespace: &Namespace) -> Result<Kernel> {
        // Each answer counts; none is left out because there was another one lately.
        namespace.set("ipv4.tcp_invalid_ratelimit", "0")?;
        let config = tap::Config {
            name: Some(DEVICE.into()),
            hosts: vec![(KERNEL.into(), 24)],
            mac: Some(PEER.0),
            ..tap::Config::default()
        };
        let tap = tap::open(&config)?.pop().context("a device has a queue")?;
        let peer = PEER.0.0.map(|byte| format!("{byte:02x}")).join(":");
        namespace.ip(&format!(
            "neigh replace {} lladdr {peer} dev {DEVICE} nud permanent",
            PEER.1
        ))?;
        let listed = namespace.ip(&format!("-o link show {DEVICE}"))?;
        let mac = listed
            .split_whitespace()
            .skip_while(|word| *word != "link/ether")
            .nth(1)
            .context("the device has an address")?;
        let mut bytes = mac.split(':').map(|byte| u8::from_str_radix(byte, 16));
        let mut mac = Mac::default();
        for byte in &mut mac.0 {
            *byte = bytes.next().context("an address has six bytes")??;
        }
        Ok(Kernel {
            tap,
            mac,
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            buffer: vec![0; FRAME_MAX],
        })
    }
}

fn socket() -> Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    Ok(net::socket_with(
        AddressFamily::INET,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

impl Subject for Kernel {
    fn ends(&self) -> [(Mac, Ipv4Addr); 2] {
        [(self.mac, KERNEL), PEER]
    }

    fn act(&mut self, script: usize, local: u16, remote: u16, act: Do) -> Result<()> {
        let connection = self.connections.get(&script);
        match (act, connection) {
            (Do::Listen, _) => {
                let listener = socket()?;
                net::bind(&listener, &SocketAddrV4::new(KERNEL, local))?;
                net::listen(&listener, 8)?;
                self.listeners.insert(script, listener);
            }
            (Do::Accept, _) => {
                let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
                if let Some(listener) = self.listeners.get(&script)
                    && let Ok(accepted) = net::accept_with(listener, flags)
                {
                    self.connections.insert(script, accepted);
                }
            }
            (Do::Connect, _) => {
                let socket = socket()?;
                match net::connect(&socket, &SocketAddrV4::new(PEER.1, remote)) {
                    Ok(()) | Err(Errno::INPROGRESS) => {}
                    Err(error) => return Err(error.into()),
                }
                self.connections.insert(script, socket);
            }
            // Whether these succeed shows in the status and on the wire.
            (Do::Write(len), Some(socket)) => {
                let _ = net::send(socket, &vec![b'y'; len], SendFlags::NOSIGNAL);
            }
            (Do::Read, Some(socket)) => {
                let _ = net::recv(socket, &mut vec![0; 1 << 20], RecvFlags::empty());
            }
            (Do::Shutdown, Some(socket)) => drop(net::shutdown(socket, Shutdown::Write)),
            (Do::Close, Some(_)) => drop(self.connections.remove(&script)),
            (Do::Write(_) | Do::Read | Do::Shutdown | Do::Close, None) => {}
        }
        Ok(())
    }

    fn hear(&mut self, frame: &[u8]) -> Result<()> {
        self.tap.send(frame, [&[], &[]], Offload::None)?;
        Ok(())
    }

    fn pause(&mut self) -> Result<Vec<Vec<u8>>> {
        let end = Instant::now() + PAUSE;
        let mut frames = Vec::new();
        loop {
            while let Some(meta) = self.tap.receive(&mut self.buffer)? {
                frames.push(self.buffer[..meta.len].to_vec());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(frames);
            }
            let descriptor = self.tap.descriptor().context("a device has one")?;
            let mut watched = [PollFd::new(&descriptor, PollFlags::IN)];
            poll(&mut watched, Some(&Timespec::try_from(left)?))?;
        }
    }

    fn status(&mut self, script: usize) -> Status {
        let Some(socket) = self.connections.get(&script) else {
            return Status::default();
        };
        let state = state(socket);
        let mut buffer = vec![0; 1 << 20];
        let mut read = 0;
        let then = loop {
            match net::recv(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((_, 0)) => break "end".to_string(),
                Ok((_, len)) => read += len,
                Err(Errno::AGAIN) => break "more".to_string(),
                Err(error) => break error.raw_os_error().to_string(),
            }
        };
        Status { state, read, then }
    }
}

/// The state, from `TCP_INFO`.
fn state(socket: &OwnedFd) -> &'static str {
    const NAMES: [&str; 13] = [
        "",
        "ESTAB",
        "SYN-SENT",
        "SYN-RECV",
        "FIN-WAIT-1",
        "FIN-WAIT-2",
        "TIME-WAIT",
        "CLOSE",
        "CLOSE-WAIT",
        "LAST-ACK",
        "LISTEN",
        "CLOSING",
        "SYN-RECV",
    ];
    let mut state = 0u8;
    let mut len = size_of::<u8>() as libc::socklen_t;
    // SAFETY: the kernel writes `len` bytes at most, which is the first field of its structure: the
    // state.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut len,
        )
    };
    assert_eq!(result, 0, "TCP_INFO of a TCP socket");
    NAMES.get(usize::from(state)).copied().unwrap_or("")
}
