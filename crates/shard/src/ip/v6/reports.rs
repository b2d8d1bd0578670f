//! When this host reports its groups (RFC 3810).

use millrace_tcp::{Duration, Instant};

/// Reports at the start: one may be lost (RFC 3810 9.1), and the first is before the link-local
/// address is known to be ours (RFC 3590 4).
const REPORTS: u8 = 2;
/// Time between them.
const INTERVAL: Duration = Duration::from_secs(1);

/// When to report.
pub struct Reports {
    left: u8,
    at: Option<Instant>,
}

impl Reports {
    /// The first at `first`, if the link has IPv6.
    pub fn new(first: Option<Instant>) -> Reports {
        Reports {
            left: REPORTS,
            at: first,
        }
    }

    /// Something has changed: twice more, from now on.
    pub fn again(&mut self, now: Instant) {
        self.left = REPORTS;
        self.at = Some(now);
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.at
    }

    /// A query is to be answered at `at`. One report answers all queries that come before it is
    /// due.
    pub fn answer_at(&mut self, at: Instant) {
        self.left = self.left.max(1);
        self.at = Some(self.at.map_or(at, |before| before.min(at)));
    }

    /// Whether a report is due; once.
    pub fn take_due(&mut self, now: Instant) -> bool {
        if self.at.is_none_or(|at| at > now) {
            return false;
        }
        self.left -= 1;
        self.at = (self.left > 0).then(|| now + INTERVAL);
        true
    }
}
