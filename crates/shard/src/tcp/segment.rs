//! TCP segments out: headers in a stack buffer, checksums, and cutting into segments what the port
//! does not cut itself.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU8;

use millrace_tcp::{FastOutgoing, Outgoing};
use millrace_wire::checksum::Sum;
use millrace_wire::ethernet::{self, EtherType, Mac};
use millrace_wire::offload::{Capabilities, Offload};
use millrace_wire::tcp::{CHECKSUM_OFFSET, Flags, MAX_HEADER_LEN, PROTOCOL, Timestamps};
use millrace_wire::{ipv4, ipv6, tcp};

use crate::connection_table::{Pair, Tuple};
use crate::link::ethernet::Stations;
use crate::socket::options::Options;

/// Where the IP header is in a frame.
const IP_START: usize = ethernet::HEADER_LEN;
/// All headers, at most.
const HEAD_MAX: usize = ethernet::HEADER_LEN + ipv6::HEADER_LEN + MAX_HEADER_LEN;
/// The most payload that one packet of either family can carry, whatever the options.
pub const PAYLOAD_MAX: u32 = 65_535 - (ipv4::HEADER_LEN + MAX_HEADER_LEN) as u32;
/// Two NOPs, kind and length of a timestamps option (RFC 7323, appendix A).
const ALIGNED_TIMESTAMPS: u32 = 0x0101_080a;
/// Hops that our packets may take, unless the program says otherwise.
pub const HOPS: u8 = 64;

/// The fields of a connection's IP headers other than the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpFields {
    /// Time to live, or hop limit.
    pub hops: u8,
    /// Type of service, or traffic class.
    pub class: u8,
    /// The flow label of IPv6: 20 bits.
    label: [u8; 3],
}

impl IpFields {
    /// The fields of a connection with these options.
    pub fn new(tuple: &Tuple, options: &Options, flow_label: u32) -> IpFields {
        let (hops, class) = match tuple {
            Tuple::V4(_) => (options.ttl.map(NonZeroU8::get), options.tos),
            Tuple::V6(_) => (options.hop_limit, options.traffic_class),
        };
        IpFields {
            hops: hops.unwrap_or(HOPS),
            class,
            label: [
                (flow_label >> 16) as u8,
                (flow_label >> 8) as u8,
                flow_label as u8,
            ],
        }
    }

    /// The flow label of IPv6.
    pub fn flow_label(&self) -> u32 {
        let [high, middle, low] = self.label;
        u32::from_be_bytes([0, high, middle, low])
    }
}

/// A segment, or a run of them, on its way out.
pub struct SegmentJob<'a> {
    /// The station to send to.
    pub to: Mac,
    /// Our station.
    pub from: Mac,
    /// The connection.
    pub tuple: &'a Tuple,
    /// The rest of its IP header.
    pub fields: IpFields,
    /// The segment, or run of segments, to send.
    pub outgoing: &'a Outgoing,
    /// The payload, all of it.
    pub payload: [&'a [u8]; 2],
}

