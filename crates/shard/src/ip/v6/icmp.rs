//! ICMPv6 (RFC 4443): echo and errors out, each under a rate limit, errors in to the connection that they quote.

use std::net::Ipv6Addr;

use millrace_tcp::{Error, IcmpError, Instant};
use millrace_wire::icmpv6::{self, HEADER_LEN, Message, Quoted, unreachable};
use millrace_wire::ipv6::MTU_MIN;
use millrace_wire::{ethernet, ipv6, mld, ndp};

use crate::connection_table::{Pair, Tuple};
use crate::error::errno;
use crate::ip::v4::icmp::IcmpDetails;
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;
use crate::tcp::segment::HOPS;

/// How much of a packet an error quotes: as much as fits into the least MTU (RFC 4443 2.4 (c)).
pub const QUOTE_MAX: usize = MTU_MIN as usize - ipv6::HEADER_LEN - HEADER_LEN;
/// IPv6 and TCP headers without options: what an MTU leaves for a segment.
const HEADERS_LEN: u16 = 60;

/// What is wrong with a packet.
#[derive(Clone, Copy, Debug)]
pub enum Icmpv6Error {
    /// It is for nobody here; one of [`mod@unreachable`].
    Unreachable(u8),
    /// Its headers make no sense.
    Parameter {
        /// One of [`mod@ipv6::parameter`].
        code: u8,
        /// Where.
        pointer: u32,
    },
    /// Fragments of it did not come in time.
    Reassembly,
}

impl<M: Memory> Shard<M> {
    pub(super) fn icmpv6_input(
        &mut self,
        link: &ethernet::Header,
        header: &ipv6::Header,
        bytes: &[u8],
        fragmented: bool,
        now: Instant,
    ) {
        let message = match Message::parse(bytes) {
            Ok(message) if icmpv6::verify(header.src, header.dst, bytes) => message,
            _ => {
                self.counters.icmp_dropped += 1;
                return;
            }
        };
        if ndp::is_ndp(bytes[0]) {
            // RFC 6980: nobody has a reason to send these in fragments.
            if fragmented {
                self.counters.nd_dropped += 1;
                return;
            }
            self.ndp_input(link, header, bytes, now);
            return;
        }
        match message {
            _ if header.src.is_unspecified() => self.counters.icmp_dropped += 1,
            Message::Other {
                kind: mld::QUERY, ..
            } => self.query_input(header, bytes, now),
            Message::EchoRequest { id, sequence, data } => {
                let answer = Message::EchoReply { id, sequence, data };
                if self.may_echo(now) && self.send_icmpv6(header, &answer) {
                    self.counters.icmp_echo_replies += 1;
                }
            }
            Message::PacketTooBig { mtu, original } => {
                // Less than every link takes is nonsense (RFC 8201 4), and more than ours takes is no news.
                if (u32::from(MTU_MIN)..u32::from(self.config.mtu)).contains(&mtu) {
                    let max_segment = mtu as u16 - HEADERS_LEN;
                    let error = IcmpError::FragmentationNeeded { max_segment };
                    let details = IcmpDetails {
                        info: mtu,
                        ..IcmpDetails::new(PACKET_TOO_BIG, 0, header.src.into())
                    };
                    self.icmpv6_error_input(error, details, original, now);
                } else {
                    self.counters.icmp_dropped += 1;
                }
            }
            Message::Unreachable { code, original } => {
                let details = IcmpDetails::new(UNREACHABLE, code, header.src.into());
                let error = IcmpError::Unreachable(meaning(code));
                self.icmpv6_error_input(error, details, original, now);
            }
            Message::TimeExceeded { code, original } => {
                let details = IcmpDetails::new(TIME_EXCEEDED, code, header.src.into());
                let error = IcmpError::Unreachable(Error::HostUnreachable);
                self.icmpv6_error_input(error, details, original, now);
            }
            Message::ParameterProblem {
                code,
                pointer,
                original,
            } => {
                let details = IcmpDetails {
                    info: pointer,
                    ..IcmpDetails::new(PARAMETER_PROBLEM, code, header.src.into())
                };
                let error = IcmpError::Unreachable(Error::ProtocolError);
                self.icmpv6_error_input(error, details, original, now);
            }
            Message::EchoReply { .. } | Message::Other { .. } => self.counters.icmp_dropped += 1,
        }
    }

