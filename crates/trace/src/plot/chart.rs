//! Charts of series over time or another quantity.

use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::{Color, DrawingArea, DrawingBackend, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::HPos;

use super::layout::{self, Axes, Entry, Sample, draw_legend, text_style, text_width};
use super::style::{INK, SOFT, Style};
use super::{Drawn, Figure, WIDTH};

/// Series over time, or over another quantity.
#[derive(Clone, Debug)]
pub struct Chart {
    /// The title.
    pub title: String,
    /// A line below the title.
    pub note: String,
    /// Label of the vertical axis, with its unit.
    pub y_label: String,
    /// Label of the horizontal axis, with its unit.
    pub x_label: String,
    /// The visible range of the horizontal axis; not empty.
    pub x: Range<f64>,
    /// The visible range of the vertical axis; not empty. Values beyond it are cut off.
    pub y: Range<f64>,
    /// Highlighted spans of the horizontal axis, with a label for each.
    pub highlights: Vec<(Range<f64>, String)>,
    /// The series, drawn one over the other.
    pub series: Vec<Series>,
}

/// A series and its style.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub label: String,
    /// Its style.
    pub style: Style,
    /// Its parts.
    pub shapes: Vec<Shape>,
}

/// A part of a series, in the units of the axes.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A line through points.
    Line(Vec<(f64, f64)>),
    /// The shaded area within points.
    Area(Vec<(f64, f64)>),
    /// A filled rectangle: its range on each axis.
    Box(Range<f64>, Range<f64>),
}

impl Figure for Chart {
    fn height(&self) -> u32 {
        layout::height(&self.legend())
    }

    fn draw<DB: DrawingBackend>(&self, area: &DrawingArea<DB, Shift>, scale: u32) -> Drawn<DB> {
        let (x_label, y_label) = (self.x_label.as_str(), self.y_label.as_str());
        let axes = Axes { x: self.x.clone(), y: self.y.clone(), x_label, y_label, marks: None };
        let chart = axes.draw(area, (&self.title, &self.note), scale)?;
        let at = |x: f64, y: f64| {
            chart.backend_coord(&(x.clamp(self.x.start, self.x.end), y.clamp(self.y.start, self.y.end)))
        };
        self.draw_highlights(area, at, scale)?;
        for series in &self.series {
            for shape in &series.shapes {
                draw_shape(area, shape, series.style, at, scale)?;
            }
        }
        draw_legend(area, &self.legend(), scale)
    }
}

impl Chart {
    /// Labels in order of time, each at the start of its highlight; one without room after the previous is left out.
    fn draw_highlights<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        at: impl Fn(f64, f64) -> (i32, i32),
        scale: u32,
    ) -> Drawn<DB> {
        let mut highlights: Vec<_> = self.highlights.iter().collect();
        highlights.sort_by(|(a, _), (b, _)| a.start.total_cmp(&b.start));
        let mut free = 0;
        for (span, label) in highlights {
            let (left, top) = at(span.start, self.y.end);
            let (right, bottom) = at(span.end, self.y.start);
            let right = right.max(left + scale as i32);
            area.draw(&Rectangle::new([(left, top), (right, bottom)], INK.mix(0.07).filled()))?;
            for x in [left, right] {
                area.draw(&PathElement::new(vec![(x, top), (x, bottom)], SOFT.mix(0.5).stroke_width(scale)))?;
            }
            let width = (text_width(label, 12) * f64::from(scale)) as i32;
            let left = left.min((WIDTH * scale) as i32 - width);
            if left >= free {
                let place = (left, top - 10 * scale as i32);
                area.draw(&Text::new(label.as_str(), place, text_style(12, INK, HPos::Left, scale)))?;
                free = left + width;
            }
        }
        Ok(())
    }

    fn legend(&self) -> Vec<Entry> {
        let entry = |series: &Series| {
            let is_box = series.shapes.iter().any(|shape| matches!(shape, Shape::Box(..)));
            let sample = if is_box { Sample::Bar(series.style) } else { Sample::Line(series.style) };
            Entry { label: series.label.clone(), sample }
        };
        self.series.iter().map(entry).collect()
    }
}

fn draw_shape<DB: DrawingBackend>(
    area: &DrawingArea<DB, Shift>,
    shape: &Shape,
    style: Style,
    at: impl Fn(f64, f64) -> (i32, i32),
    scale: u32,
) -> Drawn<DB> {
    let pixels = |points: &[(f64, f64)]| points.iter().map(|&(x, y)| at(x, y)).collect::<Vec<_>>();
    match shape {
        Shape::Line(points) => style.draw_line(area, pixels(points), scale),
        Shape::Area(points) => area.draw(&Polygon::new(pixels(points), style.colour().mix(0.16).filled())),
        Shape::Box(x, y) => {
            let ((left, top), (right, bottom)) = (at(x.start, y.end), at(x.end, y.start));
            let least = scale as i32;
            let corners = [(left, top), (right.max(left + least), bottom.max(top + least))];
            area.draw(&Rectangle::new(corners, style.fill()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Plot;

    #[test]
    fn highlight_labels_do_not_overlap() {
        let highlights = [(16.0..50.0, "subflow 1"), (16.2..50.0, "subflow 2"), (67.0..99.0, "subflow 3")];
        let chart = Chart {
            title: String::new(),
            note: String::new(),
            y_label: "Mb/s".into(),
            x_label: "seconds".into(),
            x: 0.0..100.0,
            y: 0.0..1.0,
            highlights: highlights.map(|(times, label)| (times, label.to_owned())).to_vec(),
            series: Vec::new(),
        };
        let svg = Plot::draw(String::new(), &chart).svg;
        assert!(svg.contains("subflow 1") && !svg.contains("subflow 2") && svg.contains("subflow 3"));
    }
}
