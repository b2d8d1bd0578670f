//! Multicast listener discovery (RFC 3810, MLDv2): which groups a host wants to hear, for switches
//! that otherwise keep them from it.

use core::net::Ipv6Addr;

use crate::Error;
use crate::bytes::{get16, put16};
use crate::{icmpv6, ipv6};

/// Type of a query.
pub const QUERY: u8 = 130;
/// Where reports go: all routers that speak MLDv2.
pub const REPORT_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Every message travels one hop.
pub const HOP_LIMIT: u8 = 1;
/// Length of the hop-by-hop header in front of each message in bytes.
pub const ALERT_LEN: usize = 8;

const REPORT: u8 = 143;
const QUERY_LEN: usize = 24;
const RECORD_LEN: usize = 20;

/// A router asks who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query {
    /// To this group; unspecified for any.
    pub group: Ipv6Addr,
    /// Within so many milliseconds, at a random time.
    pub within_ms: u32,
}

impl Query {
    /// Parses an ICMPv6 message from a packet with this `header`; both versions. The checksum is
    /// not looked at ([`icmpv6::verify`]).
    ///
    /// # Errors
    /// [`Error::Truncated`] below 24 bytes; [`Error::Version`] for another type or code, or a
    /// packet that does not come from the link (RFC 3810 5.1.14, 6.2).
    pub fn parse(header: &ipv6::Header, bytes: &[u8]) -> Result<Query, Error> {
        let (head, _) = bytes
            .split_first_chunk::<QUERY_LEN>()
            .ok_or(Error::Truncated)?;
        let from_link = header.hop_limit == HOP_LIMIT && header.src.is_unicast_link_local();
        if head[0] != QUERY || head[1] != 0 || !from_link {
            return Err(Error::Version);
        }
        let mut group = [0; 16];
        group.copy_from_slice(&head[8..]);
        // RFC 3810 5.1.3: large ones are a mantissa and an exponent.
        let code = u32::from(get16(head, 4));
        let within_ms = if code < 0x8000 {
            code
        } else {
            (code & 0xfff | 0x1000) << ((code >> 12 & 7) + 3)
        };
        Ok(Query {
            group: group.into(),
            within_ms,
        })
    }
}

/// What a report says of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// All of each is wanted (`MODE_IS_EXCLUDE`, nothing).
    Listen = 2,
    /// Nothing of them any more (`CHANGE_TO_INCLUDE_MODE`, nothing).
    Leave = 3,
}

/// Length of a report on so many groups in bytes, with the hop-by-hop header in front of it.
pub fn report_len(groups: usize) -> usize {
    ALERT_LEN + icmpv6::HEADER_LEN + groups * RECORD_LEN
}

/// Writes what follows the IPv6 header of a report from `src`: the hop-by-hop header with a router
/// alert (RFC 2711), and the report on `groups`. Returns the length.
///
/// # Panics
/// When `out` is shorter than [`report_len`].
pub fn emit_report(src: Ipv6Addr, groups: &[Ipv6Addr], mode: Mode, out: &mut [u8]) -> usize {
    let len = report_len(groups.len());
    let out = &mut out[..len];
    out.fill(0);
    out[..ALERT_LEN].copy_from_slice(&[icmpv6::PROTOCOL, 0, 5, 2, 0, 0, 1, 0]);
    let message = &mut out[ALERT_LEN..];
    message[0] = REPORT;
    put16(message, 6, groups.len() as u16);
    let records = message[icmpv6::HEADER_LEN..].chunks_exact_mut(RECORD_LEN);
    for (record, group) in records.zip(groups) {
        record[0] = mode as u8;
        record[4..].copy_from_slice(&group.octets());
    }
    icmpv6::finish(src, REPORT_GROUP, message);
    len
}
