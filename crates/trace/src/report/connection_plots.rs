//! The plots of a connection.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use super::reported_connection::ReportedConnection;
use super::series::{ConnectionSeries, DirectionSeries, Point};
use crate::direction::Direction;
use crate::export::document::{self, Connection};
use crate::plot::{Chart, Plot, Series, Shape, Share, Shares, Style};

/// Maximum number of connections with plots.
const MAX_CONNECTIONS: usize = 3;
/// Maximum number of intervals, for readable lines.
const INTERVALS: u64 = 300;
/// Maximum number of intervals without a sample that a line of round-trip times bridges.
const GAP: u64 = 8;
/// A chart ends at this multiple of the highest line, so that outliers do not flatten the rest.
const MAX_OUTLIER: f64 = 4.0;

/// Draws the plots of the first few connections.
pub(super) fn draw(connections: &[&ReportedConnection], interval: Duration) -> Vec<Plot> {
    let plotted = connections.iter().take(MAX_CONNECTIONS).filter_map(|kept| View::new(kept, interval));
    plotted.flat_map(|view| view.plots()).collect()
}

/// A connection in the direction that carried more.
struct View<'a> {
    connection: &'a Connection,
    direction: Direction,
    series: ConnectionSeries,
    interval: f64,
}

impl<'a> View<'a> {
    /// `None` for a connection that carried nothing.
    fn new(kept: &'a ReportedConnection, interval: Duration) -> Option<Self> {
        let ReportedConnection { connection, series, .. } = kept;
        let mut series = series.clone();
        while series.span()?.end - series.span()?.start > INTERVALS {
            series.coarsen();
        }
        let bytes = connection.bytes;
        let direction = match bytes.client_to_server >= bytes.server_to_client {
            true => Direction::ClientToServer,
            false => Direction::ServerToClient,
        };
        let interval = interval.as_secs_f64() * f64::from(series.doublings()).exp2();
        (*bytes.in_direction(direction) > 0).then_some(Self { connection, direction, series, interval })
    }

    fn plots(&self) -> Vec<Plot> {
        let name = |kind| format!("connection-{}-{kind}", self.connection.id);
        let plot = |kind, chart: Chart| Plot::draw(name(kind), &chart);
        let mut plots = vec![Plot::draw(name("share"), &self.share())];
        // A single interval shows no change over time.
        if self.series.span().is_some_and(|span| span.end - span.start > 1) {
            plots.extend(self.throughput().map(|chart| plot("throughput", chart)));
            plots.extend(self.rtt().map(|chart| plot("rtt", chart)));
            plots.extend(self.sequence().map(|chart| plot("sequence", chart)));
        }
        plots
    }

    fn throughput(&self) -> Option<Chart> {
        let mut total = BTreeMap::new();
        let mut series = Vec::new();
        for (index, sent) in self.carrying() {
            let bytes: BTreeMap<u64, u64> = sent.iter().map(|(&at, point)| (at, point.bytes)).collect();
            bytes.iter().for_each(|(&at, bytes)| *total.entry(at).or_default() += bytes);
            series.push((Style::Nth(index), self.name(index), bytes));
        }
        if series.is_empty() {
            return None;
        }
        if series.len() > 1 {
            series.insert(0, (Style::Total, "total".into(), total.clone()));
        }
        let rate = |bytes: u64| bytes as f64 * 8.0 / self.interval;
        let unit = Unit::for_max(
            rate(total.into_values().max().unwrap_or_default()),
            ["b/s", "kb/s", "Mb/s", "Gb/s"],
        );
        let series: Vec<_> = series
            .into_iter()
            .map(|(style, label, bytes)| {
                let steps = self.steps(&bytes, |bytes| unit.apply(rate(bytes)));
                Series { label, style, shapes: vec![Shape::Line(steps)] }
            })
            .collect();
        Some(self.chart("Throughput", "", unit.name.into(), true, series))
    }

