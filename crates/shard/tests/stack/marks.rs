//! Marks in IP headers (RFC 3168 5): set on what may be marked, and read.

use millrace_tcp::Ecn;
use millrace_wire::checksum;
use millrace_wire::tcp::Flags;

use crate::net::{A, B, Net, config};

#[test]
fn rfc3168_5_and_6_1_marks_of_the_network_reach_the_sender() {
    let mut configs = [config(A), config(B)];
    configs[A].tcp.ecn = Ecn::Ask;
    let [a, b] = configs;
    let mut net = Net::with(a, b);
    // A router on the way marks instead of dropping, what it may.
    let mut marked = 0;
    net.hand = Box::new(move |from, flying| {
        let field = flying.bytes.get_mut(15).filter(|_| from == A);
        if let Some(tos) = field.filter(|tos| **tos & 3 == 2) {
            marked += 1;
            if marked % 50 == 0 {
                *tos |= 3;
                let sum = checksum::Sum::of(&flying.bytes[14..24])
                    + checksum::Sum::of(&flying.bytes[26..34]);
                let check = sum.finish();
                flying.bytes[24..26].copy_from_slice(&check.to_be_bytes());
            }
        }
        true
    });
    let (client, server, _) = net.pair();
    net.transfer((A, client), (B, server), 2_000_000);
    let info = net.shards[A].tcp_info(client, net.now()).unwrap();
    assert!(info.ecn);
    assert!(info.ssthresh < u32::MAX, "never reduced");
    assert_eq!(info.segments_retransmitted, 0);
    let count = |side: usize, flags: Flags| net.count(side, flags);
    assert!(count(B, Flags::ECE) > 1 && count(A, Flags::CWR) > 1);
    // What may be marked: new data alone.
    for (side, flying) in &net.log {
        let Some((header, segment)) = flying.tcp() else {
            continue;
        };
        let may = header.tos & 3 != 0;
        assert_eq!(may, *side == A && !segment.payload.is_empty());
    }
}
