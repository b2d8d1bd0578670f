//! How large a segment the path carries: what routers report (RFC 1191, RFC 8201) and what is found out without them (RFC 4821, RFC 8899).
//!
//! A flight of full segments that times out again and again may be larger than the path takes, with nobody to say so: a black hole. Then segments
//! become small enough for about any path, and from there a larger size is looked for by sending single segments of it, the full one first and at once: mostly
//! it was congestion. Sizes here
//! are those of segments with their options, but without the headers of IP and TCP: an MTU less 40 for IPv4, less 60 for IPv6.

use std::ops::Range;

use crate::cold_state::ColdState;
use crate::config::{Config, MtuProbing};
use crate::connection::Connection;
use crate::info::Phase;
use crate::options::Features;
use crate::outgoing::Outgoing;
use crate::state::State;
use crate::time::{Duration, Instant};

/// No report lowers the size below this: a path with an MTU below 552 is fragmented (Linux's `min_pmtu`).
const REPORTED_MIN: u16 = 512;
/// What about any path takes, and the least that is tried (Linux's `tcp_base_mss` of an MTU of 1024, RFC 8899 5.1.2; `tcp_mtu_probe_floor`).
const BASE_V4: u16 = 984;
const FLOOR_V4: u16 = crate::options::MIN_MSS;
/// Over IPv6 every link takes 1,280 bytes: no path needs less (RFC 8201 4).
const BASE_V6: u16 = 1_220;
/// How long a path is believed to have become smaller, and a search to have found its end (RFC 1191 6.3: 10 minutes).
const LIFETIME: Duration = Duration::from_secs(600);
/// Time-outs in a row that mean a black hole: one more than Linux's `tcp_retries1`.
const TIMEOUTS: u8 = 3;
/// The search is over when it could gain no more than this, in bytes (Linux's `tcp_probe_threshold`).
const NEAR_ENOUGH: u16 = 8;
/// A probe is worth its risk only with a window that loses it without a time-out, in segments (as Linux's).
const WINDOW_MIN: u32 = 11;
/// Segments that must follow a probe, so that its loss is noticed.
const FOLLOWERS: u32 = 4;
/// How often the full size is tried after time-outs before it is known not to pass (MAX_PROBES of RFC 8899 5.1.2).
const TRIES: u8 = 3;

/// A path that was found to be smaller than the link.
#[derive(Clone, Debug)]
pub(crate) struct Pmtud {
    /// What the peer takes and the link carries.
    most: u16,
    /// Larger ones do not pass, as far as is known.
    high: u16,
    /// Whether larger ones are looked for; else they are tried when the time has come.
    searching: bool,
    /// Probes of the full size that were lost.
    lost: u8,
    /// SND.UNA when the size in use became so small.
    from: u64,
    /// Bytes that were sent in one segment to see whether it passes.
    probe: Option<Range<u64>>,
    /// When the size was lowered, or the search came to its end.
    since: Instant,
}

/// Whether a probe goes before the stream.
pub(crate) enum ProbeTurn {
    /// It does.
    Probe(Outgoing),
    /// It will once there is room for it.
    Wait,
    /// It does not.
    Stream,
}

impl Pmtud {
    /// A probe of this size is lost.
    fn not_passed(&mut self, size: u16) {
        self.lost = self.lost.saturating_add(1);
        if size < self.most || self.lost >= TRIES {
            self.high = self.high.min(size - 1);
        }
    }
}

impl Connection {
    /// The largest segment that the path carries, as far as is known, in bytes: options included, headers not.
    pub fn path_max_segment(&self) -> u16 {
        self.send.segment_limit
    }

    /// No larger segments than this pass, it is said: by a router, or by what is known of others to the same host. Returns whether that was news.
    pub(crate) fn on_path_limit(&mut self, config: &Config, limit: u16, now: Instant) -> bool {
        let limit = limit.max(REPORTED_MIN);
        let known = self.send.segment_limit;
        if let Some(pmtud) = self.pmtud_mut()
            && pmtud.searching
        {
            pmtud.high = pmtud.high.min(limit.max(known));
        }
        if limit >= known {
            return false;
        }
        let pmtud = self.pmtud_or_new(now);
        pmtud.high = limit;
        pmtud.searching = false;
        pmtud.since = now;
        pmtud.probe = None;
        self.use_segments(limit);
        self.lose_oversized(config);
        true
    }

