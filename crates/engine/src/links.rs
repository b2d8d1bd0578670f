//! Where frames come from and go to: ports of the device, I/O threads, and the virtual queues
//! between I/O threads and shards.

pub(crate) mod drop_warnings;
pub(crate) mod egress;
pub(crate) mod io_thread;
pub(crate) mod link_loss;
pub(crate) mod shard_link;
pub(crate) mod virtual_queues;
