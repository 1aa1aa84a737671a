//! The output directory of an analysis, whose files appear together.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use plait_config::{AtomicFile, with_path};

use crate::export::csv::CsvWriter;
use crate::export::parquet::SeriesFile;
use crate::export::table::{ConnectionTable, SubflowTable};
use crate::export::{Exporter, JsonWriter, document};
use crate::interval::Interval;
use crate::report::Report;

/// The output directory of an analysis: `analysis.json`, `connections.csv`, `subflows.csv`, `series.parquet`,
/// `report.html`, and plots as SVG and PNG in `plots`.
///
/// All files appear when all are complete, `analysis.json` last: if it exists, the others belong to the same analysis. Until
/// then, or if the analysis fails, the files of an earlier analysis stay unchanged.
pub(super) struct OutputDirectory {
    path: PathBuf,
    json: JsonWriter<AtomicFile>,
    connections: CsvWriter<ConnectionTable, AtomicFile>,
    subflows: CsvWriter<SubflowTable, AtomicFile>,
    series: SeriesFile<AtomicFile>,
    report: Report,
    /// Locked against a second writer of the same directory.
    _lock: File,
}

const DOCUMENT: &str = "analysis.json";
const PLOTS: &str = "plots";

impl OutputDirectory {
    /// Creates the directory if necessary, for an analysis of these captures with intervals of this length.
    ///
    /// # Errors
    /// The directory or a file in it cannot be written, or another analysis is writing there.
    pub(super) fn create(path: &Path, captures: Vec<String>, interval: Duration) -> io::Result<Self> {
        fs::create_dir_all(path).map_err(|error| with_path(error, path))?;
        let lock = File::open(path).map_err(|error| with_path(error, path))?;
        // Some file systems have no locks.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another analysis is writing there");
            return Err(with_path(busy, path));
        }
        let file = |name| AtomicFile::create(path.join(name));
        Ok(Self {
            json: JsonWriter::new(file(DOCUMENT)?),
            connections: CsvWriter::new(file("connections.csv")?)?,
            subflows: CsvWriter::new(file("subflows.csv")?)?,
            series: SeriesFile::new(file("series.parquet")?, interval)?,
            report: Report::new(captures, interval),
            path: path.to_owned(),
            _lock: lock,
        })
    }
}

impl Exporter for OutputDirectory {
    fn wants_intervals(&self) -> bool {
        true
    }

    fn interval(&mut self, interval: &Interval) -> io::Result<()> {
        self.report.interval(interval);
        self.series.write(interval)
    }

    fn connection(&mut self, connection: &document::Connection) -> io::Result<()> {
        self.report.connection(connection);
        self.json.connection(connection)?;
        self.connections.write(connection)?;
        self.subflows.write(connection)
    }

    fn finish(self, totals: &document::Totals) -> io::Result<()> {
        let mut report = AtomicFile::create(self.path.join("report.html"))?;
        self.report.write_html(totals, &mut report)?;
        let mut files = write_plots(&self.report, &self.path.join(PLOTS))?;
        files.extend([self.connections.finish()?, self.subflows.finish()?, self.series.finish()?, report]);
        files.push(self.json.into_inner(totals)?);
        files.iter_mut().try_for_each(AtomicFile::complete)?;
        // An old document must not claim the new files.
        match fs::remove_file(self.path.join(DOCUMENT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(with_path(error, &self.path));
            }
            _ => remove_plots(&self.path.join(PLOTS))?,
        }
        files.into_iter().try_for_each(AtomicFile::publish)
    }
}

/// Removes the plots of an earlier analysis.
fn remove_plots(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory).map_err(|error| with_path(error, directory))? {
        let path = entry?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            name.starts_with("connection-") && (name.ends_with(".svg") || name.ends_with(".png"))
        });
        if is_ours {
            fs::remove_file(&path).map_err(|error| with_path(error, &path))?;
        }
    }
    Ok(())
}

