//! The answer to a request that needs one.
//!
//! One thread at a time asks, under the context's lock, so one cell is enough. The thread sleeps on
//! `sequence`.

use crate::Address;
use crate::sync::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// The bytes of data in an answer, beside its result.
pub const DATA: usize = if cfg!(millrace_loom) { 8 } else { 512 };

/// An error about a datagram that was sent. The datagram's payload follows it, as far as it is
/// known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The error's number.
    pub errno: u32,
    /// The largest packet that the path takes; 0 if it is not known.
    pub info: u32,
    /// The type of the ICMP message.
    pub kind: u8,
    /// The code of the ICMP message.
    pub code: u8,
    /// The address of the sender of the ICMP message, with IPv4 mapped.
    pub offender: [u8; 16],
    /// The destination of the datagram.
    pub to: Address,
}

impl Failure {
    /// The size in bytes.
    pub const LEN: usize = 56;

    /// The failure as bytes.
    pub fn emit(&self) -> [u8; Failure::LEN] {
        let mut out = [0; Failure::LEN];
        out[..4].copy_from_slice(&self.errno.to_ne_bytes());
        out[4..8].copy_from_slice(&self.info.to_ne_bytes());
        out[8..10].copy_from_slice(&[self.kind, self.code]);
        out[10..12].copy_from_slice(&self.to.port.to_ne_bytes());
        out[16..32].copy_from_slice(&self.offender);
        out[32..48].copy_from_slice(&self.to.ip);
        out
    }

    /// The failure from its bytes.
    pub fn parse(bytes: &[u8; Failure::LEN]) -> Failure {
        let word = |at: usize| {
            u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let ip = |at: usize| std::array::from_fn(|index| bytes[at + index]);
        Failure {
            errno: word(0),
            info: word(4),
            kind: bytes[8],
            code: bytes[9],
            offender: ip(16),
            to: Address {
                ip: ip(32),
                port: u16::from_ne_bytes([bytes[10], bytes[11]]),
                ..Address::NONE
            },
        }
    }
}

/// The cell of an answer in a context.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Reply {
    /// Incremented by each answer.
    pub sequence: AtomicU32,
    len: AtomicU32,
    result: AtomicI64,
    data: [AtomicU64; DATA / 8],
}

impl Default for Reply {
    fn default() -> Reply {
        Reply {
            sequence: AtomicU32::new(0),
            len: AtomicU32::new(0),
            result: AtomicI64::new(0),
            data: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Reply {
    pub(crate) fn reset(&self) {
        self.sequence.store(0, Ordering::Relaxed);
    }

    /// Engine: answers with a result (0 or more, or a negative errno) and at most [`DATA`] bytes.
    /// The caller wakes the thread.
    pub fn answer(&self, result: i64, data: &[u8]) {
        let data = &data[..data.len().min(DATA)];
        for (cell, chunk) in self.data.iter().zip(data.chunks(8)) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            cell.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        self.len.store(data.len() as u32, Ordering::Relaxed);
        self.result.store(result, Ordering::Relaxed);
        self.sequence.fetch_add(1, Ordering::Release);
    }

    /// Program: reads the result, and copies the data into `out`; returns its length too. Call it
    /// after `sequence` has changed.
    pub fn read(&self, out: &mut [u8]) -> (i64, usize) {
        let len = (self.len.load(Ordering::Relaxed) as usize)
            .min(DATA)
            .min(out.len());
        for (chunk, cell) in out[..len].chunks_mut(8).zip(&self.data) {
            let word = cell.load(Ordering::Relaxed).to_ne_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        (self.result.load(Ordering::Relaxed), len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_its_bytes() {
        let end: std::net::SocketAddr = "10.9.0.1:53".parse().unwrap();
        let failure = Failure {
            errno: 111,
            info: 1400,
            kind: 3,
            code: 4,
            offender: [9; 16],
            to: end.into(),
        };
        assert_eq!(Failure::parse(&failure.emit()), failure);
    }

    #[test]
    fn an_answer_carries_its_data() {
        let reply = Reply::default();
        reply.answer(-13, b"hello, world");
        let mut out = [0; 64];
        assert_eq!(reply.read(&mut out), (-13, 12));
        assert_eq!(&out[..12], b"hello, world");
        assert_eq!(reply.sequence.load(Ordering::Acquire), 1);
    }
}
