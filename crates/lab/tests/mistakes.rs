//! Every mistake that a topology file can hold is told with its line, what was expected and what was found.
//!
//! `mistakes.txt` holds lines of files, and after `---` what is said of them. Lines follow two hosts and a link, of which
//! they are the seventh and following ones.

use plait_lab::Topology;

const CASES: &str = include_str!("mistakes.txt");

/// What is wrong with two hosts, a link between them, and these lines.
fn mistake(more: &str) -> String {
    let text = format!(
        "[hosts.client]\n[hosts.server]\n[[links]]\nname = \"lte\"\na = \"client\"\nb = \"server\"\n{more}"
    );
    Topology::parse(&text, "lab.toml").expect_err(more).to_string()
}

#[test]
fn mistakes_are_told_with_their_line() {
    let cases: Vec<_> = CASES.split("===\n").skip(1).collect();
    assert!(cases.len() > 50, "the file of cases is there");
    for case in cases {
        let (lines, said) = case.split_once("---\n").expect("what is said");
        assert_eq!(format!("{}\n", mistake(lines)), said, "{lines}");
    }
}

#[test]
fn more_links_than_numbers_are_a_mistake() {
    let link = |n| format!("[[links]]\nname = \"x{n}\"\na = \"client\"\nb = \"server\"\n");
    let links = |count: usize| (0..count).map(link).collect::<String>();
    let said = mistake(&links(254));
    assert!(said.starts_with("lab.toml:1019:1: expected at most 254 links, found one more"), "{said}");
    let text = format!("[hosts.client]\n[hosts.server]\n{}", links(254));
    assert_eq!(Topology::parse(&text, "lab.toml").expect("254 links").links.len(), 254);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = Topology::read(std::path::Path::new("/nowhere/lab.toml")).expect_err("it is not there");
    assert!(error.to_string().starts_with("/nowhere/lab.toml: "), "{error}");
}
