//! How a figure depends on a parameter.

use std::ops::Range;

use crate::axis::{BELOW, BOTTOM, draw_heights, draw_label, draw_tick, height_of, left_of, ticks};
use crate::style::Style;
use crate::svg::{INK, LEFT, Legend, RIGHT, Svg, WIDTH, text_width};

/// How a figure depends on a parameter: lines with points where the parameter is a number, groups of bars where it is a
/// name; both with error bars and values to compare with.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// What is shown.
    pub title: String,
    /// A line below the title: what the error bars are, for instance.
    pub note: String,
    /// What the vertical axis counts, with its unit. The axis begins at 0, or at the least value below it.
    pub unit: String,
    /// The parameter, with its unit.
    pub along: String,
    /// The parameter's values.
    pub over: Over,
    /// What the values to compare with are called.
    pub reference: String,
    /// The figure, once or for several values of another parameter.
    pub curves: Vec<Curve>,
}

/// The values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Over {
    /// Numbers, in any order.
    Numbers(Vec<f64>),
    /// Names, which are shown in this order.
    Names(Vec<String>),
}

/// A figure for each value of the parameter.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Its name.
    pub label: String,
    /// How it looks.
    pub style: Style,
    /// In the order of [`Sweep::over`]; `None` where there is none. Numbers that are not finite are not drawn.
    pub values: Vec<Option<Value>>,
}

/// A value that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The value.
    pub mean: f64,
    /// How far the error bar reaches up and down; 0 for none.
    pub error: f64,
    /// A value to compare with.
    pub reference: Option<f64>,
}

/// Bars are no wider, in SVG's units.
const WIDEST_BAR: f64 = 72.0;
/// The part of a group's place that its bars take.
const FILLED: f64 = 0.78;

