//! Units: what is handed on, and how the header of one is made of those of its segments.

use millrace_wire::bytes::{get16, put16, put32};
use millrace_wire::checksum::{self, Sum};
use millrace_wire::ethernet;
use millrace_wire::tcp::{self, Flags};
use millrace_wire::vnet::{self, Gso, VnetHeader};

use crate::pool::{NONE, Pool};

/// The longest headers of a unit: Ethernet with one tag, IP, TCP.
pub const HEAD_MAX: usize = ethernet::HEADER_LEN + 4 + 60 + tcp::MAX_HEADER_LEN;
/// How many segments a unit has at most.
pub const UNIT_SEGMENTS: usize = 64;

/// Where the length is in the IP header, and IPv4's checksum.
const V4_LENGTH_AT: usize = 2;
const V4_CHECKSUM_AT: usize = 10;
const V6_LENGTH_AT: usize = 4;

/// What is handed on: a frame as it was received, or several segments in one.
#[derive(Clone, Copy, Debug)]
pub struct Unit<'a> {
    /// The beginning: the headers, or a whole frame.
    pub head: &'a [u8],
    /// What follows it, in order.
    pub payload: &'a [&'a [u8]],
    /// What is left to be done with its checksum, and into what it can be cut again.
    pub vnet: VnetHeader,
    /// Of how many segments it was made; 0 when it is a frame as it was received.
    pub segments: u32,
}

/// Who takes units.
pub trait Sink {
    /// Takes one; it lies in buffers that are used again when this returns.
    fn unit(&mut self, unit: Unit<'_>);
}

/// Segments that make one unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The last of them.
    pub(crate) last: u32,
    pub(crate) count: u32,
    /// Length of their payload.
    pub(crate) len: u32,
    /// The largest payload of one.
    pub(crate) segment_size: u16,
}

/// The segments from `first` on that make one unit.
pub(crate) fn extent(pool: &Pool, first: u32, limit: u32) -> Extent {
    let mut item = pool.item(first);
    let limit = limit.saturating_sub(u32::from(item.headers_len - item.ip_at));
    let mut extent = Extent {
        last: first,
        count: 1,
        len: item.len.into(),
        segment_size: item.len,
    };
    while item.next != NONE && extent.count < UNIT_SEGMENTS as u32 {
        let next = pool.item(item.next);
        if !next.follows || extent.len + u32::from(next.len) > limit {
            break;
        }
        extent = Extent {
            last: item.next,
            count: extent.count + 1,
            len: extent.len + u32::from(next.len),
            segment_size: extent.segment_size.max(next.len),
        };
        item = next;
    }
    extent
}

/// Whether a segment can stand behind `before` in a unit, so that nothing is lost which a receiver
/// acts on.
pub(crate) fn joins(pool: &Pool, before: u32, index: u32) -> bool {
    let (last, next) = (pool.item(before), pool.item(index));
    if next.seq != last.end() || last.flags.contains(Flags::PSH) || next.flags.contains(Flags::CWR)
    {
        return false;
    }
    if (last.flags ^ next.flags).intersects(Flags::ECE)
        || !next.ack.at_or_after(last.ack)
        || (last.tcp_at, last.headers_len, last.timestamps_at)
            != (next.tcp_at, next.headers_len, next.timestamps_at)
    {
        return false;
    }
    if let (Some(before), Some(after)) = (last.timestamps, next.timestamps)
        && after.value.wrapping_sub(before.value) >= 1 << 31
    {
        return false;
    }
    let (a, b) = (pool.headers(before), pool.headers(index));
    let (ip, tcp) = (usize::from(last.ip_at), usize::from(last.tcp_at));
    // Stations and tag; what routers may read or write, the mark of congestion among it; the
    // reserved bits of TCP.
    let of_ip = if a[ip] >> 4 == 4 {
        a[ip + 1] == b[ip + 1] && a[ip + 6] == b[ip + 6] && a[ip + 8] == b[ip + 8]
    } else {
        a[ip..ip + 4] == b[ip..ip + 4] && a[ip + 7] == b[ip + 7]
    };
    a[..ip] == b[..ip] && of_ip && a[tcp + 12] == b[tcp + 12]
}

