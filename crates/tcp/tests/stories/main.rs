//! Tests of a connection in virtual time: one connection under a script, or two over a wire.

mod support;

mod closing;
mod congestion;
mod custom_congestion;
mod delayed_ack;
mod ecn;
mod half_open_and_time_wait;
mod handshake;
mod hostile;
mod icmp;
mod keepalive;
mod loss_recovery;
mod pacing;
mod pmtud;
mod reassembly;
mod reordering;
mod requirements;
mod reset;
mod sending;
mod soak;
mod stalling;
mod timestamps;
mod undo;
mod urgent;
mod utilization;
