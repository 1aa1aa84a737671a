//! Summary statistics of the repetitions of a metric.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Summary statistics of measured values.
#[derive(Debug, Clone, Copy, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The number of values.
    pub n: usize,
    /// The mean; null without values.
    pub mean: Option<f64>,
    /// The sample standard deviation (divisor n - 1); null for fewer than two values.
    pub stddev: Option<f64>,
    /// Half the width of the 95 % confidence interval of the mean, by Student's t distribution with n - 1 degrees of
    /// freedom, which assumes normally distributed values; null for fewer than two values.
    pub confidence: Option<f64>,
    /// The minimum; null without values.
    pub min: Option<f64>,
    /// The maximum; null without values.
    pub max: Option<f64>,
}

impl Summary {
    /// Computes the statistics of finite values.
    pub fn of(values: &[f64]) -> Self {
        let n = values.len();
        let mean = (n > 0).then(|| values.iter().sum::<f64>() / n as f64);
        let stddev = mean.filter(|_| n > 1).map(|mean| {
            let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
            (squares / (n - 1) as f64).sqrt()
        });
        let confidence = stddev.map(|stddev| t95(n - 1) * stddev / (n as f64).sqrt());
        let (min, max) = (values.iter().copied().reduce(f64::min), values.iter().copied().reduce(f64::max));
        Self { n, mean, stddev, confidence, min, max }
    }
}

/// The median; the mean of the middle two of an even number of values, `None` without values.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (last, middle) = (values.len().checked_sub(1)?, values.len() / 2);
    Some(f64::midpoint(values[last / 2], values[middle]))
}

/// The two-sided 95 % quantile of Student's t distribution.
fn t95(degrees: usize) -> f64 {
    let distribution = StudentsT::new(0.0, 1.0, degrees as f64);
    distribution.expect("at least one degree of freedom").inverse_cdf(0.975)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from published tables (for instance NIST/SEMATECH e-Handbook 1.3.6.7.2).
    #[test]
    fn quantiles_are_those_of_the_tables() {
        let table = [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (29, 2.045), (100, 1.984)];
        for (degrees, quantile) in table {
            assert!((t95(degrees) - quantile).abs() < 6e-4, "{degrees}: {}", t95(degrees));
        }
    }

    #[test]
    fn a_sample_is_summarised() {
        let found = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert_eq!((found.n, found.mean, found.min, found.max), (8, Some(5.0), Some(2.0), Some(9.0)));
        // The variance is 32 / 7; the quantile for 7 degrees of freedom is 2.3646.
        let stddev = (32f64 / 7.0).sqrt();
        assert!((found.stddev.expect("of eight") - stddev).abs() < 1e-12);
        assert!((found.confidence.expect("of eight") - 2.364_624 * stddev / 8f64.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn a_median_has_as_many_above_as_below() {
        let of = |values: &[f64]| median(values.to_vec());
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[7.0]), Some(7.0));
        assert_eq!(of(&[9.0, -1.0, 2.0]), Some(2.0));
        assert_eq!(of(&[4.0, 1.0, 100.0, 2.0]), Some(3.0));
    }

    #[test]
    fn few_values_say_little() {
        let none = Summary::of(&[]);
        assert_eq!((none.n, none.mean, none.stddev, none.min), (0, None, None, None));
        let one = Summary::of(&[3.5]);
        assert_eq!(
            (one.n, one.mean, one.stddev, one.confidence, one.max),
            (1, Some(3.5), None, None, Some(3.5))
        );
    }
}
