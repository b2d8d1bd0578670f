//! What happens to frames on their way from a host.

use millrace_tcp::{Duration, Instant};

use crate::rng::Rng;

/// A host's way into the network: a queue, a rate, a distance, and mishaps. `Default` has none but
/// 100 microseconds of distance.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// Bits per second; `None`: frames take no time.
    pub rate: Option<u64>,
    /// How many bytes may wait for their turn; what comes beyond is lost.
    pub queue_bytes: u64,
    /// A frame that finds so many bytes waiting is marked as having met congestion, if it may be
    /// (RFC 3168 5).
    pub mark_from: Option<u64>,
    /// How long a frame is on the way.
    pub delay: Duration,
    /// Up to this is added, another for each frame, which stay in order.
    pub jitter: Duration,
    /// How probably a frame is lost; each of the probabilities is from 0.0 to 1.0.
    pub loss: f64,
    /// How probably all frames of the next [`Link::burst`] are lost, asked at each frame.
    pub burst_loss: f64,
    /// How long such a time lasts.
    pub burst: Duration,
    /// How probably a frame is held up and overtaken.
    pub reorder: f64,
    /// For how long at most.
    pub reorder_delay: Duration,
    /// How probably a frame arrives twice.
    pub duplicate: f64,
    /// How probably one byte of a frame is changed, behind the Ethernet header: where checksums
    /// find it.
    pub corrupt: f64,
    /// Whether ARP and neighbour discovery are not lost with the rest: of three questions none may
    /// be answered, and then the host is unreachable.
    pub spare_arp: bool,
    /// Whether the link is cut: nothing arrives.
    pub cut: bool,
    /// A router on the way takes no larger datagrams than this, in bytes, and tells the sender of
    /// each that it drops.
    pub path_mtu: Option<u16>,
    /// It tells nobody: a black hole.
    pub silent: bool,
}

impl Default for Link {
    fn default() -> Self {
        Link {
            rate: None,
            queue_bytes: 1 << 20,
            mark_from: None,
            delay: Duration::from_micros(100),
            jitter: Duration::ZERO,
            loss: 0.0,
            burst_loss: 0.0,
            burst: Duration::from_millis(5),
            reorder: 0.0,
            reorder_delay: Duration::from_millis(2),
            duplicate: 0.0,
            corrupt: 0.0,
            spare_arp: false,
            cut: false,
            path_mtu: None,
            silent: false,
        }
    }
}

/// What a link did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCounters {
    /// Frames that the host sent.
    pub frames: u64,
    /// Of these, lost on the way.
    pub lost: u64,
    /// Lost because the queue was full.
    pub overflowed: u64,
    /// Marked as having met congestion.
    pub marked: u64,
    /// Held up.
    pub reordered: u64,
    /// Doubled.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is lost.
    Lost,
    /// It is lost, because the queue is full.
    Overflowed,
    /// It arrives.
    Arrives {
        /// When.
        at: Instant,
        /// When it arrives again.
        again: Option<Instant>,
        /// It is damaged; see [`Line::damage`].
        corrupt: bool,
        /// It met congestion.
        marked: bool,
    },
}

/// What matters of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A checksum tells when it is damaged.
    Checked,
    /// Only Ethernet's own check would, and that is not modelled: it is not damaged.
    Unchecked,
    /// An unchecked one: ARP, and neighbour discovery.
    Discovery,
}

/// A link and what is on it. It keeps no frames; it says what becomes of each.
#[derive(Clone, Debug)]
pub struct Line {
    /// The link, which may change.
    pub link: Link,
    /// What it did.
    pub counters: LinkCounters,
    rng: Rng,
    /// When all that waits is out, in nanoseconds.
    free_at_ns: u64,
    /// When the last frame in order arrives.
    last_arrival: Instant,
    burst_until: Instant,
}

impl Line {
    /// A link on which there is nothing.
    pub fn new(link: Link, rng: Rng) -> Line {
        let zero = Instant::from_micros(0);
        Line {
            link,
            counters: LinkCounters::default(),
            rng,
            free_at_ns: 0,
            last_arrival: zero,
            burst_until: zero,
        }
    }

