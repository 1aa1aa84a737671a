//! Charts as SVG, readable in colour, to colour-blind eyes and in grey: each series has a colour and a dash pattern.

use std::fmt::Write;
use std::ops::Range;

const WIDTH: f64 = 960.0;
const PLOT_HEIGHT: f64 = 300.0;
const LEFT: f64 = 76.0;
const RIGHT: f64 = 28.0;
const TOP: f64 = 92.0;
const BELOW: f64 = 56.0;
const LEGEND_ROW: f64 = 22.0;
const BAR_ROW: f64 = 52.0;

const INK: &str = "#1d2330";
const SOFT: &str = "#5d6675";
const RULE: &str = "#e3e6eb";
const FONT: &str = "Inter, 'Helvetica Neue', Helvetica, Arial, sans-serif";

/// Okabe and Ito's colours without the yellow and black, darkest contrasts first, and a dash pattern for each.
const STYLES: [(&str, &str); 6] = [
    ("#0072b2", ""),
    ("#d55e00", "7 3"),
    ("#009e73", "2 2.5"),
    ("#cc79a7", "10 3 2 3"),
    ("#e69f00", "4 2"),
    ("#56b4e9", "1 2"),
];

/// Something over time.
pub(super) struct Chart {
    pub(super) title: String,
    /// A line below the title.
    pub(super) note: String,
    /// What the vertical axis counts, with its unit.
    pub(super) unit: String,
    /// The seconds shown.
    pub(super) x: Range<f64>,
    /// The values shown.
    pub(super) y: Range<f64>,
    /// Times to point out, with a word for each.
    pub(super) shades: Vec<(Range<f64>, String)>,
    /// Drawn one over the other.
    pub(super) series: Vec<Series>,
}

/// A series and how it looks.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) style: Style,
    pub(super) shapes: Vec<Shape>,
}

/// How a series looks.
#[derive(Clone, Copy)]
pub(super) enum Style {
    /// As the subflow of this index does everywhere.
    Subflow(usize),
    /// As the sum of all.
    Total,
}

/// A part of a series, in the units of the axes.
pub(super) enum Shape {
    Line(Vec<(f64, f64)>),
    Area(Vec<(f64, f64)>),
    Box(Range<f64>, Range<f64>),
}

/// Parts of a whole.
pub(super) struct Bars {
    pub(super) title: String,
    pub(super) note: String,
    pub(super) bars: Vec<Bar>,
}

/// A part, which subflows make up.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) value: String,
    /// Subflows by index, with their share of the whole.
    pub(super) shares: Vec<(usize, f64)>,
}

