//! The two ends of a connection, as its socket keeps them.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::table::{Pair, Tuple};

/// A [`Tuple`] without the room that the longer addresses take: those of IPv6 are kept apart.
pub enum Ends {
    /// IPv4.
    V4(Pair<Ipv4Addr>),
    /// IPv6.
    V6(Box<Pair<Ipv6Addr>>),
}

impl Ends {
    /// The tuple.
    #[inline(always)]
    pub fn tuple(&self) -> Tuple {
        match self {
            Ends::V4(pair) => Tuple::V4(*pair),
            Ends::V6(pair) => Tuple::V6(**pair),
        }
    }

    /// Our address and port, and the peer's.
    #[inline]
    pub fn addresses(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Ends::V4(pair) => (
                SocketAddr::new(pair.local.into(), pair.local_port),
                SocketAddr::new(pair.remote.into(), pair.remote_port),
            ),
            Ends::V6(pair) => (
                SocketAddr::new(pair.local.into(), pair.local_port),
                SocketAddr::new(pair.remote.into(), pair.remote_port),
            ),
        }
    }
}

impl From<Tuple> for Ends {
    #[inline(always)]
    fn from(tuple: Tuple) -> Ends {
        match tuple {
            Tuple::V4(pair) => Ends::V4(pair),
            Tuple::V6(pair) => Ends::V6(Box::new(pair)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_small() {
        assert_eq!(size_of::<Ends>(), 16);
    }
}
