//! Which frames may be held: the rest goes on as it is.

use millrace_wire::bytes::{get16, get32};
use millrace_wire::checksum::Sum;
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::tcp::{self, Flags, Seq, Timestamps};
use millrace_wire::vnet::{self, VnetHeader};
use millrace_wire::{ipv4, ipv6};

use crate::key::Key;

const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
const TAG_LEN: usize = 4;
const IPV4_TCP_FRAGMENT: u16 = 0x3fff;

/// What a frame is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    /// Nothing of a TCP flow.
    Other,
    /// A part of a TCP flow, but not to be seen of which.
    SomeFlow,
    /// Damaged: the IP header.
    BadIp,
    /// Damaged: the segment.
    BadTcp,
    /// A segment.
    Segment(Segment),
}

/// A TCP segment in its frame. Places count from the start of the frame and are within it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) key: Key,
    /// Where the IP header is.
    pub(crate) ip_at: u16,
    /// Where the TCP header is.
    pub(crate) tcp_at: u16,
    /// Where the payload is.
    pub(crate) payload_at: u16,
    /// Length of the payload, which may reach past the bytes that were looked at.
    pub(crate) payload_len: u32,
    pub(crate) seq: Seq,
    pub(crate) ack: Seq,
    pub(crate) flags: Flags,
    pub(crate) window: u16,
    pub(crate) timestamps: Option<Timestamps>,
    /// Where the value of the timestamps is, from the start of the TCP header; 0 without.
    pub(crate) timestamps_at: u8,
    /// Whether it may be held: payload, no other flags, no other options, none of IP.
    pub(crate) plain: bool,
    /// The sum of the payload, when it was taken.
    pub(crate) sum: Option<Sum>,
}

/// Looks at a frame: `bytes` is its beginning, `len` its whole length.
pub(crate) fn classify(bytes: &[u8], len: usize, vnet: &VnetHeader) -> Class {
    let Some((ip_at, ethertype, vlan)) = link(bytes) else {
        return Class::Other;
    };
    match EtherType(ethertype) {
        EtherType::IPV4 => v4(bytes, len, ip_at, vlan, vnet),
        EtherType::IPV6 => v6(bytes, len, ip_at, vlan, vnet),
        _ => Class::Other,
    }
}

/// Where the packet is, what it is, and the tag before it.
fn link(bytes: &[u8]) -> Option<(usize, u16, u32)> {
    let at = ethernet::HEADER_LEN;
    let head = bytes.get(..at)?;
    match get16(head, 12) {
        tag @ (VLAN | SERVICE_VLAN) => {
            let head = bytes.get(..at + TAG_LEN)?;
            let control = get16(head, 14);
            Some((
                at + TAG_LEN,
                get16(head, 16),
                u32::from(tag) << 16 | u32::from(control),
            ))
        }
        ethertype => Some((at, ethertype, 0)),
    }
}

fn v4(bytes: &[u8], len: usize, ip_at: usize, vlan: u32, vnet: &VnetHeader) -> Class {
    let Some(head) = bytes.get(ip_at..).filter(|ip| ip.len() >= ipv4::HEADER_LEN) else {
        return Class::Other;
    };
    let header_len = usize::from(head[0] & 0xf) * 4;
    let total_len = usize::from(get16(head, 2));
    if head[0] >> 4 != 4
        || header_len < ipv4::HEADER_LEN
        || total_len < header_len
        || total_len > len - ip_at
        || header_len > head.len()
    {
        return Class::Other;
    }
    if !Sum::of(&head[..header_len]).is_valid() {
        return Class::BadIp;
    }
    if head[9] != tcp::PROTOCOL {
        return Class::Other;
    }
    if get16(head, 6) & IPV4_TCP_FRAGMENT != 0 {
        return Class::SomeFlow;
    }
    let mut key = Key {
        vlan,
        is_v6: false,
        addresses: [0; 32],
        ports: [0; 4],
    };
    key.addresses[..4].copy_from_slice(&head[12..16]);
    key.addresses[16..20].copy_from_slice(&head[16..20]);
    let place = Place {
        ip_at,
        tcp_at: ip_at + header_len,
        end: ip_at + total_len,
        plain: header_len == ipv4::HEADER_LEN,
    };
    segment(bytes, key, &place, vnet)
}

