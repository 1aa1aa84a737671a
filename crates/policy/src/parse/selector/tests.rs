//! Selectors parsed, displayed, and rejected.

use std::iter::repeat_n;

use proptest::prelude::*;

use super::*;
use crate::model::strategies::selectors;

fn read(text: &str) -> Selector {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn error(text: &str) -> String {
    text.parse::<Selector>().expect_err(text).to_string()
}

fn packet(kind: PacketKind) -> Selector {
    Selector::Packet(vec![kind])
}

#[test]
fn not_binds_tighter_than_and_than_or() {
    let (syn, fin, rst) = (packet(PacketKind::Syn), packet(PacketKind::Fin), packet(PacketKind::Rst));
    let not_fin = Selector::Not(Box::new(fin));
    let and = Selector::And(vec![not_fin, rst]);
    let or = Selector::Or(vec![syn, and]);
    assert_eq!(read("packet(syn) or not packet(fin) and packet(rst)"), or);
    assert_eq!(read("(packet(syn))or((not(packet(fin)))and packet(rst))"), or);
}

#[test]
fn display_matches_the_parsed_text() {
    for text in [
        "any",
        "not any",
        "subflow()",
        "subflow(src = 10.0.0.0/8, dst = fd00::1, sport = 1024-65535, dport = 443)",
        "ip_pair(10.0.0.1, 10.0.0.2)",
        "src(10.0.0.0/8)",
        "dst(::/0, 443)",
        "sequence(data = 18446744073709551615-0)",
        "sequence(subflow = 1000-2000)",
        "packet(mp_capable, mp_join)",
        "connection(0x1a2b3c4d)",
        "path(wlan0)",
        "path(trusted)",
        "path(*)",
        "size(100kB-)",
        "size(0-100kB)",
        "connection_size(256kB-)",
        "connection_size(1kB-2MB)",
        "mark(0x10)",
        "mark(0x10/0xff)",
        "cgroup(/)",
        "cgroup(/user.slice/user-1000.slice)",
        "urgent and not (path(eth0.7) or any)",
    ] {
        assert_eq!(read(text).to_string(), text);
    }
}

#[test]
fn accepts_alternative_spellings() {
    assert_eq!(read("sequence(subflow=7)"), Selector::SubflowSequence(7, 7));
    assert_eq!(read("sequence( data = 0x10-0x1F )"), Selector::DataSequence(16, 31));
    assert_eq!(read("connection(439041101)"), Selector::Connection(0x1a2b_3c4d));
    assert_eq!(read("\tpacket\n(syn,fin)"), Selector::Packet(vec![PacketKind::Syn, PacketKind::Fin]));
}

#[test]
fn reports_the_column_of_errors() {
    for (text, expected) in [
        ("", "column 1: expected a selector, got the end"),
        ("any any", "column 5: expected `and`, `or` or the end, got \"any\""),
        ("any and", "column 8: expected a selector, got the end"),
        ("(any", "column 5: expected `and`, `or` or \")\", got the end"),
        ("any)", "column 4: expected `and`, `or` or the end, got \")\""),
        ("packet", "column 7: expected \"(\", got the end"),
        (
            "src(10.0.0.1/8)",
            "column 5: expected no bits set after the prefix, such as 10.0.0.0/8, got \"10.0.0.1/8\"",
        ),
        (
            "src(10.0.0.0/8, 80-79)",
            "column 17: expected a port or a port range with the lower port first, such as 1024-65535, got \"80-79\"",
        ),
        ("src(10.0.0.0/8 80)", "column 16: expected \")\", got \"80\""),
        (
            "subflow(source = ::1)",
            "column 9: expected one of the keys src, dst, sport, dport, got \"source\"",
        ),
        ("subflow(sport = 1, sport = 2)", "column 20: expected each key once, got \"sport\""),
        ("subflow(sport 1)", "column 15: expected \"=\", got \"1\""),
        ("sequence(1-2)", "column 10: expected data = A-B or subflow = A-B, got \"1-2\""),
        (
            "sequence(subflow = 4294967296)",
            "column 20: expected a sequence number of 32 bits or a range, such as 1000-2000, got \"4294967296\"",
        ),
        (
            "connection(0)",
            "column 12: expected a token of 32 bits other than 0, such as 0x1a2b3c4d, got \"0\"",
        ),
        (
            "size(2kB-1kB)",
            "column 6: expected a size range with the smaller size first, such as 0-100kB or 100kB-, got \"2kB-1kB\"",
        ),
        (
            "mark(0x100/0xff)",
            "column 6: expected a 32-bit mark such as 0x10, or a mark and a mask such as 0x10/0xff, got \"0x100/0xff\"",
        ),
        (
            "cgroup(user.slice)",
            "column 8: expected an absolute control group path, such as /user.slice, got \"user.slice\"",
        ),
        ("path(ä/b)", "column 6: expected an interface name, trusted or untrusted, got \"ä/b\""),
        (
            "ä+ü",
            "column 1: expected a selector: any, subflow, ip_pair, src, dst, sequence, packet, connection, path, size, connection_size, mark, cgroup, got \"ä+ü\"",
        ),
    ] {
        assert_eq!(error(text), expected);
    }
    assert!(error("packet(dta)").starts_with("column 8: expected a kind of packet: syn, fin, "));
}

#[test]
fn rejects_undeclared_custom_names() {
    assert_eq!(parse("urgent", Some(&["urgent"])), Ok(Selector::Custom("urgent".into())));
    let error = parse("any or urgnt", Some(&["urgent"])).expect_err("it is not declared").to_string();
    assert!(error.starts_with("column 8: expected a selector: any, "), "{error}");
    assert!(error.ends_with(", cgroup, urgent, got \"urgnt\""), "{error}");
}

#[test]
fn nesting_depth_is_limited() {
    let nested =
        |depth| -> String { repeat_n("(", depth).chain(["any"]).chain(repeat_n(")", depth)).collect() };
    assert_eq!(read(&nested(MAX_SELECTOR_DEPTH)), Selector::Any);
    let expected = format!(
        "column {}: expected at most 128 nested parentheses and `not`s, got one more",
        MAX_SELECTOR_DEPTH + 1
    );
    assert_eq!(error(&nested(MAX_SELECTOR_DEPTH + 1)), expected);
    assert_eq!(error(&nested(1_000_000)), expected);
    let nots: String = repeat_n("not ", MAX_SELECTOR_DEPTH + 1).chain(["any"]).collect();
    assert!(error(&nots).contains("at most 128"));
    // Display adds no parentheses.
    let max = MAX_SELECTOR_DEPTH - 1;
    let alternating: String =
        repeat_n("(any or any and ", max).chain(["not any"]).chain(repeat_n(")", max)).collect();
    let selector = read(&alternating);
    assert_eq!(read(&selector.to_string()), selector);
    // Width is not limited.
    let wide = vec!["any"; 100_000].join(" or ");
    assert!(matches!(read(&wide), Selector::Or(parts) if parts.len() == 100_000));
}

proptest! {
    #[test]
    fn display_round_trips(selector in selectors()) {
        let text = selector.to_string();
        prop_assert_eq!(text.parse::<Selector>().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?, selector);
    }

    #[test]
    fn parsing_never_panics(text in "[a-z0-9 (),=/.:*\"'äx-]{0,40}|.{0,40}") {
        if let Err(error) = text.parse::<Selector>() {
            prop_assert!(error.column <= text.chars().count() + 1);
            prop_assert!(text.get(error.span).is_some());
        }
    }
}
