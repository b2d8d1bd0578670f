//! Many runs of two stacks, turned into a few figures.

/// Median, least and greatest of some values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The middle one, or between the two middle ones.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The greatest.
    pub greatest: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (least, greatest) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Spread {
            median,
            least,
            greatest,
        })
    }

    /// Of the ratios of values taken in pairs.
    pub fn of_ratios(ours: &[f64], theirs: &[f64]) -> Option<Spread> {
        Spread::of(
            ours.iter()
                .zip(theirs)
                .map(|(ours, theirs)| ours / theirs)
                .collect(),
        )
    }
}

/// `median (least .. greatest)` with digits fit for the size.
impl std::fmt::Display for Spread {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{} ({} .. {})",
            short(self.median),
            short(self.least),
            short(self.greatest)
        )
    }
}

/// A number with three or so digits that matter.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(
            Spread::of(vec![3.0, 1.0, 2.0]),
            Some(Spread {
                median: 2.0,
                least: 1.0,
                greatest: 3.0
            })
        );
        assert_eq!(
            Spread::of(vec![4.0, 1.0]).map(|spread| spread.median),
            Some(2.5)
        );
        assert_eq!(Spread::of(vec![]), None);
    }

    #[test]
    fn ratios_are_taken_in_pairs() {
        let ratios = Spread::of_ratios(&[1.0, 4.0], &[2.0, 2.0]);
        assert_eq!(
            ratios,
            Some(Spread {
                median: 1.25,
                least: 0.5,
                greatest: 2.0
            })
        );
    }
}
