//! The tables of an analysis: what their columns are called, mean and contain.
//!
//! One definition serves every format (CSV, Parquet, Arrow) and docs/reference/tables.md. A name ends in the unit, if it has
//! one: `_s` (seconds), `_bytes`, `_bps` (bits per second). Times are of one type, nanoseconds since 1970 in UTC. Columns that
//! exist for each direction end in its name.

mod connections;
mod events;
mod failovers;
mod series;
mod subflows;

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use plait_wire::capture::Timestamp;

use super::document::{Connection, PerDirection, Time};
use crate::direction::Direction;

pub use connections::ConnectionTable;
pub use events::EventTable;
pub use failovers::FailoverTable;
pub use series::{IntervalRow, SeriesTable};
pub use subflows::SubflowTable;

/// A table: what a row is, and its columns.
pub trait Table: Sized + 'static {
    /// Its name in files and APIs.
    const NAME: &'static str;
    /// What a row is.
    const ROW: &'static str;
    /// The data of a row.
    type Row<'a>;

    /// Its columns, in order.
    fn columns() -> Vec<Column<Self>>;
}

/// A table whose rows a connection has.
pub trait ConnectionRows: Table {
    /// The rows of a connection.
    fn rows(connection: &Connection) -> impl Iterator<Item = Self::Row<'_>>;
}

/// What a column contains, and how it is computed from the data of a row.
pub struct Column<T: Table> {
    /// Its name, with its unit.
    pub name: String,
    /// The type of its values.
    pub kind: Kind,
    /// Whether values may be missing.
    pub nullable: bool,
    /// What it means, and when it is missing.
    pub description: &'static str,
    value: Box<Function<T>>,
}

type Function<T> = dyn Fn(&<T as Table>::Row<'_>) -> Value + Send + Sync;

impl<T: Table> Column<T> {
    fn new<C: Cell>(
        name: impl Into<String>,
        description: &'static str,
        value: impl Fn(&T::Row<'_>) -> C + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            kind: C::KIND,
            nullable: C::NULLABLE,
            description,
            value: Box::new(move |row| value(row).into_value()),
        }
    }

    /// The value in a row; [`Value::Null`] only if the column is [nullable](Self::nullable).
    pub fn value(&self, row: &T::Row<'_>) -> Value {
        (self.value)(row)
    }
}

impl<T: Table> fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Column").field("name", &self.name).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// The type of a column's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// True or false.
    Boolean,
    /// A signed 64-bit integer, which every reader knows.
    Integer,
    /// A 64-bit floating point number.
    Real,
    /// UTF-8.
    Text,
    /// Nanoseconds since 1970-01-01 00:00:00 UTC.
    Time,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "as in `Kind`")]
pub enum Value {
    Null,
    Boolean(bool),
    Integer(i64),
    Real(f64),
    Text(Cow<'static, str>),
    Time(i64),
}

/// As in CSV: nothing for null, RFC 3339 with nanoseconds for times.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Boolean(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Real(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
            Self::Time(nanoseconds) => write_rfc3339(*nanoseconds, f),
        }
    }
}

fn write_rfc3339(nanoseconds: i64, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (seconds, fraction) = (nanoseconds.div_euclid(1_000_000_000), nanoseconds.rem_euclid(1_000_000_000));
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil_date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

/// Year, month and day of a number of days since 1970-01-01, by Howard Hinnant's `civil_from_days`.
fn civil_date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Counted from March.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A type whose values a column can contain.
trait Cell {
    const KIND: Kind;
    const NULLABLE: bool = false;
    fn into_value(self) -> Value;
}

impl<C: Cell> Cell for Option<C> {
    const KIND: Kind = C::KIND;
    const NULLABLE: bool = true;

    fn into_value(self) -> Value {
        self.map_or(Value::Null, C::into_value)
    }
}

macro_rules! cells {
    ($($type:ty => $kind:ident: $value:expr;)*) => {$(
        impl Cell for $type {
            const KIND: Kind = Kind::$kind;

            fn into_value(self) -> Value {
                let value: fn($type) -> _ = $value;
                Value::$kind(value(self))
            }
        }
    )*};
}

cells! {
    bool => Boolean: |value| value;
    u8 => Integer: i64::from;
    u16 => Integer: i64::from;
    i64 => Integer: |value| value;
    u64 => Integer: signed;
    usize => Integer: |value| signed(value as u64);
    f64 => Real: |value| value;
    &'static str => Text: Cow::Borrowed;
    String => Text: Cow::Owned;
    IpAddr => Text: |value| value.to_string().into();
    Direction => Text: |value| value.name().into();
    Time => Time: |value| signed(value.0.0);
    Timestamp => Time: |value| signed(value.0);
}

/// No count or time gets near the limit.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// A column for each direction, named after it.
fn per_direction<T: Table, C: Cell>(
    name: &'static str,
    description: &'static str,
    value: impl Fn(&T::Row<'_>, Direction) -> C + Copy + Send + Sync + 'static,
) -> PerDirection<Column<T>> {
    PerDirection::from_fn(|direction| {
        Column::new(format!("{name}_{}", direction.name()), description, move |row| value(row, direction))
    })
}

/// Columns per direction, those of each direction together.
fn by_direction<T: Table>(columns: Vec<PerDirection<Column<T>>>) -> impl Iterator<Item = Column<T>> {
    let (forward, reverse): (Vec<_>, Vec<_>) =
        columns.into_iter().map(|each| (each.client_to_server, each.server_to_client)).unzip();
    forward.into_iter().chain(reverse)
}

#[cfg(test)]
mod tests;
