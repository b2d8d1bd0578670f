//! Random bytes of the kernel: keys and tokens.

use std::io;

use millrace_context::protocol;
use millrace_shard::Hash;

/// A keyed hash for the tags of flows. Each engine has other keys.
pub(super) fn hash() -> io::Result<Hash> {
    let mut keys = [0; 24];
    random(&mut keys)?;
    let key = |at: usize| u64::from_ne_bytes(keys[at..at + 8].try_into().unwrap_or_default());
    Ok(Hash::Keyed([key(0), key(8), key(16) | 1]))
}

pub(super) fn random(out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        done += rustix::rand::getrandom(&mut out[done..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(())
}

/// A token that cannot be guessed.
pub(crate) fn token() -> io::Result<protocol::Token> {
    let mut token = [0; 16];
    random(&mut token)?;
    Ok(token)
}
