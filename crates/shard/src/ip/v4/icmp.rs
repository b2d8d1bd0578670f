//! ICMP for IPv4: echo and errors out, each under a rate limit, errors in to the connection that they quote.

use std::net::IpAddr;

use millrace_tcp::{Error, IcmpError, Instant};
use millrace_wire::icmpv4::{self, Message, Quoted, unreachable};
use millrace_wire::ipv4;
use millrace_wire::tcp::Seq;

use crate::connection_table::{Pair, Place, Tuple};
use crate::error::errno;
use crate::memory::Memory;
use crate::output::reply_queue::Reply;
use crate::shard::Shard;
use crate::tcp::input::headers_len;
use crate::udp::Failure;

/// How much of a packet an error quotes: the error fits into 576 bytes (RFC 1812 4.3.2.3).
pub const QUOTE_MAX: usize = 576 - ipv4::HEADER_LEN - icmpv4::HEADER_LEN;
/// IPv4 and TCP headers without options: what an MTU leaves for a segment.
const HEADERS_LEN: u16 = 40;
/// The least MTU of IPv4 (RFC 791): a smaller one is a lie.
const MTU_MIN: u16 = 68;

impl<M: Memory> Shard<M> {
    pub(crate) fn icmp_input(&mut self, header: &ipv4::Header, bytes: &[u8], now: Instant) {
        let message = match Message::parse(bytes) {
            Ok(message) if icmpv4::verify(bytes) => message,
            _ => {
                self.counters.icmp_dropped += 1;
                return;
            }
        };
        match message {
            Message::EchoRequest { id, sequence, data } => {
                let answer = Message::EchoReply { id, sequence, data };
                if self.may_echo(now) && self.send_icmp(header, &answer) {
                    self.counters.icmp_echo_replies += 1;
                }
            }
            Message::Unreachable {
                code: unreachable::FRAGMENTATION_NEEDED,
                next_hop_mtu,
                original,
            } => {
                // A router that says nothing (RFC 1191 5) or nonsense is not followed; nor is one that allows more than our link.
                if next_hop_mtu >= MTU_MIN && next_hop_mtu < self.config.mtu {
                    let details = IcmpDetails {
                        kind: UNREACHABLE,
                        code: unreachable::FRAGMENTATION_NEEDED,
                        info: next_hop_mtu.into(),
                        offender: header.src.into(),
                    };
                    let max_segment = next_hop_mtu - HEADERS_LEN;
                    let error = IcmpError::FragmentationNeeded { max_segment };
                    self.icmp_error_input(error, details, original, now);
                } else {
                    self.counters.icmp_dropped += 1;
                }
            }
            Message::Unreachable { code, original, .. } => {
                let details = IcmpDetails::new(UNREACHABLE, code, header.src.into());
                self.icmp_error_input(
                    IcmpError::Unreachable(meaning(code)),
                    details,
                    original,
                    now,
                );
            }
            Message::TimeExceeded { code, original } => {
                let details = IcmpDetails::new(TIME_EXCEEDED, code, header.src.into());
                let error = IcmpError::Unreachable(Error::HostUnreachable);
                self.icmp_error_input(error, details, original, now);
            }
            Message::ParameterProblem {
                code,
                pointer,
                original,
            } => {
                let details = IcmpDetails {
                    info: pointer.into(),
                    ..IcmpDetails::new(PARAMETER_PROBLEM, code, header.src.into())
                };
                let error = IcmpError::Unreachable(Error::ProtocolError);
                self.icmp_error_input(error, details, original, now);
            }
            // Source quench (RFC 6633), redirects and the rest are not for us.
            Message::EchoReply { .. } | Message::Other { .. } => self.counters.icmp_dropped += 1,
        }
    }

    /// Whether one more echo request may be answered now. Errors have a limit of their own: who floods us with the ones does not silence the others.
    pub(crate) fn may_echo(&mut self, now: Instant) -> bool {
        let allowed = self.echo_limit.allow(now);
        self.counters.icmp_echo_limited += u64::from(!allowed);
        allowed
    }

    /// Gives an error to the connection whose segment it quotes (RFC 5927: which checks that the segment can be in flight).
    fn icmp_error_input(
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
            let tuple = Tuple::V4(Pair {
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
            let tuple = Tuple::V4(Pair {
                local: quoted.src,
                remote: quoted.dst,
                local_port: tcp.src_port,
                remote_port: tcp.dst_port,
            });
            (tuple, tcp.seq)
        });
        self.connection_error(place, error, now);
    }

    /// Gives an error to the connection at `place`, if there is one: ends and sequence number of the segment that the error is about.
    pub(crate) fn connection_error(
        &mut self,
        place: Option<(Tuple, Seq)>,
        error: IcmpError,
        now: Instant,
    ) {
        let found = place.map(|(tuple, seq)| (tuple, self.table.get(&tuple), seq));
        match found {
            Some((tuple, None, _)) if self.is_misrouted(&tuple) => {}
            Some((_, Some(Place::Stream(index)), seq)) => {
                self.counters.icmp_errors_in += 1;
                if let Some(stream) = self
                    .sockets
                    .get_mut(index)
                    .and_then(|socket| socket.stream_mut())
                {
                    let believed = stream.connection.on_icmp(&self.config.tcp, error, seq, now);
                    if believed && matches!(error, IcmpError::FragmentationNeeded { .. }) {
                        let remote = stream.endpoints.tuple().remote_ip();
                        let mtu = stream.connection.path_max_segment() + headers_len(remote);
                        self.counters.paths_refused +=
                            u64::from(!self.path_mtus.learn(remote, mtu, now));
                    }
                }
                self.apply_state_change(index);
            }
            // A half-open connection waits for its timer; TIME-WAIT for the end of its time.
            _ => self.counters.icmp_errors_unmatched += 1,
        }
    }

