//! The link: Ethernet frames, ARP, the neighbour table and the detection of address conflicts.

pub mod acd;
pub mod arp;
pub mod arp_queue;
pub mod ethernet;
pub mod neighbour;
