//! Decimal numbers, with and without units, and numbers formatted for people.

use std::fmt;

/// Parses digits with or without a decimal point, not the other forms that `f64` accepts (`inf`, `1e3`).
pub fn decimal(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| digits)
}

/// Formats a number with a comma between every three digits: `1,234`.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: `1 packet`, `1,234 packets`.
pub fn pluralize(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

/// Splits a text into a decimal number and the value of its unit: the first of `units` that is a suffix of the text.
pub(crate) fn with_unit<U: Copy>(text: &str, units: &[(&str, U)]) -> Option<(f64, U)> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    Some((decimal(number.trim_end())?, unit))
}

/// Parses a decimal number with a unit and rounds it to a whole number from 1 to `max`, which is at most 2^53: above that,
/// `f64` cannot represent every whole number.
pub(crate) fn whole(text: &str, units: &[(&str, u64)], max: u64) -> Option<u64> {
    let (number, unit) = with_unit(text, units)?;
    let all = (number * unit as f64).round();
    (1.0..=max as f64).contains(&all).then_some(all as u64)
}

/// Formats a number in the first unit of which it is a whole multiple.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, unit) = units.iter().find(|(_, unit)| number.is_multiple_of(*unit)).unwrap_or(&("", 1));
    write!(f, "{}{name}", number / unit)
}

#[cfg(test)]
mod tests {
    use super::{grouped, pluralize};

    #[test]
    fn groups_digits_by_three() {
        let numbers = [7, 123, 1_234, 1_234_567].map(grouped);
        assert_eq!(numbers, ["7", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn pluralizes_nouns() {
        let counts = [0, 1, 2_000].map(|number| pluralize(number, "packet"));
        assert_eq!(counts, ["0 packets", "1 packet", "2,000 packets"]);
    }
}