impl SegmentJob<'_> {
    /// Sends the payload from byte `skip` on, in as large units as the port takes. Returns how far
    /// it came: the length of the payload when done, less when `send` returned false. Without
    /// payload, `None` says that the segment was not taken.
    #[inline]
    pub fn run(
        &self,
        skip: usize,
        capabilities: &Capabilities,
        send: impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
    ) -> Option<usize> {
        match self.tuple {
            Tuple::V4(pair) => self.run_over(pair, skip, capabilities, send),
            Tuple::V6(pair) => self.run_over(pair, skip, capabilities, send),
        }
    }

    #[inline]
    fn run_over<I: Ip>(
        &self,
        pair: &Pair<I>,
        skip: usize,
        capabilities: &Capabilities,
        mut send: impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
    ) -> Option<usize> {
        let total = self.payload[0].len() + self.payload[1].len();
        if total <= usize::from(self.outgoing.segment_size) {
            let sent = self.send_unit(pair, self.payload, 0, true, false, capabilities, &mut send);
            return sent.then_some(total);
        }
        self.run_cut(pair, skip, total, capabilities, send)
    }

    /// As [`SegmentJob::run`], for more than one segment.
    fn run_cut<I: Ip>(
        &self,
        pair: &Pair<I>,
        skip: usize,
        total: usize,
        capabilities: &Capabilities,
        mut send: impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
    ) -> Option<usize> {
        let size = usize::from(self.outgoing.segment_size).max(1);
        let header_len = self.outgoing.header(0, 0).header_len();
        let unit = match (capabilities.tx_segmentation_max as usize)
            .checked_sub(I::TCP_START + header_len)
        {
            // Every unit but the last has whole segments only.
            Some(most) if most >= size => most.min(PAYLOAD_MAX as usize) / size * size,
            _ => size,
        };
        let mut at = skip;
        if unit == size && !capabilities.tx_checksum {
            // All but the last are alike but for sequence number and checksum.
            let mut head = [0; HEAD_MAX];
            let (head_len, sums) = self.write_head(pair, &mut head, 0, false, size);
            let without_seq = sums.header - u64::from(self.outgoing.seq.0);
            while at + size < total {
                let payload = cut(self.payload, at, at + size);
                let seq = (self.outgoing.seq + at as u32).0;
                put(&mut head, I::TCP_START + 4, seq);
                finish_checksum::<I>(&mut head, without_seq + u64::from(seq), payload);
                if !send(&head[..head_len], payload, Offload::None) {
                    return (at > skip).then_some(at);
                }
                at += size;
            }
        }
        while at < total {
            let end = (at + unit).min(total);
            let payload = cut(self.payload, at, end);
            if !self.send_unit(
                pair,
                payload,
                at,
                end == total,
                end - at > size,
                capabilities,
                &mut send,
            ) {
                return (at > skip).then_some(at);
            }
            at = end;
        }
        Some(total)
    }

    /// Sends one frame with `payload`, which begins `at` bytes into the whole. `is_cut`: the port
    /// is to cut it.
    #[inline]
    #[expect(
        clippy::too_many_arguments,
        reason = "all of it differs from unit to unit"
    )]
    fn send_unit<I: Ip>(
        &self,
        pair: &Pair<I>,
        payload: [&[u8]; 2],
        at: usize,
        last: bool,
        is_cut: bool,
        capabilities: &Capabilities,
        send: &mut impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
    ) -> bool {
        let mut head = [0; HEAD_MAX];
        let payload_len = payload[0].len() + payload[1].len();
        let (head_len, sum) = self.write_head(pair, &mut head, at, last, payload_len);
        let (start, offset) = (I::TCP_START as u16, CHECKSUM_OFFSET as u16);
        let offload = if is_cut {
            let (header_len, segment_size) = (head_len as u16, self.outgoing.segment_size);
            Offload::Segment {
                start,
                offset,
                header_len,
                segment_size,
            }
        } else if capabilities.tx_checksum {
            Offload::Checksum { start, offset }
        } else {
            finish_checksum::<I>(&mut head, sum.header, payload);
            return send(&head[..head_len], payload, Offload::None);
        };
        put_checksum::<I>(&mut head, fold(sum.pseudo));
        send(&head[..head_len], payload, offload)
    }

    /// Writes all headers, with a TCP checksum of 0; returns their length and what the checksum is
    /// made of.
    #[inline]
    fn write_head<I: Ip>(
        &self,
        pair: &Pair<I>,
        head: &mut [u8; HEAD_MAX],
        at: usize,
        last: bool,
        payload_len: usize,
    ) -> (usize, Sums) {
        let outgoing = self.outgoing;
        let mut flags = outgoing.flags;
        if !last {
            flags.remove(Flags::FIN | Flags::PSH);
        }
        // TCP's options first: its length depends on them, which nearly always are timestamps
        // alone.
        let options = &outgoing.options;
        let plain = options.mss.is_none()
            && options.window_scale.is_none()
            && !options.sack_permitted
            && options.sack.is_empty();
        let (header_len, option_sum) = if plain {
            write_timestamps::<I>(head, options.timestamps)
        } else if let Some(written) = write_usual_syn::<I>(head, options) {
            written
        } else {
            let len = options.encoded_len();
            let bytes = &mut head[I::TCP_START + 20..I::TCP_START + 20 + len];
            options.emit(bytes);
            (20 + len, u64::from(Sum::of(bytes).fold()))
        };
        let tcp = Tcp {
            seq: (outgoing.seq + at as u32).0,
            ack: outgoing.ack.0,
            flags,
            window: outgoing.window,
            urgent: outgoing.urgent,
            header_len,
            option_sum,
        };
        // ECT(0), RFC 3168 5.
        let fields = IpFields {
            class: self.fields.class | u8::from(outgoing.may_mark) << 1,
            ..self.fields
        };
        let stations = Stations {
            to: self.to,
            from: self.from,
        };
        tcp.write(&stations, pair, &fields, payload_len, head)
    }
}

