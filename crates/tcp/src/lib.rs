//! One TCP connection, sans-IO: state machine, loss recovery, congestion control.
//!
//! A [`Connection`] holds no payload and reads no clock. Its owner passes it segments, the calls of
//! the program and the time. It answers with segments to send ([`Outgoing`]), with [`Events`] and
//! with the time of its next timer. Payload is referred to by *stream offsets*: 0 is the first byte
//! after SYN, in either direction.
//!
//! Two states have compact types of their own: SYN-RECEIVED after a passive open ([`HalfOpen`]) and
//! TIME-WAIT ([`TimeWait`]).
#![forbid(unsafe_code)]

mod api;
mod assembler;
mod cold_state;
mod config;
pub mod congestion;
mod connection;
mod delayed_ack;
mod ecn;
mod events;
mod fast_open;
mod fast_path;
mod half_open;
mod info;
mod input;
mod open;
mod options;
mod outgoing;
mod output;
mod pacing;
mod pmtud;
mod reassembly;
mod recovery;
mod rtt;
mod settings;
mod shared;
mod state;
mod time;
mod time_wait;
mod timeouts;
mod timers;
mod urgent;
mod window;

pub use config::{Config, Ecn, MtuProbing};
pub use connection::Connection;
pub use events::{Error, Events, IcmpError};
pub use fast_open::FastOpenNews;
pub use fast_path::output::FastOutgoing;
pub use half_open::{HalfOpen, HalfOpenVerdict};
pub use info::{Info, Phase};
pub use millrace_sockopt::Algorithm;
pub use open::Open;
pub use outgoing::{Limits, Outgoing, refuse};
pub use reassembly::ReceiveBuffer;
pub use settings::{Keepalive, Settings};
pub use shared::{Shared, Sharing, Usual};
pub use state::State;
pub use time::{Duration, Instant};
pub use time_wait::{TimeWait, TimeWaitVerdict};