    /// Decides on a frame of `len` bytes.
    pub fn carry(&mut self, len: usize, kind: Kind, now: Instant) -> Fate {
        let Line {
            link,
            counters,
            rng,
            ..
        } = self;
        counters.frames += 1;
        let now_ns = now.as_micros() * 1000;
        let mut marked = false;
        if let Some(rate) = link.rate {
            let waiting_ns = self.free_at_ns.saturating_sub(now_ns);
            let waiting_bytes = u128::from(waiting_ns) * u128::from(rate) / 8_000_000_000;
            if waiting_bytes > u128::from(link.queue_bytes) {
                counters.overflowed += 1;
                return Fate::Overflowed;
            }
            marked = link
                .mark_from
                .is_some_and(|from| waiting_bytes >= u128::from(from));
            self.free_at_ns = self.free_at_ns.max(now_ns) + len as u64 * 8_000_000_000 / rate;
        } else {
            self.free_at_ns = now_ns;
        }
        let spared = kind == Kind::Discovery && link.spare_arp;
        if rng.chance(link.burst_loss) {
            self.burst_until = now + link.burst;
        }
        if link.cut || ((rng.chance(link.loss) || now < self.burst_until) && !spared) {
            counters.lost += 1;
            return Fate::Lost;
        }

        let departure = Instant::from_micros(self.free_at_ns.div_ceil(1000));
        let jitter = Duration::from_micros(rng.below(link.jitter.as_micros() + 1));
        let in_order = (departure + link.delay + jitter).max(self.last_arrival);
        let mut held_up = |probability| {
            rng.chance(probability).then(|| {
                in_order + Duration::from_micros(rng.below(link.reorder_delay.as_micros() + 1))
            })
        };
        let (overtaken, again) = (held_up(link.reorder), held_up(link.duplicate));
        if overtaken.is_none() {
            self.last_arrival = in_order;
        }
        let corrupt = kind == Kind::Checked && rng.chance(link.corrupt);
        counters.reordered += u64::from(overtaken.is_some());
        counters.duplicated += u64::from(again.is_some());
        counters.corrupted += u64::from(corrupt);
        Fate::Arrives {
            at: overtaken.unwrap_or(in_order),
            again,
            corrupt,
            marked,
        }
    }

    /// Changes one byte from `first` on into another.
    pub fn damage(&mut self, bytes: &mut [u8], first: usize) {
        let at = self.rng.between(first as u64, bytes.len() as u64 - 1);
        bytes[at as usize] ^= self.rng.between(1, 255) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(link: Link, frames: u64, gap_us: u64) -> (Vec<u64>, LinkCounters) {
        let mut line = Line::new(link, Rng::new(3));
        let mut times = Vec::new();
        for i in 0..frames {
            if let Fate::Arrives { at, again, .. } =
                line.carry(1250, Kind::Checked, Instant::from_micros(i * gap_us))
            {
                times.push(at.as_micros());
                times.extend(again.map(Instant::as_micros));
            }
        }
        (times, line.counters)
    }

    #[test]
    fn rate_queue_and_delay() {
        // 1250 bytes at 10 Mbit/s take 1 ms.
        let link = Link {
            rate: Some(10_000_000),
            queue_bytes: 3000,
            delay: Duration::from_millis(5),
            ..Link::default()
        };
        let (times, counters) = arrivals(link, 10, 0);
        assert_eq!(times, [6_000, 7_000, 8_000]);
        assert_eq!(counters.overflowed, 7);
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_does_not() {
        let jitter = Link {
            jitter: Duration::from_millis(3),
            ..Link::default()
        };
        let (times, _) = arrivals(jitter, 1000, 10);
        assert!(times.is_sorted());
        let (times, counters) = arrivals(
            Link {
                reorder: 0.1,
                ..jitter
            },
            1000,
            10,
        );
        assert!(!times.is_sorted() && (50..200).contains(&counters.reordered));
    }

    #[test]
    fn mishaps_are_counted() {
        let link = Link {
            loss: 0.1,
            duplicate: 0.1,
            corrupt: 0.1,
            ..Link::default()
        };
        let (times, counters) = arrivals(link, 10_000, 10);
        assert_eq!(
            times.len() as u64,
            counters.frames - counters.lost + counters.duplicated
        );
        for count in [counters.lost, counters.duplicated, counters.corrupted] {
            assert!((800..1200).contains(&count), "{counters:?}");
        }
        let (times, counters) = arrivals(
            Link {
                cut: true,
                ..Link::default()
            },
            10,
            10,
        );
        assert_eq!((times.len(), counters.lost), (0, 10));
    }
}