fn write_plots(report: &Report, directory: &Path) -> io::Result<Vec<AtomicFile>> {
    fs::create_dir_all(directory).map_err(|error| with_path(error, directory))?;
    let mut files = Vec::new();
    for plot in report.plots() {
        for (ending, content) in [("svg", plot.svg.as_bytes()), ("png", plot.png.as_slice())] {
            let mut file = AtomicFile::create(directory.join(format!("{}.{ending}", plot.name)))?;
            file.write_all(content)?;
            files.push(file);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;
    use serde_json::Value;

    use super::*;
    use crate::export::sample;

    const INTERVAL: Duration = Duration::from_millis(100);

    fn write(path: &Path, connections: u64, intervals: u64) {
        let mut directory = OutputDirectory::create(path, vec!["a".into()], INTERVAL).expect("writable");
        for id in 1..=connections {
            (1..=intervals)
                .try_for_each(|number| directory.interval(&sample::interval(id, number)))
                .expect("written");
            directory.connection(&sample::connection(id)).expect("written");
        }
        directory.finish(&document::Totals::default()).expect("written");
    }

    fn names(path: &Path) -> BTreeSet<String> {
        let entries = fs::read_dir(path).expect("readable");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
    }

    fn table(path: &Path) -> (csv::StringRecord, Vec<csv::StringRecord>) {
        let mut reader = csv::Reader::from_path(path).expect("readable");
        let rows = reader.records().collect::<Result<_, _>>().expect("rows of as many cells as the heading");
        (reader.headers().expect("a heading").clone(), rows)
    }

    #[test]
    fn all_files_contain_the_same_connections() {
        let directory = tempfile::tempdir().expect("a directory");
        // More than one row group.
        let intervals = 17_000;
        write(directory.path(), 2, intervals);
        let text = fs::read(directory.path().join(DOCUMENT)).expect("readable");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(document["connections"].as_array().expect("a list").len(), 2);

        let (heading, rows) = table(&directory.path().join("connections.csv"));
        let column = |name| heading.iter().position(|it| it == name).expect("a column");
        assert_eq!(rows.len(), 2);
        assert_eq!(&rows[1][column("fallback")], sample::QUOTED);
        assert_eq!(&rows[1][column("token_server")], "");
        assert_eq!(&rows[1][column("bytes_server_to_client")], "2000");

        let (heading, rows) = table(&directory.path().join("subflows.csv"));
        let column = |name| heading.iter().position(|it| it == name).expect("a column");
        assert_eq!(heading.iter().collect::<BTreeSet<_>>().len(), heading.len());
        assert_eq!(rows.len(), 4);
        assert_eq!(&rows[3][column("subflow")], "2");
        assert_eq!(&rows[3][column("retransmitted_bytes_client_to_server")], "100");
        assert_eq!(&rows[3][column("rtt_p95_s_server_to_client")], "0.002");
        assert_eq!(&rows[3][column("rtt_p95_s_client_to_server")], "");

        let file = File::open(directory.path().join("series.parquet")).expect("readable");
        let reader = SerializedFileReader::new(file).expect("Parquet");
        assert!(reader.num_row_groups() > 1);
        let column = |name: &str| {
            let fields = reader.metadata().file_metadata().schema_descr().columns();
            fields.iter().position(|field| field.name() == name).expect("a column")
        };
        let (mut rows, mut bytes) = (0, 0);
        for row in reader.get_row_iter(None).expect("rows") {
            let row = row.expect("a row");
            rows += 1;
            bytes += row.get_long(column("bytes")).expect("a number");
            assert_eq!(row.get_string(column("direction")).expect("text"), "client_to_server");
            let found = row.get_long(column("position_end_bytes")).is_ok();
            assert_eq!(found, row.get_long(column("bytes")).expect("a number") > 0);
        }
        let expected: u64 = (1..=intervals).map(|number| sample::interval(1, number).counts.bytes).sum();
        assert_eq!((rows, bytes), (2 * intervals, 2 * expected as i64));
    }

    #[test]
    fn unfinished_analysis_keeps_earlier_files() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), 1, 1);
        let before = names(directory.path());
        let document = fs::read(directory.path().join(DOCUMENT)).expect("readable");
        let mut unfinished =
            OutputDirectory::create(directory.path(), Vec::new(), INTERVAL).expect("writable");
        unfinished.connection(&sample::connection(2)).expect("written");
        drop(unfinished);
        assert_eq!(names(directory.path()), before);
        assert_eq!(fs::read(directory.path().join(DOCUMENT)).expect("readable"), document);
    }

    #[test]
    fn rejects_a_second_writer() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = OutputDirectory::create(directory.path(), Vec::new(), INTERVAL).expect("writable");
        let error = OutputDirectory::create(directory.path(), Vec::new(), INTERVAL).err().expect("busy");
        assert!(error.to_string().contains("another analysis"), "{error}");
        drop(first);
        assert!(OutputDirectory::create(directory.path(), Vec::new(), INTERVAL).is_ok());
    }
}
