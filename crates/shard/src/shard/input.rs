//! Frames in: from Ethernet through IP to the protocol that processes the packet.

use millrace_tcp::Instant;
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::ipv6::{self, Problem, parameter};
use millrace_wire::offload::Frame;
use millrace_wire::{icmpv4, icmpv6, igmp, ipv4, tcp, udp};

use crate::ip::family::{Received, is_marked};
use crate::ip::icmp::{NetworkError, Quoted};
use crate::ip::v4::icmp::Icmpv4Error;
use crate::ip::v6::icmp::Icmpv6Error;
use crate::ip::{v4, v6};
use crate::memory::Memory;
use crate::network::Control;
use crate::shard::Shard;
use crate::steering::Arrival;
use crate::udp::{Failure, Packet};

/// A packet that has passed the checks of IP, on its way to a protocol.
struct Incoming<'a, H> {
    link: &'a ethernet::Header,
    header: &'a H,
    payload: &'a [u8],
    /// The start of the packet, headers included, for an error about it.
    quote: &'a [u8],
    received: Received,
}

impl<M: Memory> Shard<M> {
    /// Takes in one frame. Replies to it leave with the next [`Shard::transmit`], so that all
    /// replies to a batch of frames leave together, and with them what programs answer.
    pub fn input(&mut self, frame: &Frame<'_>, now: Instant) {
        self.base.env.counters.frames_in += 1;
        self.base.env.counters.bytes_in += frame.bytes.len() as u64;
        if !self.tcp.fast_path_input(&mut self.base, frame, now) {
            self.slow_path_input(frame, now);
        }
    }

    /// A function of its own, so that the fast path does not carry its stack frame.
    #[inline(never)]
    fn slow_path_input(&mut self, frame: &Frame<'_>, now: Instant) {
        let Ok((link, bytes)) = ethernet::Header::parse(frame.bytes) else {
            self.base.env.counters.ethernet_dropped += 1;
            return;
        };
        if link.dst != self.base.env.config.mac && !link.dst.is_multicast() {
            self.base.env.counters.ethernet_not_ours += 1;
            return;
        }
        match link.ethertype {
            EtherType::IPV4 => self.ipv4_input(&link, bytes, frame, now),
            EtherType::ARP => {
                let is_copy = self.base.steering.arrival() == Arrival::Copy;
                let control = self
                    .base
                    .network
                    .arp_input(&mut self.base.env, bytes, is_copy, now);
                self.finish_control(control, now);
            }
            EtherType::IPV6 if self.base.network.v6.is_on() => {
                self.ipv6_input(&link, bytes, frame, now);
            }
            _ => self.base.env.counters.ethernet_dropped += 1,
        }
    }

    fn ipv4_input(
        &mut self,
        link: &ethernet::Header,
        bytes: &[u8],
        frame: &Frame<'_>,
        now: Instant,
    ) {
        let Some((header, payload)) =
            self.base
                .network
                .parse_v4(&mut self.base.env, link, bytes, now)
        else {
            return;
        };
        if header.is_fragment() {
            self.fragment_v4_input(link, &header, payload, bytes, now);
            return;
        }
        let incoming = Incoming {
            link,
            header: &header,
            payload,
            quote: bytes,
            received: Received {
                checksum: frame.checksum,
                segment_size: frame.segment_size,
            },
        };
        self.deliver_v4(&incoming, now);
    }

