//! A limit on how many messages of a kind are sent in a second.

use millrace_tcp::Instant;

/// A token bucket that is filled at the start of each second.
pub struct RateLimit {
    per_second: u32,
    left: u32,
    second: u64,
}

impl RateLimit {
    /// At most `per_second` in each second.
    pub fn new(per_second: u32) -> RateLimit {
        RateLimit {
            per_second,
            left: per_second,
            second: 0,
        }
    }

    /// Whether one more is within the limit.
    pub fn allow(&mut self, now: Instant) -> bool {
        if now.as_secs() != self.second {
            self.second = now.as_secs();
            self.left = self.per_second;
        }
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        true
    }
}
