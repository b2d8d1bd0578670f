//! Group management of IPv4 (RFC 2236, IGMPv2): which groups a host wants to hear.

use core::net::Ipv4Addr;

use crate::Error;
use crate::bytes::put16;
use crate::checksum::Sum;
use crate::ipv4;

/// IGMP's number among IP protocols.
pub const PROTOCOL: u8 = 2;
/// All hosts of a link: everybody is a member, and says nothing of it.
pub const ALL_HOSTS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 1);
/// Who is told that a group is left.
pub const ALL_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Length of a packet: an IPv4 header with a router alert, and a message.
pub const PACKET_LEN: usize = ipv4::HEADER_LEN + ALERT.len() + MESSAGE_LEN;

const MESSAGE_LEN: usize = 8;
/// RFC 2113: routers are to look at it.
const ALERT: [u8; 4] = [148, 4, 0, 0];
const QUERY: u8 = 0x11;
const REPORT: u8 = 0x16;
const LEAVE: u8 = 0x17;
/// What a query of the first version means, in tenths of a second (RFC 2236 4).
const OLD_DELAY: u32 = 100;

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A router asks who is a member.
    Query {
        /// Of this group; unspecified for any.
        group: Ipv4Addr,
        /// Within so many milliseconds, at a random time.
        within_ms: u32,
    },
    /// Another host is a member.
    Report(Ipv4Addr),
    /// Anything else.
    Other,
}

impl Message {
    /// Parses the payload of an IP packet, of any version.
    ///
    /// # Errors
    /// [`Error::Truncated`] below eight bytes, [`Error::Length`] when the checksum is wrong.
    pub fn parse(bytes: &[u8]) -> Result<Message, Error> {
        let (head, _) = bytes
            .split_first_chunk::<MESSAGE_LEN>()
            .ok_or(Error::Truncated)?;
        if !Sum::of(bytes).is_valid() {
            return Err(Error::Length);
        }
        let &[kind, time, _, _, a, b, c, d] = head;
        let group = Ipv4Addr::new(a, b, c, d);
        Ok(match kind {
            QUERY => Message::Query {
                group,
                within_ms: match u32::from(time) {
                    0 => OLD_DELAY * 100,
                    // RFC 3376 4.1.1: in the third version large ones are a mantissa and an
                    // exponent. Sooner than asked is in time.
                    tenths => tenths.min(128) * 100,
                },
            },
            REPORT => Message::Report(group),
            _ => Message::Other,
        })
    }
}

/// What a host says of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statement {
    /// It is a member.
    Member,
    /// It is none any more.
    Leave,
}

/// A whole IPv4 packet from `src` that says something of `group`.
pub fn packet(src: Ipv4Addr, group: Ipv4Addr, statement: Statement) -> [u8; PACKET_LEN] {
    let (kind, dst) = match statement {
        Statement::Member => (REPORT, group),
        Statement::Leave => (LEAVE, ALL_ROUTERS),
    };
    let mut out = [0; PACKET_LEN];
    let payload_len = (ALERT.len() + MESSAGE_LEN) as u16;
    ipv4::Header {
        ttl: 1,
        tos: 0xc0,
        ..ipv4::Header::new(src, dst, PROTOCOL, payload_len)
    }
    .emit(&mut out);
    const HEAD: usize = ipv4::HEADER_LEN + ALERT.len();
    // The option makes the header a word longer.
    out[0] += 1;
    out[ipv4::HEADER_LEN..HEAD].copy_from_slice(&ALERT);
    put16(&mut out, 10, 0);
    let sum = Sum::of(&out[..HEAD]).finish();
    put16(&mut out, 10, sum);
    let message = &mut out[HEAD..];
    message[0] = kind;
    message[4..].copy_from_slice(&group.octets());
    let sum = Sum::of(message).finish();
    put16(message, 2, sum);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: Ipv4Addr = Ipv4Addr::new(239, 1, 2, 3);

    #[test]
    fn rfc2236_2_a_report_is_for_the_group_and_for_one_hop() {
        let bytes = packet(Ipv4Addr::new(10, 0, 0, 1), GROUP, Statement::Member);
        let (header, options, payload) = ipv4::Header::parse(&bytes).unwrap();
        assert!(ipv4::verify(&bytes));
        assert_eq!((header.dst, header.ttl, options), (GROUP, 1, &ALERT[..]));
        assert_eq!(Message::parse(payload), Ok(Message::Report(GROUP)));
        let bytes = packet(Ipv4Addr::new(10, 0, 0, 1), GROUP, Statement::Leave);
        assert_eq!(ipv4::Header::parse(&bytes).unwrap().0.dst, ALL_ROUTERS);
    }

    #[test]
    fn rfc2236_4_a_query_of_the_first_version_gives_ten_seconds() {
        let mut bytes = [QUERY, 0, 0, 0, 0, 0, 0, 0];
        let sum = Sum::of(&bytes).finish();
        put16(&mut bytes, 2, sum);
        let query = Message::Query {
            group: Ipv4Addr::UNSPECIFIED,
            within_ms: 10_000,
        };
        assert_eq!(Message::parse(&bytes), Ok(query));
        bytes[1] ^= 1;
        assert_eq!(Message::parse(&bytes), Err(Error::Length));
        assert_eq!(Message::parse(&bytes[..7]), Err(Error::Truncated));
    }
}
