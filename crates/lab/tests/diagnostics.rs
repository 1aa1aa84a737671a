//! An invalid topology file is reported with the line, what was expected and what was found.
//!
//! `diagnostics.txt` holds lines of files and, after `---`, the diagnostic. The lines follow a topology of two hosts and a
//! link, and therefore start at line 7.

use plait_lab::Topology;

const CASES: &str = include_str!("diagnostics.txt");

/// The diagnostic for two hosts, a link between them, and these lines.
fn diagnostic(lines: &str) -> String {
    let text = format!(
        "[hosts.client]\n[hosts.server]\n[[links]]\nname = \"lte\"\na = \"client\"\nb = \"server\"\n{lines}"
    );
    Topology::parse(&text, "lab.toml").expect_err(lines).to_string()
}

#[test]
fn diagnostics_show_the_line_and_the_cause() {
    let cases: Vec<_> = CASES.split("===\n").skip(1).collect();
    assert!(cases.len() > 50, "the file of cases is there");
    for case in cases {
        let (lines, expected) = case.split_once("---\n").expect("a diagnostic");
        assert_eq!(format!("{}\n", diagnostic(lines)), expected, "{lines}");
    }
}

#[test]
fn rejects_more_links_than_have_numbers() {
    let link = |n| format!("[[links]]\nname = \"x{n}\"\na = \"client\"\nb = \"server\"\n");
    let links = |count: usize| (0..count).map(link).collect::<String>();
    let rejected = diagnostic(&links(254));
    assert!(rejected.starts_with("expected at most 254 links, got one more\n"), "{rejected}");
    assert!(rejected.contains(" --> lab.toml:1019:1\n"), "{rejected}");
    let text = format!("[hosts.client]\n[hosts.server]\n{}", links(254));
    assert_eq!(Topology::parse(&text, "lab.toml").expect("254 links").links.len(), 254);
}

#[test]
fn names_a_missing_file() {
    let error = Topology::read(std::path::Path::new("/nowhere/lab.toml")).expect_err("it is missing");
    assert!(error.to_string().starts_with("cannot read /nowhere/lab.toml: "), "{error}");
}