impl Style {
    fn colour(self) -> &'static str {
        match self {
            Self::Subflow(index) => STYLES[index % STYLES.len()].0,
            Self::Total => INK,
        }
    }

    fn stroke(self) -> String {
        match self {
            Self::Subflow(index) => {
                let (colour, dashes) = STYLES[index % STYLES.len()];
                format!(r#"stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dashes}""#)
            }
            Self::Total => format!(r#"stroke="{INK}" stroke-width="1""#),
        }
    }
}

impl Chart {
    /// The chart as SVG.
    pub(super) fn svg(&self) -> String {
        let legend = self.legend();
        let mut svg = Svg::new(TOP + PLOT_HEIGHT + BELOW + legend.height, &self.title, &self.note);
        self.draw_axes(&mut svg);
        for (times, label) in &self.shades {
            self.draw_shade(&mut svg, times, label);
        }
        svg.add(r#"<g clip-path="url(#plot)" fill="none" stroke-linejoin="round">"#);
        for series in &self.series {
            self.draw_series(&mut svg, series);
        }
        svg.add("</g>");
        svg.add(&legend.svg);
        svg.finish()
    }

    fn left(&self, x: f64) -> f64 {
        LEFT + (x - self.x.start) / (self.x.end - self.x.start) * (WIDTH - LEFT - RIGHT)
    }

    fn top(&self, y: f64) -> f64 {
        TOP + (self.y.end - y) / (self.y.end - self.y.start) * PLOT_HEIGHT
    }

    fn draw_axes(&self, svg: &mut Svg) {
        let (right, bottom) = (WIDTH - RIGHT, TOP + PLOT_HEIGHT);
        let width = right - LEFT;
        svg.add(&format!(
            r#"<clipPath id="plot"><rect x="{LEFT}" y="{}" width="{width}" height="{}"/></clipPath>"#,
            TOP - 2.0,
            PLOT_HEIGHT + 4.0
        ));
        for (value, text) in ticks(&self.y, 8) {
            let y = self.top(value);
            svg.add(&format!(r#"<path d="M{LEFT} {y:.1}H{right}" stroke="{RULE}"/>"#));
            svg.text((LEFT - 10.0, y + 4.0), "end", SOFT, 12, &text);
        }
        for (value, text) in ticks(&self.x, 14) {
            let x = self.left(value);
            svg.add(&format!(r#"<path d="M{x:.1} {bottom}v5" stroke="{SOFT}"/>"#));
            svg.text((x, bottom + 20.0), "middle", SOFT, 12, &text);
        }
        svg.add(&format!(r#"<path d="M{LEFT} {bottom}H{right}" stroke="{SOFT}"/>"#));
        svg.text((LEFT, TOP - 12.0), "start", SOFT, 12, &self.unit);
        svg.text((right, bottom + 40.0), "end", SOFT, 12, "seconds since the connection's start");
    }

    fn draw_shade(&self, svg: &mut Svg, times: &Range<f64>, label: &str) {
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
        let anchor = if from > (LEFT + WIDTH - RIGHT) / 2.0 { "end" } else { "start" };
        let x = if anchor == "end" { to } else { from };
        svg.text((x, TOP - 12.0), anchor, INK, 12, label);
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
        let mut legend = Legend { svg: String::new(), height: LEGEND_ROW };
        let mut x = LEFT;
        for series in &self.series {
            let width = 34.0 + text_width(&series.label, 12) + 20.0;
            if x > LEFT && x + width > WIDTH - RIGHT {
                x = LEFT;
                legend.height += LEGEND_ROW;
            }
            let y = TOP + PLOT_HEIGHT + BELOW + legend.height - LEGEND_ROW;
            let stroke = series.style.stroke();
            legend.svg += &format!(r#"<path d="M{x:.1} {y}h26" fill="none" {stroke}/>"#);
            legend.svg += &text((x + 34.0, y + 4.0), "start", INK, 12, &series.label);
            x += width;
        }
        legend
    }
}

struct Legend {
    svg: String,
    height: f64,
}

impl Bars {
    /// The bars as SVG.
    pub(super) fn svg(&self) -> String {
        let width = WIDTH - 2.0 * RIGHT;
        let mut svg = Svg::new(TOP + BAR_ROW * self.bars.len() as f64, &self.title, &self.note);
        for (bar, row) in self.bars.iter().zip(0u32..) {
            let top = TOP + f64::from(row) * BAR_ROW;
            svg.text((RIGHT, top + 8.0), "start", INK, 13, &bar.label);
            svg.text((WIDTH - RIGHT, top + 8.0), "end", INK, 13, &bar.value);
            svg.add(&format!(
                r#"<rect x="{RIGHT}" y="{}" width="{width}" height="14" rx="2" fill="{RULE}"/>"#,
                top + 16.0
            ));
            let mut left = RIGHT;
            for &(subflow, share) in &bar.shares {
                let (part, colour) = (share * width, Style::Subflow(subflow).colour());
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

/// An SVG that is being written.
struct Svg(String);

impl Svg {
    fn new(height: f64, title: &str, note: &str) -> Self {
        let mut svg = Self(format!(
            concat!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" "#,
                r#"font-family="{font}" role="img"><title>{title}</title>"#,
                r##"<rect width="{w}" height="{h}" fill="#fff"/>"##
            ),
            w = WIDTH,
            h = height,
            font = FONT,
            title = escaped(title)
        ));
        svg.text((RIGHT, 30.0), "start", INK, 17, title);
        svg.text((RIGHT, 49.0), "start", SOFT, 12, note);
        svg
    }

    fn add(&mut self, text: &str) {
        self.0.push_str(text);
        self.0.push('\n');
    }

    fn text(&mut self, at: (f64, f64), anchor: &str, colour: &str, size: u32, content: &str) {
        self.add(&text(at, anchor, colour, size, content));
    }

    fn finish(mut self) -> String {
        self.add("</svg>");
        self.0
    }
}

fn text((x, y): (f64, f64), anchor: &str, colour: &str, size: u32, content: &str) -> String {
    let content = escaped(content);
    format!(
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{content}</text>"#
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// About how wide a text is.
fn text_width(text: &str, size: u32) -> f64 {
    text.chars().count() as f64 * f64::from(size) * 0.52
}

/// Up to about `most` round values within a range, and how to write them.
fn ticks(range: &Range<f64>, most: u32) -> Vec<(f64, String)> {
    let least = (range.end - range.start) / f64::from(most);
    let magnitude = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * magnitude);
    let step = step.into_iter().find(|step| *step >= least * 0.999).unwrap_or(least);
    let digits = (-step.log10().floor()).clamp(0.0, 9.0) as usize;
    let first = (range.start / step - 1e-6).ceil();
    let count = (range.end / step + 1e-6).floor() - first;
    (0..=count.clamp(0.0, 50.0) as u32)
        .map(|index| (first + f64::from(index)) * step)
        .map(|value| (value, format!("{:.digits$}", value + 0.0)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_written_with_the_digits_that_they_need() {
        let texts = |range| ticks(&range, 6).into_iter().map(|tick| tick.1).collect::<Vec<_>>().join(" ");
        assert_eq!(texts(0.0..97.0), "0 20 40 60 80");
        assert_eq!(texts(0.0..0.25), "0.00 0.05 0.10 0.15 0.20 0.25");
        assert_eq!(texts(-3.0..3.0), "-3 -2 -1 0 1 2 3");
    }

    #[test]
    fn text_from_elsewhere_stays_text() {
        let hostile = "</text><script>alert(1)</script>&";
        let bars = Bars { title: hostile.into(), note: hostile.into(), bars: Vec::new() };
        assert!(!bars.svg().contains("<script"));
    }
}
