use std::time::Duration;

use plait_wire::capture::Timestamp;
use serde_json::Value;

use super::*;
use crate::direction::Direction;
use crate::export::sample;

const INTERVAL: Duration = Duration::from_millis(100);

fn page(report: &Report) -> String {
    let mut page = Vec::new();
    report.write_html(&crate::export::document::Totals::default(), &mut page).expect("written");
    String::from_utf8(page).expect("text")
}

/// The data as a browser reads it: up to the first end of a script element.
fn data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"<script type="application/json" id="data">"#).expect("data");
    let (data, _) = rest.split_once("</script").expect("an end");
    serde_json::from_str(data).expect("JSON")
}

fn sample_report(connections: u64, intervals: u64) -> Report {
    let mut report = Report::new(vec!["a.pcap".into()], INTERVAL);
    for id in 1..=connections {
        (1..=intervals).for_each(|number| report.interval(&sample::interval(id, number)));
        report.connection(&sample::connection(id));
    }
    report
}

#[test]
fn escapes_capture_names() {
    let hostile = "</script><img src=x onerror=alert(1)><!--<script>&amp;\u{2028}.pcap";
    let report = Report::new(vec![hostile.into()], INTERVAL);
    let page = page(&report);
    assert_eq!(data(&page)["captures"][0], hostile);
    assert!(!page.contains("<img src=x"));
}

#[test]
fn page_loads_nothing_from_the_network() {
    let page = page(&sample_report(1, 10));
    assert!(page.contains("default-src 'none'"));
    for reference in ["src=\"", "href=\"", "@import", "url("] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert!(!page.contains("{{"), "a placeholder is left");
}

#[test]
fn series_add_up_to_the_intervals() {
    let intervals = 5_000;
    let data = data(&page(&sample_report(2, intervals)));
    let given: u64 = (1..=intervals).map(|number| sample::interval(1, number).counts.bytes).sum();
    for connection in data["connections"].as_array().expect("a list") {
        let subflows = connection["series"]["sent"]["client_to_server"].as_array().expect("a list");
        assert_eq!(subflows.len(), 2);
        let columns = || subflows.iter().flat_map(|subflow| subflow["bytes"].as_array().expect("a list"));
        assert!(columns().count() <= 4_000);
        assert_eq!(columns().map(|bytes| bytes.as_u64().expect("a number")).sum::<u64>(), given);
    }
}

#[test]
fn keeps_mptcp_connections_with_most_bytes() {
    let mut report = sample_report(60, 1);
    report.connection(&Connection { version: None, ..sample::connection(1_000) });
    let data = data(&page(&report));
    let connections = data["connections"].as_array().expect("a list");
    let ids: Vec<_> =
        connections.iter().map(|connection| connection["id"].as_u64().expect("an id")).collect();
    assert_eq!(ids, (11..=60).rev().collect::<Vec<_>>());
    let omitted = (1..=10).map(|id| 2 * 1000 * id).sum::<u64>() + 2 * 1000 * 1_000;
    assert_eq!(data["omitted"]["connections"], 11);
    assert_eq!(data["omitted"]["bytes"], omitted);
}

#[test]
fn bounds_points_with_many_live_connections() {
    let mut report = Report::new(Vec::new(), INTERVAL);
    for number in 1..=600 {
        for id in 1..=500 {
            report.interval(&sample::interval(id, number));
        }
    }
    assert!(report.points <= MAX_POINTS);
    assert_eq!(report.points, report.live.values().map(ConnectionSeries::points).sum::<usize>());
    (1..=500).for_each(|id| report.connection(&sample::connection(id)));
    assert_eq!(report.points, report.ended.iter().map(|ended| ended.series.points()).sum::<usize>());
}

#[test]
fn counts_omitted_parts() {
    let mut connection = sample::connection(1);
    let subflow = connection.subflows[0].clone();
    connection.subflows.resize_with(MAX_PARTS + 7, || subflow.clone());
    let mut report = Report::new(Vec::new(), INTERVAL);
    report.interval(&Interval { subflow: MAX_PARTS + 3, ..sample::interval(1, 1) });
    report.connection(&connection);
    let data = data(&page(&report));
    assert_eq!(data["connections"][0]["subflows"].as_array().expect("a list").len(), MAX_PARTS);
    assert_eq!(data["connections"][0]["omitted"]["subflows"], 7);
}

#[test]
fn plots_have_the_colours_of_their_subflows() {
    let plots = sample_report(1, 40).plots();
    let names: Vec<_> = plots.iter().map(|plot| plot.name.as_str()).collect();
    assert_eq!(names, ["connection-1-share", "connection-1-throughput", "connection-1-sequence"]);
    for plot in plots {
        let mut reader = png::Decoder::new(std::io::Cursor::new(&plot.png)).read_info().expect("PNG");
        let mut pixels = vec![0; reader.output_buffer_size().expect("a size")];
        reader.next_frame(&mut pixels).expect("PNG");
        let has = |(red, green, blue)| pixels.chunks(3).any(|pixel| *pixel == [red, green, blue]);
        assert!(has((0, 0x72, 0xb2)), "{}: first subflow", plot.name);
        assert!(has((0xd5, 0x5e, 0)), "{}: second subflow", plot.name);
        assert!(has((0x1d, 0x23, 0x30)), "{}: text", plot.name);
    }
}

#[test]
fn no_time_series_without_payload_or_duration() {
    let mut report = Report::new(Vec::new(), INTERVAL);
    let mut silent = sample::connection(1);
    silent.bytes = crate::export::document::PerDirection::from_fn(|_: Direction| 0);
    report.connection(&silent);
    assert!(report.plots().is_empty());
    report.interval(&sample::interval(2, 1));
    report.connection(&sample::connection(2));
    let names: Vec<_> = report.plots().into_iter().map(|plot| plot.name).collect();
    assert_eq!(names, ["connection-2-share"]);
}

#[test]
fn accepts_intervals_at_any_time() {
    for start in [0, u64::MAX] {
        let mut report = Report::new(Vec::new(), Duration::from_nanos(1));
        report.interval(&Interval { start: Timestamp(start), ..sample::interval(1, 1) });
        report.interval(&sample::interval(1, 2));
        report.connection(&sample::connection(1));
        report.plots().iter().for_each(|plot| assert!(!plot.png.is_empty()));
        data(&page(&report));
    }
}
