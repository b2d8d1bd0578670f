//! Which address a packet comes from (RFC 6724 5), as far as it concerns a host whose addresses
//! were given to it: they have no temporary and no deprecated ones among them, and there is one
//! link.

use std::net::Ipv6Addr;

use super::interface::Ipv6;
use super::own_address::State;

/// The default policy table (RFC 6724 2.1), without its precedences, which are for those who choose
/// a destination: prefix, its length, label.
const LABELS: [(Ipv6Addr, u32, u8); 9] = [
    (Ipv6Addr::LOCALHOST, 128, 0),
    (Ipv6Addr::UNSPECIFIED, 0, 1),
    (prefix(0, 0, 0xffff), 96, 4),
    (prefix(0x2002, 0, 0), 16, 2),
    (prefix(0x2001, 0, 0), 32, 5),
    (prefix(0xfc00, 0, 0), 7, 13),
    (prefix(0, 0, 0), 96, 3),
    (prefix(0xfec0, 0, 0), 10, 11),
    (prefix(0x3ffe, 0, 0), 16, 12),
];

const fn prefix(first: u16, second: u16, sixth: u16) -> Ipv6Addr {
    Ipv6Addr::new(first, second, 0, 0, 0, sixth, 0, 0)
}

impl Ipv6 {
    /// The address to speak from to `destination`; none while no address is known to be nobody
    /// else's.
    pub fn source_for(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let candidates = self.own.iter().filter(|own| own.state == State::Preferred);
        let mut best = None;
        for own in candidates {
            let common = common_bits(own.address, destination);
            let rank = (
                own.address == destination,
                scope_rank(own.address, destination),
                label(own.address) == label(destination),
                common.min(own.prefix_len.into()),
            );
            if best.is_none_or(|(best, _)| rank > best) {
                best = Some((rank, own.address));
            }
        }
        best.map(|(_, address)| address)
    }
}

/// Rule 2: the smallest scope that reaches the destination; if none does, the largest.
fn scope_rank(source: Ipv6Addr, destination: Ipv6Addr) -> (bool, i16) {
    let (of_source, of_destination) = (scope(source), scope(destination));
    let reaches = of_source >= of_destination;
    (reaches, if reaches { -of_source } else { of_source })
}

/// RFC 6724 3.1.
fn scope(address: Ipv6Addr) -> i16 {
    let first = address.segments()[0];
    match first {
        _ if address.is_multicast() => (first & 0xf) as i16,
        _ if address.is_unicast_link_local() || address.is_loopback() => 2,
        // Site-local, which is no more (RFC 3879).
        0xfec0..=0xfeff => 5,
        _ => 0xe,
    }
}

fn common_bits(a: Ipv6Addr, b: Ipv6Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
}

fn label(address: Ipv6Addr) -> u8 {
    let fits = LABELS
        .iter()
        .filter(|(prefix, len, _)| common_bits(*prefix, address) >= *len);
    fits.max_by_key(|(_, len, _)| *len)
        .map_or(1, |&(_, _, label)| label)
}