/// The header of a unit.
pub(crate) struct Head {
    bytes: [u8; HEAD_MAX],
    len: usize,
    /// What is left to be done with the unit.
    pub(crate) vnet: VnetHeader,
}

impl Head {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The header of the unit that begins with `first`: sequence number and clock of that;
    /// acknowledgement, window and echo of the last. With `sum`, that of the payload, the checksum
    /// is finished; without, it is left to be.
    pub(crate) fn new(pool: &Pool, first: u32, extent: &Extent, sum: Option<Sum>) -> Head {
        let (start, end) = (*pool.item(first), *pool.item(extent.last));
        let headers = pool.headers(first);
        let mut head = Head {
            bytes: [0; HEAD_MAX],
            len: headers.len(),
            vnet: VnetHeader::default(),
        };
        head.bytes[..headers.len()].copy_from_slice(headers);
        let (ip_at, tcp_at) = (usize::from(start.ip_at), usize::from(start.tcp_at));
        let (below, tcp) = head.bytes[..headers.len()].split_at_mut(tcp_at);
        let ip = &mut below[ip_at..];

        put32(tcp, 4, start.seq.0);
        put32(tcp, 8, end.ack.0);
        tcp[13] = ((start.flags - Flags::PSH) | (end.flags & Flags::PSH)).bits();
        put16(tcp, 14, end.window);
        if let Some(timestamps) = end.timestamps {
            put32(tcp, usize::from(start.timestamps_at) + 4, timestamps.echo);
        }
        let segment_len = tcp.len() + extent.len as usize;
        let kind = set_length(ip, segment_len);
        put16(tcp, tcp::CHECKSUM_OFFSET, 0);
        let pseudo = pseudo(ip, segment_len);
        let checksum = match sum {
            Some(payload) => (pseudo + Sum::of(tcp) + payload).finish(),
            None => pseudo.fold(),
        };
        put16(tcp, tcp::CHECKSUM_OFFSET, checksum);

        if sum.is_none() {
            head.vnet.flags = vnet::Flags::NEEDS_CSUM;
            head.vnet.csum_start = start.tcp_at;
            head.vnet.csum_offset = tcp::CHECKSUM_OFFSET as u16;
        }
        if extent.count > 1 {
            let cwr = start.flags.contains(Flags::CWR);
            head.vnet.gso = if cwr { Gso(kind.0 | Gso::ECN.0) } else { kind };
            head.vnet.gso_size = extent.segment_size;
            head.vnet.header_len = headers.len() as u16;
        }
        head
    }
}

/// Writes the length of a segment into the IP header before it; IPv4's checksum follows by the
/// difference (RFC 1624). Says which family it is.
pub(crate) fn set_length(ip: &mut [u8], segment_len: usize) -> Gso {
    if ip[0] >> 4 == 6 {
        put16(ip, V6_LENGTH_AT, segment_len as u16);
        return Gso::TCP_V6;
    }
    let total = (ip.len() + segment_len) as u16;
    replace16(ip, V4_LENGTH_AT, total);
    Gso::TCP_V4
}

/// Writes a word of an IPv4 header and brings its checksum up to date.
pub(crate) fn replace16(ip: &mut [u8], at: usize, value: u16) {
    let old = get16(ip, at);
    let checksum = get16(ip, V4_CHECKSUM_AT);
    let checksum = checksum::update(checksum, Sum::word(old), Sum::word(value));
    put16(ip, at, value);
    put16(ip, V4_CHECKSUM_AT, checksum);
}

/// The sum of the pseudo-header of a TCP segment behind `ip`.
pub(crate) fn pseudo(ip: &[u8], segment_len: usize) -> Sum {
    let addresses = if ip[0] >> 4 == 6 {
        &ip[8..40]
    } else {
        &ip[12..20]
    };
    Sum::of(addresses) + Sum::word(u16::from(tcp::PROTOCOL)) + Sum::word(segment_len as u16)
}
