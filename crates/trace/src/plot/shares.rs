//! Bars that show the parts of a whole.

use plotters::coord::Shift;
use plotters::prelude::{Color, DrawingArea, DrawingBackend, Rectangle, Text};
use plotters::style::text_anchor::HPos;

use super::layout::{HEAD, draw_head, text_style};
use super::style::{INK, RULE, Style};
use super::{Drawn, Figure, WIDTH};

const ROW: u32 = 52;
const MARGIN: i32 = 20;

/// Parts of a whole, one bar for each.
#[derive(Clone, Debug)]
pub struct Shares {
    /// The title.
    pub title: String,
    /// A line below the title.
    pub note: String,
    /// The parts, from top to bottom.
    pub bars: Vec<Share>,
}

/// A part, which may itself consist of several.
#[derive(Clone, Debug)]
pub struct Share {
    /// Its name.
    pub label: String,
    /// Its size, as text.
    pub value: String,
    /// Its components: index of their [`Style`], and share of the whole, 0 to 1.
    pub parts: Vec<(usize, f64)>,
}

impl Figure for Shares {
    fn height(&self) -> u32 {
        HEAD + ROW * self.bars.len() as u32
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: u32) -> Drawn<DB> {
        draw_head(area, (&self.title, &self.note), scale)?;
        let unit = scale as i32;
        let right = WIDTH as i32 - MARGIN;
        let bar = |from: f64, to: f64, top: i32| {
            let x = |share: f64| {
                ((f64::from(MARGIN) + share * f64::from(right - MARGIN)) * f64::from(scale)) as i32
            };
            [(x(from), top * unit), (x(to), (top + 14) * unit)]
        };
        for (share, row) in self.bars.iter().zip(0..) {
            let top = (HEAD + ROW * row) as i32;
            let text = |text: &str, x: i32, side| {
                Text::new(text.to_owned(), (x * unit, top * unit), text_style(13, INK, side, scale))
            };
            area.draw(&text(&share.label, MARGIN, HPos::Left))?;
            area.draw(&text(&share.value, right, HPos::Right))?;
            area.draw(&Rectangle::new(bar(0.0, 1.0, top + 12), RULE.filled()))?;
            let mut from = 0.0;
            for &(index, part) in &share.parts {
                area.draw(&Rectangle::new(bar(from, from + part, top + 12), Style::Nth(index).fill()))?;
                from += part;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Plot;

    #[test]
    fn escapes_text() {
        let hostile = "</text><script>alert(1)</script>&";
        let shares = Shares { title: hostile.into(), note: hostile.into(), bars: Vec::new() };
        assert!(!Plot::draw(String::new(), &shares).svg.contains("<script"));
    }
}
