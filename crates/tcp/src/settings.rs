//! The socket options of one connection.

use millrace_sockopt::Algorithm;

use crate::Config;
use crate::shared::Usual;

/// Socket options of one connection. `Default` is a socket without any option set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// TCP_NODELAY: send short segments at once instead of one per round trip (Nagle, RFC 9293
    /// 3.7.4).
    pub nodelay: bool,
    /// TCP_CORK: hold back all but full segments, 200 ms at most.
    pub cork: bool,
    /// SO_KEEPALIVE with its times; `None` is off.
    pub keepalive: Option<Keepalive>,
    /// TCP_USER_TIMEOUT, in milliseconds (RFC 5482): how long data may stay unacknowledged, the
    /// peer's window stay shut, or keepalive probes stay unanswered. `None`: the engine's limits.
    pub user_timeout_ms: Option<u32>,
    /// TCP_MAXSEG, in bytes: announce and use no larger segments. `None`: the link decides.
    pub max_segment: Option<u16>,
    /// TCP_SYNCNT: retransmissions of a SYN. `None`: the engine's.
    pub syn_retries: Option<u8>,
    /// TCP_LINGER2, in seconds: how long to wait in FIN-WAIT-2 once closed. `Some(0)` resets at
    /// once. `None`: the engine's.
    pub fin_wait_s: Option<u16>,
    /// TCP_CONGESTION. `None`: the engine's.
    pub congestion: Option<Algorithm>,
    /// SO_MAX_PACING_RATE, in bytes per second. `u64::MAX`, and 0 as in Linux, set no bound.
    pub max_pacing_rate: u64,
    /// TCP_QUICKACK was switched off before there was a connection: acknowledgements wait for
    /// payload to carry them, even that of the SYN-ACK.
    pub interactive: bool,
    /// TCP_DEFER_ACCEPT, in time-outs of the SYN-ACK; 0 is off. A passive open waits so long for
    /// payload. An active open sends its first acknowledgement with payload.
    pub defer_accept: u8,
}

impl Settings {
    /// The bound on the rate in bytes per second, if there is one.
    pub(crate) fn rate_limit(&self) -> Option<u64> {
        (self.max_pacing_rate > 0 && self.max_pacing_rate < u64::MAX)
            .then_some(self.max_pacing_rate)
    }

    /// The congestion control of a connection with these options.
    pub(crate) fn algorithm(&self, config: &Config) -> Algorithm {
        self.congestion.unwrap_or(config.congestion)
    }

    /// A socket without any option set.
    pub const UNSET: Settings = Settings {
        nodelay: false,
        cork: false,
        keepalive: None,
        user_timeout_ms: None,
        max_segment: None,
        syn_retries: None,
        fin_wait_s: None,
        congestion: None,
        max_pacing_rate: u64::MAX,
        interactive: false,
        defer_accept: 0,
    };
}

impl Usual for Settings {
    const USUAL: &'static Settings = &Settings::UNSET;
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::UNSET
    }
}

/// When to probe a silent peer (RFC 9293 3.8.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keepalive {
    /// TCP_KEEPIDLE: seconds of silence before the first probe.
    pub idle_s: u16,
    /// TCP_KEEPINTVL: seconds between probes.
    pub interval_s: u16,
    /// TCP_KEEPCNT: unanswered probes after which the peer is gone.
    pub probes: u8,
}

impl Keepalive {
    /// Linux's times: two hours of silence, as in RFC 9293.
    ///
    /// ```
    /// # use millrace_tcp as millrace;
    /// assert_eq!(millrace::Keepalive::UNSET.probes, 9);
    /// ```
    pub const UNSET: Keepalive = Keepalive {
        idle_s: 7_200,
        interval_s: 75,
        probes: 9,
    };
}

impl Default for Keepalive {
    fn default() -> Keepalive {
        Keepalive::UNSET
    }
}
