//! Streams of bytes of which each says where it belongs: no two streams are alike, and no two
//! places of one.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::rng::mix;

/// Names the stream of bytes from one end of a connection to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(u64);

impl Pattern {
    /// The stream from `source` to `target`.
    pub fn between(source: SocketAddr, target: SocketAddr) -> Pattern {
        let end = |end: SocketAddr| {
            let address = match end.ip() {
                IpAddr::V4(ip) => u64::from(ip.to_bits()),
                IpAddr::V6(ip) => mix((ip.to_bits() >> 64) as u64) ^ ip.to_bits() as u64,
            };
            address << 16 | u64::from(end.port())
        };
        Pattern(mix(end(source)).wrapping_sub(mix(!end(target))))
    }

    /// Writes what stands from `offset` on.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        self.for_each_word(offset, out.len(), |place, word| {
            out[place].copy_from_slice(word);
        });
    }

    /// The first offset at which `bytes`, which stand from `offset` on, are not those of the
    /// stream.
    pub fn first_difference(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        let mut first = None;
        self.for_each_word(offset, bytes.len(), |place, word| {
            if first.is_none() && bytes[place.clone()] != *word {
                let at = place
                    .clone()
                    .find(|&at| bytes[at] != word[at - place.start]);
                first = at.map(|at| offset + at as u64);
            }
        });
        first
    }

    /// Calls `visit` for each piece of the `len` bytes from `offset` on: its place among them, and
    /// what stands there.
    fn for_each_word(self, offset: u64, len: usize, mut visit: impl FnMut(Range<usize>, &[u8])) {
        let mut at = 0;
        while at < len {
            let offset = offset + at as u64;
            let skip = (offset & 7) as usize;
            let end = len.min(at + 8 - skip);
            visit(
                at..end,
                &mix(self.0 ^ (offset >> 3)).to_le_bytes()[skip..skip + end - at],
            );
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_where_it_is() {
        let (a, b) = (
            "10.0.0.1:80".parse().expect("an address"),
            "10.0.0.2:81".parse().expect("an address"),
        );
        let pattern = Pattern::between(a, b);
        let mut bytes = [0; 100];
        pattern.fill(1000, &mut bytes);
        assert_eq!(pattern.first_difference(1000, &bytes), None);
        assert!(pattern.first_difference(1001, &bytes).is_some());
        for from in 0..20 {
            assert_eq!(
                pattern.first_difference(1000 + from as u64, &bytes[from..90 + from / 2]),
                None
            );
        }
        assert!(
            Pattern::between(b, a)
                .first_difference(1000, &bytes)
                .is_some()
        );
        bytes[77] ^= 1;
        assert_eq!(pattern.first_difference(1000, &bytes), Some(1077));
    }
}
