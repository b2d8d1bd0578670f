//! Ports of an address that the stack has together with the kernel.
//!
//! A port is the stack's while a socket of the kernel is bound to it that does nothing else: so the kernel's own book of ports knows it as taken, whoever asks, and a
//! port that the kernel has is refused to the stack. The sockets go with the process; a list of reserved ports (`ip_local_reserved_ports`) would stay behind, and would
//! keep nobody from binding. The ports for connections out are taken at the start, so that a connection costs no call.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, MapData};
use rustix::net::{AddressFamily, SocketAddrV4, SocketFlags, SocketType, bind, socket_with};
use rustix::process::{Resource, getrlimit};

/// Ports for connections out that are taken at the start, at most.
const OUTGOING: u64 = 4096;
/// Fewer are not worth a start: choosing one must be hard to foresee.
const OUTGOING_MIN: usize = 64;
/// Where they are looked for: as the kernel does, but from the other end.
const OUTGOING_RANGE: std::ops::RangeInclusive<u16> = 32_768..=60_999;
/// The part that stands for these, which nobody gives back.
const ALL: u64 = 1 << 63;

/// Of which transport a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The bit of an entry of the program's map.
    fn bit(self) -> u8 {
        match self {
            Transport::Tcp => 1,
            Transport::Udp => 2,
        }
    }
}

/// The ports that are the stack's. Shards share it; none asks for each packet.
#[derive(Debug)]
pub struct Held {
    addresses: Vec<Ipv4Addr>,
    outgoing: Vec<u16>,
    book: Mutex<Book>,
}

struct Book {
    entries: HashMap<(Transport, u16), Entry>,
    /// What the program goes by.
    ports: Array<MapData, u8>,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = &mut f.debug_struct("Book");
        book.field("entries", &self.entries).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Entry {
    /// Keep the kernel from the port.
    _sockets: Vec<OwnedFd>,
    /// Who wants it: a bit for each shard.
    by: u64,
}

impl Held {
    /// Takes ports for connections out of these addresses.
    pub(super) fn new(addresses: Vec<Ipv4Addr>, ports: Array<MapData, u8>) -> io::Result<Held> {
        let mut held = Held {
            addresses,
            outgoing: Vec::new(),
            book: Mutex::new(Book {
                entries: HashMap::new(),
                ports,
            }),
        };
        // Each takes a descriptor for each address and transport; most are left for others.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let affordable = descriptors / (8 * held.addresses.len().max(1) as u64);
        for port in OUTGOING_RANGE.rev() {
            if held.outgoing.len() as u64 == affordable.min(OUTGOING) {
                break;
            }
            if held.take(Transport::Tcp, port, ALL).is_err() {
                continue;
            }
            match held.take(Transport::Udp, port, ALL) {
                Ok(()) => held.outgoing.push(port),
                Err(_) => held.leave(Transport::Tcp, port, ALL),
            }
        }
        if held.outgoing.len() < OUTGOING_MIN {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        Ok(held)
    }

    /// The ports for connections out.
    pub fn outgoing(&self) -> &[u16] {
        &self.outgoing
    }

    /// Takes a port for a shard.
    ///
    /// # Errors
    /// [`io::ErrorKind::AddrInUse`] when it is the kernel's; what else the kernel says.
    pub fn hold(&self, transport: Transport, port: u16, shard: u32) -> io::Result<()> {
        self.take(transport, port, 1 << (shard & 63))
    }

    /// A shard has no use for a port any more.
    pub fn release(&self, transport: Transport, port: u16, shard: u32) {
        self.leave(transport, port, 1 << (shard & 63));
    }

    fn take(&self, transport: Transport, port: u16, by: u64) -> io::Result<()> {
        let mut book = self.book();
        if let Some(entry) = book.entries.get_mut(&(transport, port)) {
            entry.by |= by;
            return Ok(());
        }
        let bound = self
            .addresses
            .iter()
            .map(|&address| bound(transport, address, port));
        let sockets: Vec<OwnedFd> = bound.collect::<io::Result<_>>()?;
        book.entries.insert(
            (transport, port),
            Entry {
                _sockets: sockets,
                by,
            },
        );
        book.tell(port)
    }

    fn leave(&self, transport: Transport, port: u16, by: u64) {
        let mut book = self.book();
        let Some(entry) = book.entries.get_mut(&(transport, port)) else {
            return;
        };
        entry.by &= !by;
        if entry.by == 0 {
            let entry = book.entries.remove(&(transport, port));
            // The program stops before the kernel may have it. It cannot fail: the entry is there.
            let _ = book.tell(port);
            drop(entry);
        }
    }

    /// The book is whole between any two steps, so one that a panic left is, too.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Tells the program whose a port is.
    fn tell(&mut self, port: u16) -> io::Result<()> {
        let bits = [Transport::Tcp, Transport::Udp]
            .into_iter()
            .filter(|&transport| self.entries.contains_key(&(transport, port)))
            .fold(0, |bits, transport| bits | transport.bit());
        let told = self.ports.set(port.into(), bits, 0);
        told.map_err(io::Error::other)
    }
}

/// A socket of the kernel that holds a port, and does nothing else: it does not listen, so nobody is kept waiting by it.
fn bound(transport: Transport, address: Ipv4Addr, port: u16) -> io::Result<OwnedFd> {
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let socket = socket_with(AddressFamily::INET, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrV4::new(address, port))?;
    Ok(socket)
}
