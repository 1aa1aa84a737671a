//! The HTML page: its parts, written one behind the other into one file, and the data that its program shows.
//!
//! Whatever comes from a capture or a file's name is data: it stands in a script element of a type that no browser
//! runs, in JSON without the `<` that could end the element, and the program puts it into the page as text only.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

use super::tracks::Track;
use super::{Cut, Kept, LeftOut, Report};
use crate::companion::Companion;
use crate::{Direction, document};

const PAGE: &str = include_str!("page/report.html");

/// What stands in [`PAGE`] in place of each `{{name}}`.
const PARTS: [(&str, &str); 8] = [
    ("uplot.css", include_str!("uplot/uPlot.min.css")),
    ("report.css", include_str!("page/report.css")),
    ("uplot.js", include_str!("uplot/uPlot.iife.min.js")),
    ("uplot-license", include_str!("uplot/LICENSE")),
    ("text.js", include_str!("page/text.js")),
    ("plots.js", include_str!("page/plots.js")),
    ("companions.js", include_str!("page/companions.js")),
    ("report.js", include_str!("page/report.js")),
];

/// Writes the page of a report.
pub(super) fn write(report: &Report, totals: &document::Totals, out: &mut impl Write) -> io::Result<()> {
    let mut rest = PAGE;
    while let Some((before, name, after)) = next_part(rest) {
        out.write_all(before.as_bytes())?;
        match PARTS.iter().find(|part| part.0 == name) {
            Some((_, text)) => out.write_all(text.as_bytes())?,
            None => write_data(&Data::of(report, totals), out)?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

fn next_part(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once("{{")?;
    let (name, after) = rest.split_once("}}")?;
    Some((before, name, after))
}

fn write_data(data: &Data, out: &mut impl Write) -> io::Result<()> {
    Ok(data.serialize(&mut Serializer::with_formatter(out, Inert))?)
}

/// Writes JSON that cannot end the element it stands in.
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

/// How many figures of other tools are shown, and how many points of each.
const COMPANIONS: usize = 200;
const COMPANION_POINTS: usize = 1_000;

/// A figure of another tool with evenly fewer points: the document has all.
fn thinned(companion: &Companion) -> Companion {
    let step = companion.points.len().div_ceil(COMPANION_POINTS).max(1);
    Companion {
        source: companion.source,
        of: companion.of.clone(),
        figure: companion.figure.clone(),
        unit: companion.unit,
        points: companion.points.iter().step_by(step).copied().collect(),
    }
}

/// All that the page shows.
#[derive(Serialize)]
struct Data<'a> {
    captures: &'a [String],
    totals: document::Totals,
    left_out: LeftOut,
    connections: Vec<Shown<'a>>,
}

#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    connection: &'a document::Connection,
    cut: Cut,
    series: Series,
}

/// The series of a connection.
#[derive(Serialize)]
struct Series {
    /// When interval 0 starts, in seconds since the connection's start.
    start_s: f64,
    /// How long an interval is.
    interval_s: f64,
    sent: document::Both<Vec<Columns>>,
}

/// A series: what was counted in interval `at[0]`, in interval `at[1]`, and so on.
#[derive(Default, Serialize)]
struct Columns {
    at: Vec<u64>,
    bytes: Vec<u64>,
    new_bytes: Vec<u64>,
    /// From the first of them in the stream to behind the last; both null where that is not known.
    from: Vec<Option<i64>>,
    to: Vec<Option<i64>>,
    /// Round trips and their mean, least and greatest time in milliseconds; null where there are none.
    round_trips: Vec<u32>,
    rtt: Vec<Option<f64>>,
    rtt_min: Vec<Option<f64>>,
    rtt_max: Vec<Option<f64>>,
}

impl<'a> Data<'a> {
    fn of(report: &'a Report, totals: &'a document::Totals) -> Self {
        Self {
            captures: &report.captures,
            totals: document::Totals {
                packets: totals.packets,
                skipped: totals.skipped.clone(),
                unmapped_bytes: totals.unmapped_bytes,
                unanswered_joins: totals.unanswered_joins,
                damaged: totals.damaged.clone(),
                companions: totals.companions.iter().take(COMPANIONS).map(thinned).collect(),
            },
            left_out: report.left_out,
            connections: report
                .by_importance()
                .into_iter()
                .map(|kept| Shown {
                    connection: &kept.connection,
                    cut: kept.cut,
                    series: Series::of(kept, report.interval.as_secs_f64()),
                })
                .collect(),
        }
    }
}

impl Series {
    fn of(kept: &Kept, interval_s: f64) -> Self {
        let tracks = &kept.tracks;
        let interval_s = interval_s * f64::from(tracks.doubled()).exp2();
        let first = tracks.span().map_or(0, |span| span.start);
        Self {
            start_s: microseconds(first as f64 * interval_s - kept.connection.start),
            interval_s,
            sent: document::Both::of(|direction: Direction| {
                tracks.sent(direction).map(|track| Columns::of(track, first)).collect()
            }),
        }
    }
}

impl Columns {
    fn of(track: &Track, first: u64) -> Self {
        let mut columns = Self::default();
        for (number, point) in track {
            let positions = (!point.positions.is_empty()).then_some(&point.positions);
            let times = point.round_trips;
            let measured = |milliseconds: f32| (times.count > 0).then(|| microseconds(milliseconds.into()));
            columns.at.push(number - first);
            columns.bytes.push(point.bytes);
            columns.new_bytes.push(point.new);
            columns.from.push(positions.map(|positions| positions.start));
            columns.to.push(positions.map(|positions| positions.end));
            columns.round_trips.push(times.count);
            columns.rtt.push(times.mean().map(microseconds));
            columns.rtt_min.push(measured(times.min));
            columns.rtt_max.push(measured(times.max));
        }
        columns
    }
}

/// Six digits behind the point are enough for whatever is shown.
fn microseconds(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
