//! Layout common to all figures: title and note, axes, ticks and legend.

use std::ops::Range;

use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{
    Circle, Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoFont, PathElement, Polygon,
    Rectangle, Text, TextStyle,
};
use plotters::style::RGBColor;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::style::{INK, RULE, SOFT, Style};
use super::{Drawn, WIDTH};

pub(super) const FONT_FAMILY: &str = "sans-serif";

/// Height of title and note, of the axes, and of a row of the legend.
pub(super) const HEAD: u32 = 78;
const AXES: u32 = 340;
const LEGEND_ROW: u32 = 24;
const MARGIN: i32 = 20;

type Context<'a, DB> = ChartContext<'a, DB, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Error<DB> = DrawingAreaErrorKind<<DB as DrawingBackend>::ErrorType>;

pub(super) fn text_style(size: u32, colour: RGBColor, horizontal: HPos, scale: u32) -> TextStyle<'static> {
    let style = (FONT_FAMILY, size * scale).into_font().color(&colour);
    style.pos(Pos::new(horizontal, VPos::Center))
}

/// Draws a figure's title and note.
pub(super) fn draw_head<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    (title, note): (&str, &str),
    scale: u32,
) -> Drawn<DB> {
    let at = |y: i32| (MARGIN * scale as i32, y * scale as i32);
    area.draw(&Text::new(title, at(24), text_style(17, INK, HPos::Left, scale)))?;
    area.draw(&Text::new(note, at(47), text_style(13, SOFT, HPos::Left, scale)))
}

/// A chart's axes: the visible ranges, labels, and marks on the horizontal axis if not round numbers.
pub(super) struct Axes<'a> {
    pub(super) x: Range<f64>,
    pub(super) y: Range<f64>,
    pub(super) x_label: &'a str,
    pub(super) y_label: &'a str,
    pub(super) marks: Option<Vec<(f64, String)>>,
}

impl Axes<'_> {
    /// Draws title, note and axes on the upper part of `area`.
    pub(super) fn draw<'a, DB: DrawingBackend>(
        &self,
        area: &'a DrawingArea<DB, Shift>,
        head: (&str, &str),
        scale: u32,
    ) -> Result<Context<'a, DB>, Error<DB>> {
        draw_head(area, head, scale)?;
        let (_, height) = area.dim_in_pixel();
        let legend = height.saturating_sub((HEAD + AXES) * scale);
        let mut chart = ChartBuilder::on(area)
            .margin_top(HEAD * scale)
            .margin_bottom(legend)
            .margin_left(10 * scale)
            .margin_right(24 * scale)
            .x_label_area_size(48 * scale)
            .y_label_area_size(62 * scale)
            .build_cartesian_2d(self.x.clone(), self.y.clone())?;
        let number = |value: &f64| number(*value);
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .light_line_style(RULE.mix(0.0))
            .bold_line_style(RULE.stroke_width(scale))
            .axis_style(SOFT.stroke_width(scale))
            .label_style((FONT_FAMILY, 12 * scale).into_font().color(&SOFT))
            .axis_desc_style((FONT_FAMILY, 13 * scale).into_font().color(&INK))
            .set_all_tick_mark_size(5 * scale)
            .y_labels(8)
            .x_labels(if self.marks.is_some() { 0 } else { 14 })
            .x_desc(self.x_label)
            .y_desc(self.y_label)
            .x_label_formatter(&number)
            .y_label_formatter(&number);
        mesh.draw()?;
        for (value, label) in self.marks.iter().flatten() {
            let (x, y) = chart.backend_coord(&(*value, self.y.start));
            let tick = vec![(x, y), (x, y + 5 * scale as i32)];
            area.draw(&PathElement::new(tick, SOFT.stroke_width(scale)))?;
            let label = Text::new(
                label.as_str(),
                (x, y + 15 * scale as i32),
                text_style(12, SOFT, HPos::Center, scale),
            );
            area.draw(&label)?;
        }
        Ok(chart)
    }
}

