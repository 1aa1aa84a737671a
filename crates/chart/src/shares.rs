//! Parts of a whole, a bar for each.

use crate::style::Style;
use crate::svg::{INK, RIGHT, RULE, Svg, TOP, WIDTH};

const ROW: f64 = 52.0;

/// Parts of a whole.
#[derive(Clone, Debug)]
pub struct Shares {
    /// What is shown.
    pub title: String,
    /// A line below the title.
    pub note: String,
    /// The parts, from top to bottom.
    pub bars: Vec<Share>,
}

/// A part, which others make up.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its name.
    pub label: String,
    /// How much it is, in words.
    pub value: String,
    /// What it is made of: by [`Style::Nth`], with its share of the whole, 0 to 1.
    pub parts: Vec<(usize, f64)>,
}

impl Shares {
    /// The bars as SVG.
    pub fn svg(&self) -> String {
        let width = WIDTH - 2.0 * RIGHT;
        let mut svg = Svg::new(TOP + ROW * self.bars.len() as f64, &self.title, &self.note);
        for (bar, row) in self.bars.iter().zip(0u32..) {
            let top = TOP + f64::from(row) * ROW;
            svg.text((RIGHT, top + 8.0), "start", INK, 13, &bar.label);
            svg.text((WIDTH - RIGHT, top + 8.0), "end", INK, 13, &bar.value);
            svg.add(&format!(
                r#"<rect x="{RIGHT}" y="{}" width="{width}" height="14" rx="2" fill="{RULE}"/>"#,
                top + 16.0
            ));
            let mut left = RIGHT;
            for &(index, share) in &bar.parts {
                let (part, colour) = (share * width, Style::Nth(index).colour());
                svg.add(&format!(
                    r#"<rect x="{left:.1}" y="{}" width="{part:.1}" height="14" fill="{colour}"/>"#,
                    top + 16.0
                ));
                left += part;
            }
        }
        svg.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_elsewhere_stays_text() {
        let hostile = "</text><script>alert(1)</script>&";
        let shares = Shares { title: hostile.into(), note: hostile.into(), bars: Vec::new() };
        assert!(!shares.svg().contains("<script"));
    }
}
