//! Another network under a host that goes on: its addresses and routes, as the kernel that it shares them with has them now.

use millrace_tcp::Instant;

use crate::config::{Ipv6, Network};
use crate::ip::route::Routes;
use crate::ip::v6;
use crate::memory::Memory;
use crate::shard::Shard;

impl<M: Memory> Shard<M> {
    /// The host's addresses and ways are these from now on: for a host that has them of the kernel ([`crate::ConflictDetection::Kernel`]), so that they are nobody else's. Every connection asks
    /// for its way anew with its next packet. One whose own address is gone goes on trying, as on Linux; it is reached again when the address is back.
    pub fn renumber(&mut self, network: Network, now: Instant) {
        let config = &mut self.config;
        config.addresses = network.addresses;
        config.routes = network.routes;
        let probes = 0;
        config.ipv6 = (!network.addresses_v6.is_empty()).then_some(Ipv6 {
            addresses: network.addresses_v6,
            routes: network.routes_v6,
            probes,
        });
        self.routes = Routes::new(&self.config);
        self.v6 = v6::Ipv6::new(&self.config, now);
        self.neighbours.reroute_all();
    }
}
