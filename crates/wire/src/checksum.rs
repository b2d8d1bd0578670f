//! The Internet checksum (RFC 1071, RFC 1624).
//!
//! Sums are kept in the machine's byte order: the ones' complement sum of byte-swapped words is the
//! byte-swapped sum (RFC 1071 2B), so only the end result is turned round.

use core::net::{Ipv4Addr, Ipv6Addr};
use core::ops::{Add, AddAssign};

/// A ones' complement sum of 16-bit words, not yet folded.
///
/// ```
/// use millrace_wire::checksum::Sum;
/// // RFC 1071, section 3.
/// let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
/// assert_eq!(sum.fold(), 0xddf2);
/// assert_eq!(sum.finish(), !0xddf2);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of no bytes.
    pub const ZERO: Sum = Sum(0);

    /// The sum of `bytes`, as if a zero byte followed an odd last one.
    #[inline(always)]
    pub fn of(bytes: &[u8]) -> Sum {
        let (blocks, rest) = bytes.as_chunks::<256>();
        let Sum(mut total) = if blocks.is_empty() {
            Sum::ZERO
        } else {
            sum_of_blocks(blocks)
        };
        let mut carries = 0;
        let (quarters, mut rest) = rest.as_chunks::<32>();
        for quarter in quarters {
            let (words, _) = quarter.as_chunks::<8>();
            (total, carries) = add_words(total, words, carries);
        }
        if let Some((half, after)) = rest.split_first_chunk::<16>() {
            let (words, _) = half.as_chunks::<8>();
            (total, carries) = add_words(total, words, carries);
            rest = after;
        }
        if let Some((word, after)) = rest.split_first_chunk::<8>() {
            (total, carries) = add_words(total, &[*word], carries);
            rest = after;
        }
        if !rest.is_empty() {
            // Since 2^16 is 1 modulo 2^16 - 1, a piece counts the same at any even place of a word:
            // the last bytes with as many zeros behind them as make a word.
            let last = match bytes.last_chunk::<8>() {
                Some(last) => (u64::from_be_bytes(*last) << (64 - 8 * rest.len())).to_be(),
                None => {
                    let mut last = [0; 8];
                    last[..rest.len()].copy_from_slice(rest);
                    u64::from_ne_bytes(last)
                }
            };
            (total, carries) = add_words(total, &[last.to_ne_bytes()], carries);
        }
        Sum(total) + Sum(carries)
    }

    /// The sum of one word that is `value` in network byte order.
    #[inline]
    pub fn word(value: u16) -> Sum {
        Sum(u64::from(value.to_be()))
    }

    /// The sum of both, where the bytes of `other` start `offset` bytes after the first byte of
    /// `self`. Only whether that is odd matters.
    #[must_use]
    pub fn add_at(self, offset: usize, other: Sum) -> Sum {
        if offset.is_multiple_of(2) {
            return self + other;
        }
        self + Sum(u64::from(other.folded().swap_bytes()))
    }

    /// The sum in 16 bits, *not* complemented: what the checksum field holds when the port is to
    /// finish it.
    pub fn fold(self) -> u16 {
        u16::from_be(self.folded())
    }

    /// The checksum: the complement of the sum in 16 bits. To be written in network byte order.
    pub fn finish(self) -> u16 {
        !self.fold()
    }

    /// Whether bytes that include their own checksum add up as they should.
    #[inline]
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }

    /// Folded to 16 bits, in the machine's byte order.
    #[inline(always)]
    fn folded(self) -> u16 {
        let (low, carry) = (self.0 as u32).overflowing_add((self.0 >> 32) as u32);
        // What carried is less than all ones: this does not carry again.
        let sum = low + u32::from(carry);
        let (low, carry) = (sum as u16).overflowing_add((sum >> 16) as u16);
        low + u16::from(carry)
    }
}

/// A chain of add-with-carry: about 0.15 instructions a byte on x86-64, fewer than vectors of the
/// baseline instruction set need, or of AVX2, which have no carry. Out of order, a processor runs
/// that of the next block beside it.
#[inline(never)]
fn sum_of_blocks(blocks: &[[u8; 256]]) -> Sum {
    let mut sum = Sum::ZERO;
    let mut carries = 0;
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        let total;
        (total, carries) = add_words(0, words, carries);
        sum += Sum(total);
    }
    sum + Sum(carries)
}

/// Adds `words` to `total`; what carries over is counted.
#[inline(always)]
fn add_words(mut total: u64, words: &[[u8; 8]], carries: u64) -> (u64, u64) {
    let mut carry = false;
    for word in words {
        (total, carry) = total.carrying_add(u64::from_ne_bytes(*word), carry);
    }
    (total, carries + u64::from(carry))
}

/// The sum of both; the right one stands for bytes that start at an even offset from those of the
/// left.
impl Add for Sum {
    type Output = Sum;

    #[inline]
    fn add(self, other: Sum) -> Sum {
        let (sum, carry) = self.0.overflowing_add(other.0);
        // Cannot overflow again: a sum that carried is at most 2^64 - 2.
        Sum(sum + u64::from(carry))
    }
}

impl AddAssign for Sum {
    fn add_assign(&mut self, other: Sum) {
        *self = *self + other;
    }
}

/// The sum of the pseudo-header of a transport segment of `len` bytes (RFC 9293 3.1).
pub fn pseudo_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, len: u16) -> Sum {
    let [a, b, c, d] = src.octets();
    let [e, f, g, h] = dst.octets();
    let addresses = Sum(u64::from_ne_bytes([a, b, c, d, e, f, g, h]));
    addresses + Sum::word(u16::from(protocol)) + Sum::word(len)
}

/// Whether the checksum of a transport segment is right. Segments past 65,535 bytes have none that
/// is.
#[inline]
pub fn verify_v4(src: Ipv4Addr, dst: Ipv4Addr, protocol: u8, segment: &[u8]) -> bool {
    u16::try_from(segment.len())
        .is_ok_and(|len| (pseudo_v4(src, dst, protocol, len) + Sum::of(segment)).is_valid())
}

/// The sum of the IPv6 pseudo-header of an upper-layer packet of `len` bytes (RFC 8200 8.1).
pub fn pseudo_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, len: u32) -> Sum {
    let [high, low] = [(len >> 16) as u16, len as u16];
    Sum::of(&src.octets())
        + Sum::of(&dst.octets())
        + Sum::word(u16::from(protocol))
        + Sum::word(high)
        + Sum::word(low)
}

/// Whether the checksum of an upper-layer packet over IPv6 is right.
pub fn verify_v6(src: Ipv6Addr, dst: Ipv6Addr, protocol: u8, packet: &[u8]) -> bool {
    u32::try_from(packet.len())
        .is_ok_and(|len| (pseudo_v6(src, dst, protocol, len) + Sum::of(packet)).is_valid())
}

/// The checksum after bytes that summed to `old` were replaced by bytes that sum to `new` (RFC
/// 1624, equation 3).
pub fn update(checksum: u16, old: Sum, new: Sum) -> u16 {
    (Sum::word(!checksum) + Sum(!old.0) + new).finish()
}
