//! IPv6: the host's addresses and routes, packets in, ICMPv6, neighbour discovery.

mod dad;
pub mod fragments;
mod groups;
pub mod icmp;
pub mod input;
mod interface;
pub mod ndp;
mod own_address;
mod reports;
mod routers;
mod source_address;

use std::net::Ipv6Addr;

use millrace_wire::ethernet::Mac;

pub use interface::Ipv6;

/// The station that a group's packets go to; `None` for the address of one host.
pub fn group_station(destination: Ipv6Addr) -> Option<Mac> {
    destination
        .is_multicast()
        .then(|| Mac::of_group(destination))
}
