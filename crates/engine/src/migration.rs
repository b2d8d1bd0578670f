//! Sockets that move: from shard to shard with their bucket, and from program to program in a
//! message (SCM_RIGHTS).

pub(crate) mod buckets;
pub(crate) mod misrouted;
pub(crate) mod scale;
pub(crate) mod scm_rights;
pub(crate) mod socket_transfer;