    /// Gives a whole packet to its protocol.
    fn deliver_v4(&mut self, incoming: &Incoming<'_, ipv4::Header>, now: Instant) {
        let &Incoming {
            header, payload, ..
        } = incoming;
        match header.protocol {
            tcp::PROTOCOL => {
                self.tcp.tcp_input(
                    &mut self.base,
                    (header.dst, header.src),
                    payload,
                    (incoming.received.checksum, is_marked(header.tos)),
                    incoming.link.src,
                    now,
                );
            }
            ipv4::PROTOCOL_ICMP => {
                let control =
                    self.base
                        .network
                        .icmpv4_input(&mut self.base.env, header, payload, now);
                self.finish_control(control, now);
            }
            igmp::PROTOCOL if header.dst.is_multicast() => {
                let control = self
                    .base
                    .network
                    .igmp_input(&mut self.base.env, payload, now);
                self.finish_control(control, now);
            }
            udp::PROTOCOL => {
                let packet = Packet {
                    src: header.src,
                    dst: header.dst,
                    hops: header.ttl,
                    class: header.tos,
                    bytes: payload,
                    checksum: incoming.received.checksum,
                    segment_size: incoming.received.segment_size,
                    is_multicast_or_broadcast: !self.base.network.v4.takes(header.dst),
                };
                // RFC 1122 4.1.3.1: "If a datagram arrives addressed to a UDP port for which there
                // is no pending LISTEN call, UDP SHOULD send an ICMP Port Unreachable message."
                if !self.udp.udp_input(&mut self.base, &packet) {
                    self.send_unreachable_v4(icmpv4::unreachable::PORT, incoming, now);
                }
            }
            _ => {
                self.base.env.counters.ip_unknown_protocol += 1;
                self.send_unreachable_v4(icmpv4::unreachable::PROTOCOL, incoming, now);
            }
        }
    }

    fn send_unreachable_v4(
        &mut self,
        code: u8,
        incoming: &Incoming<'_, ipv4::Header>,
        now: Instant,
    ) {
        let error = Icmpv4Error::Unreachable(code);
        let (header, quote) = (incoming.header, incoming.quote);
        self.base
            .network
            .send_icmpv4_error(&mut self.base.env, error, header, quote, now);
    }

    fn fragment_v4_input(
        &mut self,
        link: &ethernet::Header,
        header: &ipv4::Header,
        payload: &[u8],
        packet: &[u8],
        now: Instant,
    ) {
        let counters = &mut self.base.env.counters;
        counters.ip_fragments += 1;
        let Some((name, part)) = v4::fragments::parse(header, payload, packet) else {
            counters.ip_fragments_condemned += 1;
            return;
        };
        if let Some(whole) = self.base.network.add_fragment(counters, name, &part, now) {
            let header = v4::fragments::whole_header(header, &whole);
            let incoming = Incoming {
                link,
                header: &header,
                payload: &whole.bytes,
                quote: &whole.packet,
                received: Received::default(),
            };
            self.deliver_v4(&incoming, now);
            self.base
                .steering
                .hand_over_reassembled(link, ipv4::HEADER_LEN, &whole.bytes, |out| {
                    header.emit(out);
                });
        }
    }

    fn ipv6_input(
        &mut self,
        link: &ethernet::Header,
        bytes: &[u8],
        frame: &Frame<'_>,
        now: Instant,
    ) {
        let Some((header, payload)) = self.base.network.parse_v6(&mut self.base.env, link, bytes)
        else {
            return;
        };
        let incoming = Incoming {
            link,
            header: &header,
            payload,
            quote: &bytes[..ipv6::HEADER_LEN + payload.len()],
            received: Received {
                checksum: frame.checksum,
                segment_size: frame.segment_size,
            },
        };
        self.walk_v6(&incoming, false, now);
    }

    /// Walks through the extension headers of a packet, and gives it to its protocol or to
    /// reassembly. `was_joined`: it was put together from fragments.
    fn walk_v6(&mut self, incoming: &Incoming<'_, ipv6::Header>, was_joined: bool, now: Instant) {
        let header = incoming.header;
        let content = match ipv6::walk(header, incoming.payload) {
            Ok(content) => content,
            Err(problem) => {
                self.base.env.counters.ip_malformed += 1;
                if let Problem::Parameter {
                    code,
                    pointer,
                    to_groups,
                } = problem
                    && (!header.dst.is_multicast() || to_groups)
                {
                    self.send_error_v6(Icmpv6Error::Parameter { code, pointer }, incoming, now);
                }
                return;
            }
        };
        match &content.fragment {
            // A fragment within a fragment.
            Some(_) if was_joined => self.base.env.counters.ip_malformed += 1,
            Some(fragment) if !fragment.is_atomic() => {
                self.fragment_v6_input(incoming, &content, fragment, now);
            }
            _ => self.deliver_v6(incoming, &content, was_joined, now),
        }
    }

