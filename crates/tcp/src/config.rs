//! The parameters of all connections of an engine: timers, retries, limits. The defaults are
//! Linux's.

use crate::congestion::Custom;
use crate::time::Duration;
use millrace_sockopt::Algorithm;

/// Engine-wide parameters. `Default` gives Linux's values, or the RFC's where Linux follows it.
#[derive(Clone, Debug)]
pub struct Config {
    /// Retransmission time-out before the first round-trip sample (RFC 6298 2.1): 1 s.
    pub rto_initial: Duration,
    /// Least variance term of the time-out: RTO = SRTT + max(4 RTTVAR, this). Linux: 200 ms (RFC
    /// 6298 2.4 wants 1 s).
    pub rto_min: Duration,
    /// Greatest time-out, with and without back-off (RFC 6298 2.5): 120 s.
    pub rto_max: Duration,
    /// Retransmissions of a SYN before `connect` fails: 6, that is 127 s.
    pub syn_retries: u8,
    /// Retransmissions of a SYN-ACK before the half-open connection is forgotten: 5, that is 63 s.
    pub syn_ack_retries: u8,
    /// How long data may stay unacknowledged before the connection is given up (R2 of RFC 9293
    /// 3.8.3). Linux's `tcp_retries2` of 15 amounts to 924.6 s.
    pub retransmit_timeout: Duration,
    /// As `retransmit_timeout`, for a connection that its program has closed. Linux's 8 retries
    /// amount to 102 s.
    pub orphan_timeout: Duration,
    /// How long a closed connection waits in FIN-WAIT-2 for the peer's FIN: 60 s.
    pub fin_wait_timeout: Duration,
    /// How long TIME-WAIT lasts: 60 s.
    pub time_wait: Duration,
    /// Longest delay of an acknowledgement (RFC 9293 3.8.6.3 allows 500 ms): 40 ms.
    pub delayed_ack: Duration,
    /// Delay of the acknowledgement of a short segment while the peer's window still opens: 1 ms.
    /// The program's answer may carry it, and a peer that waits for it is not slowed.
    pub quick_ack: Duration,
    /// Full segments that are acknowledged one by one when a connection starts or resumes after an
    /// idle time: 16.
    pub quick_ack_segments: u8,
    /// Least time between two challenge ACKs on one connection, and between two ACKs in answer to
    /// unacceptable segments without payload (RFC 5961 7, 10): 500 ms.
    pub challenge_interval: Duration,
    /// How long data is held back at most by TCP_CORK, by MSG_MORE or by a small window of the
    /// peer: 200 ms (RFC 9293 3.8.6.2.1).
    pub hold: Duration,
    /// Congestion control of connections that choose none: CUBIC.
    pub congestion: Algorithm,
    /// Congestion controls that the program brings; [`Algorithm::Custom`] is an index into them.
    pub custom: Vec<Custom>,
    /// Initial congestion window, in segments: 10, within the bounds of RFC 6928.
    pub initial_window: u8,
    /// Duplicate acknowledgements, or segments selectively acknowledged above a byte, that mean a
    /// loss (RFC 5681): 3.
    pub reordering: u8,
    /// Offer and accept timestamps (RFC 7323).
    pub timestamps: bool,
    /// Offer and accept selective acknowledgement (RFC 2018).
    pub selective_ack: bool,
    /// Offer and accept window scaling (RFC 7323).
    pub window_scaling: bool,
    /// Explicit congestion notification (RFC 3168): accepted when the peer asks for it, as in
    /// Linux.
    pub ecn: Ecn,
    /// Whether probes find the largest segment that a path carries (RFC 4821): after a suspected
    /// black hole.
    pub mtu_probing: MtuProbing,
    /// Greatest size of a receive buffer, in bytes, which determines the window scale: 16 MiB.
    pub receive_limit_max: u32,
    /// Ranges of out-of-order data that a connection keeps for each MiB of its receive buffer, and
    /// at least once: 256. Further ranges are not stored.
    pub out_of_order_ranges: u16,
    /// Runs of the scoreboard for each 4 MiB in flight when loss recovery begins, and at least
    /// once: 1,024. Further selective acknowledgements are not recorded.
    pub scoreboard_ranges: u16,
}

