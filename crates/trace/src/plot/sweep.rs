//! Charts of a metric that depends on a parameter.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::{Circle, Color, DrawingArea, DrawingBackend, PathElement, Rectangle, Text};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::layout::{
    self, Axes, Entry, Sample, draw_legend, draw_reference, number, round_values, text_style, text_width,
};
use super::style::{INK, Style};
use super::{Drawn, Figure, WIDTH};

/// How a metric depends on a parameter: lines with points if the parameter is a number, groups of bars if it is a name;
/// both with error bars and reference values.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The title.
    pub title: String,
    /// A line below the title: what the error bars are, for instance.
    pub note: String,
    /// Label of the vertical axis, with its unit. The axis begins at 0, or at the lowest value below it.
    pub y_label: String,
    /// The parameter, with its unit.
    pub x_label: String,
    /// The parameter's values.
    pub over: Over,
    /// What the reference values are.
    pub reference: String,
    /// The metric, once or for several values of another parameter.
    pub curves: Vec<Curve>,
}

/// The values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Over {
    /// Numbers, in any order.
    Numbers(Vec<f64>),
    /// Names, in the order in which they are shown.
    Names(Vec<String>),
}

/// A metric for each value of the parameter.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub label: String,
    /// How it looks.
    pub style: Style,
    /// In the order of [`Sweep::over`]; `None` if there is no value. Numbers that are not finite are not drawn.
    pub values: Vec<Option<Value>>,
}

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The mean.
    pub mean: f64,
    /// How far the error bar extends up and down; 0 for none.
    pub error: f64,
    /// The reference value.
    pub reference: Option<f64>,
}

/// Maximum width of a bar, as a part of the horizontal axis.
const MAX_BAR: f64 = 0.09;
/// The part of a group's space that its bars take.
const GROUP_FILL: f64 = 0.78;
/// Width of the horizontal axis in units.
const AXIS_WIDTH: f64 = WIDTH as f64 - 96.0;

impl Figure for Sweep {
    fn height(&self) -> u32 {
        layout::height(&self.legend())
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: u32) -> Drawn<DB> {
        let (x, marks) = match &self.over {
            Over::Numbers(numbers) => number_axis(numbers),
            Over::Names(names) => name_axis(names),
        };
        let (x_label, y_label) = (self.x_label.as_str(), self.y_label.as_str());
        let axes = Axes { x: x.clone(), y: self.y_range(), x_label, y_label, marks: Some(marks) };
        let chart = axes.draw(area, (&self.title, &self.note), scale)?;
        let at = |x: f64, y: f64| chart.backend_coord(&(x, y));
        for (index, curve) in self.curves.iter().enumerate() {
            match &self.over {
                Over::Numbers(numbers) => {
                    // Equal values must not hide each other's error bars.
                    let shift = 0.004 * (index as f64 - (self.curves.len() - 1) as f64 / 2.0);
                    let points = points(numbers, curve, shift * (x.end - x.start));
                    draw_points(area, curve.style, &points, at, scale)?;
                }
                Over::Names(names) => {
                    let count = self.curves.len().max(1) as f64;
                    let width = (GROUP_FILL / count).min(MAX_BAR * names.len() as f64);
                    let left = |group: usize| group as f64 + 0.5 + width * (index as f64 - count / 2.0);
                    let bars =
                        finite(curve).map(|(group, value)| (left(group)..left(group) + width * 0.9, value));
                    let label_width = width / names.len().max(1) as f64 * AXIS_WIDTH;
                    draw_bars(area, curve.style, bars, label_width, at, scale)?;
                }
            }
        }
        draw_legend(area, &self.legend(), scale)
    }
}

impl Sweep {
    /// The range of the vertical axis, with room above for labels.
    fn y_range(&self) -> Range<f64> {
        let values = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        let ends = values.flat_map(|value| {
            let reference = value.reference.unwrap_or(value.mean);
            [value.mean - value.error, value.mean + value.error, reference]
        });
        let ends = ends.filter(|end| end.is_finite());
        let (low, high) = ends.fold((0f64, 0f64), |(low, high), end| (low.min(end), high.max(end)));
        let span = if high > low { high - low } else { 1.0 };
        let below = if low < 0.0 { low - 0.06 * span } else { 0.0 };
        below..low + span * 1.12
    }

