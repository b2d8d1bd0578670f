//! Ports of addresses that the stack has together with the kernel, and these addresses.
//!
//! A port is the stack's while a socket of the kernel is bound to it, at each of the addresses,
//! that does nothing else: so the kernel's own book of ports knows it as taken, whoever asks, and a
//! port that the kernel has is refused to the stack. The sockets go with the process; a list of
//! reserved ports (`ip_local_reserved_ports`) would stay behind, and would keep nobody from
//! binding. The ports for connections out are taken at the start, so that a connection costs no
//! call.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, MapData};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
use rustix::process::{Resource, getrlimit};

use super::config::{Addresses, SHARED_MAX};

/// Ports for connections out that are taken at the start, at most; with more than two addresses
/// fewer, so that there are no more sockets than this.
const OUTGOING: u64 = 4096;
const OUTGOING_SOCKETS: u64 = 4 * OUTGOING;
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

fn told(addresses: &[IpAddr]) -> Addresses {
    let mut all = [0; 5 * SHARED_MAX];
    let (v4, v6) = all.split_at_mut(SHARED_MAX);
    let (mut v4, mut v6) = (v4.iter_mut(), v6.chunks_exact_mut(4));
    for address in addresses {
        match address {
            IpAddr::V4(ip) => {
                if let Some(to) = v4.next() {
                    *to = u32::from_ne_bytes(ip.octets());
                }
            }
            IpAddr::V6(ip) => {
                for (to, from) in v6
                    .next()
                    .into_iter()
                    .flatten()
                    .zip(ip.octets().as_chunks().0)
                {
                    *to = u32::from_ne_bytes(*from);
                }
            }
        }
    }
    all
}

/// The ports that are the stack's. Shards share it; none asks for each packet.
#[derive(Debug)]
pub struct Held {
    outgoing: Vec<u16>,
    book: Mutex<Book>,
}

struct Book {
    addresses: Vec<IpAddr>,
    entries: HashMap<(Transport, u16), Entry>,
    /// What the program goes by.
    ports: Array<MapData, u8>,
    known: Array<MapData, Addresses>,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let book = &mut f.debug_struct("Book");
        book.field("addresses", &self.addresses)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Entry {
    /// Keep the kernel from the port, one at each address.
    sockets: Vec<(IpAddr, OwnedFd)>,
    /// Who wants it: a bit for each shard.
    by: u64,
}

impl Held {
    /// Takes ports for connections out of these addresses.
    pub(super) fn new(
        addresses: &[IpAddr],
        ports: Array<MapData, u8>,
        known: Array<MapData, Addresses>,
    ) -> io::Result<Held> {
        let mut book = Book {
            addresses: addresses.to_vec(),
            entries: HashMap::new(),
            ports,
            known,
        };
        book.tell_addresses()?;
        let mut held = Held {
            outgoing: Vec::new(),
            book: Mutex::new(book),
        };
        // Each takes a descriptor for each address and transport; most are left for others.
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let count = addresses.len().max(1) as u64;
        let affordable = (descriptors / (8 * count)).min(OUTGOING_SOCKETS / (2 * count));
        for port in OUTGOING_RANGE.rev() {
            if held.outgoing.len() as u64 >= affordable.min(OUTGOING) {
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

    /// The addresses are these from now on. Each port that is held is taken from the kernel at
    /// those that are new; one at which the kernel has such a port, or which it does not have any
    /// more, is left out. Returns those that are shared now.
    ///
    /// # Errors
    /// The program could not be told.
    pub fn share(&self, addresses: &[IpAddr]) -> io::Result<Vec<IpAddr>> {
        let mut book = self.book();
        let mut shared = Vec::new();
        for &address in addresses {
            if book.addresses.contains(&address) || book.take_all_at(address) {
                shared.push(address);
            }
        }
        for entry in book.entries.values_mut() {
            entry
                .sockets
                .retain(|(address, _)| shared.contains(address));
        }
        book.addresses.clone_from(&shared);
        book.tell_addresses()?;
        Ok(shared)
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
        let bound = book.addresses.iter();
        let bound = bound.map(|&address| Ok((address, bound_at(transport, address, port)?)));
        let sockets = bound.collect::<io::Result<_>>()?;
        book.entries
            .insert((transport, port), Entry { sockets, by });
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
    /// Takes each port that is held at one more address; `false`, and none of them, if one is not
    /// to be had.
    fn take_all_at(&mut self, address: IpAddr) -> bool {
        for (&(transport, port), entry) in &mut self.entries {
            let Ok(socket) = bound_at(transport, address, port) else {
                for entry in self.entries.values_mut() {
                    entry.sockets.retain(|(other, _)| *other != address);
                }
                return false;
            };
            entry.sockets.push((address, socket));
        }
        true
    }

    /// Tells the program which addresses there are.
    fn tell_addresses(&mut self) -> io::Result<()> {
        let told = self.known.set(0, told(&self.addresses), 0);
        told.map_err(io::Error::other)
    }

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

/// A socket of the kernel that holds a port, and does nothing else: it does not listen, so nobody
/// is kept waiting by it.
fn bound_at(transport: Transport, address: IpAddr, port: u16) -> io::Result<OwnedFd> {
    let kind = match transport {
        Transport::Tcp => SocketType::STREAM,
        Transport::Udp => SocketType::DGRAM,
    };
    let family = match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind(&socket, &SocketAddr::new(address, port))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_in_network_order_and_no_more_than_there_is_room_for() {
        let mut many: Vec<IpAddr> = (0..=SHARED_MAX as u8)
            .map(|last| [10, 0, 0, last + 1].into())
            .collect();
        many.push("fd00::1".parse().unwrap());
        let told: Vec<[u8; 4]> = told(&many).iter().map(|word| word.to_ne_bytes()).collect();
        assert_eq!(told[0], [10, 0, 0, 1]);
        assert_eq!(told[SHARED_MAX - 1], [10, 0, 0, 8]);
        let v6 = &told[SHARED_MAX..];
        assert_eq!((v6[0], v6[3]), ([0xfd, 0, 0, 0], [0, 0, 0, 1]));
        assert_eq!(v6[4], [0; 4]);
    }
}
