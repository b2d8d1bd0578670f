//! Path MTU discovery: the largest segment that the path carries.
//!
//! Routers report it (RFC 1191, RFC 8201), or probes find it without them (RFC 4821, RFC 8899). A
//! flight of full segments that times out again and again may be larger than the path carries, with
//! nobody to say so: a black hole. Segments then become small enough for about any path, and single
//! larger segments probe from there. The full size is tried first and at once, since mostly the
//! cause was congestion.
//!
//! A size here is that of a segment with its options, without the headers of IP and TCP: an MTU
//! less 40 for IPv4, less 60 for IPv6.

use std::ops::Range;

use crate::options::MIN_MSS;
use crate::time::{Duration, Instant};

/// The least size that a report can set: a path with an MTU below 552 is fragmented (Linux's
/// `min_pmtu`).
const REPORTED_MIN: u16 = 512;
/// A size that about any path carries over IPv4 (Linux's `tcp_base_mss` of an MTU of 1,024;
/// BASE_PLPMTU of RFC 8899 5.1.2).
const BASE_V4: u16 = 984;
/// The least size that is tried over IPv4 (Linux's `tcp_mtu_probe_floor`).
const FLOOR_V4: u16 = MIN_MSS;
/// Every link carries 1,280 bytes of IPv6, so no path needs less (RFC 8201 4).
const BASE_V6: u16 = 1_220;
/// How long a path counts as smaller than the link, and the result of a search as valid. RFC 1191
/// 6.3 recommends 10 minutes.
const LIFETIME: Duration = Duration::from_secs(600);
/// Time-outs in a row that mean a black hole: one more than Linux's `tcp_retries1`.
const TIMEOUTS: u8 = 3;
/// The search ends when it could gain no more bytes than this (Linux's `tcp_probe_threshold`).
const NEAR_ENOUGH: u16 = 8;
/// The window, in segments, that can lose a probe without a time-out (as in Linux).
const WINDOW_MIN: u32 = 11;
/// Segments that must follow a probe, so that its loss is detected.
const FOLLOWERS: u32 = 4;
/// Probes of the full size until it is known not to pass (MAX_PROBES of RFC 8899 5.1.2).
const TRIES: u8 = 3;

/// The state of the search, while the path is known to be smaller than the link.
#[derive(Clone, Debug)]
pub(crate) struct Pmtud {
    /// The size that the peer takes and the link carries.
    most: u16,
    /// Larger sizes do not pass, as far as is known.
    high: u16,
    /// Whether probes look for a larger size. Otherwise it is tried after [`LIFETIME`].
    searching: bool,
    /// Probes of the full size that were lost.
    lost: u8,
    /// SND.UNA when the size in use became so small.
    from: u64,
    /// Stream bytes of the probe in flight.
    probe: Option<Range<u64>>,
    /// When the size was lowered, or the search ended.
    since: Instant,
}

/// What to do before the next segment of the stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NextSize {
    /// Use the size that is in use.
    Keep,
    /// Use this size from now on.
    Use(u16),
    /// Use this size from now on: the path is as large as the link again.
    Finish(u16),
    /// Probe with a segment of this size.
    Probe(u16),
}

/// What a probe needs before it is worth its risk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProbeNeeds {
    /// Whether the probe may leave into an empty network whatever the window.
    pub(crate) eager: bool,
    /// The congestion window, in segments.
    pub(crate) window: u32,
    /// Full segments that follow it.
    pub(crate) followers: u32,
}

/// A size that about any path carries. `default_mss` is that of the family: 536 or 1,220 bytes.
pub(crate) fn base(default_mss: u16) -> u16 {
    if default_mss >= BASE_V6 {
        BASE_V6
    } else {
        BASE_V4
    }
}

/// The size that a report can set, in place of what it says.
pub(crate) fn clamp_reported(size: u16) -> u16 {
    size.max(REPORTED_MIN)
}

/// The size to fall back to after so many time-outs in a row, if they mean a black hole. `size` is
/// the one in use. `proven`: a segment of that size has passed. A path that loses much makes for
/// time-outs in a row too, so a proven size needs twice as many.
pub(crate) fn black_hole_size(
    size: u16,
    default_mss: u16,
    timeouts: u8,
    proven: bool,
) -> Option<u16> {
    let needed = if proven { 2 * TIMEOUTS } else { TIMEOUTS };
    let base = base(default_mss);
    let smaller = if size > base {
        base
    } else {
        (size / 2).max(FLOOR_V4)
    };
    let may_be_less = smaller < size && (size > base || base == BASE_V4);
    (timeouts >= needed && may_be_less).then_some(smaller)
}

