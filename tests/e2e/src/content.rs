//! Content to transfer: made from a seed, compared byte for byte.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

/// Bytes that no shift, loss or doubling leaves equal: a xorshift sequence.
#[derive(Debug, Clone)]
pub struct Bytes {
    state: u64,
}

impl Bytes {
    /// The sequence of a seed.
    pub fn from_seed(seed: u64) -> Bytes {
        Bytes {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        }
    }

    /// Fills `buffer` with what comes next. Whole words are taken: cut a sequence only at multiples
    /// of 8.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            word.copy_from_slice(&self.state.to_le_bytes()[..word.len()]);
        }
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// Writes a file of `len` bytes from `seed`.
pub fn write_file(path: &Path, seed: u64, len: usize) -> Result<()> {
    let mut out =
        BufWriter::new(File::create(path).with_context(|| format!("creating {}", path.display()))?);
    let mut bytes = Bytes::from_seed(seed);
    let mut left = len;
    while left > 0 {
        let chunk = bytes.take(left.min(1 << 16));
        out.write_all(&chunk)?;
        left -= chunk.len();
    }
    Ok(out.flush()?)
}

/// Fails unless two files hold the same bytes.
pub fn ensure_same(expected: &Path, got: &Path) -> Result<()> {
    let (want, have) = (fs::metadata(expected)?.len(), fs::metadata(got)?.len());
    ensure!(
        want == have,
        "{} has {have} bytes, {want} expected",
        got.display()
    );
    let mut expected = BufReader::with_capacity(1 << 16, File::open(expected)?);
    let mut other = BufReader::with_capacity(1 << 16, File::open(got)?);
    let (mut a, mut b) = (vec![0; 1 << 16], vec![0; 1 << 16]);
    let mut at = 0;
    while at < want {
        let len = (want - at).min(1 << 16) as usize;
        expected.read_exact(&mut a[..len])?;
        other.read_exact(&mut b[..len])?;
        if a[..len] != b[..len] {
            let index = (0..len).find(|&index| a[index] != b[index]);
            let index = index.context("they differ somewhere")?;
            anyhow::bail!(
                "{} differs at byte {} of {want}",
                got.display(),
                at + index as u64
            );
        }
        at += len as u64;
    }
    Ok(())
}
