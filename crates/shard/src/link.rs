//! The link: Ethernet frames, ARP, the neighbour table and the detection of address conflicts.

pub mod acd;
mod ethernet;
pub mod neighbour;
