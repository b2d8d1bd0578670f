//! Latencies in buckets of at most 1.6 % error, from a nanosecond to hours.

/// Buckets in each power of two.
const PER_OCTAVE: u32 = 64;

/// How often values of each size were seen.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    largest: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; 64 * PER_OCTAVE as usize],
            total: 0,
            largest: 0,
        }
    }
}

impl Histogram {
    /// Counts one value.
    pub fn record(&mut self, value: u64) {
        self.counts[bucket(value)] += 1;
        self.total += 1;
        self.largest = self.largest.max(value);
    }

    /// The value that `fraction` (0 to 1) of all values do not exceed; 0 if there are none.
    pub fn quantile(&self, fraction: f64) -> u64 {
        let goal = (fraction * self.total as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= goal {
                return upper_bound(bucket).min(self.largest);
            }
        }
        self.largest
    }

    /// The largest value.
    pub fn largest(&self) -> u64 {
        self.largest
    }
}

/// The bucket of a value: exact below [`PER_OCTAVE`], then as many for each power of two.
fn bucket(value: u64) -> usize {
    let bits = 64 - value.leading_zeros();
    let octave = bits.saturating_sub(PER_OCTAVE.ilog2() + 1);
    octave as usize * PER_OCTAVE as usize + (value >> octave) as usize
}

/// The largest value of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let octave = (bucket / PER_OCTAVE as usize).saturating_sub(1) as u32;
    let step = (bucket - octave as usize * PER_OCTAVE as usize) as u64;
    ((step + 1) << octave) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order() {
        for value in 0..5000 {
            assert!(bucket(value) <= bucket(value + 1), "{value}");
        }
    }

    #[test]
    fn buckets_are_narrow() {
        for value in (0..5000).chain((1..60).map(|bit| (1 << bit) + (1 << bit) / 3)) {
            let upper = upper_bound(bucket(value));
            assert!(
                upper >= value && upper - value <= value / 32,
                "{value} up to {upper}"
            );
        }
    }

    #[test]
    fn quantiles_are_where_they_belong() {
        let mut histogram = Histogram::default();
        (1..=1000).for_each(|value| histogram.record(value));
        assert!(
            (500..=508).contains(&histogram.quantile(0.5)),
            "{}",
            histogram.quantile(0.5)
        );
        assert!((990..=1000).contains(&histogram.quantile(0.99)));
        assert_eq!(histogram.quantile(1.0), 1000);
        assert_eq!(Histogram::default().quantile(0.5), 0);
    }
}
