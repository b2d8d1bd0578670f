//! Fragments of IPv4 packets: checks on those that come in, and replies that need several.

use millrace_wire::{ipv4, tcp};

use crate::env::Env;
use crate::ip::family::{CONGESTION_EXPERIENCED, is_marked};
use crate::ip::reassembly::{Name, Part, Whole, piece_size};
use crate::ip::v4::icmp::error::QUOTE_MAX;
use crate::network::reply_queue::{Reply, ReplyQueue};

/// The name of the packet that a fragment belongs to, and its part; `None` for a fragment that no
/// host sends.
pub fn parse<'a>(
    header: &ipv4::Header,
    payload: &'a [u8],
    packet: &'a [u8],
) -> Option<(Name, Part<'a>)> {
    // RFC 791 3.1: "The fragment offset is measured in units of 8 octets (64 bits)."
    let is_ragged = header.more_fragments && !payload.len().is_multiple_of(8);
    // RFC 1858 3.2.2 and 4.2, RFC 3128: a first fragment that hides the flags of TCP, or a second
    // fragment that would overwrite them.
    let is_tcp = header.protocol == tcp::PROTOCOL;
    let hides_flags = header.fragment_offset == 0 && payload.len() < tcp::HEADER_LEN;
    if is_ragged || (is_tcp && (hides_flags || header.fragment_offset == 8)) {
        return None;
    }
    let part = Part {
        offset: header.fragment_offset,
        more: header.more_fragments,
        bytes: payload,
        protocol: header.protocol,
        marked: is_marked(header.tos),
        packet: &packet[..packet.len().min(QUOTE_MAX)],
    };
    let name = Name::V4(header.src, header.dst, header.protocol, header.id);
    Some((name, part))
}

/// The header of a packet that was put together; `header` is that of its last fragment to come.
pub fn whole_header(header: &ipv4::Header, whole: &Whole) -> ipv4::Header {
    let mark = if whole.marked {
        CONGESTION_EXPERIENCED
    } else {
        0
    };
    ipv4::Header {
        tos: header.tos | mark,
        more_fragments: false,
        fragment_offset: 0,
        payload_len: whole.bytes.len() as u16,
        ..*header
    }
}

/// Queues a reply that is larger than the link's MTU: `packet`, which begins with `header`.
pub fn send(env: &mut Env, replies: &mut ReplyQueue, header: &ipv4::Header, packet: Vec<u8>) {
    // A random name, so that nobody can guess the next one (RFC 7739 has the reasons).
    let id = env.secrets.random() as u16;
    let size = piece_size(env.config.mtu, ipv4::HEADER_LEN);
    let payload = &packet[ipv4::HEADER_LEN..];
    for (index, piece) in payload.chunks(size).enumerate() {
        let offset = index * size;
        replies.push_packet(&mut env.counters, |buffer| {
            buffer.resize(ipv4::HEADER_LEN, 0);
            ipv4::Header {
                id,
                dont_fragment: false,
                more_fragments: offset + piece.len() < payload.len(),
                fragment_offset: offset as u16,
                payload_len: piece.len() as u16,
                ..*header
            }
            .emit(buffer);
            buffer.extend_from_slice(piece);
        });
    }
    replies.recycle(Reply::Packet(packet));
}
