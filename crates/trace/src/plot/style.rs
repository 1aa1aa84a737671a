//! Colours and dash patterns of series.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::{Color, DrawingArea, DrawingBackend, PathElement, RGBColor, ShapeStyle};

use super::Drawn;

pub(super) const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub(super) const INK: RGBColor = RGBColor(0x1d, 0x23, 0x30);
pub(super) const SOFT: RGBColor = RGBColor(0x6b, 0x72, 0x80);
pub(super) const RULE: RGBColor = RGBColor(0xe3, 0xe6, 0xeb);

/// Okabe and Ito's colours without yellow and black, with a dash pattern (length of dash and gap; none if solid) for each.
const STYLES: [(RGBColor, Option<(u32, u32)>); 6] = [
    (RGBColor(0x00, 0x72, 0xb2), None),
    (RGBColor(0xd5, 0x5e, 0x00), Some((7, 3))),
    (RGBColor(0x00, 0x9e, 0x73), Some((3, 3))),
    (RGBColor(0xcc, 0x79, 0xa7), Some((11, 3))),
    (RGBColor(0xe6, 0x9f, 0x00), Some((5, 2))),
    (RGBColor(0x56, 0xb4, 0xe9), Some((1, 2))),
];

/// The style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// The style of the series with this index, the same in all charts. There are six styles, which repeat.
    Nth(usize),
    /// The style of a total.
    Total,
}

impl Style {
    pub(super) fn colour(self) -> RGBColor {
        match self {
            Self::Nth(index) => STYLES[index % STYLES.len()].0,
            Self::Total => INK,
        }
    }

    /// Draws a line of a series through points in pixels.
    pub(super) fn draw_line<DB: DrawingBackend>(
        self,
        area: &DrawingArea<DB, Shift>,
        points: Vec<(i32, i32)>,
        scale: u32,
    ) -> Drawn<DB> {
        let (width, dashes) = match self {
            Self::Nth(index) => (2, STYLES[index % STYLES.len()].1),
            Self::Total => (1, None),
        };
        let style = self.colour().stroke_width(width * scale);
        match dashes {
            None => area.draw(&PathElement::new(points, style)),
            Some((dash, gap)) => area.draw(&DashedPathElement::new(points, dash * scale, gap * scale, style)),
        }
    }

    pub(super) fn fill(self) -> ShapeStyle {
        self.colour().filled()
    }
}