    fn legend(&self) -> Vec<Entry> {
        let sample = match self.over {
            Over::Numbers(_) => Sample::Points,
            Over::Names(_) => Sample::Bar,
        };
        let entry = |curve: &Curve| Entry { label: curve.label.clone(), sample: sample(curve.style) };
        let mut legend: Vec<_> = self.curves.iter().map(entry).collect();
        let mut values = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        if values.any(|value| value.reference.is_some()) {
            legend.push(Entry { label: self.reference.clone(), sample: Sample::Reference });
        }
        legend
    }
}

/// The range of the axis, and the numbers themselves as marks if there is room, else round ones.
fn number_axis(numbers: &[f64]) -> (Range<f64>, Vec<(f64, String)>) {
    let mut sorted: Vec<_> = numbers.iter().copied().filter(|number| number.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return (0.0..1.0, Vec::new()) };
    let margin = if last > first { 0.05 * (last - first) } else { 1.0 };
    let range = first - margin..last + margin;
    let has_room = |pair: &[f64]| {
        let room = (pair[1] - pair[0]) / (range.end - range.start) * AXIS_WIDTH;
        room > (text_width(&number(pair[0]), 12) + text_width(&number(pair[1]), 12)) / 2.0 + 8.0
    };
    let marks = match sorted.windows(2).all(has_room) {
        true => sorted.iter().map(|value| (*value, number(*value))).collect(),
        false => round_values(&range),
    };
    (range, marks)
}

fn name_axis(names: &[String]) -> (Range<f64>, Vec<(f64, String)>) {
    let room = AXIS_WIDTH / names.len().max(1) as f64;
    let marks = names.iter().enumerate().map(|(group, name)| (group as f64 + 0.5, shortened(name, room)));
    (0.0..names.len().max(1) as f64, marks.collect())
}

fn finite(curve: &Curve) -> impl Iterator<Item = (usize, Value)> + '_ {
    let values = curve.values.iter().enumerate().filter_map(|(index, value)| Some((index, (*value)?)));
    values.filter(|(_, value)| value.mean.is_finite())
}

fn points(numbers: &[f64], curve: &Curve, shift: f64) -> Vec<(f64, Value)> {
    let mut points: Vec<_> =
        finite(curve).filter_map(|(index, value)| Some((*numbers.get(index)?, value))).collect();
    points.retain(|(number, _)| number.is_finite());
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    points.into_iter().map(|(number, value)| (number + shift, value)).collect()
}

fn draw_points<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    style: Style,
    points: &[(f64, Value)],
    at: impl Fn(f64, f64) -> (i32, i32),
    scale: u32,
) -> Drawn<DB> {
    let line = points.iter().map(|(x, value)| at(*x, value.mean)).collect();
    style.draw_line(area, line, scale)?;
    for (x, value) in points {
        area.draw(&Circle::new(at(*x, value.mean), 4 * scale, style.fill()))?;
        draw_error(area, *x, value, style.colour(), &at, scale)?;
    }
    Ok(())
}

fn draw_bars<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    style: Style,
    bars: impl Iterator<Item = (Range<f64>, Value)>,
    label_width: f64,
    at: impl Fn(f64, f64) -> (i32, i32),
    scale: u32,
) -> Drawn<DB> {
    for (x, value) in bars {
        let ((left, zero), (right, mean)) = (at(x.start, 0.0), at(x.end, value.mean));
        let corners = [(left, mean.min(zero)), (right, mean.max(zero).max(mean.min(zero) + 1))];
        area.draw(&Rectangle::new(corners, style.fill()))?;
        let middle = (x.start + x.end) / 2.0;
        draw_error(area, middle, &value, INK, &at, scale)?;
        let label = short(value.mean);
        if text_width(&label, 11) < label_width * 1.1 {
            let ends = [value.mean + value.error, value.reference.unwrap_or(value.mean), 0.0];
            let above = ends.into_iter().filter(|end| end.is_finite()).fold(value.mean, f64::max);
            let (x, y) = at(middle, above);
            let style = text_style(11, INK, HPos::Center, scale);
            area.draw(&Text::new(label, (x, y - 12 * scale as i32), style))?;
        }
    }
    Ok(())
}

