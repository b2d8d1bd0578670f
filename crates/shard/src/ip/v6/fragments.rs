//! Fragments of IPv6 packets: checks on those that come in, and replies that need several.

use millrace_wire::ipv6::{Content, Fragment, parameter};
use millrace_wire::{icmpv6, ipv6, tcp, udp};

use crate::env::Env;
use crate::ip::family::{CONGESTION_EXPERIENCED, is_marked};
use crate::ip::reassembly::{LEN_MAX, Name, Part, Whole, piece_size};
use crate::ip::v6::icmp::error::{Icmpv6Error, QUOTE_MAX};
use crate::network::reply_queue::{Reply, ReplyQueue};

/// Position of the payload's length in the header.
const LENGTH_AT: u32 = 4;

/// The name of the packet that a fragment belongs to, and its part.
///
/// # Errors
/// The error to send about a fragment that cannot be right.
pub fn parse<'a>(
    header: &ipv6::Header,
    content: &Content<'a>,
    fragment: &Fragment,
    packet: &'a [u8],
) -> Result<(Name, Part<'a>), Icmpv6Error> {
    let payload = content.payload;
    let problem = |code, pointer| Err(Icmpv6Error::Parameter { code, pointer });
    // RFC 8200 4.5: "If the length of a fragment, as derived from the fragment packet's Payload
    // Length field, is not a multiple of 8 octets and the M flag of that fragment is 1, then that
    // fragment must be discarded and an ICMP Parameter Problem, Code 0, message should be sent to
    // the source of the fragment, pointing to the Payload Length field of the fragment packet."
    if fragment.more && !payload.len().is_multiple_of(8) {
        return problem(parameter::FIELD, LENGTH_AT);
    }
    // RFC 8200 4.5: "If the length and offset of a fragment are such that the Payload Length of the
    // packet reassembled from that fragment would exceed 65,535 octets, then that fragment must be
    // discarded and an ICMP Parameter Problem, Code 0, message should be sent to the source of the
    // fragment, pointing to the Fragment Offset field of the fragment packet."
    if usize::from(fragment.offset) + payload.len() > LEN_MAX {
        return problem(parameter::FIELD, content.protocol_at + 2);
    }
    // RFC 7112 5: "A host that receives a First Fragment that does not satisfy the above-stated
    // requirement SHOULD discard the packet and SHOULD send an ICMPv6 error message to the source
    // address of the offending packet".
    if fragment.offset == 0 && !has_whole_chain(header, content) {
        return problem(parameter::INCOMPLETE_CHAIN, 0);
    }
    let part = Part {
        offset: fragment.offset,
        more: fragment.more,
        bytes: payload,
        protocol: content.protocol,
        marked: is_marked(header.traffic_class),
        packet: &packet[..packet.len().min(QUOTE_MAX)],
    };
    Ok((Name::V6(header.src, header.dst, fragment.id), part))
}

/// The header of a packet that was put together; `header` is that of its last fragment to come.
pub fn whole_header(header: &ipv6::Header, whole: &Whole) -> ipv6::Header {
    let mark = if whole.marked {
        CONGESTION_EXPERIENCED
    } else {
        0
    };
    ipv6::Header {
        next_header: whole.protocol,
        traffic_class: header.traffic_class | mark,
        payload_len: whole.bytes.len() as u16,
        ..*header
    }
}

/// Queues a reply that is larger than the link's `mtu`: `packet`, which begins with `header`.
pub fn send(
    env: &mut Env,
    replies: &mut ReplyQueue,
    mtu: u16,
    header: &ipv6::Header,
    packet: Vec<u8>,
) {
    let id = env.secrets.random() as u32;
    let heads_len = ipv6::HEADER_LEN + Fragment::LEN;
    let size = piece_size(mtu, heads_len);
    let payload = &packet[ipv6::HEADER_LEN..];
    for (index, piece) in payload.chunks(size).enumerate() {
        let offset = index * size;
        replies.push_packet(&mut env.counters, |buffer| {
            buffer.resize(heads_len, 0);
            ipv6::Header {
                next_header: Fragment::PROTOCOL,
                payload_len: (Fragment::LEN + piece.len()) as u16,
                ..*header
            }
            .emit(buffer);
            let fragment = Fragment {
                id,
                offset: offset as u16,
                more: offset + piece.len() < payload.len(),
            };
            fragment.emit(header.next_header, &mut buffer[ipv6::HEADER_LEN..]);
            buffer.extend_from_slice(piece);
        });
    }
    replies.recycle(Reply::Packet(packet));
}

/// Whether a first fragment has the whole header chain (RFC 7112 3): all headers up to and
/// including that of TCP, UDP or ICMP.
fn has_whole_chain(header: &ipv6::Header, content: &Content<'_>) -> bool {
    let inner = ipv6::Header {
        next_header: content.protocol,
        ..*header
    };
    ipv6::walk(&inner, content.payload).is_ok_and(|inner| {
        let least = match inner.protocol {
            tcp::PROTOCOL => tcp::HEADER_LEN,
            udp::PROTOCOL => udp::HEADER_LEN,
            icmpv6::PROTOCOL => icmpv6::HEADER_LEN,
            _ => 0,
        };
        inner.payload.len() >= least
    })
}
