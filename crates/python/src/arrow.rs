//! Tables of an analysis as Arrow record batches, which other libraries take without a copy by the Arrow C stream interface.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder, BooleanBuilder, Float64Builder, Int64Builder, StringBuilder, TimestampNanosecondBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int64Type, TimestampNanosecondType};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchIterator};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, TimeUnit};
use plait_trace::export::table::{self, Column, Kind, Value};
use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};

/// Rows in a record batch: about 10 MB of the widest table.
const BATCH_ROWS: usize = 16_384;

const DESCRIPTION: &str = "description";
const UTC: &str = "UTC";

/// Builds a table row by row.
pub(crate) struct TableBuilder<T: table::Table> {
    columns: Vec<Column<T>>,
    schema: SchemaRef,
    builders: Vec<Builder>,
    rows: usize,
    batches: Vec<RecordBatch>,
}

impl<T: table::Table> TableBuilder<T> {
    pub(crate) fn new() -> Self {
        let columns = T::columns();
        let fields: Vec<_> = columns.iter().map(field).collect();
        let metadata = HashMap::from([("plait_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let builders = columns.iter().map(|column| Builder::new(column.kind)).collect();
        Self { columns, schema, builders, rows: 0, batches: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: &T::Row<'_>) -> io::Result<()> {
        for (column, builder) in self.columns.iter().zip(&mut self.builders) {
            builder.append(column.value(row));
        }
        self.rows += 1;
        if self.rows == BATCH_ROWS { self.end_batch() } else { Ok(()) }
    }

    pub(crate) fn finish(mut self) -> io::Result<Table> {
        if self.rows > 0 {
            self.end_batch()?;
        }
        let Self { schema, batches, .. } = self;
        Ok(Table { name: T::NAME, schema, batches })
    }

    fn end_batch(&mut self) -> io::Result<()> {
        let arrays = self.builders.iter_mut().map(Builder::finish).collect();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays).map_err(io::Error::other)?;
        self.batches.push(batch);
        self.rows = 0;
        Ok(())
    }
}

fn field<T: table::Table>(column: &Column<T>) -> Field {
    let kind = match column.kind {
        Kind::Boolean => DataType::Boolean,
        Kind::Integer => DataType::Int64,
        Kind::Real => DataType::Float64,
        Kind::Text => DataType::Utf8,
        Kind::Time => DataType::Timestamp(TimeUnit::Nanosecond, Some(UTC.into())),
    };
    let metadata = HashMap::from([(DESCRIPTION.to_owned(), column.description.to_owned())]);
    Field::new(&column.name, kind, column.nullable).with_metadata(metadata)
}

enum Builder {
    Boolean(BooleanBuilder),
    Integer(Int64Builder),
    Real(Float64Builder),
    Text(StringBuilder),
    Time(TimestampNanosecondBuilder),
}

impl Builder {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Boolean => Self::Boolean(BooleanBuilder::new()),
            Kind::Integer => Self::Integer(Int64Builder::new()),
            Kind::Real => Self::Real(Float64Builder::new()),
            Kind::Text => Self::Text(StringBuilder::new()),
            Kind::Time => Self::Time(TimestampNanosecondBuilder::new().with_timezone(UTC)),
        }
    }

    /// Appends a value of the builder's type, and null for others: a column has one type.
    fn append(&mut self, value: Value) {
        match (self, value) {
            (Self::Boolean(to), Value::Boolean(value)) => to.append_value(value),
            (Self::Integer(to), Value::Integer(value)) => to.append_value(value),
            (Self::Real(to), Value::Real(value)) => to.append_value(value),
            (Self::Text(to), Value::Text(value)) => to.append_value(value),
            (Self::Time(to), Value::Time(value)) => to.append_value(value),
            (Self::Boolean(to), _) => to.append_null(),
            (Self::Integer(to), _) => to.append_null(),
            (Self::Real(to), _) => to.append_null(),
            (Self::Text(to), _) => to.append_null(),
            (Self::Time(to), _) => to.append_null(),
        }
    }

    fn finish(&mut self) -> ArrayRef {
        match self {
            Self::Boolean(builder) => ArrayBuilder::finish(builder),
            Self::Integer(builder) => ArrayBuilder::finish(builder),
            Self::Real(builder) => ArrayBuilder::finish(builder),
            Self::Text(builder) => ArrayBuilder::finish(builder),
            Self::Time(builder) => ArrayBuilder::finish(builder),
        }
    }
}

/// A table. The consumers of its Arrow C streams share its memory.
#[pyclass(frozen, module = "plait._plait")]
pub(crate) struct Table {
    name: &'static str,
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

#[pymethods]
impl Table {
    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.schema.as_ref()).map_err(runtime_error)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The interface permits a producer to ignore the schema that a consumer requests.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        // Cloning a batch shares its memory.
        let batches = self.batches.clone().into_iter().map(Ok);
        let reader = RecordBatchIterator::new(batches, Arc::clone(&self.schema));
        let stream = FFI_ArrowArrayStream::new(Box::new(reader));
        PyCapsule::new_with_value(py, stream, c"arrow_array_stream")
    }

    #[getter]
    fn name(&self) -> &'static str {
        self.name
    }

    /// Name, type, whether values may be missing, and description of each column.
    fn columns(&self) -> Vec<(String, String, bool, String)> {
        let fields = self.schema.fields().iter();
        let column = |field: &Arc<Field>| {
            let kind = match field.data_type() {
                DataType::Boolean => "bool",
                DataType::Int64 => "int64",
                DataType::Float64 => "float64",
                DataType::Utf8 => "text",
                _ => "timestamp[ns, UTC]",
            };
            let description = field.metadata().get(DESCRIPTION).cloned().unwrap_or_default();
            (field.name().clone(), kind.to_owned(), field.is_nullable(), description)
        };
        fields.map(column).collect()
    }

    /// The first rows; times as nanoseconds since 1970.
    fn head<'py>(&self, py: Python<'py>, count: usize) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let rows = self.batches.iter().flat_map(|batch| (0..batch.num_rows()).map(move |row| (batch, row)));
        let rows = rows.take(count).map(|(batch, row)| {
            let cells = batch.columns().iter().map(|array| cell(py, array, row));
            PyTuple::new(py, cells.collect::<PyResult<Vec<_>>>()?)
        });
        rows.collect()
    }
}

fn cell<'py>(py: Python<'py>, array: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    if array.is_null(row) {
        return Ok(py.None().into_bound(py));
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into_bound_py_any(py),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into_bound_py_any(py),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(row).into_bound_py_any(py),
        DataType::Utf8 => array.as_string::<i32>().value(row).into_bound_py_any(py),
        _ => array.as_primitive::<TimestampNanosecondType>().value(row).into_bound_py_any(py),
    }
}

fn runtime_error(error: ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
