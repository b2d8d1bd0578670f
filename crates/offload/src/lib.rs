//! Offload: what a network card can do for a stack above it, in software.
//!
//! [`Receive`] joins the segments of each TCP flow into units of up to 64 KB, puts right what came
//! out of order, and hands everything else on as it is. [`Train`] does a part of it for a stack of
//! our own, where it must cost next to nothing. [`transmit`] cuts the units that a stack sends into
//! segments, and finishes checksums; a [`Pacer`] has the segments of a unit leave one after the
//! other.
//!
//! Nothing here reads a clock or makes a system call; nothing is allocated for a packet. Frames lie
//! in buffers of a pool from their arrival until they are handed on as slices of a scatter list:
//! payload is not copied.
#![forbid(unsafe_code)]

mod ack_proxy;
mod active_ack;
mod config;
mod counters;
mod facts;
mod filter;
mod flow;
mod hold;
mod key;
mod pace;
mod pool;
mod receive;
mod seen;
mod table;
mod time;
mod train;
pub mod transmit;
mod turns;
mod unit;

pub use active_ack::{ActiveAck, Flows, NotFlows};
pub use config::Config;
pub use counters::Counters;
pub use flow::FlowInfo;
pub use key::Key;
pub use pace::{PaceCounters, Pacer};
pub use receive::Receive;
pub use time::Instant;
pub use train::{Train, TrainCounters};
pub use unit::{HEAD_MAX, Sink, UNIT_SEGMENTS, Unit};