    /// What is known of the path to this host from other connections: segments larger than `limit` do not pass. For a connection that has not sent payload yet.
    pub fn start_with_path_limit(&mut self, config: &Config, limit: u16, now: Instant) {
        self.on_path_limit(config, limit, now);
    }

    /// The search begins with the connection, if that is what the engine wants.
    pub(crate) fn start_pmtud(&mut self, config: &Config, now: Instant) {
        if config.mtu_probing == MtuProbing::Always && self.send.segment_limit > self.base() {
            self.search_from(self.base(), now);
        }
    }

    /// A time-out of the flight: one of many in a row may be the size's fault. Called before the flight is taken for lost.
    pub(crate) fn suspect_black_hole(&mut self, config: &Config, now: Instant) {
        self.end_probe();
        let (limit, base) = (self.send.segment_limit, self.base());
        // What has passed since it is in use is hardly too large: a path that loses much makes for time-outs in a row too.
        let passed = self.send.una + u64::from(self.features.option_len());
        let proven =
            matches!(self.pmtud_mut(), Some(pmtud) if passed >= pmtud.from + u64::from(limit));
        let needed = if proven { 2 * TIMEOUTS } else { TIMEOUTS };
        let enough = self.timers.backoff >= needed && config.mtu_probing != MtuProbing::Off;
        let smaller = if limit > base {
            base
        } else {
            (limit / 2).max(FLOOR_V4)
        };
        let may_be_less = smaller < limit && (limit > base || base == BASE_V4);
        // Small segments pass any path, and who has taken back its window takes none.
        let large = self.send.window > 0
            && self.send.in_flight() > u32::from(smaller - self.features.option_len());
        if enough && may_be_less && large {
            self.search_from(smaller, now);
        }
    }

    fn search_from(&mut self, limit: u16, now: Instant) {
        let una = self.send.una;
        let pmtud = self.pmtud_or_new(now);
        pmtud.searching = true;
        pmtud.lost = 0;
        pmtud.from = una;
        pmtud.high = pmtud.most;
        pmtud.since = now;
        self.use_segments(limit);
    }

