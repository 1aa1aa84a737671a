//! The two text formats of metrics: OpenMetrics, and Prometheus's older one, in which other scrapers ask for them.

use std::fmt::Write as _;

/// The media type of OpenMetrics.
pub(super) const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The media type of the older format.
pub(super) const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether the field Accept of a request asks for OpenMetrics.
pub(super) fn wants_open_metrics(accept: &str) -> bool {
    accept.split(',').any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_it =
            parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/openmetrics-text"));
        is_it && !parts.any(|part| part == "q=0")
    })
}

/// Converts OpenMetrics to the older format, in which a counter's name has its suffix in every line, an information is a gauge,
/// and units and the end are not marked.
pub(super) fn to_prometheus(open_metrics: &str) -> String {
    let types: Vec<(&str, &str)> =
        open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        let described = line.strip_prefix("# HELP ").map(|rest| ("HELP", rest));
        let described = described.or_else(|| line.strip_prefix("# TYPE ").map(|rest| ("TYPE", rest)));
        // Writing to a String cannot fail.
        let _ = match described.and_then(|(word, rest)| Some((word, rest.split_once(' ')?))) {
            Some((word, (name, rest))) => {
                let kind = types.iter().find(|(known, _)| *known == name).map_or("", |(_, kind)| kind);
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                let rest = if word == "TYPE" { kind } else { rest };
                writeln!(text, "# {word} {name}{suffix} {rest}")
            }
            None if line.starts_with('#') => Ok(()),
            None => writeln!(text, "{line}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_metrics_only_if_asked_for() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        assert!(wants_open_metrics(prometheus));
        assert!(wants_open_metrics("Application/OpenMetrics-Text"));
        for accept in
            ["", "*/*", "text/plain", "application/openmetrics-text; q=0", "application/openmetrics-textual"]
        {
            assert!(!wants_open_metrics(accept), "{accept}");
        }
    }

    #[test]
    fn older_format_has_suffixes_and_no_marks() {
        let open_metrics = "# HELP a_bytes Sent.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\na_bytes_total{x=\"1\"} 2\n\
            # HELP build The program.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n\
            # HELP b Now.\n# TYPE b gauge\nb 3\n# EOF\n";
        let older = "# HELP a_bytes_total Sent.\n# TYPE a_bytes_total counter\na_bytes_total{x=\"1\"} 2\n\
            # HELP build_info The program.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
            # HELP b Now.\n# TYPE b gauge\nb 3\n";
        assert_eq!(to_prometheus(open_metrics), older);
    }
}
