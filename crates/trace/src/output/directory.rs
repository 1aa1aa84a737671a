use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::series::SeriesFile;
use super::tables::{ConnectionTable, SubflowTable};
use super::whole_file::named;
use super::{Json, Output, WholeFile};
use crate::{Interval, Report, document};

/// The directory of an analysis: `analysis.json`, `connections.csv`, `subflows.csv`, `series.parquet`, `report.html`, and
/// the report's plots as SVG and PNG in `plots`.
///
/// All files appear when all are whole, `analysis.json` as the last: where it is, the others are of the same analysis.
/// Until then, or where it does not come to that, the files of an earlier analysis stay as they were.
pub struct Directory {
    path: PathBuf,
    json: Json<WholeFile>,
    connections: ConnectionTable<WholeFile>,
    subflows: SubflowTable<WholeFile>,
    series: SeriesFile<WholeFile>,
    report: Report,
    /// Locked while this lives, against a second writer of the same directory.
    _lock: File,
}

const DOCUMENT: &str = "analysis.json";
const PLOTS: &str = "plots";

impl Directory {
    /// A directory, made if it is not there, for an analysis of these captures with intervals of this length.
    ///
    /// # Errors
    /// The directory or a file in it cannot be written, or another analysis is writing there; the error says which.
    pub fn create(path: &Path, captures: Vec<String>, interval: Duration) -> io::Result<Self> {
        fs::create_dir_all(path).map_err(|error| named(error, path))?;
        let lock = File::open(path).map_err(|error| named(error, path))?;
        // Where a file system knows no locks, there is none.
        if let Err(TryLockError::WouldBlock) = lock.try_lock() {
            let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another analysis is writing there");
            return Err(named(busy, path));
        }
        let file = |name| WholeFile::create(path.join(name));
        Ok(Self {
            json: Json::new(file(DOCUMENT)?),
            connections: ConnectionTable::new(file("connections.csv")?)?,
            subflows: SubflowTable::new(file("subflows.csv")?)?,
            series: SeriesFile::new(file("series.parquet")?, interval)?,
            report: Report::new(captures, interval),
            path: path.to_owned(),
            _lock: lock,
        })
    }
}

impl Output for Directory {
    fn intervals(&self) -> bool {
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
        let mut report = WholeFile::create(self.path.join("report.html"))?;
        self.report.write_html(totals, &mut report)?;
        let mut files = write_plots(&self.report, &self.path.join(PLOTS))?;
        files.extend([self.connections.finish()?, self.subflows.finish()?, self.series.finish()?, report]);
        files.push(self.json.end(totals)?);
        files.iter_mut().try_for_each(WholeFile::complete)?;
        // An old document would claim the new files.
        match fs::remove_file(self.path.join(DOCUMENT)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(named(error, &self.path)),
            _ => remove_plots(&self.path.join(PLOTS))?,
        }
        files.into_iter().try_for_each(WholeFile::publish)
    }
}

/// Those of an earlier analysis: this one may have others.
fn remove_plots(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory).map_err(|error| named(error, directory))? {
        let path = entry?.path();
        let is_ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| {
            name.starts_with("connection-") && (name.ends_with(".svg") || name.ends_with(".png"))
        });
        if is_ours {
            fs::remove_file(&path).map_err(|error| named(error, &path))?;
        }
    }
    Ok(())
}

fn write_plots(report: &Report, directory: &Path) -> io::Result<Vec<WholeFile>> {
    fs::create_dir_all(directory).map_err(|error| named(error, directory))?;
    let mut files = Vec::new();
    for plot in report.plots() {
        for (ending, content) in [("svg", plot.svg.as_bytes()), ("png", &plot.png())] {
            let mut file = WholeFile::create(directory.join(format!("{}.{ending}", plot.name)))?;
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

    use super::super::sample;
    use super::*;

    const INTERVAL: Duration = Duration::from_millis(100);

    fn write(path: &Path, connections: u64, intervals: u64) {
        let mut directory = Directory::create(path, vec!["a".into()], INTERVAL).expect("writable");
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
    fn all_files_tell_of_the_same_connections() {
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
        assert_eq!(&rows[3][column("rtt_p95_ms_server_to_client")], "2");
        assert_eq!(&rows[3][column("rtt_p95_ms_client_to_server")], "");

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
            let found = row.get_long(column("position_end")).is_ok();
            assert_eq!(found, row.get_long(column("bytes")).expect("a number") > 0);
        }
        let expected: u64 = (1..=intervals).map(|number| sample::interval(1, number).counts.bytes).sum();
        assert_eq!((rows, bytes), (2 * intervals, 2 * expected as i64));
    }

    #[test]
    fn an_analysis_that_does_not_end_leaves_what_was_there() {
        let directory = tempfile::tempdir().expect("a directory");
        write(directory.path(), 1, 1);
        let before = names(directory.path());
        let document = fs::read(directory.path().join(DOCUMENT)).expect("readable");
        let mut unfinished = Directory::create(directory.path(), Vec::new(), INTERVAL).expect("writable");
        unfinished.connection(&sample::connection(2)).expect("written");
        drop(unfinished);
        assert_eq!(names(directory.path()), before);
        assert_eq!(fs::read(directory.path().join(DOCUMENT)).expect("readable"), document);
    }

    #[test]
    fn only_one_writes_at_a_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = Directory::create(directory.path(), Vec::new(), INTERVAL).expect("writable");
        let error = Directory::create(directory.path(), Vec::new(), INTERVAL).err().expect("busy");
        assert!(error.to_string().contains("another analysis"), "{error}");
        drop(first);
        assert!(Directory::create(directory.path(), Vec::new(), INTERVAL).is_ok());
    }
}
