//! Published values, and the comparison of a measured mean with them.

use std::ops::RangeInclusive;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::statistics::Summary;

/// Why a mean in the right range is no verdict.
const SCATTERS: &str = "the repetitions scatter by more than the range that counts as reproduced";

/// A value that a publication prints, and the criterion by which a measured mean reproduces it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PaperValue {
    /// Where experiments/paper-values.toml has it, as PAPER/ITEM/VALUE.
    pub entry: Option<String>,
    /// The value; `None` if only bounds are printed.
    pub value: Option<f64>,
    /// The standard deviation printed with it.
    pub sigma: Option<f64>,
    /// The printed lower bound.
    pub at_least: Option<f64>,
    /// The printed upper bound.
    pub at_most: Option<f64>,
    /// The factor, at least 1, by which a mean may differ. It replaces sigma as the criterion.
    pub factor: Option<f64>,
    /// Why a mean that differs does.
    pub differs: Option<Cause>,
    /// Why the mean cannot be compared; `None` if it can.
    pub not_comparable: Option<String>,
}

/// The cause of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    /// The cause.
    pub because: String,
    /// What was changed to test it, and where it was measured.
    pub tested_by: String,
}

/// The outcome of a comparison.
#[derive(Debug, Clone, Copy, JsonSchema, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The mean is within the published sigma or bounds, or within the stated factor.
    Reproduced,
    /// It is not.
    Differs,
    /// The experiment states why the two cannot be compared.
    NotComparable,
}

/// A published value, and the comparison of the mean with it.
#[derive(Debug, Clone, JsonSchema, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Where experiments/paper-values.toml has the value, as PAPER/ITEM/VALUE.
    pub entry: Option<String>,
    /// The value; null if only bounds are published.
    pub value: Option<f64>,
    /// The standard deviation published with it.
    pub sigma: Option<f64>,
    /// The published lower bound.
    pub at_least: Option<f64>,
    /// The published upper bound.
    pub at_most: Option<f64>,
    /// The factor by which the mean may differ; null if sigma or the bounds decide.
    pub factor: Option<f64>,
    /// The verdict; null without a mean, or if the mean is near enough but its repetitions scatter by more than the range
    /// that counts as reproduced (twice their standard deviation is more than its width).
    pub verdict: Option<Verdict>,
    /// Why the mean differs, cannot be compared, or is no verdict. Null if it is reproduced, or differs for a cause that was not tested.
    pub because: Option<String>,
    /// How the cause of a difference was tested.
    pub tested_by: Option<String>,
}

impl PaperValue {
    /// Checks that there is a value, and a criterion.
    pub(super) fn check(&self) -> Result<(), String> {
        let numbers = [self.value, self.sigma, self.at_least, self.at_most, self.factor];
        if numbers.iter().flatten().any(|number| !number.is_finite()) {
            return Err("expected finite numbers of the paper, got another".into());
        }
        if self.value.is_none() && self.at_least.is_none() && self.at_most.is_none() {
            return Err(
                "expected the paper's `value`, or its bounds `at_least` and `at_most`, got none".into()
            );
        }
        if self.factor.is_some_and(|factor| factor < 1.0) {
            return Err("expected a `factor` of at least 1".into());
        }
        let bounds = self.at_least.is_some() || self.at_most.is_some();
        if self.factor.is_none() && self.sigma.is_none() && !bounds && self.not_comparable.is_none() {
            return Err("expected how near to the paper's value the mean has to be (`sigma` as printed, or a `factor`), or \
                 why it is `not_comparable`, got none"
                .into());
        }
        Ok(())
    }

    /// Compares a mean with the value.
    pub(super) fn compare(&self, summary: &Summary) -> Comparison {
        let range = self.range();
        let scatters = summary.stddev.is_some_and(|stddev| 2.0 * stddev > range.end() - range.start());
        let verdict = summary.mean.and_then(|mean| match range.contains(&mean) {
            _ if self.not_comparable.is_some() => Some(Verdict::NotComparable),
            true if scatters => None,
            true => Some(Verdict::Reproduced),
            false => Some(Verdict::Differs),
        });
        let (because, tested_by) = match verdict {
            Some(Verdict::NotComparable) => (self.not_comparable.clone(), None),
            Some(Verdict::Differs) => {
                let cause = self.differs.clone();
                cause.map_or((None, None), |cause| (Some(cause.because), Some(cause.tested_by)))
            }
            None if summary.mean.is_some() => (Some(SCATTERS.to_owned()), None),
            Some(Verdict::Reproduced) | None => (None, None),
        };
        Comparison {
            entry: self.entry.clone(),
            value: self.value,
            sigma: self.sigma,
            at_least: self.at_least,
            at_most: self.at_most,
            factor: self.factor,
            verdict,
            because,
            tested_by,
        }
    }

