//! Steering: which shard a frame belongs to, and the way there.
//!
//! A flow has a [tag](enum@Hash) of 32 bits, a tag is in a bucket, and a bucket is one group's
//! ([`Groups`]); a shard serves one group. So a flow's frames all come to one shard, which needs no
//! lock for it. [`plan()`] says which buckets are to move when loads or the number of shards have
//! changed, and a [`Balancer`] which ones when some shards have more to do than others for long
//! enough.
//!
//! Between the threads that own queues of a device and the shards are virtual queues
//! ([`virtual_queues`]): a ring each way for each pair of them, so there may be more shards than
//! the device has queues, or fewer. In what order a thread serves its rings is for a [`Scheduler`]
//! to say.
//!
//! Nothing here reads a clock, makes a system call or waits. What two threads share is a [`ring`]'s
//! bytes and its two positions, each with one writer.
#![deny(unsafe_code)]

mod balance;
mod balancer;
mod flow;
mod groups;
mod hash;
mod queues;
pub mod ring;
mod schedule;
mod sync;
mod tuple;

pub use balance::{Move, plan};
pub use balancer::Balancer;
pub use flow::flow_of;
pub use groups::{Groups, NOBODY};
pub use hash::{Hash, fold};
pub use queues::{Inbound, Outbound, Side, virtual_queues};
pub use schedule::{Policy, PolicyError, Scheduler};
pub use tuple::{Pair, Tuple};
