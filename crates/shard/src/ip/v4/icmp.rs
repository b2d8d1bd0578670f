//! ICMP (RFC 792): echo replies, errors that this host sends, errors from the network.

pub mod error;

use std::net::IpAddr;

use millrace_tcp::{Error, IcmpError, Instant};
use millrace_wire::icmpv4::{self, Message, Quoted as Original, unreachable};
use millrace_wire::ipv4;

pub use error::Icmpv4Error;
use error::QUOTE_MAX;

use crate::env::Env;
use crate::error::errno;
use crate::ip::icmp::{IcmpDetails, IcmpLimits, NetworkError, Quoted};
use crate::ip::v4::fragments;
use crate::network::reply_queue::{Reply, ReplyQueue};

/// IPv4 and TCP headers without options.
const HEADERS_LEN: u16 = 40;
/// The least MTU that a link may have (RFC 791 3.2). A message with a smaller one is forged.
const MTU_MIN: u16 = 68;
/// Types of errors.
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// Processes a message. Returns the error that it reports, if it reports one.
pub fn receive<'a>(
    env: &mut Env,
    limits: &mut IcmpLimits,
    replies: &mut ReplyQueue,
    header: &ipv4::Header,
    bytes: &'a [u8],
    now: Instant,
) -> Option<NetworkError<'a>> {
    let message = match Message::parse(bytes) {
        Ok(message) if icmpv4::verify(bytes) => message,
        _ => {
            env.counters.icmp_dropped += 1;
            return None;
        }
    };
    if let Message::EchoRequest { id, sequence, data } = message {
        let answer = Message::EchoReply { id, sequence, data };
        if limits.allows_echo_reply(&mut env.counters, now) && send(env, replies, header, &answer) {
            env.counters.icmp_echo_replies += 1;
        }
        return None;
    }
    let error = error_of(&message, header.src.into(), env.config.mtu);
    let original = error.and_then(|(.., original)| Original::parse(original).ok());
    let (Some((error, details, _)), Some(original)) = (error, original) else {
        env.counters.icmp_dropped += 1;
        return None;
    };
    let datagram = original.udp().zip(original.udp_payload());
    let segment = original
        .tcp()
        .map(|tcp| ((tcp.src_port, tcp.dst_port), tcp.seq));
    let meaning = meaning_to_datagrams(details.kind, details.code);
    Some(NetworkError {
        error,
        details,
        about: Quoted::new((original.src, original.dst), datagram, segment, meaning),
    })
}

/// The error that a message reports, and the start of the packet that it quotes.
fn error_of<'a>(
    message: &Message<'a>,
    offender: IpAddr,
    mtu: u16,
) -> Option<(IcmpError, IcmpDetails, &'a [u8])> {
    let details = |kind, code| IcmpDetails::new(kind, code, offender);
    Some(match *message {
        Message::Unreachable {
            code: unreachable::FRAGMENTATION_NEEDED,
            next_hop_mtu,
            original,
        } => {
            // Routers of before RFC 1191 report an MTU of 0. An MTU above ours is no news.
            if !(MTU_MIN..mtu).contains(&next_hop_mtu) {
                return None;
            }
            let details = IcmpDetails {
                info: next_hop_mtu.into(),
                ..details(UNREACHABLE, unreachable::FRAGMENTATION_NEEDED)
            };
            let max_segment = next_hop_mtu - HEADERS_LEN;
            let error = IcmpError::FragmentationNeeded { max_segment };
            (error, details, original)
        }
        Message::Unreachable { code, original, .. } => {
            let error = IcmpError::Unreachable(meaning(code));
            (error, details(UNREACHABLE, code), original)
        }
        Message::TimeExceeded { code, original } => {
            let error = IcmpError::Unreachable(Error::HostUnreachable);
            (error, details(TIME_EXCEEDED, code), original)
        }
        Message::ParameterProblem {
            code,
            pointer,
            original,
        } => {
            let details = IcmpDetails {
                info: pointer.into(),
                ..details(PARAMETER_PROBLEM, code)
            };
            let error = IcmpError::Unreachable(Error::ProtocolError);
            (error, details, original)
        }
        // Source quench (RFC 6633) is ignored. Redirects are not followed: there is one link.
        Message::EchoRequest { .. } | Message::EchoReply { .. } | Message::Other { .. } => {
            return None;
        }
    })
}