/// Sends a segment that is whole and has no options but timestamps; false when `send` returned
/// that.
#[inline(always)]
pub fn send_fast_path(
    stations: &Stations,
    tuple: &Tuple,
    fields: &IpFields,
    plain: &FastOutgoing,
    payload: [&[u8]; 2],
    capabilities: &Capabilities,
    send: impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
) -> bool {
    match tuple {
        Tuple::V4(pair) => {
            send_fast_path_over(stations, pair, fields, plain, payload, capabilities, send)
        }
        Tuple::V6(pair) => {
            send_fast_path_over(stations, pair, fields, plain, payload, capabilities, send)
        }
    }
}

#[inline(always)]
fn send_fast_path_over<I: Ip>(
    stations: &Stations,
    pair: &Pair<I>,
    fields: &IpFields,
    plain: &FastOutgoing,
    payload: [&[u8]; 2],
    capabilities: &Capabilities,
    mut send: impl FnMut(&[u8], [&[u8]; 2], Offload) -> bool,
) -> bool {
    let mut head = [0; HEAD_MAX];
    let (header_len, option_sum) = write_timestamps::<I>(&mut head, plain.timestamps);
    let tcp = Tcp {
        seq: plain.seq.0,
        ack: plain.ack.0,
        flags: plain.flags,
        window: plain.window,
        urgent: 0,
        header_len,
        option_sum,
    };
    let payload_len = (plain.payload.end - plain.payload.start) as usize;
    let (head_len, sums) = tcp.write(stations, pair, fields, payload_len, &mut head);
    let offload = if capabilities.tx_checksum {
        put_checksum::<I>(&mut head, fold(sums.pseudo));
        Offload::Checksum {
            start: I::TCP_START as u16,
            offset: CHECKSUM_OFFSET as u16,
        }
    } else {
        finish_checksum::<I>(&mut head, sums.header, payload);
        Offload::None
    };
    send(&head[..head_len], payload, offload)
}

/// Writes a timestamps option, if there is one; returns the length of the TCP header with it, and
/// its sum.
#[inline(always)]
fn write_timestamps<I: Ip>(
    head: &mut [u8; HEAD_MAX],
    timestamps: Option<Timestamps>,
) -> (usize, u64) {
    let Some(stamps) = timestamps else {
        return (20, 0);
    };
    put(head, I::TCP_START + 20, ALIGNED_TIMESTAMPS);
    put(head, I::TCP_START + 24, stamps.value);
    put(head, I::TCP_START + 28, stamps.echo);
    let sum = u64::from(ALIGNED_TIMESTAMPS) + u64::from(stamps.value) + u64::from(stamps.echo);
    (32, sum)
}

/// Writes the options of a SYN as nearly all are, if these are such: MSS, SACK-permitted,
/// timestamps, window scale.
#[inline]
fn write_usual_syn<I: Ip>(
    head: &mut [u8; HEAD_MAX],
    options: &tcp::Options,
) -> Option<(usize, u64)> {
    let &tcp::Options {
        mss: Some(mss),
        window_scale: Some(shift),
        sack_permitted: true,
        timestamps: Some(stamps),
        ..
    } = options
    else {
        return None;
    };
    if !options.sack.is_empty() || options.fast_open().is_some() {
        return None;
    }
    // Kind and length each: MSS; SACK-permitted and timestamps; NOP and window scale.
    let words = [
        0x0204_0000 | u32::from(mss),
        0x0402_080a,
        stamps.value,
        stamps.echo,
        0x0103_0300 | u32::from(shift),
    ];
    let mut sum = 0;
    for (at, word) in words.into_iter().enumerate() {
        put(head, I::TCP_START + 20 + 4 * at, word);
        sum += u64::from(word);
    }
    Some((40, sum))
}