    fn rtt(&self) -> Option<Chart> {
        let series: Vec<_> = self
            .carrying()
            .filter_map(|(index, sent)| {
                let shapes = self.round_trip_shapes(sent);
                let series = Series { label: self.name(index), style: Style::Nth(index), shapes };
                (!series.shapes.is_empty()).then_some(series)
            })
            .collect();
        let some = !series.is_empty();
        some.then(|| self.chart("Round-trip time", "mean and range, ", "ms".into(), true, series))
    }

    fn round_trip_shapes(&self, series: &DirectionSeries) -> Vec<Shape> {
        let measured: Vec<_> = series.iter().filter(|(_, point)| point.rtt.count > 0).collect();
        let mut shapes = Vec::new();
        for run in measured.chunk_by(|before, after| after.0 - before.0 <= GAP) {
            let along = |value: fn(&Point) -> f64| {
                move |(at, point): &(&u64, &Point)| (self.time(**at) + self.interval / 2.0, value(point))
            };
            let upper = run.iter().map(along(|point| point.rtt.max.into()));
            let lower = run.iter().rev().map(along(|point| point.rtt.min.into()));
            shapes.push(Shape::Area(upper.chain(lower).collect()));
            let mean = along(|point| point.rtt.mean().unwrap_or_default());
            shapes.push(Shape::Line(run.iter().map(mean).collect()));
        }
        shapes
    }

    fn sequence(&self) -> Option<Chart> {
        let carrying: Vec<_> = self.carrying().collect();
        let placed = || carrying.iter().flat_map(|(_, series)| series.values().map(|point| &point.positions));
        let positions = || placed().filter(|positions| !positions.is_empty());
        let end = positions().map(|positions| positions.end).max()?;
        let unit = Unit::for_max(end as f64, ["B", "kB", "MB", "GB"]);
        let slot = self.interval / carrying.len() as f64;
        let mut series = Vec::new();
        for (place, &(index, sent)) in carrying.iter().enumerate() {
            let shapes = sent.iter().filter(|(_, point)| !point.positions.is_empty()).map(|(&at, point)| {
                let Range { start, end } = point.positions;
                let from = self.time(at) + slot * place as f64;
                Shape::Box(from..from + slot, unit.apply(start as f64)..unit.apply(end as f64))
            });
            let label = self.name(index);
            series.push(Series { label, style: Style::Nth(index), shapes: shapes.collect() });
        }
        Some(self.chart(
            "Place in the stream",
            "what each subflow carried, ",
            unit.name.into(),
            false,
            series,
        ))
    }

    fn share(&self) -> Shares {
        let mut bars: Vec<(String, u64, Share)> = Vec::new();
        let total = (*self.connection.bytes.in_direction(self.direction)).max(1);
        for (index, subflow) in self.connection.subflows.iter().enumerate() {
            let bytes = *subflow.bytes.in_direction(self.direction);
            if bytes == 0 {
                continue;
            }
            let label = path(subflow);
            let place = bars.iter().position(|bar| bar.0 == label).unwrap_or_else(|| {
                let bar = Share { label: label.clone(), value: String::new(), parts: Vec::new() };
                bars.push((label, 0, bar));
                bars.len() - 1
            });
            let (_, carried, bar) = &mut bars[place];
            *carried += bytes;
            bar.parts.push((index, bytes as f64 / total as f64));
        }
        let bars = bars.into_iter().map(|(_, bytes, mut bar)| {
            let unit = Unit::for_max(bytes as f64, ["B", "kB", "MB", "GB"]);
            let percent = bytes as f64 / total as f64 * 100.0;
            bar.value = format!("{percent:.1} % ({:.1} {})", unit.apply(bytes as f64), unit.name);
            bar
        });
        Shares { title: self.title("Share of each path"), note: self.way().into(), bars: bars.collect() }
    }