    /// The means that reproduce the value.
    fn range(&self) -> RangeInclusive<f64> {
        match (self.value, self.factor, self.sigma) {
            (Some(value), Some(factor), _) => {
                let ends = [value / factor, value * factor];
                ends[0].min(ends[1])..=ends[0].max(ends[1])
            }
            (Some(value), None, Some(sigma)) => value - sigma..=value + sigma,
            (_, factor, _) => {
                let factor = factor.unwrap_or(1.0);
                let least = self.at_least.map_or(f64::NEG_INFINITY, |least| least / factor);
                least..=self.at_most.map_or(f64::INFINITY, |most| most * factor)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(paper: &PaperValue, mean: f64) -> Verdict {
        paper.check().expect("a complete value");
        paper.compare(&Summary::of(&[mean])).verdict.expect("a verdict for a mean")
    }

    #[test]
    fn repetitions_that_scatter_are_no_verdict() {
        let paper = PaperValue { value: Some(75.0), factor: Some(1.1), ..PaperValue::default() };
        let compared = paper.compare(&Summary::of(&[54.9, 93.5]));
        assert_eq!(compared.verdict, None);
        assert_eq!(compared.because.as_deref(), Some(SCATTERS));
        assert_eq!(paper.compare(&Summary::of(&[74.0, 75.0])).verdict, Some(Verdict::Reproduced));
        assert_eq!(paper.compare(&Summary::of(&[10.0, 90.0])).verdict, Some(Verdict::Differs));
    }

    #[test]
    fn a_mean_within_the_published_sigma_is_reproduced() {
        let paper = PaperValue { value: Some(2.74), sigma: Some(0.09), ..PaperValue::default() };
        assert_eq!(verdict(&paper, 2.66), Verdict::Reproduced);
        assert_eq!(verdict(&paper, 2.64), Verdict::Differs);
        assert_eq!(verdict(&paper, 2.84), Verdict::Differs);
    }

    #[test]
    fn a_factor_replaces_sigma() {
        let paper =
            PaperValue { value: Some(2.0), sigma: Some(0.01), factor: Some(2.0), ..PaperValue::default() };
        for (mean, expected) in
            [(1.0, Verdict::Reproduced), (4.0, Verdict::Reproduced), (4.1, Verdict::Differs)]
        {
            assert_eq!(verdict(&paper, mean), expected, "{mean}");
        }
        let negative = PaperValue { value: Some(-2.0), factor: Some(2.0), ..PaperValue::default() };
        assert_eq!(verdict(&negative, -3.0), Verdict::Reproduced);
        assert_eq!(verdict(&negative, 3.0), Verdict::Differs);
    }

    #[test]
    fn published_bounds_are_a_criterion() {
        let paper = PaperValue { at_least: Some(0.64), at_most: Some(0.9), ..PaperValue::default() };
        assert_eq!(verdict(&paper, 0.88), Verdict::Reproduced);
        assert_eq!(verdict(&paper, 0.91), Verdict::Differs);
        assert_eq!(verdict(&paper, 0.5), Verdict::Differs);
    }

    #[test]
    fn what_cannot_be_compared_is_never_reproduced() {
        let why = Some("other processors".to_owned());
        let paper = PaperValue { value: Some(1.0), not_comparable: why.clone(), ..PaperValue::default() };
        let compared = paper.compare(&Summary::of(&[1.0]));
        assert_eq!((compared.verdict, compared.because), (Some(Verdict::NotComparable), why));
    }

    #[test]
    fn a_cause_is_given_for_a_difference_alone() {
        let cause = Cause { because: "x".into(), tested_by: "y".into() };
        let paper =
            PaperValue { value: Some(1.0), factor: Some(1.1), differs: Some(cause), ..PaperValue::default() };
        assert_eq!(paper.compare(&Summary::of(&[2.0])).because.as_deref(), Some("x"));
        assert_eq!(paper.compare(&Summary::of(&[1.0])).because, None);
        assert_eq!(paper.compare(&Summary::of(&[])).verdict, None);
    }

    #[test]
    fn a_value_without_a_criterion_is_an_error() {
        assert!(PaperValue { value: Some(1.0), ..PaperValue::default() }.check().is_err());
        assert!(PaperValue { factor: Some(1.1), ..PaperValue::default() }.check().is_err());
        assert!(PaperValue { value: Some(1.0), factor: Some(0.9), ..PaperValue::default() }.check().is_err());
    }
}