impl Sweep {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let legend = self.legend();
        let mut svg = Svg::new(BOTTOM + BELOW + legend.height(), &self.title, &self.note);
        let heights = self.heights();
        draw_heights(&mut svg, &heights, &self.unit);
        match &self.over {
            Over::Numbers(numbers) => self.draw_lines(&mut svg, &heights, numbers),
            Over::Names(names) => self.draw_bars(&mut svg, &heights, names),
        }
        draw_label(&mut svg, &self.along);
        svg.add(legend.svg());
        svg.finish()
    }

    /// From 0, with room above for what stands there.
    fn heights(&self) -> Range<f64> {
        let values = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        let ends = values.flat_map(|value| {
            let reference = value.reference.unwrap_or(value.mean);
            [value.mean - value.error, value.mean + value.error, reference]
        });
        let ends = ends.filter(|end| end.is_finite());
        let (least, most) = ends.fold((0f64, 0f64), |(least, most), end| (least.min(end), most.max(end)));
        let span = if most > least { most - least } else { 1.0 };
        let below = if least < 0.0 { least - 0.06 * span } else { 0.0 };
        below..least + span * 1.12
    }

    fn draw_lines(&self, svg: &mut Svg, heights: &Range<f64>, numbers: &[f64]) {
        let finite = || numbers.iter().copied().filter(|number| number.is_finite());
        let (least, most) = (finite().fold(f64::MAX, f64::min), finite().fold(f64::MIN, f64::max));
        if least > most {
            return;
        }
        let margin = if most > least { 0.05 * (most - least) } else { 1.0 };
        let range = least - margin..most + margin;
        let left = |number: f64| left_of(number, &range);
        for (place, text) in marks(numbers, &range) {
            draw_tick(svg, left(place), &text);
        }
        let apart = (WIDTH - LEFT - RIGHT) * 0.004;
        for (index, curve) in self.curves.iter().enumerate() {
            // Error bars of equal values would hide each other.
            let shift = apart * (index as f64 - (self.curves.len() - 1) as f64 / 2.0);
            let mut points: Vec<_> = numbers
                .iter()
                .zip(&curve.values)
                .filter_map(|(number, value)| Some((*number, (*value)?)))
                .filter(|(number, value)| number.is_finite() && value.mean.is_finite())
                .map(|(number, value)| (left(number) + shift, value))
                .collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            let path: Vec<_> = points
                .iter()
                .map(|(x, value)| format!("{x:.1} {:.1}", height_of(value.mean, heights)))
                .collect();
            if !path.is_empty() {
                let stroke = curve.style.stroke();
                svg.add(&format!(r#"<path d="M{}" fill="none" {stroke}/>"#, path.join("L")));
            }
            for (x, value) in points {
                let (y, colour) = (height_of(value.mean, heights), curve.style.colour());
                svg.add(&format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.6" fill="{colour}"/>"#));
                draw_error(svg, x, &value, heights, colour);
                draw_reference(svg, x, &value, heights, colour);
            }
        }
    }

    fn draw_bars(&self, svg: &mut Svg, heights: &Range<f64>, names: &[String]) {
        let place = (WIDTH - LEFT - RIGHT) / names.len().max(1) as f64;
        let width = (place * FILLED / self.curves.len().max(1) as f64).min(WIDEST_BAR);
        let zero = height_of(0.0, heights);
        for (group, name) in names.iter().enumerate() {
            let middle = LEFT + place * (group as f64 + 0.5);
            draw_tick(svg, middle, &shortened(name, place));
            let first = middle - width * self.curves.len() as f64 / 2.0;
            for (index, curve) in self.curves.iter().enumerate() {
                let value = curve.values.get(group).copied().flatten();
                let Some(value) = value.filter(|value| value.mean.is_finite()) else { continue };
                let (x, y) = (first + width * index as f64, height_of(value.mean, heights));
                let (top, height) = (y.min(zero), (y - zero).abs().max(1.0));
                let (bar, colour) = (width * 0.9, curve.style.colour());
                svg.add(&format!(
                    r#"<rect x="{x:.1}" y="{top:.1}" width="{bar:.1}" height="{height:.1}" fill="{colour}"/>"#
                ));
                let centre = x + bar / 2.0;
                draw_error(svg, centre, &value, heights, INK);
                draw_reference(svg, centre, &value, heights, INK);
                let text = short(value.mean);
                if text_width(&text, 11) < width * 1.1 {
                    let ends = [value.mean + value.error, value.reference.unwrap_or(value.mean), 0.0];
                    let above = ends.into_iter().filter(|end| end.is_finite()).fold(value.mean, f64::max);
                    svg.text((centre, height_of(above, heights) - 8.0), "middle", INK, 11, &text);
                }
            }
        }
    }

    fn legend(&self) -> Legend {
        let mut legend = Legend::new(BOTTOM + BELOW);
        let lines = matches!(self.over, Over::Numbers(_));
        for curve in &self.curves {
            let (stroke, colour) = (curve.style.stroke(), curve.style.colour());
            legend.add(&curve.label, |x, y| match lines {
                true => format!(
                    r#"<path d="M{x:.1} {y}h26" fill="none" {stroke}/><circle cx="{:.1}" cy="{y}" r="3.6" fill="{colour}"/>"#,
                    x + 13.0
                ),
                false => format!(
                    r#"<rect x="{:.1}" y="{:.1}" width="14" height="12" fill="{colour}"/>"#,
                    x + 12.0,
                    y - 6.0
                ),
            });
        }
        let mut values = self.curves.iter().flat_map(|curve| curve.values.iter().flatten());
        if values.any(|value| value.reference.is_some()) {
            legend.add(&self.reference, |x, y| diamond(x + 13.0, y, INK));
        }
        legend
    }
}

fn draw_error(svg: &mut Svg, x: f64, value: &Value, heights: &Range<f64>, colour: &str) {
    if !(value.error.is_finite() && value.error > 0.0) {
        return;
    }
    let top = height_of(value.mean + value.error, heights);
    let bottom = height_of(value.mean - value.error, heights);
    svg.add(&format!(
        r#"<path d="M{:.1} {top:.1}h8M{x:.1} {top:.1}V{bottom:.1}M{:.1} {bottom:.1}h8" fill="none" stroke="{colour}"/>"#,
        x - 4.0,
        x - 4.0
    ));
}

fn draw_reference(svg: &mut Svg, x: f64, value: &Value, heights: &Range<f64>, colour: &str) {
    if let Some(reference) = value.reference.filter(|reference| reference.is_finite()) {
        svg.add(&diamond(x, height_of(reference, heights), colour));
    }
}

fn diamond(x: f64, y: f64, colour: &str) -> String {
    format!(
        r##"<path d="M{x:.1} {:.1}l6 6l-6 6l-6 -6Z" fill="#fff" stroke="{colour}" stroke-width="1.4"/>"##,
        y - 6.0
    )
}

/// The numbers themselves where there is room to write them, else round ones.
fn marks(numbers: &[f64], range: &Range<f64>) -> Vec<(f64, String)> {
    let mut sorted: Vec<_> = numbers.iter().copied().filter(|number| number.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.dedup();
    let is_apart = |pair: &[f64]| {
        let room = left_of(pair[1], range) - left_of(pair[0], range);
        room > (text_width(&pair[0].to_string(), 12) + text_width(&pair[1].to_string(), 12)) / 2.0 + 8.0
    };
    match sorted.windows(2).all(is_apart) {
        true => sorted.into_iter().map(|number| (number, number.to_string())).collect(),
        false => ticks(range, 12),
    }
}

/// With three digits that count.
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
    use crate::Plot;

    fn sweep(over: Over, values: Vec<Option<Value>>) -> Sweep {
        let curve = Curve { label: "plain".into(), style: Style::Nth(0), values };
        Sweep {
            title: "Throughput".into(),
            note: String::new(),
            unit: "Mb/s".into(),
            along: "size".into(),
            over,
            reference: "paper".into(),
            curves: vec![curve],
        }
    }

    fn value(mean: f64, error: f64, reference: Option<f64>) -> Option<Value> {
        Some(Value { mean, error, reference })
    }

    #[test]
    fn a_value_lies_where_it_should_and_its_bar_is_as_high() {
        let names = Over::Names(vec!["a".into(), "b".into()]);
        let svg = sweep(names, vec![value(50.0, 0.0, None), value(100.0, 0.0, None)]).svg();
        let heights: Vec<f64> = svg
            .lines()
            .filter(|line| line.starts_with("<rect x=") && line.contains("#0072b2") && !line.contains("text"))
            .filter_map(|line| line.split("height=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        let [first, second] = heights[..] else { panic!("two bars in {heights:?}") };
        assert!((second / first - 2.0).abs() < 0.01, "{heights:?}");
    }

    #[test]
    fn references_and_errors_are_drawn_only_where_there_are_any() {
        let with = sweep(Over::Numbers(vec![1.0, 2.0]), vec![value(3.0, 1.0, Some(4.0)), None]).svg();
        let without = sweep(Over::Numbers(vec![1.0, 2.0]), vec![value(3.0, 0.0, None), None]).svg();
        assert!(with.contains(">paper<") && with.contains("h8M"));
        assert!(!without.contains(">paper<") && !without.contains("h8M"));
    }

    #[test]
    fn numbers_that_are_none_leave_a_chart() {
        for over in [Over::Numbers(vec![f64::NAN, f64::INFINITY]), Over::Numbers(Vec::new())] {
            let sweep =
                sweep(over, vec![value(f64::NAN, f64::NAN, Some(f64::INFINITY)), value(1.0, 0.0, None)]);
            assert!(!Plot { name: String::new(), svg: sweep.svg() }.png().is_empty());
        }
    }

    #[test]
    fn values_are_written_with_the_digits_that_count() {
        let texts = [123.4, 12.34, 1.234, 0.1234, 0.0, -5.678].map(short);
        assert_eq!(texts, ["123", "12.3", "1.23", "0.123", "0", "-5.68"]);
    }
}
