//! Frames that a link loses without an error: the port and the kernel count them, and the first is said.

use millrace_port::Port;
use millrace_port::xdp::{Gauge, missed};
use serde_json::{Map, Value};

/// How often a thread looks, in microseconds.
pub(crate) const LOOK_US: u64 = 1_000_000;

/// What the kernel counts at each of these queues, by its own names.
pub(crate) fn queues_json(gauges: &[Gauge]) -> Vec<Value> {
    let queue = |gauge: &Gauge| {
        let mut fields = Map::new();
        fields.insert("queue".into(), gauge.queue().into());
        let read = gauge.read().fields();
        fields.extend(read.map(|(name, count)| (name.to_owned(), count.into())));
        Value::Object(fields)
    };
    gauges.iter().map(queue).collect()
}

/// Which losses of a thread's link have been said.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    sent: bool,
    received: bool,
}

impl Losses {
    /// Says what has been lost, the first time that it is seen.
    #[cold]
    pub(crate) fn look(&mut self, thread: &str, port: &dyn Port) {
        for line in self.news(port.counters().tx_dropped, || missed(&port.gauges())) {
            eprintln!("millrace: {thread} {line}");
        }
    }

    /// What is to be said of these counts.
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
        let mut losses = Losses::default();
        assert!(losses.news(0, || 0).is_empty());
        let news = losses.news(3, || 0);
        assert!(news.len() == 1 && news[0].contains("lost 3 frames"));
        let news = losses.news(4, || 7);
        assert!(news.len() == 1 && news[0].contains("lost 7 frames"));
        assert!(losses.news(5, || 8).is_empty());
    }
}