impl Pmtud {
    /// A path that carries `most` as far as is known.
    pub(crate) fn new(most: u16, now: Instant) -> Pmtud {
        Pmtud {
            most,
            high: most,
            searching: false,
            lost: 0,
            from: 0,
            probe: None,
            since: now,
        }
    }

    /// The peer's SYN says that it takes no more than `mss`.
    pub(crate) fn on_peer_mss(&mut self, mss: u16) {
        self.most = self.most.min(mss);
        self.high = self.high.min(mss);
    }

    /// A report bounds the search to `size`; it does not lower the size in use, `known`.
    pub(crate) fn bound_search(&mut self, size: u16, known: u16) {
        if self.searching {
            self.high = self.high.min(size.max(known));
        }
    }

    /// A report lowers the size in use to `size`.
    pub(crate) fn on_reported(&mut self, size: u16, now: Instant) {
        self.high = size;
        self.searching = false;
        self.since = now;
        self.probe = None;
    }

    /// The search begins from a small size; `una` is SND.UNA.
    pub(crate) fn start_search(&mut self, una: u64, now: Instant) {
        self.searching = true;
        self.lost = 0;
        self.from = una;
        self.high = self.most;
        self.since = now;
    }

    /// Whether a segment of `size` has passed since it is in use, when all before `passed` has.
    pub(crate) fn is_proven(&self, passed: u64, size: u16) -> bool {
        passed >= self.from + u64::from(size)
    }

    /// The size to use or to try next; `size` is in use, with `options` bytes of options. The
    /// outcome of the last probe is taken into account first.
    pub(crate) fn next_size(
        &mut self,
        una: u64,
        size: u16,
        options: u16,
        now: Instant,
    ) -> NextSize {
        match self.probe.take() {
            Some(probe) if una < probe.end => {
                self.probe = Some(probe);
                return NextSize::Keep;
            }
            Some(probe) => {
                // It has passed.
                self.since = now;
                return NextSize::Use(size_of_probe(&probe, options));
            }
            None => {}
        }
        if now - self.since >= LIFETIME {
            self.since = now;
            self.high = self.most;
            if !self.searching {
                // RFC 1191 6.3: a router that reported a smaller size does so again if it still
                // holds.
                return NextSize::Finish(self.most);
            }
        }
        if size == self.most {
            return NextSize::Finish(size);
        }
        if !self.searching || self.high < size + NEAR_ENOUGH {
            return NextSize::Keep;
        }
        // The full size comes first: mostly the size was not the cause, or is no longer.
        NextSize::Probe(if self.high == self.most {
            self.high
        } else {
            size + (self.high - size).div_ceil(2)
        })
    }

    /// What the next probe needs. With SACK a probe of the full size is eager: time-outs come from
    /// congestion more often than from the size, and where many share a link the window does not
    /// become large again. RFC 8985 detects its loss from whatever follows.
    pub(crate) fn probe_needs(&self, sack: bool) -> ProbeNeeds {
        let eager = sack && self.high == self.most;
        let (window, followers) = if eager {
            (2, 1)
        } else {
            (WINDOW_MIN, FOLLOWERS)
        };
        ProbeNeeds {
            eager,
            window,
            followers,
        }
    }

    /// A probe leaves with these stream bytes.
    pub(crate) fn on_probe_sent(&mut self, bytes: Range<u64>) {
        self.probe = Some(bytes);
    }

    /// Something is lost. Returns whether it is a probe, and nothing else, as far as is known.
    /// RFC 4821 7.7: the loss of a probe is no sign of congestion.
    pub(crate) fn on_loss(&mut self, una: u64, options: u16, now: Instant) -> bool {
        match self.probe.take() {
            Some(probe) if probe.start == una => {
                self.exclude(size_of_probe(&probe, options));
                self.since = now;
                true
            }
            // Other bytes before it are lost too, so that it tells nothing.
            Some(probe) if una < probe.end => false,
            probe => {
                self.probe = probe;
                false
            }
        }
    }

    /// A time-out ends the probe in flight.
    pub(crate) fn on_timeout(&mut self, una: u64, options: u16) {
        if let Some(probe) = self.probe.take() {
            if una >= probe.end {
                self.probe = Some(probe);
            } else if una == probe.start {
                self.exclude(size_of_probe(&probe, options));
            }
        }
    }

    /// A probe of `size` was lost.
    fn exclude(&mut self, size: u16) {
        self.lost = self.lost.saturating_add(1);
        if size < self.most || self.lost >= TRIES {
            self.high = self.high.min(size - 1);
        }
    }
}

fn size_of_probe(probe: &Range<u64>, options: u16) -> u16 {
    (probe.end - probe.start) as u16 + options
}