    /// A chart over the connection's duration. Without `from_zero`, values may be negative.
    fn chart(&self, what: &str, how: &str, unit: String, from_zero: bool, series: Vec<Series>) -> Chart {
        let heights = || {
            series.iter().flat_map(|series| &series.shapes).flat_map(|shape| match shape {
                Shape::Line(points) | Shape::Area(points) => points.iter().map(|point| point.1).collect(),
                Shape::Box(_, heights) => vec![heights.start, heights.end],
            })
        };
        let lines = series.iter().flat_map(|series| &series.shapes).filter_map(|shape| match shape {
            Shape::Line(points) => points.iter().map(|point| point.1).reduce(f64::max),
            _ => None,
        });
        let top = heights().fold(0.0, f64::max);
        let top = lines.reduce(f64::max).map_or(top, |line| top.min(line * MAX_OUTLIER));
        let bottom = if from_zero { 0.0 } else { heights().fold(0.0, f64::min) };
        let last = self.series.span().map_or(0.0, |span| self.time(span.end));
        Chart {
            title: self.title(what),
            note: format!("{how}{}, in intervals of {} s", self.way(), (self.interval * 1e6).round() / 1e6),
            y_label: unit,
            x_label: "seconds since the connection's start".into(),
            x: 0.0..last.max(self.connection.duration_s).max(1e-6),
            y: bottom..bottom + ((top - bottom) * 1.05).max(1e-9),
            highlights: self.highlights(),
            series,
        }
    }

    fn highlights(&self) -> Vec<(Range<f64>, String)> {
        let since = |time: document::Time| time.seconds_since(self.connection.start);
        let failovers = self.connection.failovers.iter();
        failovers
            .filter(|failover| failover.direction == self.direction)
            .map(|failover| {
                let to = failover.to.map_or(self.connection.duration_s, since);
                (since(failover.from)..to, format!("subflow {} silent", failover.subflow))
            })
            .collect()
    }

    /// The subflows that carried data, by index.
    fn carrying(&self) -> impl Iterator<Item = (usize, &DirectionSeries)> {
        self.series.sent(self.direction).enumerate().filter(|(index, series)| {
            *index < self.connection.subflows.len() && series.values().any(|point| point.bytes > 0)
        })
    }

    /// A step line, zero in missing intervals.
    fn steps(&self, values: &BTreeMap<u64, u64>, height: impl Fn(u64) -> f64) -> Vec<(f64, f64)> {
        let mut points = Vec::new();
        let mut until = None;
        for (&at, &value) in values {
            if until != Some(at) {
                points.extend(until.map(|until| (self.time(until), 0.0)));
                points.push((self.time(at), 0.0));
            }
            points.extend([(self.time(at), height(value)), (self.time(at + 1), height(value))]);
            until = Some(at + 1);
        }
        points.extend(until.map(|until| (self.time(until), 0.0)));
        points
    }

    /// Start of an interval in seconds since the connection's start. Intervals are aligned to the clock, so the first one may
    /// start earlier.
    fn time(&self, interval: u64) -> f64 {
        (interval as f64 * self.interval - self.connection.start.seconds()).max(0.0)
    }

    fn name(&self, index: usize) -> String {
        format!("{}: {}", index + 1, path(&self.connection.subflows[index]))
    }

    fn title(&self, what: &str) -> String {
        format!("{what} of connection {}", self.connection.id)
    }

    fn way(&self) -> &'static str {
        match self.direction {
            Direction::ClientToServer => "from client to server",
            Direction::ServerToClient => "from server to client",
        }
    }
}

fn path(subflow: &document::Subflow) -> String {
    format!("{} \u{2192} {}", subflow.src.ip(), subflow.dst.ip())
}

/// A unit with a suitable prefix.
struct Unit {
    name: &'static str,
    size: f64,
}

impl Unit {
    /// The unit for values up to `max`, each a thousand times the one before.
    fn for_max(max: f64, names: [&'static str; 4]) -> Self {
        let (name, size) = names
            .into_iter()
            .zip([1.0, 1e3, 1e6, 1e9])
            .rfind(|unit| unit.1 <= max)
            .unwrap_or((names[0], 1.0));
        Self { name, size }
    }

    fn apply(&self, value: f64) -> f64 {
        value / self.size
    }
}
