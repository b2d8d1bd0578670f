//! What a request comes to.

use millrace_shard::Error;

/// The result of a request with its data, or an errno.
pub(crate) type Outcome = Result<(i64, Vec<u8>), i32>;

/// The outcome of a request that has no result.
pub(crate) fn done() -> Outcome {
    Ok((0, Vec::new()))
}

/// The outcome of a request that the shard carried out or refused.
pub(crate) fn to_outcome(result: Result<(), Error>) -> Outcome {
    result.map_or_else(|error| Err(error.errno()), |()| done())
}
