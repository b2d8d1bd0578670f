//! The two ends of a connection, as its socket keeps them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::connection_table::{Pair, Tuple};

/// A [`Tuple`] without the room that the longer addresses take: those of IPv6 are kept apart.
pub enum Endpoints {
    /// IPv4.
    V4(Pair<Ipv4Addr>),
    /// IPv6.
    V6(Box<Pair<Ipv6Addr>>),
}

impl Endpoints {
    /// The tuple.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple {
        match self {
            Endpoints::V4(pair) => Tuple::V4(*pair),
            Endpoints::V6(pair) => Tuple::V6(**pair),
        }
    }

    /// Our address and port, and the peer's.
    #[inline]
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Endpoints::V4(pair) => (
                SocketAddr::new(pair.local.into(), pair.local_port),
                SocketAddr::new(pair.remote.into(), pair.remote_port),
            ),
            Endpoints::V6(pair) => (
                SocketAddr::new(pair.local.into(), pair.local_port),
                SocketAddr::new(pair.remote.into(), pair.remote_port),
            ),
        }
    }
}

impl From<Tuple> for Endpoints {
    #[inline(always)]
    fn from(tuple: Tuple) -> Endpoints {
        match tuple {
            Tuple::V4(pair) => Endpoints::V4(pair),
            Tuple::V6(pair) => Endpoints::V6(Box::new(pair)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_small() {
        assert_eq!(size_of::<Endpoints>(), 16);
    }
}