    /// Gives a whole packet to its protocol.
    fn deliver_v6(
        &mut self,
        incoming: &Incoming<'_, ipv6::Header>,
        content: &ipv6::Content<'_>,
        was_joined: bool,
        now: Instant,
    ) {
        let header = incoming.header;
        let to_group = header.dst.is_multicast();
        match content.protocol {
            icmpv6::PROTOCOL => {
                let was_fragmented = was_joined || content.fragment.is_some();
                let control = self.base.network.icmpv6_input(
                    &mut self.base.env,
                    (incoming.link.src, header),
                    content.payload,
                    was_fragmented,
                    self.base.steering.arrival() == Arrival::Copy,
                    now,
                );
                self.finish_control(control, now);
            }
            _ if header.src.is_unspecified() => self.base.env.counters.ip_bad_source += 1,
            udp::PROTOCOL => {
                let packet = Packet {
                    src: header.src,
                    dst: header.dst,
                    hops: header.hop_limit,
                    class: header.traffic_class,
                    bytes: content.payload,
                    checksum: incoming.received.checksum,
                    segment_size: incoming.received.segment_size,
                    is_multicast_or_broadcast: to_group,
                };
                if !self.udp.udp_input(&mut self.base, &packet) {
                    let error = Icmpv6Error::Unreachable(icmpv6::unreachable::PORT);
                    self.send_error_v6(error, incoming, now);
                }
            }
            _ if to_group => self.base.env.counters.ip_not_ours += 1,
            tcp::PROTOCOL => {
                self.tcp.tcp_input(
                    &mut self.base,
                    (header.dst, header.src),
                    content.payload,
                    (incoming.received.checksum, is_marked(header.traffic_class)),
                    incoming.link.src,
                    now,
                );
            }
            _ => {
                self.base.env.counters.ip_unknown_protocol += 1;
                let error = Icmpv6Error::Parameter {
                    code: parameter::NEXT_HEADER,
                    pointer: content.protocol_at,
                };
                self.send_error_v6(error, incoming, now);
            }
        }
    }

    fn send_error_v6(
        &mut self,
        error: Icmpv6Error,
        incoming: &Incoming<'_, ipv6::Header>,
        now: Instant,
    ) {
        let (header, quote) = (incoming.header, incoming.quote);
        self.base
            .network
            .send_icmpv6_error(&mut self.base.env, error, header, quote, now);
    }

    fn fragment_v6_input(
        &mut self,
        incoming: &Incoming<'_, ipv6::Header>,
        content: &ipv6::Content<'_>,
        fragment: &ipv6::Fragment,
        now: Instant,
    ) {
        self.base.env.counters.ip_fragments += 1;
        let (link, header) = (incoming.link, incoming.header);
        let (name, part) = match v6::fragments::parse(header, content, fragment, incoming.quote) {
            Ok(parsed) => parsed,
            Err(error) => {
                self.base.env.counters.ip_fragments_condemned += 1;
                if !header.dst.is_multicast() {
                    self.send_error_v6(error, incoming, now);
                }
                return;
            }
        };
        let counters = &mut self.base.env.counters;
        if let Some(whole) = self.base.network.add_fragment(counters, name, &part, now) {
            let header = v6::fragments::whole_header(header, &whole);
            let joined = Incoming {
                link,
                header: &header,
                payload: &whole.bytes,
                quote: &whole.packet,
                received: Received::default(),
            };
            self.walk_v6(&joined, true, now);
            self.base
                .steering
                .hand_over_reassembled(link, ipv6::HEADER_LEN, &whole.bytes, |out| {
                    header.emit(out);
                });
        }
    }

