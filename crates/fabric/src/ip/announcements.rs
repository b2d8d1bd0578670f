//! When to tell other nodes which addresses this one has.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::types::PortName;

/// How often it is looked for new nodes.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often a node is told again.
const TELL_EVERY: Duration = Duration::from_secs(10);
/// Nodes that are told.
const TOLD_MAX: usize = 1024;

/// Who has been told, and when.
#[derive(Debug, Default)]
pub struct Announcements {
    told: HashMap<PortName, Instant>,
    looked: Option<Instant>,
}

impl Announcements {
    /// Whether it is time to look for new nodes.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self
            .looked
            .is_none_or(|looked| now.saturating_duration_since(looked) >= LOOK_EVERY);
        if is_due {
            self.looked = Some(now);
        }
        is_due
    }

    /// Whether that node is to be told now; it is taken for told then.
    pub fn must_tell(&mut self, port: PortName, now: Instant) -> bool {
        let told = self.told.get(&port);
        if told.is_some_and(|told| now.saturating_duration_since(*told) < TELL_EVERY)
            || (told.is_none() && self.told.len() >= TOLD_MAX)
        {
            return false;
        }
        self.told.insert(port, now);
        true
    }

    /// A node is gone: one that takes its name has to be told anew.
    pub fn forget(&mut self, port: PortName) {
        self.told.remove(&port);
    }

    /// Addresses have changed: all have to be told anew.
    pub fn tell_all(&mut self) {
        self.told.clear();
        self.looked = None;
    }
}
