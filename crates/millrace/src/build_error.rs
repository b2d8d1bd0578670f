//! Why there is no stack as it was asked for.

use std::io;
use std::net::IpAddr;

use millrace_tcp::Algorithm;

/// Why there is no stack.
///
/// ```
/// let builder = millrace::Builder::new().address(std::net::Ipv4Addr::new(10, 0, 0, 2), 24);
/// let error = builder.build().err().expect("there is no link to have it on");
/// assert!(matches!(error, millrace::BuildError::NoLink(_)));
/// println!("{error}");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A link without an address.
    #[error("a link has no address; give it one with `address`, after `link`")]
    NoAddress,
    /// An address without a link.
    #[error("the address {0} is on no link; give one with `link`")]
    NoLink(IpAddr),
    /// More bits than an address has.
    #[error("a prefix of {bits} bits: {address} has {most}")]
    Prefix {
        /// The address.
        address: IpAddr,
        /// What was asked for.
        bits: u8,
        /// What there is.
        most: u8,
    },
    /// A congestion control that another builder was given.
    #[error("the congestion control {0:?} is not this stack's; add it with `add_congestion`")]
    Congestion(Algorithm),
    /// The same address twice.
    #[error("the address {0} is given twice: each address is on one link only; remove one of them")]
    SameAddress(IpAddr),
    /// One prefix on two links: a neighbour could be behind either.
    #[error(
        "{address} and {other} have the same prefix of {bits} bits on two links; give one of them a longer prefix, or an address of another network"
    )]
    SamePrefix {
        /// The address that was said first.
        address: IpAddr,
        /// The one on the other link.
        other: IpAddr,
        /// How long the prefix is.
        bits: u8,
    },
    /// More links than a stack has room for.
    #[error("{links} links; a stack has {most} at most")]
    Links {
        /// What was asked for.
        links: usize,
        /// What there may be.
        most: usize,
    },
    /// A gateway of the other family.
    #[error(
        "the gateway {gateway} cannot serve the route to {prefix}: they are of different address families"
    )]
    Route {
        /// Where to.
        prefix: IpAddr,
        /// By whom.
        gateway: IpAddr,
    },
    /// The MTU is none.
    #[error("an MTU of {mtu} bytes: {least} to {most} are possible on this link")]
    Mtu {
        /// What was asked for.
        mtu: u16,
        /// Smallest: IPv6 needs more than IPv4 (RFC 8200 5).
        least: u16,
        /// Largest.
        most: u16,
    },
    /// Shards without a queue each.
    #[error("{shards} shards, and a link of {queues} queues: each shard needs its own")]
    Queues {
        /// Shards.
        shards: u16,
        /// Queues of the link.
        queues: usize,
    },
    /// The machine refuses.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

pub(crate) fn refused(what: &'static str) -> impl Fn(io::Error) -> BuildError {
    move |error| BuildError::System { what, error }
}