    /// Does what is left to do about a control message.
    fn finish_control(&mut self, control: Control<'_>, now: Instant) {
        match control {
            Control::Handled => {}
            Control::ForAllShards => {
                let steer = self.base.env.config.steer.as_ref();
                self.base.steering.copy_to_all_shards(steer);
            }
            Control::Error(error) => self.network_error_input(&error, now),
        }
    }

    /// Gives an error from the network to the socket that sent the packet which it quotes.
    fn network_error_input(&mut self, report: &NetworkError<'_>, now: Instant) {
        match report.about {
            Quoted::Datagram {
                tuple,
                payload,
                errno,
                is_hard,
            } => {
                let failure = Failure {
                    errno,
                    hard: is_hard,
                    kind: report.details.kind,
                    code: report.details.code,
                    info: report.details.info,
                    offender: report.details.offender,
                    payload,
                };
                self.udp
                    .datagram_error(&mut self.base, &tuple, &failure, now);
            }
            Quoted::Segment(tuple, seq) => {
                self.tcp
                    .connection_error(&mut self.base, &tuple, seq, report.error, now);
            }
            Quoted::Other => self.base.env.counters.icmp_errors_unmatched += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use millrace_wire::ethernet::Mac;
    use millrace_wire::offload::{Capabilities, Frame, Offload};

    use super::*;
    use crate::config::Config;
    use crate::link::ethernet::Egress;
    use crate::link::ethernet::Stations;
    use crate::memory::{HeapMemory, Owner};
    use crate::socket::Reuse;
    use crate::socket::Socket;
    use crate::socket::options::Options;
    use crate::tcp::segment::send_fast_path;

    const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
    const MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const CAPABILITIES: Capabilities = Capabilities::plain(MAC, 1500);

    struct Nowhere;

    impl Egress for Nowhere {
        fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> bool {
            true
        }
        fn capabilities(&self) -> Capabilities {
            CAPABILITIES
        }
    }

    /// Word for word what one end of a connection of this host with itself would say next to the
    /// other, but from the link.
    #[test]
    fn rfc1122_3_2_1_3_nobody_on_the_link_speaks_for_this_host() {
        let now = Instant::from_micros(1_000_000);
        let mut config = Config::new(OWN, 24, MAC, [7; 32]);
        config.loopback = true;
        let mut shard = Shard::new(config, HeapMemory::new(1 << 20), now);
        let end = SocketAddr::new(OWN.into(), 80);
        let listener = shard.listen(Owner(1), end, 1, Reuse::default());
        let client = shard.connect(Owner(1), None, end, &Options::default(), now);
        let (listener, client) = (listener.expect("free"), client.expect("reached"));
        for _ in 0..4 {
            shard.transmit(&mut Nowhere, now);
        }
        let server = shard.accept(listener).expect("connected");
        shard.send(client, b"forged", true).expect("room");
        let socket = shard.base.sockets.get_mut(client.index());
        let stream = socket.and_then(Socket::stream_mut).expect("a connection");
        let outgoing = stream
            .connection
            .poll_transmit_fast(&shard.base.env.config.tcp, now);
        let outgoing = outgoing.expect("a segment");
        let stations = Stations {
            to: MAC,
            from: Mac([2, 0, 0, 0, 0, 66]),
        };
        let (tuple, fields) = (&stream.endpoints.tuple(), &stream.fields);
        let payload = stream.send.slices(outgoing.payload.clone());
        let mut bytes = Vec::new();
        let take = |head: &[u8], payload: [&[u8]; 2], _: Offload| {
            bytes = [head, payload[0], payload[1]].concat();
            true
        };
        assert!(send_fast_path(
            &stations,
            tuple,
            fields,
            &outgoing,
            payload,
            &CAPABILITIES,
            take
        ));
        let frame = Frame {
            bytes: &bytes,
            checksum: Default::default(),
            segment_size: 0,
        };
        shard.input(&frame, now);
        assert_eq!(shard.counters().ip_bad_source, 1);
        assert_eq!(shard.view(server).map(|view| view.received), Some(0));
    }
}
