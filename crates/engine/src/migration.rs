//! Sockets that move: from shard to shard with their bucket, and from program to program in a
//! message (SCM_RIGHTS).

pub(crate) mod bucket_moves;
mod buckets;
mod misrouted;
pub(crate) mod scale;
mod scm_rights;
pub(crate) mod shared_sockets;
mod socket_transfer;
