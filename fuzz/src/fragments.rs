//! Fragments of both families, in any order, of any lengths, overlapping as they like.

use millrace_wire::ethernet::EtherType;
use millrace_wire::ipv6::Fragment;
use millrace_wire::{icmpv6, ipv4};

use crate::bytes::Bytes;
use crate::host::{Host, OURS, THEIRS};

/// Fragments of one input, at most.
const STEPS: usize = 200;

/// Every byte is a decision.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut host = Host::new();
    for _ in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        let kind = bytes.u8();
        let (id, offset) = (u32::from(bytes.u8() % 4), bytes.u16() & !7);
        let more_fragments = kind & 1 == 1;
        let len = usize::from(bytes.u8()) << (kind >> 5 & 3);
        let part: Vec<u8> = (0..len).map(|at| at as u8 ^ kind).collect();
        match kind & 6 {
            0 => host.wait(1 << (kind >> 3)),
            2 => {
                let fragment = Fragment {
                    id,
                    offset,
                    more: more_fragments,
                };
                let mut payload = vec![0; Fragment::LEN];
                fragment.emit(icmpv6::PROTOCOL, &mut payload);
                payload.extend_from_slice(&part);
                host.hear_ipv6(Fragment::PROTOCOL, &payload);
            }
            _ => {
                let protocol = [1, 6, 17, kind][usize::from(kind >> 3 & 3)];
                let mut packet = vec![0; ipv4::HEADER_LEN];
                ipv4::Header {
                    src: THEIRS,
                    dst: OURS,
                    protocol,
                    ttl: 64,
                    tos: 0,
                    id: id as u16,
                    dont_fragment: false,
                    more_fragments,
                    fragment_offset: offset,
                    payload_len: part.len() as u16,
                }
                .emit(&mut packet);
                packet.extend_from_slice(&part);
                host.hear(EtherType::IPV4, &packet);
            }
        }
    }
    host.end(&[]);
}
