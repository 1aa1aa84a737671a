//! How series look.

use crate::svg::INK;

/// Okabe and Ito's colours without the yellow and black, darkest contrasts first, and a dash pattern for each.
const STYLES: [(&str, &str); 6] = [
    ("#0072b2", ""),
    ("#d55e00", "7 3"),
    ("#009e73", "2 2.5"),
    ("#cc79a7", "10 3 2 3"),
    ("#e69f00", "4 2"),
    ("#56b4e9", "1 2"),
];

/// How a series looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As the one of this index does in all charts. There are six looks, which repeat.
    Nth(usize),
    /// As the sum of all.
    Total,
}

impl Style {
    pub(crate) fn colour(self) -> &'static str {
        match self {
            Self::Nth(index) => STYLES[index % STYLES.len()].0,
            Self::Total => INK,
        }
    }

    pub(crate) fn stroke(self) -> String {
        match self {
            Self::Nth(index) => {
                let (colour, dashes) = STYLES[index % STYLES.len()];
                format!(r#"stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dashes}""#)
            }
            Self::Total => format!(r#"stroke="{INK}" stroke-width="1""#),
        }
    }
}
