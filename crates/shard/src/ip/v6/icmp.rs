//! ICMPv6 (RFC 4443): echo replies, errors that this host sends, errors from the network.

pub mod error;

use std::net::IpAddr;

use millrace_tcp::{Error, IcmpError, Instant};
use millrace_wire::icmpv6::{self, Message, Quoted as Original, unreachable};
use millrace_wire::ipv6::{self, MTU_MIN};

pub use error::Icmpv6Error;
use error::QUOTE_MAX;

use crate::env::Env;
use crate::error::errno;
use crate::ip::icmp::{IcmpDetails, IcmpLimits, NetworkError, Quoted};
use crate::ip::v6::fragments;
use crate::ip::v6::interface::Ipv6;
use crate::network::reply_queue::{Reply, ReplyQueue};
use crate::tcp::segment::HOPS;

/// IPv6 and TCP headers without options.
const HEADERS_LEN: u16 = 60;
/// Types of errors.
const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;

/// Processes a message that is not one of neighbour discovery or MLD. Returns the error that it
/// reports, if it reports one.
pub fn receive<'a>(
    env: &mut Env,
    v6: &Ipv6,
    limits: &mut IcmpLimits,
    replies: &mut ReplyQueue,
    header: &ipv6::Header,
    message: &Message<'a>,
    now: Instant,
) -> Option<NetworkError<'a>> {
    if let Message::EchoRequest { id, sequence, data } = *message {
        let answer = Message::EchoReply { id, sequence, data };
        if limits.allows_echo_reply(&mut env.counters, now)
            && send(env, v6, replies, header, &answer)
        {
            env.counters.icmp_echo_replies += 1;
        }
        return None;
    }
    let error = error_of(message, header.src.into(), env.config.mtu);
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
    link_mtu: u16,
) -> Option<(IcmpError, IcmpDetails, &'a [u8])> {
    let details = |kind, code| IcmpDetails::new(kind, code, offender);
    Some(match *message {
        Message::PacketTooBig { mtu, original } => {
            // RFC 8201 4: "A node MUST NOT reduce its estimate of the Path MTU below the IPv6
            // minimum link MTU in response to a Packet Too Big message." An MTU above ours is no
            // news.
            if !(u32::from(MTU_MIN)..u32::from(link_mtu)).contains(&mtu) {
                return None;
            }
            let max_segment = mtu as u16 - HEADERS_LEN;
            let details = IcmpDetails {
                info: mtu,
                ..details(PACKET_TOO_BIG, 0)
            };
            let error = IcmpError::FragmentationNeeded { max_segment };
            (error, details, original)
        }
        Message::Unreachable { code, original } => {
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
                info: pointer,
                ..details(PARAMETER_PROBLEM, code)
            };
            let error = IcmpError::Unreachable(Error::ProtocolError);
            (error, details, original)
        }
        Message::EchoRequest { .. } | Message::EchoReply { .. } | Message::Other { .. } => {
            return None;
        }
    })
}

/// Sends an error about `packet`, if RFC 4443 2.4 (e) and the limit allow it. The caller has
/// checked whether an error about a packet to a group is allowed.
pub fn send_error(
    env: &mut Env,
    v6: &Ipv6,
    limits: &mut IcmpLimits,
    replies: &mut ReplyQueue,
    error: Icmpv6Error,
    (header, packet): (&ipv6::Header, &[u8]),
    now: Instant,
) {
    // RFC 4443 2.4 (e): "An ICMPv6 error message MUST NOT be originated as a result of receiving
    // the following: (e.1) An ICMPv6 error message. [...] (e.6) A packet whose source address does
    // not uniquely identify a single node".
    let about_error = header.next_header == icmpv6::PROTOCOL
        && packet
            .get(ipv6::HEADER_LEN)
            .is_none_or(|&kind| icmpv6::is_error(kind));
    if header.src.is_unspecified() || about_error || !limits.allows_error(&mut env.counters, now) {
        return;
    }
    let original = &packet[..packet.len().min(QUOTE_MAX)];
    let message = match error {
        Icmpv6Error::Unreachable(code) => Message::Unreachable { code, original },
        Icmpv6Error::Reassembly => Message::TimeExceeded { code: 1, original },
        Icmpv6Error::Parameter { code, pointer } => Message::ParameterProblem {
            code,
            pointer,
            original,
        },
    };
    if send(env, v6, replies, header, &message) {
        env.counters.icmp_errors_out += 1;
    }
}

/// Queues a message to the sender of `header`, from the address that it was sent to, if that is one
/// host's. Returns false when the message cannot be sent.
fn send(
    env: &mut Env,
    v6: &Ipv6,
    replies: &mut ReplyQueue,
    header: &ipv6::Header,
    message: &Message<'_>,
) -> bool {
    let len = message.encoded_len();
    let source = match header.dst.is_multicast() {
        true => v6.source_for(header.src),
        false => Some(header.dst),
    };
    let Some(src) = source.filter(|_| len <= usize::from(u16::MAX)) else {
        env.counters.icmp_dropped += 1;
        return false;
    };
    let dst = header.src;
    let answer = ipv6::Header {
        src,
        dst,
        next_header: icmpv6::PROTOCOL,
        hop_limit: HOPS,
        traffic_class: 0,
        flow_label: 0,
        payload_len: len as u16,
    };
    let mut buffer = replies.buffer();
    buffer.resize(ipv6::HEADER_LEN + len, 0);
    answer.emit(&mut buffer);
    message.emit(src, dst, &mut buffer[ipv6::HEADER_LEN..]);
    if buffer.len() > usize::from(v6.mtu()) {
        fragments::send(env, replies, v6.mtu(), &answer, buffer);
    } else {
        replies.push(&mut env.counters, Reply::Packet(buffer));
    }
    true
}

/// The errno of an error for a datagram socket, and whether a socket that did not ask for errors is
/// told of it (Linux's `icmpv6_err_convert`).
fn meaning_to_datagrams(kind: u8, code: u8) -> (i32, bool) {
    match (kind, code) {
        (UNREACHABLE, unreachable::PORT) => (errno::ECONNREFUSED, true),
        (UNREACHABLE, unreachable::NO_ROUTE) => (errno::ENETUNREACH, false),
        (UNREACHABLE, unreachable::PROHIBITED | unreachable::POLICY | unreachable::REJECT) => {
            (errno::EACCES, true)
        }
        (PACKET_TOO_BIG, _) => (errno::EMSGSIZE, false),
        (PARAMETER_PROBLEM, _) => (errno::EPROTO, true),
        _ => (errno::EHOSTUNREACH, false),
    }
}

/// The error of a connection for a code of an unreachable destination (Linux's
/// `icmpv6_err_convert`).
fn meaning(code: u8) -> Error {
    match code {
        unreachable::PORT => Error::ConnectionRefused,
        unreachable::NO_ROUTE => Error::NetworkUnreachable,
        unreachable::PROHIBITED | unreachable::POLICY | unreachable::REJECT => {
            Error::PermissionDenied
        }
        _ => Error::HostUnreachable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linux's `icmpv6_err_convert`.
    #[test]
    fn rfc4443_3_1_what_is_not_allowed_is_told_as_such() {
        let errno = |code| meaning(code).errno();
        let told: Vec<i32> = (0..8).map(errno).collect();
        assert_eq!(told, [101, 13, 113, 113, 111, 13, 13, 113]);
    }
}
