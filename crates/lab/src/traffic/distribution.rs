//! Summary of measured values.

use serde::Serialize;

/// How values are distributed. `None` where there are none.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// How many there are.
    pub count: usize,
    /// The arithmetic mean.
    pub mean: Option<f64>,
    /// The median: the least value that at least half of them do not exceed.
    pub median: Option<f64>,
    /// The 95th percentile, likewise.
    pub p95: Option<f64>,
    /// The 99th percentile, likewise.
    pub p99: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
}

impl Distribution {
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<_> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let percentile = |p: usize| values.get((values.len() * p).div_ceil(100).saturating_sub(1)).copied();
        Self {
            count: values.len(),
            mean: (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64),
            median: percentile(50),
            p95: percentile(95),
            p99: percentile(99),
            max: values.last().copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let of = Distribution::of((1..=200).rev().map(f64::from));
        assert_eq!((of.count, of.mean, of.median), (200, Some(100.5), Some(100.0)));
        assert_eq!((of.p95, of.p99, of.max), (Some(190.0), Some(198.0), Some(200.0)));
        assert_eq!(Distribution::of([]), Distribution::default());
    }
}
