//! The connection's behaviour as stories in virtual time: one connection under a script, or two over a wire.

mod support;

mod acknowledging;
mod closing;
mod compact;
mod filling;
mod handshake;
mod hostile;
mod living;
mod losing;
mod marking;
mod own;
mod pacing;
mod path;
mod reassembly;
mod reordering;
mod reports;
mod requirements;
mod reset;
mod sending;
mod slowing;
mod soak;
mod stalling;
mod timestamps;
mod undoing;
mod urgent;
