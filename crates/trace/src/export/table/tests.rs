use std::collections::HashSet;
use std::fmt::Write;

use super::*;
use crate::export::sample;

fn check<T: ConnectionRows>() {
    let columns = T::columns();
    let names: HashSet<_> = columns.iter().map(|column| &column.name).collect();
    assert_eq!(names.len(), columns.len(), "{}: each name once", T::NAME);
    let connection = sample::connection(3);
    for row in T::rows(&connection) {
        for column in &columns {
            let matches = match column.value(&row) {
                Value::Null => column.nullable,
                Value::Boolean(_) => column.kind == Kind::Boolean,
                Value::Integer(_) => column.kind == Kind::Integer,
                Value::Real(_) => column.kind == Kind::Real,
                Value::Text(_) => column.kind == Kind::Text,
                Value::Time(_) => column.kind == Kind::Time,
            };
            assert!(matches, "{}.{}", T::NAME, column.name);
        }
    }
}

#[test]
fn values_have_the_type_of_their_column() {
    check::<ConnectionTable>();
    check::<SubflowTable>();
    check::<FailoverTable>();
    check::<EventTable>();
}

#[test]
fn prints_times_in_rfc_3339() {
    // By `date --utc --date=@SECONDS --iso-8601=ns`.
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00.000000007Z"),
        (951_782_400, "2000-02-29T00:00:00.000000007Z"),
        (1_795_226_246, "2026-11-21T01:57:26.000000007Z"),
        (4_107_542_399, "2100-02-28T23:59:59.000000007Z"),
        (-1, "1969-12-31T23:59:59.000000007Z"),
    ] {
        assert_eq!(Value::Time(seconds * 1_000_000_000 + 7).to_string(), text);
    }
}

#[test]
fn documentation_is_current() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/tables.md");
    let committed = std::fs::read_to_string(file).expect("readable");
    let (introduction, _) = committed.split_once("\n## ").expect("a table");
    let mut generated = introduction.to_owned();
    describe::<ConnectionTable>(&mut generated);
    describe::<SubflowTable>(&mut generated);
    describe::<SeriesTable>(&mut generated);
    describe::<FailoverTable>(&mut generated);
    describe::<EventTable>(&mut generated);
    if std::env::var_os("PLAIT_UPDATE").is_some() {
        std::fs::write(file, &generated).expect("writable");
    }
    assert!(
        std::fs::read_to_string(file).expect("readable") == generated,
        "{file} differs from the columns: PLAIT_UPDATE=1 cargo test -p plait-trace documentation_is_current"
    );
}

/// Columns per direction are one line, without the direction.
fn describe<T: Table>(out: &mut String) {
    write!(out, "\n## {}\n\nA row is {}.\n\n| column | type | |\n|---|---|---|\n", T::NAME, T::ROW)
        .expect("text");
    for column in T::columns() {
        if column.name.ends_with("_server_to_client") {
            continue;
        }
        let name = column.name.replace("_client_to_server", "_DIRECTION");
        let kind = match column.kind {
            Kind::Boolean => "bool",
            Kind::Integer => "int64",
            Kind::Real => "float64",
            Kind::Text => "text",
            Kind::Time => "timestamp[ns, UTC]",
        };
        let kind = if column.nullable { format!("{kind} or null") } else { kind.to_owned() };
        writeln!(out, "| `{name}` | {kind} | {} |", column.description).expect("text");
    }
}
