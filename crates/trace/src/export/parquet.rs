//! `series.parquet`: one row per interval, in row groups of bounded size.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as PhysicalType};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use super::table::{Column, IntervalRow, Kind, SeriesTable, Table, Value};
use crate::interval::Interval;

/// Rows in a row group, which is held in memory: about 10 MB with the encoders.
const ROW_GROUP: usize = 32_768;

/// Writes intervals, all of the same length.
pub(crate) struct SeriesFile<W: Write + Send> {
    columns: Vec<Column<SeriesTable>>,
    out: SerializedFileWriter<W>,
    length: Duration,
    rows: Vec<Interval>,
}

impl<W: Write + Send> SeriesFile<W> {
    pub(crate) fn new(out: W, interval: Duration) -> io::Result<Self> {
        let columns = SeriesTable::columns();
        let fields = columns.iter().map(field).collect::<Result<_, _>>();
        let schema =
            fields.and_then(|fields| Type::group_type_builder(SeriesTable::NAME).with_fields(fields).build());
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("plait version ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let out = schema
            .and_then(|schema| SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties)))
            .map_err(io_error)?;
        Ok(Self { columns, out, length: interval, rows: Vec::new() })
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
        let length = self.length;
        let rows = self.rows.iter().map(|interval| IntervalRow { interval, length });
        let mut group = self.out.next_row_group()?;
        for column in &self.columns {
            let mut out = group.next_column()?.expect("a writer for each column of the schema");
            write_column(column.kind, rows.clone().map(|row| column.value(&row)), &mut out)?;
            out.close()?;
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

fn field(column: &Column<SeriesTable>) -> Result<Arc<Type>, ParquetError> {
    let (physical, logical) = match column.kind {
        Kind::Boolean => (PhysicalType::BOOLEAN, None),
        Kind::Integer => (PhysicalType::INT64, None),
        Kind::Real => (PhysicalType::DOUBLE, None),
        Kind::Text => (PhysicalType::BYTE_ARRAY, Some(LogicalType::String)),
        Kind::Time => (PhysicalType::INT64, Some(LogicalType::timestamp(true, TimeUnit::NANOS))),
    };
    let repetition = if column.nullable { Repetition::OPTIONAL } else { Repetition::REQUIRED };
    let field = Type::primitive_type_builder(&column.name, physical).with_logical_type(logical);
    field.with_repetition(repetition).build().map(Arc::new)
}

fn write_column(
    kind: Kind,
    values: impl Iterator<Item = Value>,
    out: &mut SerializedColumnWriter<'_>,
) -> Result<(), ParquetError> {
    match kind {
        Kind::Boolean => write::<BoolType>(values, out, |value| match value {
            Value::Boolean(value) => Some(value),
            _ => None,
        }),
        Kind::Integer | Kind::Time => write::<Int64Type>(values, out, |value| match value {
            Value::Integer(value) | Value::Time(value) => Some(value),
            _ => None,
        }),
        Kind::Real => write::<DoubleType>(values, out, |value| match value {
            Value::Real(value) => Some(value),
            _ => None,
        }),
        Kind::Text => write::<ByteArrayType>(values, out, |value| match value {
            Value::Text(value) => Some(ByteArray::from(value.as_bytes().to_vec())),
            _ => None,
        }),
    }
}

/// Writes the values that there are. Columns that are not nullable ignore which these are.
fn write<T: DataType>(
    values: impl Iterator<Item = Value>,
    out: &mut SerializedColumnWriter<'_>,
    of: fn(Value) -> Option<T::T>,
) -> Result<(), ParquetError> {
    let values: Vec<_> = values.map(of).collect();
    let present: Vec<i16> = values.iter().map(|value| i16::from(value.is_some())).collect();
    let values: Vec<_> = values.into_iter().flatten().collect();
    out.typed::<T>().write_batch(&values, Some(&present), None)?;
    Ok(())
}
