//! ICMP and ICMPv6 messages about a connection, and of any other kind.

use millrace_wire::checksum::{Sum, pseudo_v6};
use millrace_wire::icmpv6;

use crate::bytes::Bytes;
use crate::host::{Host, OURS_V6, THEIRS, THEIRS_V6};

/// Messages of one input, at most.
const STEPS: usize = 100;

/// Every byte is a decision.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let mut host = Host::new();
    let sockets: Vec<_> = host.connect(THEIRS, 80).into_iter().collect();
    for _ in 0..STEPS {
        if bytes.is_empty() {
            break;
        }
        let which = bytes.u8();
        let mut message = vec![bytes.u8(), bytes.u8(), 0, 0];
        message.extend_from_slice(bytes.take(4));
        message.resize(8, 0);
        if which & 2 == 0 {
            // What it sent, as far as it is quoted, and perhaps not quite.
            let mut quoted = host.packet().to_vec();
            quoted.truncate(bytes.u8().into());
            if let Some(byte) = quoted.get_mut(usize::from(bytes.u8())) {
                *byte ^= bytes.u8();
            }
            message.extend_from_slice(&quoted);
        } else {
            let len = usize::from(bytes.u8());
            message.extend_from_slice(bytes.take(len));
        }
        if which & 1 == 0 {
            let sum = Sum::of(&message).finish();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            host.hear_ip(1, &message);
        } else {
            let len = message.len() as u32;
            let sum = pseudo_v6(THEIRS_V6, OURS_V6, icmpv6::PROTOCOL, len) + Sum::of(&message);
            message[2..4].copy_from_slice(&sum.finish().to_be_bytes());
            host.hear_ipv6(icmpv6::PROTOCOL, &message);
        }
        if which & 0x1c == 0 {
            host.wait(1 << (which >> 5 << 2));
        }
    }
    host.end(&sockets);
}
