//! IPv4: packets in, ICMP.

pub mod icmp;
mod input;
