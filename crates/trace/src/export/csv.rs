//! Tables as CSV (RFC 4180). A cell is empty where the document has `null`; times are in RFC 3339.

use std::io::{self, Write};

use super::document::Connection;
use super::table::{Column, ConnectionRows};

/// Writes a table of connections or of their parts.
pub(crate) struct CsvWriter<T: ConnectionRows, W: Write> {
    columns: Vec<Column<T>>,
    out: csv::Writer<W>,
}

impl<T: ConnectionRows, W: Write> CsvWriter<T, W> {
    /// Writes the heading.
    pub(crate) fn new(out: W) -> io::Result<Self> {
        let (columns, mut out) = (T::columns(), csv::Writer::from_writer(out));
        out.write_record(columns.iter().map(|column| &column.name))?;
        Ok(Self { columns, out })
    }

    pub(crate) fn write(&mut self, connection: &Connection) -> io::Result<()> {
        for row in T::rows(connection) {
            self.out.write_record(self.columns.iter().map(|column| column.value(&row).to_string()))?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> io::Result<W> {
        self.out.into_inner().map_err(|error| error.into_error())
    }
}
