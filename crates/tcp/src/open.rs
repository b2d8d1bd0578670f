//! What a new connection is opened with.

use millrace_wire::tcp::Seq;

/// How far the sequence numbers of a connection begin after those of its predecessor, if the clock
/// has not gone far enough (as in Linux).
const ISS_STEP: u32 = 65_535 + 2;

/// The parameters that the owner gives to a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Open {
    /// Initial send sequence number: unguessable, and rising with time (RFC 6528).
    pub iss: Seq,
    /// Origin of the connection's timestamp clock: random (RFC 7323 5.4).
    pub timestamp_offset: u32,
    /// The largest segment that we can receive and the link can carry, in bytes: MTU less 40 for
    /// IPv4. TCP options are not subtracted.
    pub mss: u16,
    /// The segment size of a peer that announces none, in bytes: 536 over IPv4, 1,220 over IPv6
    /// (RFC 9293 3.7.1).
    pub default_mss: u16,
    /// Receive buffer, in bytes.
    pub receive_limit: u32,
}

impl Open {
    /// Makes the new sequence numbers begin after `after`, the last one of the connection that this
    /// one replaces (RFC 9293 3.10.7.4, RFC 6191 2).
    pub fn begin_after(&mut self, after: Seq) {
        if !self.iss.after(after) {
            self.iss = after + ISS_STEP;
        }
    }
}
