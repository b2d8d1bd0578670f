//! Text that names no link, no prefix and no route.

/// The text does not name a link, a prefix or a route.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The part before the colon is no kind of link.
    #[error(
        "there is no link `{0}`; the kinds are: tap or tap:NAME (a TAP device), tun or tun:NAME (a TUN device; tun:NAME,attach takes one that is there), \
         packet:NAME (a network device that is there already, by packet sockets), macvtap:NAME (such a device, by a macvtap device on top of it), \
         xdp:NAME (such a device, by AF_XDP sockets), fabric:NODE (messages between nodes), pair (two ends in memory), packets (IP packets that the program passes itself)"
    )]
    Kind(String),
    /// An option that does not exist.
    #[error(
        "`{0}` is no option of an AF_XDP link; there are queues=N (1 to 256), mode=auto, zerocopy, copy or generic, busy-poll=auto, on or off, and address=own or shared, as in xdp:eth0,queues=4,mode=copy"
    )]
    Option(String),
    /// An option that does not exist.
    #[error(
        "`{0}` is no option of a link of messages; there are fabric:NODE (0 to 65535), mtu=N, inline, elide and batch=on or off, dir=PATH, peer=ADDRESS@NODE, and at last over=tap, packet, macvtap or xdp, \
         as in fabric:7,mtu=1500,over=packet:eth0"
    )]
    FabricOption(String),
    /// No name that Linux gives to a network device.
    #[error("`{0}` cannot name a network device; take 1 to 15 letters, digits, `.`, `_` or `-`")]
    Name(String),
    /// Not an address and a prefix length.
    #[error("`{0}` is not an IPv4 address with a prefix length; write it as 10.77.0.1/24")]
    Prefix(String),
    /// Not an address of either family and a prefix length.
    #[error("`{0}` is not an address with the bits of its prefix, as 10.77.0.2/24")]
    Address(String),
    /// Not a prefix and a gateway.
    #[error("`{0}` is not a route, as `10.0.0.0/8 via 10.77.0.1`")]
    Route(String),
    /// The address is that of the network or its broadcast.
    #[error(
        "{0} is the address of the whole network or its broadcast address; take another one in that prefix"
    )]
    NotAHost(String),
}
