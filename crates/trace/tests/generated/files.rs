//! The files of an analysis agree with each other.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use parquet::file::reader::SerializedFileReader;
use parquet::record::{Row, RowAccessor};
use plait_trace::export::JsonWriter;
use plait_trace::{AnalyzeError, InputError, analyze};
use serde_json::Value;

use crate::transfer::{Script, transfer};

/// A transfer with losses and a failover, captured at both ends, and the captures in `PLAIT_CAPTURES` if that is set.
fn captures(directory: &Path) -> Vec<PathBuf> {
    let script =
        Script { lost: vec![(0, 50)], outages: vec![(1, 1500..4000)], end: 9000, ..Script::default() };
    let mut captures = Vec::new();
    for (index, file) in transfer(script).builder.files().iter().enumerate() {
        captures.push(directory.join(format!("{index}.pcap")));
        fs::write(&captures[index], file).expect("writable");
    }
    if let Some(directory) = std::env::var_os("PLAIT_CAPTURES") {
        let entries = fs::read_dir(directory).expect("PLAIT_CAPTURES is a directory");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        captures.extend(paths.filter(|path| path.to_string_lossy().contains(".pcap")));
    }
    captures
}

/// All, new, reinjected and retransmitted bytes, by connection, subflow and direction.
type Sums = HashMap<(i64, i64, String), [i64; 4]>;

fn sums_of_series(file: File) -> Sums {
    let reader = SerializedFileReader::new(file).expect("Parquet");
    let mut sums = Sums::new();
    for row in reader {
        let row: Row = row.expect("a row");
        let column = |name: &str| {
            row.get_column_iter().position(|(column, _)| column == name).expect("a column of this name")
        };
        let number = |name| row.get_long(column(name)).expect("a number");
        let direction = row.get_string(column("direction")).expect("text").clone();
        let sum = sums.entry((number("connection"), number("subflow"), direction)).or_default();
        let counted = ["bytes", "new_bytes", "reinjected_bytes", "retransmitted_bytes"].map(number);
        sum.iter_mut().zip(counted).for_each(|(sum, counted)| *sum += counted);
    }
    sums.retain(|_, counted| counted.iter().any(|count| *count > 0));
    sums
}

fn sums_of_document(document: &Value) -> Sums {
    let mut sums = Sums::new();
    for connection in document["connections"].as_array().expect("connections") {
        for (subflow, number) in connection["subflows"].as_array().expect("subflows").iter().zip(1..) {
            for (direction, sent) in subflow["directions"].as_object().expect("directions") {
                let key = (connection["id"].as_i64().expect("an id"), number, direction.clone());
                let counted = [
                    &sent["bytes"],
                    &sent["new_bytes"],
                    &sent["reinjected"]["bytes"],
                    &sent["retransmitted"]["bytes"],
                ];
                sums.insert(key, counted.map(|count| count.as_i64().expect("a number")));
            }
        }
    }
    sums.retain(|_, counted| counted.iter().any(|count| *count > 0));
    sums
}

#[test]
fn series_add_up_to_the_subflows() {
    let inputs = tempfile::tempdir().expect("a directory");
    let mut compared = 0;
    for capture in captures(inputs.path()) {
        let directory = tempfile::tempdir().expect("a directory");
        let mut document = Vec::new();
        let exporter = JsonWriter::new(&mut document);
        let interval = Duration::from_millis(7);
        let read = std::cell::Cell::new(0);
        let progress = |bytes| {
            read.set(read.get() + bytes);
            Ok(())
        };
        match analyze(std::slice::from_ref(&capture), Some(directory.path()), interval, exporter, &progress) {
            Ok(_) => {}
            Err(AnalyzeError::NoTcp(_)) => continue,
            Err(error) => panic!("{}: {error}", capture.display()),
        }
        assert_eq!(document, fs::read(directory.path().join("analysis.json")).expect("readable"));
        assert_eq!(read.get(), fs::metadata(&capture).expect("readable").len(), "{}", capture.display());
        let document = serde_json::from_slice(&document).expect("JSON");
        let series = File::open(directory.path().join("series.parquet")).expect("readable");
        assert_eq!(sums_of_series(series), sums_of_document(&document), "{}", capture.display());
        compared += 1;
    }
    assert!(compared >= 2);
}

#[test]
fn distinguishes_unusable_inputs() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("text");
    fs::write(&file, "no capture at all, only text").expect("writable");
    let error = |path: PathBuf| {
        analyze(&[path], None, Duration::from_millis(100), (), &|_| Ok(())).expect_err("no capture")
    };
    assert!(matches!(error(directory.path().join("missing")), AnalyzeError::Input(InputError::Open { .. })));
    assert!(matches!(error(file.clone()), AnalyzeError::Input(InputError::Capture { .. })));
    let stopped =
        analyze(&[file], None, Duration::from_millis(100), (), &|_| Err(std::io::Error::other("enough")));
    assert!(stopped.is_err());
}