/// A TCP header whose options have been written.
struct Tcp {
    seq: u32,
    ack: u32,
    flags: Flags,
    window: u16,
    urgent: u16,
    /// With its options, in bytes.
    header_len: usize,
    option_sum: u64,
}

impl Tcp {
    /// Writes all headers but the options, with a TCP checksum of 0; returns their length and what
    /// the checksum is made of.
    #[inline(always)]
    fn write<I: Ip>(
        &self,
        stations: &Stations,
        pair: &Pair<I>,
        fields: &IpFields,
        payload_len: usize,
        head: &mut [u8; HEAD_MAX],
    ) -> (usize, Sums) {
        let ports = u32::from(pair.local_port) << 16 | u32::from(pair.remote_port);
        let control = (self.header_len as u32 / 4) << 28
            | u32::from(self.flags.bits()) << 16
            | u32::from(self.window);
        put(head, I::TCP_START, ports);
        put(head, I::TCP_START + 4, self.seq);
        put(head, I::TCP_START + 8, self.ack);
        put(head, I::TCP_START + 12, control);
        put(head, I::TCP_START + 16, u32::from(self.urgent));
        head[..6].copy_from_slice(&stations.to.0);
        head[6..12].copy_from_slice(&stations.from.0);
        head[12..14].copy_from_slice(&I::ETHERTYPE.0.to_be_bytes());
        let segment_len = (self.header_len + payload_len) as u32;
        let addresses = I::write(pair, head, fields, segment_len);

        let pseudo = addresses + u64::from(PROTOCOL) + u64::from(segment_len);
        let header = pseudo
            + u64::from(ports)
            + u64::from(self.seq)
            + u64::from(self.ack)
            + u64::from(control)
            + u64::from(self.urgent)
            + self.option_sum;
        (I::TCP_START + self.header_len, Sums { pseudo, header })
    }
}

/// One of the two families, to write its header in front of TCP's.
trait Ip: Copy {
    const ETHERTYPE: EtherType;
    /// Where the TCP header is in a frame.
    const TCP_START: usize;

    /// Writes the header for a segment of `segment_len` bytes, TCP header included. Returns the sum
    /// of the addresses, in words of 32 bits.
    fn write(
        pair: &Pair<Self>,
        head: &mut [u8; HEAD_MAX],
        fields: &IpFields,
        segment_len: u32,
    ) -> u64;
}

impl Ip for Ipv4Addr {
    const ETHERTYPE: EtherType = EtherType::IPV4;
    const TCP_START: usize = IP_START + ipv4::HEADER_LEN;

    #[inline]
    fn write(
        pair: &Pair<Self>,
        head: &mut [u8; HEAD_MAX],
        fields: &IpFields,
        segment_len: u32,
    ) -> u64 {
        let (local, remote) = (pair.local.to_bits(), pair.remote.to_bits());
        let addresses = u64::from(local) + u64::from(remote);
        let total_len = segment_len + ipv4::HEADER_LEN as u32;
        // Version and header length; don't fragment; and an identification of 0, since it
        // identifies nothing (RFC 6864 4.1).
        let first = 0x4500_0000 | u32::from(fields.class) << 16 | total_len;
        let second = 0x0000_4000;
        let third = u32::from(fields.hops) << 24 | u32::from(PROTOCOL) << 16;
        let ip_sum = fold(u64::from(first) + u64::from(second) + u64::from(third) + addresses);
        put(head, IP_START, first);
        put(head, IP_START + 4, second);
        put(head, IP_START + 8, third | u32::from(!ip_sum));
        put(head, IP_START + 12, local);
        put(head, IP_START + 16, remote);
        addresses
    }
}

impl Ip for Ipv6Addr {
    const ETHERTYPE: EtherType = EtherType::IPV6;
    const TCP_START: usize = IP_START + ipv6::HEADER_LEN;

