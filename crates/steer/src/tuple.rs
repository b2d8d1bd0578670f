//! The two ends of a flow.

use std::hash::Hasher;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The two ends of a connection of one family, as this host sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pair<A> {
    /// Our address.
    pub local: A,
    /// The peer's address.
    pub remote: A,
    /// Our port.
    pub local_port: u16,
    /// The peer's port.
    pub remote_port: u16,
}

/// The two ends of a connection, as this host sees them. Both are of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tuple {
    /// IPv4.
    V4(Pair<Ipv4Addr>),
    /// IPv6.
    V6(Pair<Ipv6Addr>),
}

impl<A: Copy> Pair<A> {
    fn reversed(&self) -> Pair<A> {
        Pair {
            local: self.remote,
            remote: self.local,
            local_port: self.remote_port,
            remote_port: self.local_port,
        }
    }
}

impl Pair<Ipv4Addr> {
    /// All of it in network order.
    #[inline(always)]
    pub fn bytes(&self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..4].copy_from_slice(&self.local.octets());
        bytes[4..8].copy_from_slice(&self.remote.octets());
        bytes[8..10].copy_from_slice(&self.local_port.to_be_bytes());
        bytes[10..].copy_from_slice(&self.remote_port.to_be_bytes());
        bytes
    }
}

impl Tuple {
    /// A tuple from its two ends; `None` when they are of different families.
    pub fn new(local: SocketAddr, remote: SocketAddr) -> Option<Tuple> {
        match (local, remote) {
            (SocketAddr::V4(local), SocketAddr::V4(remote)) => Some(Tuple::V4(Pair {
                local: *local.ip(),
                remote: *remote.ip(),
                local_port: local.port(),
                remote_port: remote.port(),
            })),
            (SocketAddr::V6(local), SocketAddr::V6(remote)) => Some(Tuple::V6(Pair {
                local: *local.ip(),
                remote: *remote.ip(),
                local_port: local.port(),
                remote_port: remote.port(),
            })),
            _ => None,
        }
    }

    /// Our address.
    #[inline]
    pub fn local_ip(&self) -> IpAddr {
        match self {
            Tuple::V4(pair) => pair.local.into(),
            Tuple::V6(pair) => pair.local.into(),
        }
    }

    /// The peer's address.
    #[inline]
    pub fn remote_ip(&self) -> IpAddr {
        match self {
            Tuple::V4(pair) => pair.remote.into(),
            Tuple::V6(pair) => pair.remote.into(),
        }
    }

    /// Our port and the peer's.
    pub fn ports(&self) -> (u16, u16) {
        match self {
            Tuple::V4(pair) => (pair.local_port, pair.remote_port),
            Tuple::V6(pair) => (pair.local_port, pair.remote_port),
        }
    }

    /// Our end.
    #[inline]
    pub fn local(&self) -> SocketAddr {
        SocketAddr::new(self.local_ip(), self.ports().0)
    }

    /// The peer's end.
    #[inline]
    pub fn remote(&self) -> SocketAddr {
        SocketAddr::new(self.remote_ip(), self.ports().1)
    }

    /// The tuple with another local port.
    #[must_use]
    pub fn with_local_port(self, local_port: u16) -> Tuple {
        match self {
            Tuple::V4(pair) => Tuple::V4(Pair { local_port, ..pair }),
            Tuple::V6(pair) => Tuple::V6(Pair { local_port, ..pair }),
        }
    }

    /// The tuple as the peer sees it.
    pub fn reversed(&self) -> Tuple {
        match self {
            Tuple::V4(pair) => Tuple::V4(pair.reversed()),
            Tuple::V6(pair) => Tuple::V6(pair.reversed()),
        }
    }

    /// Gives all of it to `hasher`, in network order.
    pub fn feed(&self, hasher: &mut impl Hasher) {
        match self {
            Tuple::V4(pair) => {
                hasher.write(&pair.bytes());
            }
            Tuple::V6(pair) => {
                let mut bytes = [0; 36];
                bytes[..16].copy_from_slice(&pair.local.octets());
                bytes[16..32].copy_from_slice(&pair.remote.octets());
                bytes[32..34].copy_from_slice(&pair.local_port.to_be_bytes());
                bytes[34..].copy_from_slice(&pair.remote_port.to_be_bytes());
                hasher.write(&bytes);
            }
        }
    }
}