/// When a connection uses explicit congestion notification (Linux's `tcp_ecn`). DCTCP always asks
/// for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ecn {
    /// Never.
    Off,
    /// When the peer asks for it.
    Accept,
    /// When the peer asks for it, and on active opens.
    Ask,
}

/// When larger segments probe the size that a path carries (Linux's `tcp_mtu_probing`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MtuProbing {
    /// Never: routers have to report it (Linux: 0).
    Off,
    /// When full segments time out again and again (Linux: 1).
    BlackHole,
    /// Always: every connection begins with small segments (Linux: 2).
    Always,
}

impl Config {
    /// Ranges of out-of-order data that a connection with a receive buffer of `limit` bytes keeps.
    /// Many losses in one window of a long fat path must not cost a round trip for each few of
    /// them.
    pub(crate) fn gaps_max(&self, limit: u32) -> usize {
        usize::from(self.out_of_order_ranges) * (limit >> 20).max(1) as usize
    }

    /// Runs of a scoreboard that begins with `flight` bytes in flight, for that reason too.
    pub(crate) fn runs_max(&self, flight: u32) -> usize {
        usize::from(self.scoreboard_ranges) * (flight >> 22).max(1) as usize
    }
}

impl Config {
    /// Whether connections can use this congestion control.
    ///
    /// ```
    /// # mod millrace {
    /// #     pub use millrace_tcp::{Algorithm, Config as TcpConfig};
    /// # }
    /// let config = millrace::TcpConfig::default();
    /// assert!(config.has(millrace::Algorithm::Bbr));
    /// // Nobody has added one.
    /// assert!(!config.has(millrace::Algorithm::Custom(0)));
    /// ```
    pub fn has(&self, algorithm: Algorithm) -> bool {
        match algorithm {
            Algorithm::Custom(at) => usize::from(at) < self.custom.len(),
            _ => true,
        }
    }

    /// The congestion control with this name, including the program's own.
    ///
    /// ```
    /// # mod millrace {
    /// #     pub use millrace_tcp::{Algorithm, Config as TcpConfig};
    /// # }
    /// let config = millrace::TcpConfig::default();
    /// assert_eq!(config.named("bbr"), Some(millrace::Algorithm::Bbr));
    /// ```
    pub fn named(&self, name: &str) -> Option<Algorithm> {
        let own = self.custom.iter().position(|own| own.name() == name);
        let own = own.and_then(|at| u8::try_from(at).ok());
        own.map(Algorithm::Custom).or_else(|| name.parse().ok())
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            rto_initial: Duration::from_secs(1),
            rto_min: Duration::from_millis(200),
            rto_max: Duration::from_secs(120),
            syn_retries: 6,
            syn_ack_retries: 5,
            retransmit_timeout: Duration::from_millis(924_600),
            orphan_timeout: Duration::from_secs(102),
            fin_wait_timeout: Duration::from_secs(60),
            time_wait: Duration::from_secs(60),
            delayed_ack: Duration::from_millis(40),
            quick_ack: Duration::from_millis(1),
            quick_ack_segments: 16,
            challenge_interval: Duration::from_millis(500),
            hold: Duration::from_millis(200),
            congestion: Algorithm::Cubic,
            custom: Vec::new(),
            initial_window: 10,
            reordering: 3,
            timestamps: true,
            selective_ack: true,
            window_scaling: true,
            ecn: Ecn::Accept,
            mtu_probing: MtuProbing::BlackHole,
            receive_limit_max: 16 << 20,
            out_of_order_ranges: 256,
            scoreboard_ranges: 1_024,
        }
    }
}
