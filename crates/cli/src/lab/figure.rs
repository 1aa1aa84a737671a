//! Figures as people read them.

use plait_lab::experiment::Expectation;

/// With four digits that count, and never more than needed.
pub(super) fn figure(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (3.0 - value.abs().log10().floor()).clamp(0.0, 9.0) as usize;
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// What was expected, such as `at least 5.2`.
pub(super) fn limits(expect: &Expectation) -> String {
    match (expect.at_least, expect.at_most) {
        (Some(least), Some(most)) if least == most => format!("exactly {}", figure(least)),
        (Some(least), Some(most)) => format!("{} to {}", figure(least), figure(most)),
        (Some(least), None) => format!("at least {}", figure(least)),
        (None, Some(most)) => format!("at most {}", figure(most)),
        (None, None) => "anything".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_count() {
        let texts = [5.4821, 106.0, 1234567.0, 0.012345, 4.0, 0.0, -2.5].map(figure);
        assert_eq!(texts, ["5.482", "106", "1234567", "0.01235", "4", "0", "-2.5"]);
    }
}
