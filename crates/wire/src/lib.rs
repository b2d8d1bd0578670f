//! Packet formats and checksums: views and builders; no I/O, no allocation.
//!
//! Every parser takes any bytes without a panic and reads nothing past them. It checks the
//! *structure* of what it reads; a checksum is verified apart ([`checksum`]), because a port may
//! already vouch for it.
#![forbid(unsafe_code)]

pub mod arp;
pub mod checksum;
pub mod ethernet;
pub mod icmpv4;
pub mod icmpv6;
pub mod igmp;
pub mod ipv4;
pub mod ipv6;
pub mod mld;
pub mod ndp;
pub mod offload;
pub mod record;
pub mod tcp;
pub mod udp;
pub mod vlan;
pub mod vnet;

pub mod bytes;
mod error;

pub use error::Error;