/// The height of a chart with this legend.
pub(super) fn height(legend: &[Entry]) -> u32 {
    HEAD + AXES + LEGEND_ROW * rows(legend) + 18
}

/// An entry of a legend.
pub(super) struct Entry {
    pub(super) label: String,
    pub(super) sample: Sample,
}

/// The symbol before the label of an entry.
#[derive(Clone, Copy)]
pub(super) enum Sample {
    Line(Style),
    Points(Style),
    Bar(Style),
    Reference,
}

/// Estimated width of text in units, with room to spare.
pub(super) fn text_width(text: &str, size: u32) -> f64 {
    text.chars().count() as f64 * f64::from(size) * 0.58
}

fn positions(legend: &[Entry]) -> Vec<(u32, u32)> {
    let (mut x, mut row) = (72.0, 0);
    let positions = legend.iter().map(|entry| {
        let width = 62.0 + text_width(&entry.label, 13);
        if x > 72.0 && x + width > f64::from(WIDTH) {
            (x, row) = (72.0, row + 1);
        }
        let at = (x as u32, row);
        x += width;
        at
    });
    positions.collect()
}

fn rows(legend: &[Entry]) -> u32 {
    positions(legend).last().map_or(0, |(_, row)| row + 1)
}

/// Draws the legend below the axes.
pub(super) fn draw_legend<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    legend: &[Entry],
    scale: u32,
) -> Drawn<DB> {
    for (entry, (x, row)) in legend.iter().zip(positions(legend)) {
        let unit = scale as i32;
        let (x, y) = ((x * scale) as i32, ((HEAD + AXES + LEGEND_ROW * row + 16) * scale) as i32);
        let line = vec![(x, y), (x + 28 * unit, y)];
        match entry.sample {
            Sample::Line(style) => style.draw_line(area, line, scale)?,
            Sample::Points(style) => {
                style.draw_line(area, line, scale)?;
                area.draw(&Circle::new((x + 14 * unit, y), 4 * scale, style.fill()))?;
            }
            Sample::Bar(style) => {
                let corners = [(x + 12 * unit, y - 6 * unit), (x + 26 * unit, y + 6 * unit)];
                area.draw(&Rectangle::new(corners, style.fill()))?;
            }
            Sample::Reference => draw_reference(area, (x + 14 * unit, y), INK, scale)?,
        }
        let label = text_style(13, INK, HPos::Left, scale);
        area.draw(&Text::new(entry.label.as_str(), (x + 36 * unit, y), label))?;
    }
    Ok(())
}

/// Draws a reference value: an empty diamond.
pub(super) fn draw_reference<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    (x, y): (i32, i32),
    colour: RGBColor,
    scale: u32,
) -> Drawn<DB> {
    let size = 6 * scale as i32;
    let corners = vec![(x, y - size), (x + size, y), (x, y + size), (x - size, y), (x, y - size)];
    area.draw(&Polygon::new(corners.clone(), super::style::PAPER.filled()))?;
    area.draw(&PathElement::new(corners, colour.stroke_width(scale)))
}

/// Round values within a range.
pub(super) fn round_values(range: &Range<f64>) -> Vec<(f64, String)> {
    let values = RangedCoordf64::from(range.clone()).key_points(12);
    values.into_iter().map(|value| (value, number(value))).collect()
}

/// Formats a number without trailing zeros.
pub(super) fn number(value: f64) -> String {
    let text = format!("{:.6}", value + 0.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".into() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_trailing_zeros() {
        assert_eq!([0.0, -0.0, 20.0, 0.25, -3.5].map(number), ["0", "0", "20", "0.25", "-3.5"]);
    }

    #[test]
    fn legend_wraps_long_labels() {
        let entry = |_| Entry { label: "x".repeat(50), sample: Sample::Line(Style::Total) };
        let legend: Vec<_> = (0..3).map(entry).collect();
        assert_eq!(positions(&legend), [(72, 0), (511, 0), (72, 1)]);
    }
}
