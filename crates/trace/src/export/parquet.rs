//! `series.parquet`: one row per interval, in row groups of bounded size.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use crate::interval::{Interval, RttSamples};

/// Rows in a row group, which is held in memory: about 10 MB with the encoders.
const ROW_GROUP: usize = 32_768;

/// Writes intervals, all of the same length.
pub(crate) struct SeriesFile<W: Write + Send> {
    out: SerializedFileWriter<W>,
    interval_s: f64,
    rows: Vec<Interval>,
}

impl<W: Write + Send> SeriesFile<W> {
    pub(crate) fn new(out: W, interval: Duration) -> io::Result<Self> {
        let fields = COLUMNS.iter().map(|(name, values)| values.field(name)).collect::<Result<_, _>>();
        let schema = fields.and_then(|fields| Type::group_type_builder("series").with_fields(fields).build());
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("plait version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let out = schema
            .and_then(|schema| SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties)))
            .map_err(io_error)?;
        Ok(Self { out, interval_s: interval.as_secs_f64(), rows: Vec::new() })
    }

    pub(crate) fn write(&mut self, interval: &Interval) -> io::Result<()> {
        self.rows.push(interval.clone());
        if self.rows.len() == ROW_GROUP { self.write_group().map_err(io_error) } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> io::Result<W> {
        if !self.rows.is_empty() {
            self.write_group().map_err(io_error)?;
        }
        self.out.into_inner().map_err(io_error)
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let rows = self.rows.iter().map(|interval| Row { interval, interval_s: self.interval_s });
        let mut group = self.out.next_row_group()?;
        for (_, values) in COLUMNS {
            let mut column = group.next_column()?.expect("a writer for each column of the schema");
            values.write(rows.clone(), &mut column)?;
            column.close()?;
        }
        group.close()?;
        self.rows.clear();
        Ok(())
    }
}

/// The error of the underlying file.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(source) => io::Error::other(source),
        },
        other => io::Error::other(other),
    }
}

struct Row<'a> {
    interval: &'a Interval,
    interval_s: f64,
}

impl Row<'_> {
    fn megabits_per_second(&self, bytes: u64) -> f64 {
        bytes as f64 * 8.0 / 1e6 / self.interval_s
    }

    fn rtt(&self, part: fn(&RttSamples) -> Duration) -> Option<f64> {
        let spread = self.interval.counts.rtt.as_ref()?;
        Some(part(spread).as_nanos() as f64 / 1e6)
    }
}

/// A column's type and values.
enum Values {
    Integer(fn(&Row) -> u64),
    OptionalInteger(fn(&Row) -> Option<i64>),
    Real(fn(&Row) -> f64),
    OptionalReal(fn(&Row) -> Option<f64>),
    Text(fn(&Row) -> &'static str),
    /// Nanoseconds since 1970-01-01 00:00:00 UTC.
    Time(fn(&Row) -> u64),
}

const COLUMNS: &[(&str, Values)] = &[
    ("connection", Values::Integer(|row| row.interval.connection)),
    ("subflow", Values::Integer(|row| row.interval.subflow as u64 + 1)),
    ("direction", Values::Text(|row| row.interval.direction.name())),
    ("time", Values::Time(|row| row.interval.start.0)),
    ("interval_s", Values::Real(|row| row.interval_s)),
    ("packets", Values::Integer(|row| row.interval.counts.packets)),
    ("bytes", Values::Integer(|row| row.interval.counts.bytes)),
    ("new_bytes", Values::Integer(|row| row.interval.counts.new)),
    ("reinjected_bytes", Values::Integer(|row| row.interval.counts.reinjected)),
    ("retransmitted_bytes", Values::Integer(|row| row.interval.counts.retransmitted)),
    ("throughput_mbps", Values::Real(|row| row.megabits_per_second(row.interval.counts.bytes))),
    ("goodput_mbps", Values::Real(|row| row.megabits_per_second(row.interval.counts.new))),
    ("rtt_samples", Values::Integer(|row| row.interval.counts.rtt.map_or(0, |spread| spread.count))),
    ("rtt_mean_ms", Values::OptionalReal(|row| row.rtt(RttSamples::mean))),
    ("rtt_min_ms", Values::OptionalReal(|row| row.rtt(|spread| spread.min))),
    ("rtt_max_ms", Values::OptionalReal(|row| row.rtt(|spread| spread.max))),
    ("jitter_ms", Values::OptionalReal(|row| Some(row.interval.counts.jitter?.as_nanos() as f64 / 1e6))),
    ("position_start", Values::OptionalInteger(|row| Some(row.interval.counts.positions.as_ref()?.start))),
    ("position_end", Values::OptionalInteger(|row| Some(row.interval.counts.positions.as_ref()?.end))),
    ("window", Values::OptionalInteger(|row| row.interval.counts.window.map(signed))),
];

/// Signed integers, which every Parquet reader knows; no count gets near the limit.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Values {
    fn field(&self, name: &str) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self {
            Self::Integer(_) | Self::OptionalInteger(_) => (PhysicalType::INT64, None),
            Self::Real(_) | Self::OptionalReal(_) => (PhysicalType::DOUBLE, None),
            Self::Text(_) => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
            Self::Time(_) => {
                let time = LogicalType::timestamp(true, TimeUnit::NANOS);
                (PhysicalType::INT64, Some(time))
            }
        };
        let repetition = match self {
            Self::OptionalInteger(_) | Self::OptionalReal(_) => Repetition::OPTIONAL,
            _ => Repetition::REQUIRED,
        };
        let field = Type::primitive_type_builder(name, physical).with_logical_type(logical);
        field.with_repetition(repetition).build().map(Arc::new)
    }

    fn write<'a>(
        &self,
        rows: impl Iterator<Item = Row<'a>>,
        column: &mut SerializedColumnWriter<'_>,
    ) -> Result<(), ParquetError> {
        match self {
            Self::Integer(value) | Self::Time(value) => {
                required::<Int64Type>(rows.map(|row| signed(value(&row))), column)
            }
            Self::Real(value) => required::<DoubleType>(rows.map(|row| value(&row)), column),
            Self::Text(value) => {
                required::<ByteArrayType>(rows.map(|row| ByteArray::from(value(&row))), column)
            }
            Self::OptionalInteger(value) => optional::<Int64Type>(rows.map(|row| value(&row)), column),
            Self::OptionalReal(value) => optional::<DoubleType>(rows.map(|row| value(&row)), column),
        }
    }
}

fn required<T: DataType>(
    values: impl Iterator<Item = T::T>,
    column: &mut SerializedColumnWriter<'_>,
) -> Result<(), ParquetError> {
    let values: Vec<_> = values.collect();
    column.typed::<T>().write_batch(&values, None, None)?;
    Ok(())
}

fn optional<T: DataType>(
    values: impl Iterator<Item = Option<T::T>>,
    column: &mut SerializedColumnWriter<'_>,
) -> Result<(), ParquetError> {
    let values: Vec<_> = values.collect();
    let present: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<_> = values.into_iter().flatten().collect();
    column.typed::<T>().write_batch(&values, Some(&present), None)?;
    Ok(())
}