fn v6(bytes: &[u8], len: usize, ip_at: usize, vlan: u32, vnet: &VnetHeader) -> Class {
    let Some(head) = bytes.get(ip_at..).filter(|ip| ip.len() >= ipv6::HEADER_LEN) else {
        return Class::Other;
    };
    let payload_len = usize::from(get16(head, 4));
    if head[0] >> 4 != 6 || payload_len > len - ip_at - ipv6::HEADER_LEN {
        return Class::Other;
    }
    match head[6] {
        tcp::PROTOCOL => {}
        // Hop-by-hop options, routing, fragment, authentication, destination options, mobility: TCP
        // may come behind them.
        0 | 43 | 44 | 51 | 60 | 135 => return Class::SomeFlow,
        _ => return Class::Other,
    }
    let mut key = Key {
        vlan,
        is_v6: true,
        addresses: [0; 32],
        ports: [0; 4],
    };
    key.addresses.copy_from_slice(&head[8..40]);
    let tcp_at = ip_at + ipv6::HEADER_LEN;
    let place = Place {
        ip_at,
        tcp_at,
        end: tcp_at + payload_len,
        plain: true,
    };
    segment(bytes, key, &place, vnet)
}

/// Where a segment is in its frame; `end` may be past the bytes that are at hand.
struct Place {
    ip_at: usize,
    tcp_at: usize,
    end: usize,
    plain: bool,
}

fn segment(bytes: &[u8], mut key: Key, place: &Place, vnet: &VnetHeader) -> Class {
    let Some(head) = bytes
        .get(place.tcp_at..)
        .filter(|_| place.end - place.tcp_at >= tcp::HEADER_LEN)
        .filter(|tcp| tcp.len() >= tcp::HEADER_LEN)
    else {
        // Too short for TCP: whatever it is, it is not ours to judge.
        return Class::Other;
    };
    key.ports.copy_from_slice(&head[..4]);
    let header_len = usize::from(head[12] >> 4) * 4;
    let payload_at = place.tcp_at + header_len;
    let sound =
        header_len >= tcp::HEADER_LEN && payload_at <= place.end && header_len <= head.len();
    // Of a damaged data offset the end of the header is anybody's guess; the checksum does not
    // depend on it.
    let cut = if sound { header_len } else { tcp::HEADER_LEN };
    let vouched = vnet
        .flags
        .intersects(vnet::Flags::NEEDS_CSUM | vnet::Flags::DATA_VALID);
    let mut sum = None;
    if let Some(all) = bytes.get(place.tcp_at..place.end)
        && !vouched
    {
        let (header, payload) = all.split_at(cut);
        let of_payload = Sum::of(payload);
        let total = pseudo(&key, all.len()) + Sum::of(header) + of_payload;
        if !total.is_valid() {
            return Class::BadTcp;
        }
        sum = Some(of_payload);
    }
    let flags = Flags::from_bits_retain(head[13]);
    let payload_len = place.end.saturating_sub(payload_at);
    let options = sound
        .then(|| timestamps_only(&head[tcp::HEADER_LEN..header_len]))
        .flatten();
    let (timestamps, timestamps_at) = match options {
        Some(Some((value, at))) => (Some(value), (tcp::HEADER_LEN + at) as u8),
        _ => (None, 0),
    };
    let other_flags = Flags::SYN | Flags::FIN | Flags::RST | Flags::URG;
    Class::Segment(Segment {
        key,
        ip_at: place.ip_at as u16,
        tcp_at: place.tcp_at as u16,
        payload_at: payload_at as u16,
        payload_len: if sound { payload_len as u32 } else { 0 },
        seq: Seq(get32(head, 4)),
        ack: Seq(get32(head, 8)),
        flags,
        window: get16(head, 14),
        timestamps,
        timestamps_at,
        plain: place.plain
            && options.is_some()
            && payload_len > 0
            && !flags.intersects(other_flags)
            && flags.contains(Flags::ACK)
            && place.end <= bytes.len(),
        sum,
    })
}

/// The sum of the pseudo-header of a segment of `len` bytes.
pub(crate) fn pseudo(key: &Key, len: usize) -> Sum {
    // The unused bytes of IPv4's addresses are zero and count for nothing; no segment here is
    // longer than 65,535 bytes.
    Sum::of(&key.addresses) + Sum::word(u16::from(tcp::PROTOCOL)) + Sum::word(len as u16)
}

/// The timestamps among options, and where their value is; `None` when there is anything else.
fn timestamps_only(options: &[u8]) -> Option<Option<(Timestamps, usize)>> {
    const END: u8 = 0;
    const NOP: u8 = 1;
    const TIMESTAMPS: u8 = 8;
    const TIMESTAMPS_LEN: usize = 10;
    let mut found = None;
    let mut at = 0;
    while let Some(&kind) = options.get(at) {
        match kind {
            END => break,
            NOP => at += 1,
            TIMESTAMPS if found.is_none() => {
                let option = options.get(at..at + TIMESTAMPS_LEN)?;
                if usize::from(option[1]) != TIMESTAMPS_LEN {
                    return None;
                }
                let value = Timestamps {
                    value: get32(option, 2),
                    echo: get32(option, 6),
                };
                found = Some((value, at + 2));
                at += TIMESTAMPS_LEN;
            }
            _ => return None,
        }
    }
    Some(found)
}