    /// Says that a packet could not be delivered. The caller has checked that it came from one host, and to us alone (RFC 1122 3.2.2).
    pub(crate) fn icmp_error(
        &mut self,
        code: u8,
        header: &ipv4::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let message = Message::Unreachable {
            code,
            next_hop_mtu: 0,
            original: quote(header, packet),
        };
        self.send_icmp_error(header, &message, now);
    }

    /// Says that the byte at `pointer` of a packet's header makes no sense. The caller has checked as for [`Shard::icmp_error`].
    pub(crate) fn icmp_parameter_problem(
        &mut self,
        pointer: u8,
        header: &ipv4::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let message = Message::ParameterProblem {
            code: 0,
            pointer,
            original: quote(header, packet),
        };
        self.send_icmp_error(header, &message, now);
    }

    /// Says that fragments did not come in time; `packet` is the start of the one with the first fragment.
    pub(crate) fn icmp_reassembly_timeout(
        &mut self,
        header: &ipv4::Header,
        packet: &[u8],
        now: Instant,
    ) {
        let message = Message::TimeExceeded {
            code: 1,
            original: &packet[..packet.len().min(QUOTE_MAX)],
        };
        self.send_icmp_error(header, &message, now);
    }

    fn send_icmp_error(&mut self, header: &ipv4::Header, message: &Message<'_>, now: Instant) {
        if !self.icmp_limit.allow(now) {
            self.counters.icmp_errors_limited += 1;
            return;
        }
        if self.send_icmp(header, message) {
            self.counters.icmp_errors_out += 1;
        }
    }

    /// Queues a message to the sender of `header`, from the address that it was sent to; false when it cannot be sent.
    fn send_icmp(&mut self, header: &ipv4::Header, message: &Message<'_>) -> bool {
        let len = message.encoded_len();
        if len + ipv4::HEADER_LEN > usize::from(u16::MAX) {
            self.counters.icmp_dropped += 1;
            return false;
        }
        let answer = ipv4::Header {
            src: header.dst,
            dst: header.src,
            protocol: ipv4::PROTOCOL_ICMP,
            ttl: 64,
            tos: 0,
            id: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            payload_len: len as u16,
        };
        let mut buffer = self.replies.buffer();
        buffer.resize(ipv4::HEADER_LEN + len, 0);
        answer.emit(&mut buffer);
        message.emit(&mut buffer[ipv4::HEADER_LEN..]);
        if buffer.len() > usize::from(self.config.mtu) {
            self.reply_in_fragments_v4(&answer, buffer);
        } else {
            self.reply(Reply::Packet(buffer));
        }
        true
    }
}

/// What an error quotes of a packet. Frames may be padded: no more than the packet has.
fn quote<'a>(header: &ipv4::Header, packet: &'a [u8]) -> &'a [u8] {
    let len = usize::from(header.payload_len) + usize::from(packet[0] & 0xf) * 4;
    &packet[..len.min(packet.len()).min(QUOTE_MAX)]
}

/// Types of errors.
const UNREACHABLE: u8 = 3;
const TIME_EXCEEDED: u8 = 11;
const PARAMETER_PROBLEM: u8 = 12;

/// What an error says for itself.
#[derive(Clone, Copy)]
pub(crate) struct IcmpDetails {
    pub kind: u8,
    pub code: u8,
    /// The largest packet that the path takes, or which byte of the header is at fault; 0 if the message says neither.
    pub info: u32,
    pub offender: IpAddr,
}

impl IcmpDetails {
    pub fn new(kind: u8, code: u8, offender: IpAddr) -> IcmpDetails {
        IcmpDetails {
            kind,
            code,
            info: 0,
            offender,
        }
    }

    /// As a socket for datagrams is told.
    pub fn failure<'a>(&self, errno: i32, hard: bool, payload: &'a [u8]) -> Failure<'a> {
        Failure {
            errno,
            hard,
            kind: self.kind,
            code: self.code,
            info: self.info,
            offender: self.offender,
            payload,
        }
    }
}

/// What an error means to a socket for datagrams, and whether it is told unasked (Linux's `icmp_err_convert`).
fn meaning_to_datagrams(kind: u8, code: u8) -> (i32, bool) {
    match (kind, code) {
        (UNREACHABLE, unreachable::PORT) => (errno::ECONNREFUSED, true),
        (UNREACHABLE, unreachable::PROTOCOL) => (errno::ENOPROTOOPT, true),
        (UNREACHABLE, unreachable::FRAGMENTATION_NEEDED) => (errno::EMSGSIZE, false),
        (UNREACHABLE, unreachable::NETWORK | 11) => (errno::ENETUNREACH, false),
        // Unknown or prohibited.
        (UNREACHABLE, 6 | 9) => (errno::ENETUNREACH, true),
        (UNREACHABLE, 10 | 13 | 14 | 15) => (errno::EHOSTUNREACH, true),
        (PARAMETER_PROBLEM, _) => (errno::EPROTO, true),
        _ => (errno::EHOSTUNREACH, false),
    }
}

/// What a code means to a program, as Linux's `icmp_err_convert` has it.
fn meaning(code: u8) -> Error {
    match code {
        unreachable::PROTOCOL => Error::ProtocolUnavailable,
        unreachable::PORT => Error::ConnectionRefused,
        // Network: unreachable, unknown, prohibited, unreachable for the type of service.
        unreachable::NETWORK | 6 | 9 | 11 => Error::NetworkUnreachable,
        _ => Error::HostUnreachable,
    }
}
