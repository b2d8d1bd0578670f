//! From a frame to its flow, without a judgement on it: that is the shard's.

use std::net::Ipv4Addr;

use millrace_wire::bytes::get16;
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::{ipv4, ipv6, tcp, udp};

use crate::tuple::{Pair, Tuple};

/// The flow that a frame is of, as its receiver sees it: addresses and ports of TCP and UDP. A
/// fragment, and what has no ports, is of the flow between its addresses: the parts of a packet
/// come to one place, where it can be put together. None for what is no IP.
#[inline]
pub fn flow_of(frame: &[u8]) -> Option<Tuple> {
    let packet = frame.get(ethernet::HEADER_LEN..)?;
    match EtherType(get16(frame, 12)) {
        EtherType::IPV4 => flow_of_v4(packet),
        EtherType::IPV6 => flow_of_v6(packet),
        _ => None,
    }
}

#[inline]
fn flow_of_v4(packet: &[u8]) -> Option<Tuple> {
    let head = packet.first_chunk::<{ ipv4::HEADER_LEN }>()?;
    let is_fragment = get16(head, 6) & 0x3fff != 0;
    let header_len = usize::from(head[0] & 0xf) * 4;
    let (source, destination) = match packet.get(header_len..header_len + 4) {
        Some(ports) if has_ports(head[9]) && !is_fragment => (get16(ports, 0), get16(ports, 2)),
        _ => (0, 0),
    };
    Some(Tuple::V4(Pair {
        local: Ipv4Addr::new(head[16], head[17], head[18], head[19]),
        remote: Ipv4Addr::new(head[12], head[13], head[14], head[15]),
        local_port: destination,
        remote_port: source,
    }))
}

fn flow_of_v6(packet: &[u8]) -> Option<Tuple> {
    // Of a frame that is sent only the headers may be at hand.
    let (header, rest) = ipv6::Header::parse_start(packet).ok()?;
    let payload = &rest[..rest.len().min(header.payload_len.into())];
    let direct = has_ports(header.next_header).then_some(payload);
    let upper = direct.or_else(|| behind_extensions(&header, payload));
    let (source, destination) = match upper {
        Some(upper) if upper.len() >= 4 => (get16(upper, 0), get16(upper, 2)),
        _ => (0, 0),
    };
    Some(Tuple::V6(Pair {
        local: header.dst,
        remote: header.src,
        local_port: destination,
        remote_port: source,
    }))
}

#[cold]
fn behind_extensions<'a>(header: &ipv6::Header, payload: &'a [u8]) -> Option<&'a [u8]> {
    let content = ipv6::walk(header, payload).ok()?;
    let whole = content.fragment.is_none_or(|fragment| fragment.is_atomic());
    (whole && has_ports(content.protocol)).then_some(content.payload)
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, tcp::PROTOCOL | udp::PROTOCOL)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;

    /// A frame of IPv4 with these bytes 6 and 7, this protocol and ports of 4660 and 80.
    fn v4(fragment: u16, protocol: u8, options: usize) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45 + options as u8, 0, 0, 40]);
        frame.extend([0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1]);
        frame.extend(vec![1; options * 4]);
        frame.extend([0x12, 0x34, 0, 80]);
        frame.extend([0; 16]);
        frame
    }

    fn tuple(local: &str, remote: &str) -> Option<Tuple> {
        let end = |text: &str| text.parse::<SocketAddr>().unwrap();
        Tuple::new(end(local), end(remote))
    }

    #[test]
    fn ports_are_those_of_tcp_and_udp() {
        let flow = tuple("10.0.0.1:80", "10.0.0.2:4660");
        for protocol in [6, 17] {
            assert_eq!(flow_of(&v4(0x4000, protocol, 0)), flow);
            assert_eq!(flow_of(&v4(0, protocol, 3)), flow, "behind options");
        }
        let addresses = tuple("10.0.0.1:0", "10.0.0.2:0");
        assert_eq!(flow_of(&v4(0, 1, 0)), addresses);
    }

    /// RFC 791 3.2: only the first fragment has ports, and all must come to one place.
    #[test]
    fn rfc791_3_2_fragments_go_by_their_addresses() {
        let addresses = tuple("10.0.0.1:0", "10.0.0.2:0");
        for fragment in [0x2000, 0x2001, 0x0001] {
            assert_eq!(flow_of(&v4(fragment, 17, 0)), addresses);
        }
    }

    fn v6(next: u8, extension: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend((extension.len() as u16 + 20).to_be_bytes());
        frame.extend([next, 64]);
        frame.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        frame.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        frame.extend(extension);
        frame.extend([0x12, 0x34, 0, 80]);
        frame.extend([0; 16]);
        frame
    }

    /// RFC 8200 4.5: the same of IPv6, where an atomic fragment is no fragment (RFC 6946).
    #[test]
    fn rfc8200_4_5_flows_are_found_behind_extension_headers() {
        let flow = tuple("[fd00::1]:80", "[fd00::2]:4660");
        assert_eq!(flow_of(&v6(6, &[])), flow);
        let options = [6, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(flow_of(&v6(60, &options)), flow);
        let atomic = [17, 0, 0, 0, 0, 0, 0, 9];
        assert_eq!(flow_of(&v6(44, &atomic)), flow);
        let first = [17, 0, 0, 1, 0, 0, 0, 9];
        let addresses = tuple("[fd00::1]:0", "[fd00::2]:0");
        assert_eq!(flow_of(&v6(44, &first)), addresses);
    }

    /// What is sent is headers first, payload apart: both must say the same.
    #[test]
    fn headers_alone_tell_the_flow() {
        let frame = v6(6, &[]);
        assert_eq!(flow_of(&frame[..58]), flow_of(&frame));
        let frame = v4(0x4000, 6, 0);
        assert_eq!(flow_of(&frame[..38]), flow_of(&frame));
    }

    #[test]
    fn what_is_no_ip_is_of_no_flow() {
        let mut arp = vec![0; 42];
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        assert_eq!(flow_of(&arp), None);
        assert_eq!(flow_of(&arp[..13]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_have_a_flow_or_none(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
            v6 in any::<bool>(),
        ) {
            if bytes.len() > 14 {
                bytes[12..14].copy_from_slice(if v6 { &[0x86, 0xdd] } else { &[0x08, 0x00] });
            }
            let _ = flow_of(&bytes);
        }
    }
}