/// Sends an error about `packet`, if the limit allows one more.
pub fn send_error(
    env: &mut Env,
    limits: &mut IcmpLimits,
    replies: &mut ReplyQueue,
    error: Icmpv4Error,
    header: &ipv4::Header,
    packet: &[u8],
    now: Instant,
) {
    let message = match error {
        Icmpv4Error::Unreachable(code) => Message::Unreachable {
            code,
            next_hop_mtu: 0,
            original: quote(header, packet),
        },
        Icmpv4Error::Parameter(pointer) => Message::ParameterProblem {
            code: 0,
            pointer,
            original: quote(header, packet),
        },
        Icmpv4Error::Reassembly => Message::TimeExceeded {
            code: 1,
            original: &packet[..packet.len().min(QUOTE_MAX)],
        },
    };
    if limits.allows_error(&mut env.counters, now) && send(env, replies, header, &message) {
        env.counters.icmp_errors_out += 1;
    }
}

/// Queues a message to the sender of `header`, from the address that it was sent to. Returns false
/// when the message is too long.
fn send(
    env: &mut Env,
    replies: &mut ReplyQueue,
    header: &ipv4::Header,
    message: &Message<'_>,
) -> bool {
    let len = message.encoded_len();
    if len + ipv4::HEADER_LEN > usize::from(u16::MAX) {
        env.counters.icmp_dropped += 1;
        return false;
    }
    let answer = ipv4::Header::new(header.dst, header.src, ipv4::PROTOCOL_ICMP, len as u16);
    let mut buffer = replies.buffer();
    buffer.resize(ipv4::HEADER_LEN + len, 0);
    answer.emit(&mut buffer);
    message.emit(&mut buffer[ipv4::HEADER_LEN..]);
    if buffer.len() > usize::from(env.config.mtu) {
        fragments::send(env, replies, &answer, buffer);
    } else {
        replies.push(&mut env.counters, Reply::Packet(buffer));
    }
    true
}

/// The start of a packet, for an error about it. A frame may be padded behind its packet.
fn quote<'a>(header: &ipv4::Header, packet: &'a [u8]) -> &'a [u8] {
    let len = usize::from(header.payload_len) + usize::from(packet[0] & 0xf) * 4;
    &packet[..len.min(packet.len()).min(QUOTE_MAX)]
}

/// The errno of an error for a datagram socket, and whether a socket that did not ask for errors is
/// told of it (Linux's `icmp_err_convert`).
fn meaning_to_datagrams(kind: u8, code: u8) -> (i32, bool) {
    match (kind, code) {
        (UNREACHABLE, unreachable::PORT) => (errno::ECONNREFUSED, true),
        (UNREACHABLE, unreachable::PROTOCOL) => (errno::ENOPROTOOPT, true),
        (UNREACHABLE, unreachable::FRAGMENTATION_NEEDED) => (errno::EMSGSIZE, false),
        (UNREACHABLE, unreachable::NETWORK | 11) => (errno::ENETUNREACH, false),
        // The destination network is unknown, or access to it is prohibited.
        (UNREACHABLE, 6 | 9) => (errno::ENETUNREACH, true),
        (UNREACHABLE, 10 | 13 | 14 | 15) => (errno::EHOSTUNREACH, true),
        (PARAMETER_PROBLEM, _) => (errno::EPROTO, true),
        _ => (errno::EHOSTUNREACH, false),
    }
}

/// The error of a connection for a code of an unreachable destination (Linux's `icmp_err_convert`).
fn meaning(code: u8) -> Error {
    match code {
        unreachable::PROTOCOL => Error::ProtocolUnavailable,
        unreachable::PORT => Error::ConnectionRefused,
        // The network is unreachable, unknown, prohibited, or unreachable for the type of service.
        unreachable::NETWORK | 6 | 9 | 11 => Error::NetworkUnreachable,
        _ => Error::HostUnreachable,
    }
}
