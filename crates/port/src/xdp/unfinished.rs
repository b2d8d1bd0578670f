//! Frames whose sender left work undone because it is on this machine.
//!
//! At the other end of a veth pair is a kernel that knows that there is no wire: unless it is told
//! otherwise it leaves the sum of the pseudo-header in the place of a transport checksum, and XDP
//! has no way to say so. The sum shows it.

use millrace_wire::checksum::{pseudo_v4, pseudo_v6};
use millrace_wire::ethernet::{self, EtherType};
use millrace_wire::{ipv4, ipv6, vlan};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// From where on the checksum is still to be taken, and where from there it is to be put, if its
/// field holds the sum of the pseudo-header alone. One tag of a virtual LAN may be before the
/// packet.
pub(super) fn find(frame: &[u8]) -> Option<(u16, u16)> {
    let (link, mut packet) = ethernet::Header::parse(frame).ok()?;
    let mut kind = link.ethertype;
    if kind == EtherType::VLAN {
        let (tag, tagged) = packet.split_at_checked(vlan::LEN)?;
        kind = EtherType(u16::from_be_bytes([tag[2], tag[3]]));
        packet = tagged;
    }
    let (protocol, transport, sum) = match kind {
        EtherType::IPV4 => {
            let (header, _, transport) = ipv4::Header::parse(packet).ok()?;
            if header.is_fragment() {
                return None;
            }
            let len = transport.len() as u16;
            let sum = pseudo_v4(header.src, header.dst, header.protocol, len);
            (header.protocol, transport, sum)
        }
        EtherType::IPV6 => {
            let (header, transport) = ipv6::Header::parse(packet).ok()?;
            let len = transport.len() as u32;
            let sum = pseudo_v6(header.src, header.dst, header.next_header, len);
            (header.next_header, transport, sum)
        }
        _ => return None,
    };
    let at = match protocol {
        TCP => 16,
        UDP => 6,
        _ => return None,
    };
    let field = transport.get(at..at + 2)?;
    let start = transport.as_ptr().addr() - frame.as_ptr().addr();
    (field == sum.fold().to_be_bytes()).then_some((start as u16, at as u16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_wire::checksum::Sum;

    /// A TCP segment from 10.0.0.1 to 10.0.0.2, its checksum left as 0.
    fn segment() -> Vec<u8> {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 44, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([
            0, 80, 0, 90, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0,
        ]);
        frame.extend(b"data");
        frame
    }

    #[test]
    fn a_sum_of_the_pseudo_header_alone_is_no_checksum() {
        let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), TCP, 24);
        let mut frame = segment();
        let finished = (pseudo + Sum::of(&frame[34..])).finish();
        frame[50..52].copy_from_slice(&finished.to_be_bytes());
        assert_eq!(find(&frame), None);
        frame[50..52].copy_from_slice(&pseudo.fold().to_be_bytes());
        assert_eq!(find(&frame), Some((34, 16)));
        // Likewise behind the tag of a virtual LAN.
        let tagged = [&frame[..12], &[0x81, 0, 0, 7], &frame[12..]].concat();
        assert_eq!(find(&tagged), Some((38, 16)));
        frame[50] ^= 1;
        assert_eq!(find(&frame), None);
        // A fragment has no checksum of its own.
        frame[50] ^= 1;
        frame[20] = 0x20;
        assert_eq!(find(&frame), None);
    }

    #[test]
    fn what_is_cut_off_is_not_looked_at() {
        let frame = segment();
        for len in 0..frame.len() {
            assert_eq!(find(&frame[..len]), None);
        }
    }
}
