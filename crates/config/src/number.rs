//! Decimal numbers, alone and with a unit, and long ones for people.

use std::fmt;

/// Digits with or without a point: what `f64` reads beyond that (`inf`, `1e3`) is not how people write numbers.
pub fn decimal(text: &str) -> Option<f64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    text.parse().ok().filter(|_| digits)
}

/// A number with a comma between every three digits.
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

/// `1 packet`, `2 packets`.
pub fn pluralize(number: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(number as u64), if number == 1 { "" } else { "s" })
}

/// A decimal number and what the unit behind it is worth, the first of these that ends the text.
pub(crate) fn with_unit<U: Copy>(text: &str, units: &[(&str, U)]) -> Option<(f64, U)> {
    let text = text.trim();
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
    Some((decimal(number.trim_end())?, unit))
}

/// The whole number, 1 to `most`, nearest to a decimal number and one of these units; `most` is at most 2^53, above which
/// `f64` no longer counts by one.
pub(crate) fn whole(text: &str, units: &[(&str, u64)], most: u64) -> Option<u64> {
    let (number, unit) = with_unit(text, units)?;
    let all = (number * unit as f64).round();
    (1.0..=most as f64).contains(&all).then_some(all as u64)
}

/// Writes a number in the first of these units of which there is a whole number.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, number: u64, units: &[(&str, u64)]) -> fmt::Result {
    let (name, unit) = units.iter().find(|(_, unit)| number.is_multiple_of(*unit)).unwrap_or(&("", 1));
    write!(f, "{}{name}", number / unit)
}

#[cfg(test)]
mod tests {
    use super::{grouped, pluralize};

    #[test]
    fn numbers_are_grouped() {
        let numbers = [7, 123, 1_234, 1_234_567].map(grouped);
        assert_eq!(numbers, ["7", "123", "1,234", "1,234,567"]);
    }

    #[test]
    fn nouns_have_a_plural() {
        let counts = [0, 1, 2_000].map(|number| pluralize(number, "packet"));
        assert_eq!(counts, ["0 packets", "1 packet", "2,000 packets"]);
    }
}
