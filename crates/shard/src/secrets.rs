//! Everything that must not be guessed: hashes, initial sequence numbers, timestamp offsets and
//! port choice, from one secret.

use std::hash::Hasher;
use std::net::IpAddr;

use millrace_tcp::Instant;
use siphasher::sip::{SipHasher13, SipHasher24};
use siphasher::sip128::{Hasher128, SipHasher13 as SipHasher13Wide};

use crate::connection_table::Tuple;

/// Keys derived from the configured secret, one for each purpose.
pub struct Secrets {
    numbers_hasher: SipHasher13,
    random: [u8; 16],
    /// Keys of the connection table's hash.
    pub table: [u64; 3],
    cookie: [u8; 16],
    fast_open: [u8; 16],
    flow: [u8; 16],
    counter: u64,
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    /// Initial send sequence number.
    pub sequence: u32,
    /// The offset of the clock in timestamps.
    pub timestamp_offset: u32,
}

impl Secrets {
    /// Derives the keys.
    pub fn new(secret: &[u8; 32]) -> Secrets {
        let derive = |purpose: u8| {
            let mut key = [0; 16];
            key.copy_from_slice(&secret[..16]);
            let mut hasher = SipHasher13Wide::new_with_key(&key);
            hasher.write(&secret[16..]);
            hasher.write_u8(purpose);
            hasher.finish128().as_bytes()
        };
        let word = |bytes: [u8; 16], half: usize| {
            u64::from_le_bytes(
                bytes[half * 8..half * 8 + 8]
                    .try_into()
                    .expect("eight bytes"),
            )
        };
        let table = derive(3);
        Secrets {
            numbers_hasher: SipHasher13::new_with_key(&derive(1)),
            random: derive(2),
            flow: derive(6),
            table: [word(table, 0), word(table, 1), word(derive(4), 0) | 1],
            cookie: derive(5),
            fast_open: derive(7),
            counter: 0,
        }
    }

    /// RFC 6528: ISN = M + F(tuple, secret), M a timer of 4 us; and RFC 7323 5.4: a timestamp
    /// offset for each tuple.
    pub fn numbers(&self, tuple: &Tuple, now: Instant) -> Numbers {
        // One half of the output of a keyed hash tells nothing about the other half.
        let hash = match tuple {
            // The same as below, in one go.
            Tuple::V4(pair) => self.numbers_hasher.hash(&pair.bytes()),
            Tuple::V6(_) => {
                let mut hasher = self.numbers_hasher;
                tuple.feed(&mut hasher);
                hasher.finish()
            }
        };
        Numbers {
            sequence: (hash as u32).wrapping_add((now.as_micros() / 4) as u32),
            timestamp_offset: (hash >> 32) as u32,
        }
    }

    /// The flow label of a connection's packets (RFC 6437 3): the same for all of them, never 0,
    /// and not to be guessed.
    pub fn flow_label(&self, tuple: &Tuple) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.flow);
        tuple.feed(&mut hasher);
        (hasher.finish() as u32 & 0xf_ffff).max(1)
    }

    /// A keyed hash for SYN cookies.
    pub fn cookie(&self, tuple: &Tuple, salt: u64) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.cookie);
        tuple.feed(&mut hasher);
        hasher.write_u64(salt);
        hasher.finish()
    }

    /// The key of [`fast_open_cookie`] of listeners that have none of their own.
    pub fn fast_open_key(&self) -> &[u8; 16] {
        &self.fast_open
    }

    /// The next number of a keyed sequence: unpredictable from outside, repeatable from the secret.
    pub fn random(&mut self) -> u64 {
        self.counter += 1;
        let mut hasher = SipHasher13::new_with_key(&self.random);
        hasher.write_u64(self.counter);
        hasher.finish()
    }
}

/// The cookie for TCP Fast Open with the host at the other end of `tuple` (RFC 7413 4.1.2): a keyed
/// hash of both addresses, as Linux computes it.
pub fn fast_open_cookie(key: &[u8; 16], tuple: &Tuple) -> [u8; 8] {
    let mut hasher = SipHasher24::new_with_key(key);
    match (tuple.remote_ip(), tuple.local().ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            hasher.write(&[from.octets(), to.octets()].concat());
        }
        (from, to) => {
            let octets = |ip: IpAddr| match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            hasher.write(&[octets(from), octets(to)].concat());
        }
    }
    hasher.finish().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::connection_table::Pair;

    fn tuple(port: u16) -> Tuple {
        Tuple::V4(Pair {
            local: Ipv4Addr::new(10, 0, 0, 1),
            remote: Ipv4Addr::new(10, 0, 0, 2),
            local_port: port,
            remote_port: 80,
        })
    }

    #[test]
    fn rfc6437_3_a_flow_label_is_its_connections_own() {
        let secrets = Secrets::new(&[7; 32]);
        let labels: std::collections::HashSet<u32> = (0..1000)
            .map(|port| secrets.flow_label(&tuple(port)))
            .collect();
        assert!(labels.len() > 990 && labels.iter().all(|label| (1..1 << 20).contains(label)));
        assert_eq!(secrets.flow_label(&tuple(5)), secrets.flow_label(&tuple(5)));
        assert_ne!(
            Secrets::new(&[8; 32]).flow_label(&tuple(5)),
            secrets.flow_label(&tuple(5))
        );
    }

    #[test]
    fn b1_numbers_of_one_tuple_rise_and_those_of_others_are_unrelated() {
        let secrets = Secrets::new(&[7; 32]);
        let at = |port, now| {
            secrets
                .numbers(&tuple(port), Instant::from_micros(now))
                .sequence
        };
        assert_eq!(at(1000, 400).wrapping_sub(at(1000, 0)), 100);
        let first: Vec<u32> = (0..64).map(|i| at(1000 + i, 0)).collect();
        let steps: std::collections::HashSet<u32> =
            first.windows(2).map(|w| w[1].wrapping_sub(w[0])).collect();
        assert_eq!(steps.len(), 63);
        let low: std::collections::HashSet<u32> = first.iter().map(|n| n & 0xff_ffff).collect();
        assert!(low.len() > 60);
    }

    #[test]
    fn b2_another_secret_gives_other_numbers() {
        let a = Secrets::new(&[1; 32]).numbers(&tuple(1), Instant::from_micros(0));
        let b = Secrets::new(&[2; 32]).numbers(&tuple(1), Instant::from_micros(0));
        assert_ne!(a.sequence, b.sequence);
        assert_ne!(a.timestamp_offset, b.timestamp_offset);
    }

    #[test]
    fn b4_the_timestamp_offset_differs_between_tuples() {
        let secrets = Secrets::new(&[7; 32]);
        assert_ne!(
            secrets
                .numbers(&tuple(1), Instant::from_micros(0))
                .timestamp_offset,
            secrets
                .numbers(&tuple(2), Instant::from_micros(0))
                .timestamp_offset
        );
    }
}
