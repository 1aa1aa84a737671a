//! Formatting numbers for people.

use plait_lab::experiment::Expectation;

/// Formats with four significant digits, without trailing zeros.
pub(super) fn format_number(value: f64) -> String {
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

/// The expectation, such as `at least 5.2`.
pub(super) fn format_limits(expect: &Expectation) -> String {
    match (expect.at_least, expect.at_most) {
        (Some(least), Some(most)) if least == most => format!("exactly {}", format_number(least)),
        (Some(least), Some(most)) => format!("{} to {}", format_number(least), format_number(most)),
        (Some(least), None) => format!("at least {}", format_number(least)),
        (None, Some(most)) => format!("at most {}", format_number(most)),
        (None, None) => "anything".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_significant_digits() {
        let texts = [5.4821, 106.0, 1234567.0, 0.012345, 4.0, 0.0, -2.5].map(format_number);
        assert_eq!(texts, ["5.482", "106", "1234567", "0.01235", "4", "0", "-2.5"]);
    }
}
