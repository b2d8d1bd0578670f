//! Frames that a link loses without an error. The port and the kernel count them, and the first
//! loss is printed.

use millrace_port::Port;
use millrace_port::xdp::{Gauge, missed};
use serde_json::{Map, Value};

/// How often a thread checks, in microseconds.
pub(crate) const CHECK_INTERVAL_US: u64 = 1_000_000;

/// The kernel's counters for these queues, under the kernel's names.
pub(crate) fn queues_json(gauges: &[Gauge]) -> Vec<Value> {
    let queue = |gauge: &Gauge| {
        let mut fields = Map::new();
        fields.insert("queue".into(), gauge.queue().into());
        let read = gauge.read().fields();
        fields.extend(read.map(|(name, count)| (name.to_owned(), count.into())));
        fields.extend(gauge.poller().map(|id| ("napi_id".to_owned(), id.into())));
        Value::Object(fields)
    };
    gauges.iter().map(queue).collect()
}

/// The warnings that a thread has printed about its link.
#[derive(Debug, Default)]
pub(crate) struct DropWarnings {
    sent: bool,
    received: bool,
    unpolled: bool,
}

impl DropWarnings {
    /// Prints each kind of loss the first time.
    #[cold]
    pub(crate) fn check(&mut self, thread: &str, port: &dyn Port) {
        let counters = port.counters();
        let mut news = self.news(counters.tx_dropped, || missed(&port.gauges()));
        if !self.unpolled && counters.rx_frames > 0 {
            news.extend(self.unpolled(&port.gauges()));
        }
        for line in news {
            eprintln!("millrace: {thread} {line}");
        }
    }

    /// The warning for a queue that should be busy-polled and has no poller although frames have
    /// come.
    fn unpolled(&mut self, gauges: &[Gauge]) -> Option<String> {
        let unknown = |gauge: &&Gauge| gauge.poller() == Some(0);
        let queue = gauges.iter().find(unknown)?.queue();
        self.unpolled = true;
        Some(format!(
            "does not busy-poll queue {queue}: the kernel does not tell which poller brings its frames, so that they come by interrupts (said once; `millrace doctor --link xdp:DEVICE` tells whose driver does)"
        ))
    }

    /// The warnings that these counters give rise to.
    fn news(&mut self, sent: u64, received: impl FnOnce() -> u64) -> Vec<String> {
        let mut news = Vec::new();
        if !self.sent && sent > 0 {
            self.sent = true;
            news.push(format!(
                "has lost {sent} frames that its device took and dropped (send_dropped of `millrace ss --counters`; said once): is the cable, or the other end of veth, up?"
            ));
        }
        if !self.received {
            let received = received();
            if received > 0 {
                self.received = true;
                news.push(format!(
                    "has lost {received} frames that came faster than it took them (frames_dropped of `millrace ss --counters`; said once): more shards, or cores of their own, would keep up"
                ));
            }
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_loss_is_said_once() {
        let mut drop_warnings = DropWarnings::default();
        assert!(drop_warnings.news(0, || 0).is_empty());
        let news = drop_warnings.news(3, || 0);
        assert!(news.len() == 1 && news[0].contains("lost 3 frames"));
        let news = drop_warnings.news(4, || 7);
        assert!(news.len() == 1 && news[0].contains("lost 7 frames"));
        assert!(drop_warnings.news(5, || 8).is_empty());
    }
}
