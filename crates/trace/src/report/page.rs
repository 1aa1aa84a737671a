//! The HTML page: its parts and data in one file.
//!
//! Everything from captures and file names is data: it is in a script element of a type that no browser executes, as JSON
//! without the `<` that could end the element, and the script inserts it as text only.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::reported_connection::{OmittedConnections, OmittedParts, ReportedConnection};
use super::series::DirectionSeries;
use crate::direction::Direction;
use crate::export::document::{self, PerDirection};
use crate::external_metrics::ExternalMetric;

/// The style of HTML reports, which `plait audit` shares.
pub const STYLE: &str = include_str!("page/report.css");

/// Functions of the page's scripts for numbers, times and elements, which `plait web` shares.
pub const TEXT_SCRIPT: &str = include_str!("page/text.js");

/// uPlot, which draws the plots.
pub const UPLOT_SCRIPT: &str = include_str!("uplot/uPlot.iife.min.js");

/// The style of uPlot.
pub const UPLOT_STYLE: &str = include_str!("uplot/uPlot.min.css");

const PAGE: &str = include_str!("page/report.html");

/// The replacement of each `{{name}}` in [`PAGE`].
const PARTS: [(&str, &str); 8] = [
    ("uplot.css", UPLOT_STYLE),
    ("report.css", STYLE),
    ("uplot.js", UPLOT_SCRIPT),
    ("uplot-license", include_str!("uplot/LICENSE")),
    ("text.js", TEXT_SCRIPT),
    ("plots.js", include_str!("page/plots.js")),
    ("external_metrics.js", include_str!("page/external_metrics.js")),
    ("report.js", include_str!("page/report.js")),
];

/// The contents of a page.
pub(super) struct Page<'a> {
    pub(super) captures: &'a [String],
    pub(super) interval_s: f64,
    pub(super) totals: &'a document::Totals,
    pub(super) omitted: OmittedConnections,
    pub(super) connections: Vec<&'a ReportedConnection>,
}

impl Page<'_> {
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut rest = PAGE;
        while let Some((before, name, after)) = next_part(rest) {
            out.write_all(before.as_bytes())?;
            match PARTS.iter().find(|part| part.0 == name) {
                Some((_, text)) => out.write_all(text.as_bytes())?,
                None => write_data(&Data::new(self), out)?,
            }
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }
}

fn next_part(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (name, after) = rest.split_once("}}")?;
    Some((before, name, after))
}

fn write_data(data: &Data, out: &mut impl Write) -> io::Result<()> {
    Ok(data.serialize(&mut Serializer::with_formatter(out, Inert))?)
}

/// Writes JSON that cannot end its script element.
struct Inert;

impl Formatter for Inert {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, out: &mut W, fragment: &str) -> io::Result<()> {
        let mut pieces = fragment.split('<');
        out.write_all(pieces.next().unwrap_or_default().as_bytes())?;
        for piece in pieces {
            self.write_char_escape(out, CharEscape::AsciiControl(b'<'))?;
            out.write_all(piece.as_bytes())?;
        }
        Ok(())
    }
}

/// Maximum number of external metrics on the page, and of points of each.
const MAX_EXTERNAL_METRICS: usize = 200;
const MAX_EXTERNAL_METRIC_POINTS: usize = 1_000;

/// Thins out the points of a metric evenly; the document contains all of them.
fn downsampled(metric: &ExternalMetric) -> ExternalMetric {
    let step = metric.points.len().div_ceil(MAX_EXTERNAL_METRIC_POINTS).max(1);
    ExternalMetric { points: metric.points.iter().step_by(step).copied().collect(), ..metric.clone() }
}

/// The data of the page's script.
#[derive(Serialize)]
struct Data<'a> {
    captures: &'a [String],
    totals: document::Totals,
    omitted: OmittedConnections,
    connections: Vec<ConnectionData<'a>>,
}

#[derive(Serialize)]
struct ConnectionData<'a> {
    #[serde(flatten)]
    connection: &'a document::Connection,
    omitted: OmittedParts,
    series: Series,
}

/// The series of a connection.
#[derive(Serialize)]
struct Series {
    /// Start of interval 0, in seconds since the connection's start.
    start_s: f64,
    /// Length of an interval.
    interval_s: f64,
    sent: PerDirection<Vec<Columns>>,
}

/// A series by columns: what was counted in interval `at[0]`, in interval `at[1]`, and so on.
#[derive(Default, Serialize)]
struct Columns {
    at: Vec<u64>,
    bytes: Vec<u64>,
    new_bytes: Vec<u64>,
    /// Their range in the stream; null if unknown.
    from: Vec<Option<i64>>,
    to: Vec<Option<i64>>,
    /// Number of round-trip times, and their mean, minimum and maximum in milliseconds; null without samples.
    rtt_samples: Vec<u32>,
    rtt: Vec<Option<f64>>,
    rtt_min: Vec<Option<f64>>,
    rtt_max: Vec<Option<f64>>,
}

impl<'a> Data<'a> {
    fn new(page: &'a Page) -> Self {
        let connections = page.connections.iter().map(|reported| ConnectionData {
            connection: &reported.connection,
            omitted: reported.omitted,
            series: Series::new(reported, page.interval_s),
        });
        let metrics = page.totals.external_metrics.iter().take(MAX_EXTERNAL_METRICS);
        Self {
            captures: page.captures,
            totals: document::Totals {
                external_metrics: metrics.map(downsampled).collect(),
                damaged: page.totals.damaged.clone(),
                ..*page.totals
            },
            omitted: page.omitted,
            connections: connections.collect(),
        }
    }
}

impl Series {
    fn new(reported: &ReportedConnection, interval_s: f64) -> Self {
        let series = &reported.series;
        let interval_s = interval_s * f64::from(series.doublings()).exp2();
        let first = series.span().map_or(0, |span| span.start);
        Self {
            start_s: microseconds(first as f64 * interval_s - reported.connection.start.seconds()),
            interval_s,
            sent: PerDirection::from_fn(|direction: Direction| {
                series.sent(direction).map(|series| Columns::new(series, first)).collect()
            }),
        }
    }
}

impl Columns {
    fn new(series: &DirectionSeries, first: u64) -> Self {
        let mut columns = Self::default();
        for (number, point) in series {
            let positions = (!point.positions.is_empty()).then_some(&point.positions);
            let times = point.rtt;
            let measured = |milliseconds: f32| (times.count > 0).then(|| microseconds(milliseconds.into()));
            columns.at.push(number - first);
            columns.bytes.push(point.bytes);
            columns.new_bytes.push(point.new);
            columns.from.push(positions.map(|positions| positions.start));
            columns.to.push(positions.map(|positions| positions.end));
            columns.rtt_samples.push(times.count);
            columns.rtt.push(times.mean().map(microseconds));
            columns.rtt_min.push(measured(times.min));
            columns.rtt_max.push(measured(times.max));
        }
        columns
    }
}

/// Rounds to six decimals, which is enough for the page.
fn microseconds(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
