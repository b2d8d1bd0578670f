//! IPv4 packets in: the checks of RFC 1122 3.2.1.

use millrace_wire::{ethernet, icmpv4, igmp, ipv4, udp};

use crate::ip::family::Rejected;
use crate::ip::groups::Groups;
use crate::ip::v4::Ipv4;

/// Parses a packet from the link and checks that this host may take it in. `hears_all_groups`: the
/// members of a group may be in other shards.
///
/// # Errors
/// Why the packet is dropped.
pub fn parse<'a>(
    v4: &Ipv4,
    groups: &Groups,
    hears_all_groups: bool,
    link: &ethernet::Header,
    bytes: &'a [u8],
) -> Result<(ipv4::Header, &'a [u8]), Rejected> {
    let Ok((header, options, payload)) = ipv4::Header::parse(bytes) else {
        return Err(Rejected::Options);
    };
    if header.ttl == 0 || (!options.is_empty() && ipv4::is_source_routed(options)) {
        return Err(Rejected::Malformed);
    }
    if !ipv4::verify(bytes) {
        return Err(Rejected::Checksum);
    }
    // RFC 1122 3.3.6: "When a host sends a datagram to a link-layer broadcast address, the IP
    // destination address MUST be a legal IP broadcast or IP multicast address."
    let is_ours = match link.dst.is_multicast() {
        true => {
            let is_member = || hears_all_groups || groups.contains(header.dst.into());
            accepts_group(v4, &header, is_member)
        }
        false => v4.takes(header.dst),
    };
    if !is_ours {
        return Err(Rejected::NotOurs);
    }
    if !v4.is_valid_source(header.src) {
        return Err(Rejected::Source);
    }
    Ok((header, payload))
}

/// Whether a packet to a group or to all hosts of the link is for this host. It is never TCP
/// (RFC 9293 MUST-57).
fn accepts_group(v4: &Ipv4, header: &ipv4::Header, is_member: impl Fn() -> bool) -> bool {
    let is_group = header.dst.is_multicast() && is_member();
    match header.protocol {
        udp::PROTOCOL => is_group || v4.is_broadcast(header.dst),
        igmp::PROTOCOL => is_group,
        _ => false,
    }
}

/// The header of a packet with an option that makes no sense, and the position of that option, if
/// an error may be sent about the packet. RFC 1122 3.2.2: "An ICMP error message MUST NOT be sent
/// as the result of receiving: an ICMP error message, or a datagram destined to an IP broadcast or
/// IP multicast address, or a datagram sent as a link-layer broadcast, or a non-initial fragment,
/// or a datagram whose source address does not define a single host".
#[cold]
pub fn faulty_option(
    v4: &Ipv4,
    link: &ethernet::Header,
    bytes: &[u8],
) -> Option<(ipv4::Header, u8)> {
    let (header, pointer) = ipv4::faulty_option(bytes)?;
    let heads_len = usize::from(bytes[0] & 0xf) * 4;
    let about_error = header.protocol == ipv4::PROTOCOL_ICMP
        && (header.payload_len == 0 || icmpv4::is_error(bytes[heads_len]));
    let is_allowed = ipv4::verify(bytes)
        && !link.dst.is_multicast()
        && v4.takes(header.dst)
        && v4.is_valid_source(header.src)
        && header.fragment_offset == 0
        && !about_error;
    is_allowed.then_some((header, pointer))
}