/// Draws a value's error bar and reference value.
fn draw_error<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    x: f64,
    value: &Value,
    colour: RGBColor,
    at: &impl Fn(f64, f64) -> (i32, i32),
    scale: u32,
) -> Drawn<DB> {
    if value.error.is_finite() && value.error > 0.0 {
        let ((x, top), (_, bottom)) = (at(x, value.mean + value.error), at(x, value.mean - value.error));
        let cap = 4 * scale as i32;
        let lines = [
            [(x, top), (x, bottom)],
            [(x - cap, top), (x + cap, top)],
            [(x - cap, bottom), (x + cap, bottom)],
        ];
        for line in lines {
            area.draw(&PathElement::new(line.to_vec(), colour.stroke_width(scale)))?;
        }
    }
    match value.reference.filter(|reference| reference.is_finite()) {
        Some(reference) => draw_reference(area, at(x, reference), colour, scale),
        None => Ok(()),
    }
}

/// Formats a number with three significant digits.
fn short(value: f64) -> String {
    let digits = if value == 0.0 { 0.0 } else { (2.0 - value.abs().log10().floor()).clamp(0.0, 6.0) };
    format!("{value:.0$}", digits as usize)
}

fn shortened(text: &str, width: f64) -> String {
    let most = (width / text_width("x", 12)) as usize;
    if text.chars().count() <= most.max(3) {
        return text.into();
    }
    text.chars().take(most.max(3) - 1).chain(['\u{2026}']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Plot;

    fn sweep(over: Over, values: Vec<Option<Value>>) -> Sweep {
        let curve = Curve { label: "plain".into(), style: Style::Nth(0), values };
        Sweep {
            title: "Throughput".into(),
            note: String::new(),
            y_label: "Mb/s".into(),
            x_label: "size".into(),
            over,
            reference: "paper".into(),
            curves: vec![curve],
        }
    }

    fn draw(sweep: &Sweep) -> Plot {
        Plot::draw(String::new(), sweep)
    }

    fn value(mean: f64, error: f64, reference: Option<f64>) -> Option<Value> {
        Some(Value { mean, error, reference })
    }

    #[test]
    fn bar_heights_are_proportional() {
        let names = Over::Names(vec!["a".into(), "b".into()]);
        let svg = draw(&sweep(names, vec![value(50.0, 0.0, None), value(100.0, 0.0, None)])).svg;
        let heights: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect") && line.contains("#0072B2"))
            .filter_map(|line| line.split(" height=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        let [first, second, _legend] = heights[..] else { panic!("two bars in {heights:?} of {svg}") };
        assert!((second / first - 2.0).abs() < 0.03, "{heights:?}");
    }

    #[test]
    fn draws_references_only_where_there_are_any() {
        let numbers = || Over::Numbers(vec![1.0, 2.0]);
        let with = draw(&sweep(numbers(), vec![value(3.0, 1.0, Some(4.0)), None])).svg;
        let without = draw(&sweep(numbers(), vec![value(3.0, 0.0, None), None])).svg;
        assert!(with.contains("\npaper\n") && with.contains("<polygon"), "{with}");
        assert!(!without.contains("\npaper\n") && !without.contains("<polygon"));
    }

    #[test]
    fn accepts_numbers_that_are_not_finite() {
        for over in [Over::Numbers(vec![f64::NAN, f64::INFINITY]), Over::Numbers(Vec::new())] {
            let values = vec![value(f64::NAN, f64::NAN, Some(f64::INFINITY)), value(1.0, 0.0, None)];
            assert!(!draw(&sweep(over, values)).png.is_empty());
        }
    }

    #[test]
    fn labels_have_three_significant_digits() {
        let texts = [123.4, 12.34, 1.234, 0.1234, 0.0, -5.678].map(short);
        assert_eq!(texts, ["123", "12.3", "1.23", "0.123", "0", "-5.68"]);
    }
}