    #[inline]
    fn write(
        pair: &Pair<Self>,
        head: &mut [u8; HEAD_MAX],
        fields: &IpFields,
        segment_len: u32,
    ) -> u64 {
        ipv6::Header {
            src: pair.local,
            dst: pair.remote,
            next_header: PROTOCOL,
            hop_limit: fields.hops,
            traffic_class: fields.class,
            flow_label: fields.flow_label(),
            payload_len: segment_len as u16,
        }
        .emit(&mut head[IP_START..]);
        [pair.local, pair.remote]
            .into_iter()
            .map(|address| {
                let bits = address.to_bits();
                let word = |shift: u32| u64::from((bits >> shift) as u32);
                word(96) + word(64) + word(32) + word(0)
            })
            .sum()
    }
}

/// The parts of a TCP checksum other than the payload: sums of 32-bit words.
struct Sums {
    /// The pseudo-header alone: folded, what the field holds when the port is to finish it.
    pseudo: u64,
    /// Pseudo-header and header.
    header: u64,
}

/// Completes the TCP checksum of a header that sums to `header`.
#[inline(always)]
fn finish_checksum<I: Ip>(head: &mut [u8; HEAD_MAX], header: u64, payload: [&[u8]; 2]) {
    let mut sum = Sum::of(payload[0]);
    if !payload[1].is_empty() {
        sum = sum.add_at(payload[0].len(), Sum::of(payload[1]));
    }
    let total = header + u64::from(sum.fold());
    put_checksum::<I>(head, !fold(total));
}

#[inline]
fn put_checksum<I: Ip>(head: &mut [u8; HEAD_MAX], checksum: u16) {
    head[I::TCP_START + CHECKSUM_OFFSET..][..2].copy_from_slice(&checksum.to_be_bytes());
}

/// Writes a word in network order.
#[inline]
fn put(head: &mut [u8; HEAD_MAX], at: usize, word: u32) {
    head[at..at + 4].copy_from_slice(&word.to_be_bytes());
}

/// The ones' complement sum of 16-bit words, from a sum of 32-bit words in which they are pairs
/// (RFC 1071 2).
#[inline]
pub fn fold(sum: u64) -> u16 {
    let (low, carry) = (sum as u32).overflowing_add((sum >> 32) as u32);
    // A sum that carried is small: this does not carry again.
    let sum = low + u32::from(carry);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum + (sum >> 16)) as u16
}

/// The bytes `at..end` of the concatenation of two slices.
pub fn cut(slices: [&[u8]; 2], at: usize, end: usize) -> [&[u8]; 2] {
    let first = slices[0].len();
    [
        &slices[0][at.min(first)..end.min(first)],
        &slices[1][at.saturating_sub(first)..end.saturating_sub(first)],
    ]
}

/// A segment as its receiver sees it, without having been on a wire: for traffic inside the shard.
pub fn as_received<'a>(
    tuple: &Tuple,
    outgoing: &Outgoing,
    at: usize,
    payload: &'a [u8],
    last: bool,
) -> tcp::Segment<'a> {
    let mut flags = outgoing.flags;
    if !last {
        flags.remove(Flags::FIN | Flags::PSH);
    }
    let (src_port, dst_port) = tuple.ports();
    tcp::Segment {
        src_port,
        dst_port,
        seq: outgoing.seq + at as u32,
        ack: outgoing.ack,
        flags,
        window: outgoing.window,
        urgent: outgoing.urgent,
        marked: false,
        options: outgoing.options,
        payload,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc1071_folding_is_the_sum_modulo_ffff() {
        for sum in [
            0,
            1,
            0xffff,
            0x1_0000,
            0xffff_ffff,
            0x1_0000_0000,
            0xf_ffff_ffff,
            0x12_3456_789a,
            u64::MAX >> 20,
        ] {
            let folded = u64::from(fold(sum));
            assert_eq!(folded % 0xffff, sum % 0xffff, "{sum:x}");
            assert_eq!(folded == 0, sum == 0, "{sum:x}");
        }
    }

    #[test]
    fn a_cut_is_the_part_of_both_slices() {
        let slices: [&[u8]; 2] = [b"abc", b"defgh"];
        for at in 0..=8 {
            for end in at..=8 {
                assert_eq!(cut(slices, at, end).concat(), b"abcdefgh"[at..end]);
            }
        }
    }
}
