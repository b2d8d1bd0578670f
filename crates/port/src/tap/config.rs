//! What a TAP device is to be.

use std::net::IpAddr;

use millrace_wire::ethernet::Mac;
use millrace_wire::vlan::Tag;

/// The device to be created.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its name; a free one of the form `mr0`, `mr1`, ... when there is none.
    pub name: Option<String>,
    /// Whether the kernel's side is set up: its MTU and queue length, and that it is up.
    pub up: bool,
    /// The kernel's addresses on it with the bits of their prefixes; with one it is set up, too.
    pub hosts: Vec<(IpAddr, u8)>,
    /// The virtual LAN that the stack is on: its frames have this tag on the device, others are
    /// passed over.
    pub vlan: Option<Tag>,
    /// The largest IP datagram in bytes, [`crate::MTU_MIN`] to [`crate::MTU_MAX`].
    pub mtu: u16,
    /// How many queues it has, each a port; 1 to 256.
    pub queues: u16,
    /// How many frames the kernel queues for each port before it drops.
    pub tx_queue_len: u32,
    /// The address of the stack; a random, locally administered one when there is none. The kernel
    /// chooses one for its own side.
    pub mac: Option<Mac>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            name: None,
            up: false,
            hosts: Vec::new(),
            vlan: None,
            mtu: 1500,
            queues: 1,
            tx_queue_len: 1000,
            mac: None,
        }
    }
}
