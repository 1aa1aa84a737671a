//! Something over time, or over another quantity.

use std::fmt::Write;
use std::ops::Range;

use crate::axis::{BELOW, BOTTOM, draw_heights, draw_label, draw_tick, height_of, left_of, ticks};
use crate::style::Style;
use crate::svg::{INK, LEFT, Legend, PLOT_HEIGHT, RIGHT, SOFT, Svg, TOP, WIDTH};

/// How wide a letter of a label is, at most on average.
const LABEL_LETTER: f64 = 6.6;

/// Series over time, or over another quantity.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What is shown.
    pub title: String,
    /// A line below the title.
    pub note: String,
    /// What the vertical axis counts, with its unit.
    pub unit: String,
    /// What the horizontal axis counts, with its unit.
    pub along: String,
    /// The part of the horizontal axis that is shown; not empty.
    pub x: Range<f64>,
    /// The part of the vertical axis that is shown; not empty. What is beyond is cut off.
    pub y: Range<f64>,
    /// Parts of the horizontal axis to point out, with a word for each.
    pub shades: Vec<(Range<f64>, String)>,
    /// Drawn one over the other.
    pub series: Vec<Series>,
}

/// A series and how it looks.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name.
    pub label: String,
    /// How it looks.
    pub style: Style,
    /// What is drawn of it.
    pub shapes: Vec<Shape>,
}

/// A part of a series, in the units of the axes.
#[derive(Clone, Debug)]
pub enum Shape {
    /// A line through points.
    Line(Vec<(f64, f64)>),
    /// The area within points, shaded.
    Area(Vec<(f64, f64)>),
    /// A filled rectangle: from where to where along each axis.
    Box(Range<f64>, Range<f64>),
}

impl Chart {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let legend = self.legend();
        let mut svg = Svg::new(BOTTOM + BELOW + legend.height(), &self.title, &self.note);
        self.draw_axes(&mut svg);
        for (times, _) in &self.shades {
            self.draw_shade(&mut svg, times);
        }
        self.draw_shade_labels(&mut svg);
        svg.add(r#"<g clip-path="url(#plot)" fill="none" stroke-linejoin="round">"#);
        for series in &self.series {
            self.draw_series(&mut svg, series);
        }
        svg.add("</g>");
        svg.add(legend.svg());
        svg.finish()
    }

    fn left(&self, x: f64) -> f64 {
        left_of(x, &self.x)
    }

    fn top(&self, y: f64) -> f64 {
        height_of(y, &self.y)
    }

    fn draw_axes(&self, svg: &mut Svg) {
        let width = WIDTH - RIGHT - LEFT;
        svg.add(&format!(
            r#"<clipPath id="plot"><rect x="{LEFT}" y="{}" width="{width}" height="{}"/></clipPath>"#,
            TOP - 2.0,
            PLOT_HEIGHT + 4.0
        ));
        draw_heights(svg, &self.y, &self.unit);
        for (value, text) in ticks(&self.x, 14) {
            draw_tick(svg, self.left(value), &text);
        }
        draw_label(svg, &self.along);
    }

    fn draw_shade(&self, svg: &mut Svg, times: &Range<f64>) {
        let from = self.left(times.start.clamp(self.x.start, self.x.end));
        let to = self.left(times.end.clamp(self.x.start, self.x.end));
        svg.add(&format!(
            concat!(
                r##"<rect x="{from:.1}" y="{top}" width="{width:.1}" height="{height}" fill="#1d2330" "##,
                r#"fill-opacity="0.07"/><path d="M{from:.1} {top}v{height}M{to:.1} {top}v{height}" "#,
                r#"stroke="{colour}" stroke-dasharray="2 3"/>"#
            ),
            from = from,
            to = to,
            top = TOP,
            width = (to - from).max(1.0),
            height = PLOT_HEIGHT,
            colour = SOFT
        ));
    }

    /// Labels in the order of time, each where its shade begins; one that has no room beside the last is left out.
    fn draw_shade_labels(&self, svg: &mut Svg) {
        let mut free = 0.0;
        let mut shades: Vec<_> = self.shades.iter().collect();
        shades.sort_by(|(a, _), (b, _)| a.start.total_cmp(&b.start));
        for (times, label) in shades {
            let width = label.chars().count() as f64 * LABEL_LETTER;
            let from = self.left(times.start.clamp(self.x.start, self.x.end)).min(WIDTH - RIGHT - width);
            if from >= free {
                svg.text((from, TOP - 12.0), "start", INK, 12, label);
                free = from + width + LABEL_LETTER;
            }
        }
    }

    fn draw_series(&self, svg: &mut Svg, series: &Series) {
        let colour = series.style.colour();
        for shape in &series.shapes {
            match shape {
                Shape::Line(points) => {
                    svg.add(&format!(r#"<path d="{}" {}/>"#, self.path(points), series.style.stroke()));
                }
                Shape::Area(points) => svg.add(&format!(
                    r#"<path d="{}Z" fill="{colour}" fill-opacity="0.16"/>"#,
                    self.path(points)
                )),
                Shape::Box(x, y) => {
                    let (left, top) = (self.left(x.start), self.top(y.end));
                    let width = (self.left(x.end) - left).max(1.2);
                    let height = (self.top(y.start) - top).max(1.2);
                    svg.add(&format!(
                        r#"<path d="M{left:.1} {top:.1}h{width:.1}v{height:.1}h-{width:.1}Z" fill="{colour}"/>"#
                    ));
                }
            }
        }
    }

    fn path(&self, points: &[(f64, f64)]) -> String {
        let mut path = String::new();
        for (index, &(x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            // Writing into a string does not fail.
            let _ = write!(path, "{command}{:.1} {:.1}", self.left(x), self.top(y));
        }
        path
    }

    fn legend(&self) -> Legend {
        let mut legend = Legend::new(BOTTOM + BELOW);
        for series in &self.series {
            let stroke = series.style.stroke();
            legend.add(&series.label, |x, y| format!(r#"<path d="M{x:.1} {y}h26" fill="none" {stroke}/>"#));
        }
        legend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_shades_do_not_cover_each_other() {
        let shades = [(16.0..50.0, "subflow 1"), (16.2..50.0, "subflow 2"), (67.0..99.0, "subflow 3")];
        let svg = Chart {
            title: String::new(),
            note: String::new(),
            unit: "Mb/s".into(),
            along: "seconds".into(),
            x: 0.0..100.0,
            y: 0.0..1.0,
            shades: shades.map(|(times, label)| (times, label.to_owned())).to_vec(),
            series: Vec::new(),
        }
        .svg();
        assert!(svg.contains("subflow 1") && !svg.contains("subflow 2") && svg.contains("subflow 3"));
    }
}
