//! The report of an analysis, for people: one HTML page that needs no network, and plots for papers and slides.
//!
//! A [`Report`] collects what an analysis hands over, in bounded memory: it keeps the connections that matter most and
//! makes the intervals of series longer instead of keeping more of them. Its page therefore has a fixed size at most,
//! however long the captures; the files beside it have everything.

mod page;
mod plots;
mod tracks;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, Write};
use std::time::Duration;

use crate::{Interval, document};

pub use plait_chart::Plot;
use tracks::Tracks;

/// How many connections are kept when they have ended.
const CONNECTIONS: usize = 50;
/// How many subflows, events and failovers of a connection are kept.
const PARTS: usize = 250;
/// How many points all series together may have: about 10 MB.
const POINTS: usize = 100_000;
/// Where making room stops, even if series still have more than [`POINTS`].
const FEWEST_POINTS_PER_SERIES: usize = 4;

/// Collects what captures say, to show it to people.
#[derive(Debug)]
pub struct Report {
    captures: Vec<String>,
    interval: Duration,
    live: HashMap<u64, Tracks>,
    kept: Vec<Kept>,
    left_out: LeftOut,
    points: usize,
    points_allowed: usize,
}

/// A connection that has ended.
#[derive(Debug)]
struct Kept {
    connection: document::Connection,
    tracks: Tracks,
    cut: Cut,
}

/// Parts of a connection beyond [`PARTS`].
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct Cut {
    subflows: usize,
    events: usize,
    failovers: usize,
}

/// Connections that are not kept.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
struct LeftOut {
    connections: u64,
    bytes: u64,
}

impl Report {
    /// A report of captures, given by their names for people. `interval` is the length of the intervals that it will
    /// be given: [`ReadOptions::interval`](crate::ReadOptions::interval).
    pub fn new(captures: Vec<String>, interval: Duration) -> Self {
        Self {
            captures,
            interval,
            live: HashMap::new(),
            kept: Vec::new(),
            left_out: LeftOut::default(),
            points: 0,
            points_allowed: POINTS,
        }
    }

    /// Takes note of an interval, before its connection.
    pub fn interval(&mut self, interval: &Interval) {
        if interval.subflow >= PARTS {
            return;
        }
        let length = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        let tracks = self.live.entry(interval.connection).or_default();
        let before = tracks.points();
        tracks.add(interval, length);
        self.points = self.points + tracks.points() - before;
        if self.points > self.points_allowed {
            self.make_room();
        }
    }

    /// Takes note of a connection that has ended.
    ///
    /// The most important ones are kept: MPTCP before plain TCP, then those that carried most.
    pub fn connection(&mut self, connection: &document::Connection) {
        let tracks = self.live.remove(&connection.id).unwrap_or_default();
        self.points -= tracks.points();
        if self.kept.len() == CONNECTIONS {
            let least = self.kept.iter().enumerate().min_by_key(|(_, kept)| importance(&kept.connection));
            let Some((least, kept)) = least else { return };
            if importance(&kept.connection) >= importance(connection) {
                self.left_out.count(connection);
                return;
            }
            let kept = self.kept.swap_remove(least);
            self.points -= kept.tracks.points();
            self.left_out.count(&kept.connection);
        }
        self.points += tracks.points();
        self.kept.push(Kept::of(connection, tracks));
    }

    /// Writes the page: all of it, with style, program and data.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_html(&self, totals: &document::Totals, out: &mut impl Write) -> io::Result<()> {
        page::write(self, totals, out)
    }

    /// Plots of the most important connections, of the direction that carried more.
    pub fn plots(&self) -> Vec<Plot> {
        plots::of(&self.by_importance(), self.interval)
    }

    fn by_importance(&self) -> Vec<&Kept> {
        let mut kept: Vec<_> = self.kept.iter().collect();
        kept.sort_by_key(|kept| Reverse(importance(&kept.connection)));
        kept
    }

    fn make_room(&mut self) {
        let mut most = POINTS;
        while self.points > POINTS / 2 && most > FEWEST_POINTS_PER_SERIES {
            most /= 2;
            let kept = self.kept.iter_mut().map(|kept| &mut kept.tracks);
            for tracks in self.live.values_mut().chain(kept) {
                let before = tracks.points();
                while tracks.longest() > most {
                    tracks.coarsen();
                }
                self.points = self.points + tracks.points() - before;
            }
        }
        // Where very many connections live, there is no more room to make until there are many more.
        self.points_allowed = POINTS.max(self.points + self.points / 4);
    }
}

/// Ids count from the first connection seen.
fn importance(connection: &document::Connection) -> (bool, u64, Reverse<u64>) {
    (connection.version.is_some(), carried(connection), Reverse(connection.id))
}

fn carried(connection: &document::Connection) -> u64 {
    connection.bytes.client_to_server + connection.bytes.server_to_client
}

impl Kept {
    fn of(connection: &document::Connection, tracks: Tracks) -> Self {
        let mut connection = connection.clone();
        let cut = Cut {
            subflows: cut(&mut connection.subflows),
            events: cut(&mut connection.events),
            failovers: cut(&mut connection.failovers),
        };
        Self { connection, tracks, cut }
    }
}

/// Shortens what is too long for a page, and says by how much.
fn cut<T>(parts: &mut Vec<T>) -> usize {
    let cut = parts.len().saturating_sub(PARTS);
    parts.truncate(PARTS);
    parts.shrink_to_fit();
    cut
}

impl LeftOut {
    fn count(&mut self, connection: &document::Connection) {
        self.connections += 1;
        self.bytes += carried(connection);
    }
}

#[cfg(test)]
mod tests;