    fn icmpv6_error_input(
        &mut self,
        error: IcmpError,
        details: IcmpDetails,
        original: &[u8],
        now: Instant,
    ) {
        let Ok(quoted) = Quoted::parse(original) else {
            self.counters.icmp_dropped += 1;
            return;
        };
        if let (Some((local_port, remote_port)), Some(payload)) =
            (quoted.udp(), quoted.udp_payload())
        {
            let tuple = Tuple::V6(Pair {
                local: quoted.src,
                remote: quoted.dst,
                local_port,
                remote_port,
            });
            let (errno, hard) = meaning_to_datagrams(details.kind, details.code);
            self.datagram_error(&tuple, &details.failure(errno, hard, payload), now);
            return;
        }
        let place = quoted.tcp().map(|tcp| {
            let tuple = Tuple::V6(Pair {
                local: quoted.src,
                remote: quoted.dst,
                local_port: tcp.src_port,
                remote_port: tcp.dst_port,
            });
            (tuple, tcp.seq)
        });
        self.connection_error(place, error, now);
    }

    /// Says what is wrong with a packet, unless RFC 4443 2.4 (e) forbids it. Whether it may be said of a packet to a group, the caller has checked.
    pub(crate) fn icmpv6_error(
        &mut self,
        trouble: Icmpv6Error,
        header: &ipv6::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let about_error = header.next_header == icmpv6::PROTOCOL
            && packet
                .get(ipv6::HEADER_LEN)
                .is_none_or(|&kind| icmpv6::is_error(kind));
        if header.src.is_unspecified() || about_error {
            return;
        }
        if !self.icmp_limit.allow(now) {
            self.counters.icmp_errors_limited += 1;
            return;
        }
        let original = &packet[..packet.len().min(QUOTE_MAX)];
        let message = match trouble {
            Icmpv6Error::Unreachable(code) => Message::Unreachable { code, original },
            Icmpv6Error::Reassembly => Message::TimeExceeded { code: 1, original },
            Icmpv6Error::Parameter { code, pointer } => Message::ParameterProblem {
                code,
                pointer,
                original,
            },
        };
        if self.send_icmpv6(header, &message) {
            self.counters.icmp_errors_out += 1;
        }
    }

    /// Queues a message to the sender of `header`, from the address that it was sent to if that is one host's; false when it cannot be sent.
    fn send_icmpv6(&mut self, header: &ipv6::Header, message: &Message<'_>) -> bool {
        let len = message.encoded_len();
        let source = if header.dst.is_multicast() {
            self.v6.source_for(header.src)
        } else {
            Some(header.dst)
        };
        let Some(src) = source.filter(|_| len <= usize::from(u16::MAX)) else {
            self.counters.icmp_dropped += 1;
            return false;
        };
        let dst: Ipv6Addr = header.src;
        let answer = ipv6::Header {
            src,
            dst,
            next_header: icmpv6::PROTOCOL,
            hop_limit: HOPS,
            traffic_class: 0,
            flow_label: 0,
            payload_len: len as u16,
        };
        let mut buffer = self.replies.buffer();
        buffer.resize(ipv6::HEADER_LEN + len, 0);
        answer.emit(&mut buffer);
        message.emit(src, dst, &mut buffer[ipv6::HEADER_LEN..]);
        if buffer.len() > usize::from(self.v6.mtu()) {
            self.reply_in_fragments_v6(&answer, buffer);
        } else {
            self.reply(Reply::Packet(buffer));
        }
        true
    }
}

/// Types of errors.
const UNREACHABLE: u8 = 1;
const PACKET_TOO_BIG: u8 = 2;
const TIME_EXCEEDED: u8 = 3;
const PARAMETER_PROBLEM: u8 = 4;

/// What an error means to a socket for datagrams, and whether it is told unasked (Linux's `icmpv6_err_convert`).
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

/// What a code means to a program, as Linux's `icmpv6_err_convert` has it.
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
