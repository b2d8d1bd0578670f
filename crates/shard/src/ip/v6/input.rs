//! IPv6 packets in: the checks of RFC 8200 and RFC 4291.

use millrace_wire::{ethernet, ipv6};

use crate::ip::family::Rejected;
use crate::ip::groups::Groups;
use crate::ip::v6::interface::Ipv6;

/// Parses a packet from the link and checks that this host may take it in. `hears_all_groups`: the
/// members of a group may be in other shards.
///
/// # Errors
/// Why the packet is dropped.
pub fn parse<'a>(
    v6: &Ipv6,
    groups: &Groups,
    hears_all_groups: bool,
    link: &ethernet::Header,
    bytes: &'a [u8],
) -> Result<(ipv6::Header, &'a [u8]), Rejected> {
    let Ok((header, payload)) = ipv6::Header::parse(bytes) else {
        return Err(Rejected::Malformed);
    };
    let to_group = v6.is_group(header.dst)
        || header.dst.is_multicast() && (hears_all_groups || groups.contains(header.dst.into()));
    // A packet to one host does not come in a frame to several.
    if !to_group && (link.dst.is_multicast() || !v6.takes(header.dst)) {
        return Err(Rejected::NotOurs);
    }
    // Only neighbour discovery uses the unspecified source; the protocols above check that.
    if !header.src.is_unspecified() && !v6.is_valid_source(header.src) {
        return Err(Rejected::Source);
    }
    Ok((header, payload))
}