    /// A segment larger than those in use, if it is time to look whether it passes (RFC 4821 7.2). There is something to send.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_mtu_probe(&mut self, config: &Config, now: Instant) -> ProbeTurn {
        let Some(wanted) = self.size_to_probe(now) else {
            return ProbeTurn::Stream;
        };
        let payload = wanted - self.features.option_len();
        let mss = u32::from(self.send.mss);
        // Time-outs are congestion's fault more often than the size's, and where many share a link the window does not become large again: the full size
        // is tried as soon as its loss would be noticed, by RFC 8985, from whatever follows.
        let eager = self.features.contains(Features::SACK)
            && matches!(self.pmtud_mut(), Some(pmtud) if pmtud.high == pmtud.most);
        let (least, followers) = if eager {
            (2, 1)
        } else {
            (WINDOW_MIN, FOLLOWERS)
        };
        let followed = u32::from(payload) + followers * mss;
        let window = self.congestion.window.cwnd;
        let good = self.phase == Phase::Open
            && self.timers.backoff == 0
            && !self.loss_state.has_reports()
            && !self.is_urgent()
            && window >= least * mss
            && self.send.window >= followed
            && self.unsent() >= u64::from(followed);
        if !good {
            return ProbeTurn::Stream;
        }
        let room = self.send.usable().min(window.saturating_sub(self.pipe()));
        if room < u32::from(payload) {
            // Acknowledgements of what is in flight make room; without any there would be none to wait for. A segment more than nothing always fits.
            match self.send.in_flight() {
                0 if eager => {}
                0 => return ProbeTurn::Stream,
                _ => return ProbeTurn::Wait,
            }
        }
        let start = self.send.nxt;
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.probe = Some(start..start + u64::from(payload));
        }
        ProbeTurn::Probe(self.send_fresh(config, payload.into(), payload, now))
    }

    /// The size to try next; what became of the last one is taken note of before.
    fn size_to_probe(&mut self, now: Instant) -> Option<u16> {
        let una = self.send.una;
        let limit = self.send.segment_limit;
        let pmtud = self.pmtud_mut()?;
        match pmtud.probe.take() {
            Some(probe) if una < probe.end => {
                pmtud.probe = Some(probe);
                return None;
            }
            // It has passed.
            Some(probe) => {
                pmtud.since = now;
                let found = (probe.end - probe.start) as u16 + self.features.option_len();
                self.use_segments(found);
                return None;
            }
            None => {}
        }
        if now - pmtud.since >= LIFETIME {
            pmtud.since = now;
            pmtud.high = pmtud.most;
            if !pmtud.searching {
                // RFC 1191 6.3: whoever said so says it again if it is still so.
                let most = pmtud.most;
                self.use_segments(most);
                self.end_pmtud();
                return None;
            }
        }
        if limit == pmtud.most {
            self.end_pmtud();
            return None;
        }
        if !pmtud.searching || pmtud.high < limit + NEAR_ENOUGH {
            return None;
        }
        // All of it first: mostly it was no matter of size, or it is one no more.
        Some(if pmtud.high == pmtud.most {
            pmtud.high
        } else {
            limit + (pmtud.high - limit).div_ceil(2)
        })
    }

    /// Something is lost. If it is a probe, its size does not pass, which is no sign of congestion (RFC 4821 7.7): returns whether that is all.
    #[cold]
    pub(crate) fn on_mtu_probe_lost(&mut self, now: Instant) -> bool {
        let una = self.send.una;
        let options = self.features.option_len();
        let Some(pmtud) = self.pmtud_mut() else {
            return false;
        };
        match pmtud.probe.take() {
            Some(probe) if probe.start == una => {
                pmtud.not_passed((probe.end - probe.start) as u16 + options);
                pmtud.since = now;
                true
            }
            // Among others that are lost it tells nothing.
            Some(probe) if una < probe.end => false,
            probe => {
                pmtud.probe = probe;
                false
            }
        }
    }

    /// A probe whose end the time-out leaves open.
    fn end_probe(&mut self) {
        let una = self.send.una;
        let options = self.features.option_len();
        if let Some(pmtud) = self.pmtud_mut()
            && let Some(probe) = pmtud.probe.take()
        {
            if una >= probe.end {
                pmtud.probe = Some(probe);
            } else if una == probe.start {
                pmtud.not_passed((probe.end - probe.start) as u16 + options);
            }
        }
    }

    fn use_segments(&mut self, limit: u16) {
        self.send.segment_limit = limit;
        // Before the handshake is over its options are not known; they are subtracted then.
        if self.state != State::SynSent {
            self.send.mss = limit - self.features.option_len();
        }
    }

    /// The peer's SYN says what it takes.
    pub(crate) fn limit_pmtud(&mut self, peer_mss: u16) {
        if let Some(pmtud) = self.pmtud_mut() {
            pmtud.most = pmtud.most.min(peer_mss);
            pmtud.high = pmtud.high.min(peer_mss);
        }
    }

    fn base(&self) -> u16 {
        if self.default_mss >= BASE_V6 {
            BASE_V6
        } else {
            BASE_V4
        }
    }

    fn pmtud_mut(&mut self) -> Option<&mut Pmtud> {
        self.cold_state.as_mut()?.pmtud.as_mut()
    }

    fn pmtud_or_new(&mut self, now: Instant) -> &mut Pmtud {
        let most = self.send.segment_limit;
        let cold: &mut ColdState = self.cold_state.get_or_insert_default();
        cold.pmtud.get_or_insert(Pmtud {
            most,
            high: most,
            searching: false,
            lost: 0,
            from: 0,
            probe: None,
            since: now,
        })
    }

    fn end_pmtud(&mut self) {
        if let Some(cold) = &mut self.cold_state {
            cold.pmtud = None;
        }
    }
}
