//! The report of an analysis for people: one HTML page that needs no network, and plots for papers and slides.
//!
//! A [`Report`] collects results in bounded memory: it keeps the most important connections, and makes the intervals of
//! series longer instead of keeping more of them. The size of the page is bounded, however long the captures; the other
//! files of an analysis are complete.

mod connection_plots;
mod page;
mod reported_connection;
mod series;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use crate::export::document::{Connection, Totals};
use crate::interval::Interval;
use crate::plot::Plot;
use page::Page;
use reported_connection::{MAX_PARTS, OmittedConnections, ReportedConnection, importance};
use series::ConnectionSeries;

pub use page::{STYLE, TEXT_SCRIPT, UPLOT_SCRIPT, UPLOT_STYLE};

/// Maximum number of connections in the report.
const MAX_CONNECTIONS: usize = 50;
/// Maximum number of points of all series together: about 10 MB.
const MAX_POINTS: usize = 100_000;
/// Series are not made shorter than this, even if there are more than [`MAX_POINTS`].
const MIN_POINTS_PER_SERIES: usize = 4;

/// Collects the results of an analysis for people.
#[derive(Debug)]
pub struct Report {
    captures: Vec<String>,
    interval: Duration,
    live: HashMap<u64, ConnectionSeries>,
    ended: Vec<ReportedConnection>,
    omitted: OmittedConnections,
    points: usize,
    max_points: usize,
}

impl Report {
    /// A report on captures with these names. `interval` is the length of the intervals that it will receive:
    /// [`ReadOptions::interval`](crate::ReadOptions::interval).
    pub fn new(captures: Vec<String>, interval: Duration) -> Self {
        Self {
            captures,
            interval,
            live: HashMap::new(),
            ended: Vec::new(),
            omitted: OmittedConnections::default(),
            points: 0,
            max_points: MAX_POINTS,
        }
    }

    /// Adds an interval, before its connection.
    pub fn interval(&mut self, interval: &Interval) {
        if interval.subflow >= MAX_PARTS {
            return;
        }
        let length = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let series = self.live.entry(interval.connection).or_default();
        let before = series.points();
        series.add(interval, length);
        self.points = self.points + series.points() - before;
        if self.points > self.max_points {
            self.reduce_points();
        }
    }

    /// Adds a connection that has ended.
    ///
    /// The most important ones are kept: MPTCP before plain TCP, then those that carried most.
    pub fn connection(&mut self, connection: &Connection) {
        let series = self.live.remove(&connection.id).unwrap_or_default();
        self.points -= series.points();
        if self.ended.len() == MAX_CONNECTIONS {
            let least = self.ended.iter().enumerate().min_by_key(|(_, ended)| importance(&ended.connection));
            let Some((index, least)) = least else { return };
            if importance(&least.connection) >= importance(connection) {
                self.omitted.count(connection);
                return;
            }
            let least = self.ended.swap_remove(index);
            self.points -= least.series.points();
            self.omitted.count(&least.connection);
        }
        self.points += series.points();
        self.ended.push(ReportedConnection::new(connection, series));
    }

    /// Writes the page with style, program and data.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_html(&self, totals: &Totals, out: &mut impl Write) -> io::Result<()> {
        let Self { captures, interval, omitted, .. } = self;
        let interval_s = interval.as_secs_f64();
        Page { captures, interval_s, totals, omitted: *omitted, connections: self.by_importance() }.write(out)
    }

    /// Plots of the most important connections, in the direction that carried more.
    pub fn plots(&self) -> Vec<Plot> {
        connection_plots::draw(&self.by_importance(), self.interval)
    }

    fn by_importance(&self) -> Vec<&ReportedConnection> {
        let mut connections: Vec<_> = self.ended.iter().collect();
        connections.sort_by_key(|ended| Reverse(importance(&ended.connection)));
        connections
    }

    fn reduce_points(&mut self) {
        let mut longest = MAX_POINTS;
        while self.points > MAX_POINTS / 2 && longest > MIN_POINTS_PER_SERIES {
            longest /= 2;
            let ended = self.ended.iter_mut().map(|ended| &mut ended.series);
            for series in self.live.values_mut().chain(ended) {
                let before = series.points();
                while series.longest() > longest {
                    series.coarsen();
                }
                self.points = self.points + series.points() - before;
            }
        }
        // With very many live connections, coarsen again only when there are many more points.
        self.max_points = MAX_POINTS.max(self.points + self.points / 4);
    }
}

#[cfg(test)]
mod tests;
