//! Where a packet port is to be.

use millrace_wire::ethernet::Mac;
use millrace_wire::vlan::Tag;

/// Where the port is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device.
    pub device: String,
    /// How many queues, each a port; 1 to 256.
    pub queues: u16,
    /// The stack's address; a random, locally administered one when there is none. It must not be
    /// the device's own.
    pub mac: Option<Mac>,
    /// The virtual LAN that the stack is on: its frames have this tag on the device; without one
    /// they have none. Others are the kernel's.
    pub vlan: Option<Tag>,
}
