//! The answer to a request that wants one.
//!
//! One thread at a time asks (it holds the context's lock), so one cell is enough. It sleeps on `sequence`.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// Bytes an answer can carry beside its result.
pub const DATA: usize = 512;

/// The cell.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Reply {
    /// Goes up with each answer.
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

    /// Engine: answers with a result (0 or more, or a negative errno) and at most [`DATA`] bytes. The caller wakes the sleeper.
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

    /// Program: the result, and the data copied into `out`; its length is returned beside it. Call after `sequence` has moved.
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
    fn an_answer_carries_its_data() {
        let reply = Reply::default();
        reply.answer(-13, b"hello, world");
        let mut out = [0; 64];
        assert_eq!(reply.read(&mut out), (-13, 12));
        assert_eq!(&out[..12], b"hello, world");
        assert_eq!(reply.sequence.load(Ordering::Acquire), 1);
    }
}
