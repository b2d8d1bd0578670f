//! Membership in multicast groups.

use std::net::SocketAddr;

use millrace_context::{Address, Operation};
use millrace_sockopt::Membership;
use rustix::io::Errno;

use crate::engine::Engine;
use crate::socket::Socket;
use crate::socket::device_binding;
use crate::sys::Result;

/// Whether the engine serves the interface of a membership.
pub fn serves(engine: &Engine, change: &Membership) -> bool {
    let (header, interface) = (engine.region.header(), change.interface);
    if change.device != 0 {
        device_binding::is_served(engine, change.device)
    } else if interface.is_unspecified() {
        header.serves_anything()
    } else {
        header.owns(interface, false)
    }
}

/// Joins or leaves a group.
pub fn apply(socket: &Socket, change: Membership) -> Result<()> {
    if !serves(socket.engine, &change) {
        return Err(Errno::NODEV);
    }
    let [a, b, c] = Address::from(SocketAddr::new(change.group, 0)).to_words();
    let operation = Operation::Membership;
    let mut submission = socket.submission(operation, change.join.into());
    submission.arguments[..3].copy_from_slice(&[a, b, c]);
    socket.ask(&submission, &mut []).map(drop)
}
