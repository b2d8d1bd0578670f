//! Transmit: what a stack leaves undone in what it sends, done for a port that cannot.

use millrace_wire::bytes::{get16, get32, put16, put32};
use millrace_wire::checksum::Sum;
use millrace_wire::tcp::{self, Flags};
use millrace_wire::vnet::{self, VnetHeader};
use millrace_wire::{ipv4, ipv6};

use crate::unit::{HEAD_MAX, pseudo, replace16, set_length};

/// Where IPv4's identification is.
const V4_ID_AT: usize = 4;

/// Why a unit cannot be cut, or a checksum not be finished: what is said of the frame is not so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsound;

/// Cuts a unit into segments, each complete and ready for a wire: `each` is given headers and
/// payload of one after the other. A frame of which nothing is wanted comes as it is; one of which
/// a checksum is wanted must go through [`complete`] first. Returns how many there were.
///
/// The identification of IPv4 goes up by one for each; FIN and PSH are on the last, CWR on the
/// first (RFC 3168 6.1.2).
///
/// # Errors
/// [`Unsound`] before the first segment, when the frame is not what `vnet` says.
pub fn segment(
    unit: &[u8],
    vnet: &VnetHeader,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<usize, Unsound> {
    if vnet.gso == vnet::Gso::NONE {
        each(unit, &[]);
        return Ok(1);
    }
    let mut cut = Cut::new(unit, vnet)?;
    while let Some((head, payload)) = cut.next(unit) {
        each(head, payload);
    }
    Ok(cut.count)
}

/// A unit on its way to become segments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    place: Place,
    size: usize,
    /// How many segments there are in all, and how many have been made.
    pub(crate) count: usize,
    pub(crate) made: usize,
    /// What the unit's header says.
    seq: u32,
    flags: Flags,
    id: u16,
    /// The header, as it was for the last segment.
    head: [u8; HEAD_MAX],
}

impl Cut {
    /// Checks everything that cutting relies on.
    pub(crate) fn new(unit: &[u8], vnet: &VnetHeader) -> Result<Cut, Unsound> {
        let place = Place::of(unit, vnet)?;
        let (headers, payload) = unit.split_at(place.payload_at);
        let size = usize::from(vnet.gso_size);
        let mut head = [0; HEAD_MAX];
        head[..headers.len()].copy_from_slice(headers);
        Ok(Cut {
            size,
            count: payload.len().div_ceil(size).max(1),
            made: 0,
            seq: get32(headers, place.tcp_at + 4),
            flags: Flags::from_bits_retain(headers[place.tcp_at + 13]),
            id: get16(headers, place.ip_at + V4_ID_AT),
            place,
            head,
        })
    }

    /// The next segment of the unit that this was made of: headers and payload.
    pub(crate) fn next<'a>(&'a mut self, unit: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if self.made == self.count {
            return None;
        }
        let index = self.made;
        self.made += 1;
        let payload = &unit[self.place.payload_at..];
        let from = index * self.size;
        let part = &payload[from..payload.len().min(from + self.size)];
        let head = &mut self.head[..self.place.payload_at];
        let (below, tcp) = head.split_at_mut(self.place.tcp_at);
        let ip = &mut below[self.place.ip_at..];
        let mut own = self.flags;
        if index > 0 {
            own -= Flags::CWR;
        }
        if index + 1 < self.count {
            own -= Flags::FIN | Flags::PSH;
        }
        put32(tcp, 4, self.seq.wrapping_add(from as u32));
        tcp[13] = own.bits();
        let len = tcp.len() + part.len();
        if set_length(ip, len) == vnet::Gso::TCP_V4 {
            replace16(ip, V4_ID_AT, self.id.wrapping_add(index as u16));
        }
        put16(tcp, tcp::CHECKSUM_OFFSET, 0);
        let sum = pseudo(ip, len) + Sum::of(tcp) + Sum::of(part);
        put16(tcp, tcp::CHECKSUM_OFFSET, sum.finish());
        Some((head, part))
    }
}

/// Finishes the checksum that the sender has left, if `vnet` says so: its field holds the sum of
/// the pseudo-header.
///
/// # Errors
/// [`Unsound`] when there is no such place in the frame.
pub fn complete(frame: &mut [u8], vnet: &VnetHeader) -> Result<(), Unsound> {
    if !vnet.flags.contains(vnet::Flags::NEEDS_CSUM) {
        return Ok(());
    }
    let at = usize::from(vnet.csum_offset);
    let segment = frame
        .get_mut(usize::from(vnet.csum_start)..)
        .filter(|segment| at + 2 <= segment.len())
        .ok_or(Unsound)?;
    // 0 would mean that there is none (RFC 768); for TCP both are the same.
    let checksum = match Sum::of(segment).finish() {
        0 => 0xffff,
        checksum => checksum,
    };
    put16(segment, at, checksum);
    Ok(())
}

/// Where the headers are in a unit.
#[derive(Clone, Copy, Debug)]
struct Place {
    ip_at: usize,
    tcp_at: usize,
    payload_at: usize,
}

impl Place {
    /// Checks everything that cutting relies on.
    fn of(unit: &[u8], vnet: &VnetHeader) -> Result<Place, Unsound> {
        let tcp_at = usize::from(vnet.csum_start);
        let wanted = vnet.flags.contains(vnet::Flags::NEEDS_CSUM)
            && usize::from(vnet.csum_offset) == tcp::CHECKSUM_OFFSET
            && vnet.gso.is_tcp()
            && vnet.gso_size > 0;
        let tcp = unit
            .get(tcp_at..)
            .filter(|tcp| wanted && tcp.len() >= tcp::HEADER_LEN)
            .ok_or(Unsound)?;
        let header_len = usize::from(tcp[12] >> 4) * 4;
        let tagged = matches!(get16(unit, 12), 0x8100 | 0x88a8);
        let ip_at = if tagged { 18 } else { 14 };
        let ip_len = tcp_at.checked_sub(ip_at).ok_or(Unsound)?;
        let sound = match unit[ip_at] >> 4 {
            4 => (ipv4::HEADER_LEN..=60).contains(&ip_len),
            6 => ip_len == ipv6::HEADER_LEN,
            _ => false,
        };
        let payload_at = tcp_at + header_len;
        if !sound || header_len < tcp::HEADER_LEN || payload_at > unit.len() {
            return Err(Unsound);
        }
        // Every segment's length must fit its field.
        if ip_len + header_len + usize::from(vnet.gso_size) > usize::from(u16::MAX) {
            return Err(Unsound);
        }
        Ok(Place {
            ip_at,
            tcp_at,
            payload_at,
        })
    }
}
