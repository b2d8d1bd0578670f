//! A snapshot of a connection: enough for Linux's `tcp_info`.

use crate::events::Error;
use crate::state::State;

/// The phase of loss recovery (Linux's `tcpi_ca_state`, in its order).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// No loss and no reordering.
    #[default]
    Open,
    /// Duplicate or selective acknowledgements have come, but too few to mean a loss.
    Disorder,
    /// The congestion window was reduced for a mark within the last round trip.
    Reduced,
    /// Fast recovery: lost segments are sent again.
    Recovery,
    /// A retransmission time-out came: the flight is sent again.
    Loss,
}

/// A snapshot of a connection. Times are in microseconds, amounts in bytes unless a field says
/// otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// State of the connection.
    pub state: State,
    /// Error that ended it, if one did.
    pub error: Option<Error>,
    /// The phase of loss recovery.
    pub phase: Phase,
    /// Time-outs, or probes, since something was last acknowledged.
    pub backoff: u8,
    /// Whether timestamps were agreed on.
    pub timestamps: bool,
    /// Whether selective acknowledgement was agreed on.
    pub selective_ack: bool,
    /// Whether payload on a SYN was acknowledged (TCP Fast Open).
    pub syn_data: bool,
    /// Whether explicit congestion notification was agreed on.
    pub ecn: bool,
    /// Shift of the windows that the peer announces; `None` without window scaling.
    pub send_scale: Option<u8>,
    /// Shift of the windows that we announce; `None` without window scaling.
    pub receive_scale: Option<u8>,
    /// Retransmission time-out.
    pub rto_us: u32,
    /// Smoothed round-trip time; 0 before the first sample.
    pub srtt_us: u32,
    /// Variation of the round-trip time.
    pub rttvar_us: u32,
    /// Least round-trip time seen; `u32::MAX` before the first sample.
    pub min_rtt_us: u32,
    /// Congestion window.
    pub cwnd: u32,
    /// Slow-start threshold; `u32::MAX` until the first loss.
    pub ssthresh: u32,
    /// Payload of a full segment that we send.
    pub send_mss: u16,
    /// Payload of a full segment from the peer, as observed.
    pub receive_mss: u16,
    /// Largest segment that we announced.
    pub advertised_mss: u16,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// Of these, selectively acknowledged.
    pub sacked: u32,
    /// Of these, marked lost.
    pub lost: u32,
    /// Of these, sent again and not acknowledged or lost since.
    pub retransmitted: u32,
    /// Bytes queued and not sent yet.
    pub unsent: u64,
    /// The peer's window, from the first unacknowledged byte on.
    pub send_window: u32,
    /// Our window, from the next byte expected on.
    pub receive_window: u32,
    /// Stream bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Stream bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes sent again.
    pub bytes_retransmitted: u64,
    /// Segments sent again.
    pub segments_retransmitted: u32,
    /// Duplicate-SACK reports received: segments that were sent again for nothing.
    pub dsacks: u32,
    /// Segments received. An aggregate counts as one.
    pub segments_in: u32,
    /// Segments sent. A run that is cut into segments later counts as one.
    pub segments_out: u32,
    /// Retransmission time-outs.
    pub timeouts: u32,
    /// Milliseconds since payload was last sent.
    pub last_sent_ms: u32,
    /// Milliseconds since a segment was last received.
    pub last_received_ms: u32,
}
