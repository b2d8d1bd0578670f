//! What can be seen of a connection from outside: enough for Linux's `tcp_info`.

use crate::events::Error;
use crate::state::State;

/// Where the connection stands with losses (Linux's `tcpi_ca_state`, in its order).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Phase {
    /// Nothing unusual.
    #[default]
    Open,
    /// Duplicate or selective acknowledgements have come, not enough of them to mean a loss.
    Disorder,
    /// The congestion window is being reduced because of a congestion mark.
    Reduced,
    /// Fast recovery: lost segments are sent again.
    Recovery,
    /// After a retransmission time-out.
    Loss,
}

/// A snapshot of a connection. Times are in microseconds, amounts in bytes unless a field says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Info {
    /// State of the connection.
    pub state: State,
    /// Error that ended it, if one did.
    pub error: Option<Error>,
    /// Where it stands with losses.
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
    /// Sent and not acknowledged.
    pub in_flight: u32,
    /// Of that, selectively acknowledged.
    pub sacked: u32,
    /// Of that, taken for lost.
    pub lost: u32,
    /// Of that, sent again and thought to be on the way.
    pub retransmitted: u32,
    /// Queued, not sent yet.
    pub unsent: u64,
    /// The peer's window from the first unacknowledged byte.
    pub send_window: u32,
    /// Our window, from the next byte expected.
    pub receive_window: u32,
    /// Stream bytes the peer has acknowledged.
    pub bytes_acked: u64,
    /// Stream bytes received in order.
    pub bytes_received: u64,
    /// Payload bytes that were sent again.
    pub bytes_retransmitted: u64,
    /// Segments sent again, in all.
    pub segments_retransmitted: u32,
    /// Duplicate-SACK reports received: segments sent again for nothing.
    pub dsacks: u32,
    /// Segments received (an aggregate counts once).
    pub segments_in: u32,
    /// Segments sent (a run to be cut up counts once).
    pub segments_out: u32,
    /// Retransmission time-outs.
    pub timeouts: u32,
    /// Milliseconds since payload was last sent.
    pub last_sent_ms: u32,
    /// Milliseconds since a segment was last received.
    pub last_received_ms: u32,
}
