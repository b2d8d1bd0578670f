//! IP, both families: addresses and routes, packets in, ICMP, fragments, multicast groups.

pub mod family;
pub mod groups;
pub mod icmp;
pub mod path_mtu;
pub mod reassembly;
pub mod route;
pub mod v4;
pub mod v6;
