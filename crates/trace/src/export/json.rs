//! Writes the JSON document of an analysis.

use std::io::{self, Write};

use plait_config::SCHEMA_VERSION;

use super::document;
use super::exporter::Exporter;

/// Writes the document of `plait analyze --json`, one line per connection in the order in which they ended. Nothing is
/// written before the first connection, or the end.
#[derive(Debug)]
pub struct JsonWriter<W: Write> {
    out: W,
    connections: u64,
}

impl<W: Write> JsonWriter<W> {
    /// Writes to `out`, in small pieces.
    pub fn new(out: W) -> Self {
        Self { out, connections: 0 }
    }

    fn begin(&mut self) -> io::Result<()> {
        write!(self.out, r#"{{"schema_version":{SCHEMA_VERSION},"connections":["#)
    }

    /// Ends the document and returns the writer.
    ///
    /// # Errors
    /// Writing fails.
    pub(crate) fn into_inner(mut self, totals: &document::Totals) -> io::Result<W> {
        match self.connections {
            0 => self.begin()?,
            _ => self.out.write_all(b"\n")?,
        }
        let totals = serde_json::to_string(totals)?;
        // The members of this object, which is never empty, follow the connections.
        writeln!(self.out, "],\n{}", &totals[1..])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

impl<W: Write> Exporter for JsonWriter<W> {
    fn connection(&mut self, connection: &document::Connection) -> io::Result<()> {
        match self.connections {
            0 => self.begin().and_then(|()| self.out.write_all(b"\n"))?,
            _ => self.out.write_all(b",\n")?,
        }
        self.connections += 1;
        Ok(serde_json::to_writer(&mut self.out, connection)?)
    }

    fn finish(self, totals: &document::Totals) -> io::Result<()> {
        self.into_inner(totals).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::sample;
    use super::*;

    fn document(connections: u64) -> Value {
        let mut text = Vec::new();
        let mut writer = JsonWriter::new(&mut text);
        for id in 1..=connections {
            writer.connection(&sample::connection(id)).expect("written");
        }
        writer.finish(&document::Totals { packets: 7, ..Default::default() }).expect("written");
        serde_json::from_slice(&text).expect("JSON")
    }

    #[test]
    fn writes_any_number_of_connections() {
        for connections in 0..=3 {
            let document = self::document(connections);
            let ids: Vec<_> = (1..=connections).map(|id| json!(id)).collect();
            let found: Vec<_> = document["connections"].as_array().expect("a list").iter().collect();
            assert_eq!(found.into_iter().map(|it| it["id"].clone()).collect::<Vec<_>>(), ids);
            assert_eq!(document["packets"], 7);
            assert_eq!(document["schema_version"], SCHEMA_VERSION);
            assert_eq!(document["skipped"]["not_ip"], 0);
        }
    }
}
