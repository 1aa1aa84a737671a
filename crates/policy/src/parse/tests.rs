//! Policies parsed, displayed, and rejected.

use std::collections::BTreeMap;
use std::fs;

use plait_config::{Rate, Role};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::model::strategies::selectors;
use crate::model::{
    Actor, Announcement, Chain, CustomProgram, Hook, Interface, JoinRefusal, Limit, Mark, PacketKind,
    Selector,
};

const WHOLE: &str = r#"
name = "tenant"
interfaces = ["wlan0", "untrusted"]

[custom.urgent]
file = "urgent.bpf.c"
parameters = [7, 9223372036854775807]

[custom.my_actor]
file = "/lib/my_actor.bpf.o"
function = "an_actor"

[[chains]]
name = "slow-wlan"
hook = "ingress"
select = "packet(data) and not src(10.0.0.0/8) or urgent"
actors = ["record", { rate_limit = { rate = "4mbit" } }, "my_actor"]

[[chains]]
name = "out"
hook = "egress"
interfaces = ["*"]
priority = 0x10
actors = [
    { mark = 0x10 }, { mark = "0x10/0xff" }, { redirect = "eth1" }, { pace = "2.5mbit" },
    { block_subflow = { echo = true } }, { add_subflow = { address = "192.0.2.7", port = 443, id = 9 } },
    { deny_join = "reset" }, { get_connection = { keys = true } },
]
"#;

fn diagnostics(text: &str) -> Vec<String> {
    match Policy::parse(text, "tenant.toml") {
        Err(PolicyError::Invalid(diagnostics)) => diagnostics
            .iter()
            .map(|diagnostic| format!("{}:{}: {}", diagnostic.line, diagnostic.column, diagnostic.message))
            .collect(),
        other => panic!("expected diagnostics, got {other:?}"),
    }
}

/// A chain with these keys.
fn chain(keys: &str) -> String {
    format!("interfaces = [\"wlan0\"]\n[[chains]]\nname = \"a\"\n{keys}\n")
}

#[test]
fn parses_a_complete_policy() {
    let policy = Policy::parse(WHOLE, "x.toml").expect("a policy");
    assert_eq!(policy.name, "tenant");
    let urgent = CustomProgram { parameters: vec![7, i64::MAX as u64], ..CustomProgram::new("urgent.bpf.c") };
    assert_eq!(policy.custom["urgent"], urgent);
    assert_eq!(policy.custom["my_actor"].function.as_deref(), Some("an_actor"));
    let [first, second] = &policy.chains[..] else { panic!("expected two chains") };
    let interfaces = [Interface::Named("wlan0".into()), Interface::Role(Role::Untrusted)];
    assert_eq!((first.hook, first.priority, &first.interfaces[..]), (Hook::Ingress, 100, &interfaces[..]));
    assert_eq!(first.select, "packet(data) and not src(10.0.0.0/8) or urgent".parse().expect("a selector"));
    let rate = Rate::new(4_000_000).expect("a rate");
    let actors = [Actor::Record, Actor::RateLimit(Limit::Rate(rate)), Actor::Custom("my_actor".into())];
    assert_eq!(first.actors, actors);
    assert_eq!(
        (second.hook, second.priority, &second.interfaces[..]),
        (Hook::Egress, 16, &[Interface::All][..])
    );
    assert_eq!(second.select, Selector::Any);
    let announcement = Announcement { address: [192, 0, 2, 7].into(), port: Some(443), id: Some(9) };
    let actors = [
        Actor::Mark(Mark { value: 0x10, mask: u32::MAX }),
        Actor::Mark(Mark { value: 0x10, mask: 0xff }),
        Actor::Redirect("eth1".into()),
        Actor::Pace(Rate::new(2_500_000).expect("a rate")),
        Actor::BlockSubflow { echo: true },
        Actor::AddSubflow(Some(announcement)),
        Actor::DenyJoin(JoinRefusal::Reset),
        Actor::GetConnection { keys: true },
    ];
    assert_eq!(second.actors, actors);
}

#[test]
fn file_name_and_directory_are_defaults() {
    let directory = std::env::temp_dir().join(format!("plait-policy-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a directory");
    let file = directory.join("small-flows.toml");
    fs::write(&file, WHOLE.replace("name = \"tenant\"", "")).expect("a file");
    let policy = Policy::read(&file);
    fs::remove_dir_all(&directory).expect("the directory goes");
    let policy = policy.expect("a policy");
    assert_eq!(policy.name, "small-flows");
    assert_eq!(policy.custom["urgent"].file, directory.join("urgent.bpf.c"));
    assert_eq!(policy.custom["my_actor"].file, Path::new("/lib/my_actor.bpf.o"));
    let missing = Policy::read(&file).expect_err("the file is gone").to_string();
    assert!(missing.starts_with("cannot read ") && missing.contains("small-flows.toml: "), "{missing}");
}

#[test]
fn selector_errors_point_into_the_file() {
    let text = chain("hook = \"ingress\"\nselect = \"packet(dta)\"\nactors = []");
    let error = Policy::parse(&text, "tenant.toml").expect_err("dta is no kind").to_string();
    assert!(error.starts_with("expected a kind of packet: syn, "), "{error}");
    let shown =
        "got \"dta\"\n --> tenant.toml:5:18\n  |\n5 | select = \"packet(dta)\"\n  |                  ^^^";
    assert!(error.ends_with(shown), "{error}");
    // With an escape in the string, positions in it do not map to positions in the file.
    let escaped = chain("hook = \"ingress\"\nselect = \"\\u0070acket(dta)\"\nactors = []");
    let [diagnostic] = &diagnostics(&escaped)[..] else { panic!("expected one diagnostic") };
    assert!(
        diagnostic.starts_with("5:10: ") && diagnostic.contains(" at column 8 of the selector, got"),
        "{diagnostic}"
    );
}

#[test]
fn reports_all_errors_at_once() {
    let text = r#"
colour = "red"
interfaces = ["a/b"]

[custom.x]
path = "x.c"

[[chains]]
hook = "sideways"
select = 7
actors = ["droop", { mark = -1 }, { rate_limit = { window = "0B" } }, { pace = "fast" }]

[[chains]]
name = "b"
hook = "egress"
interfaces = "wlan0"
priority = 1.5
"#;
    let all = diagnostics(text);
    let expected = [
        "2:1: expected one of the keys name, interfaces, custom, chains, got the unknown key \"colour\"",
        "3:15: expected an interface name, \"trusted\", \"untrusted\" or \"*\", got \"a/b\"",
        "5:1: expected the key `file`, got none",
        "6:1: expected one of the keys file, function, parameters, got the unknown key \"path\"",
        "8:1: expected the key `name`, got none",
        "9:8: expected \"ingress\" or \"egress\", got \"sideways\"",
        "10:10: expected a selector, such as \"packet(data)\", got the number 7",
        "11:11: expected an actor: drop, mark, redirect, rate_limit, pace, set_backup, clear_backup, block_subflow, \
         add_subflow, deny_join, fall_back, capable_flag, get_connection, get_subflow, record, x, got \"droop\"",
        "11:29: expected a 32-bit mark such as 0x10, or a mark and a mask such as 0x10/0xff, got the number -1",
        "11:61: expected a size from 1B to 1GiB in B, kB, MB, GB, KiB, MiB or GiB, such as 30kB, got \"0B\"",
        "11:80: expected a rate from 1bit to 1000gbit in bit, kbit, mbit or gbit, such as 4mbit, got \"fast\"",
        "13:1: expected the key `actors`, got none",
        "16:14: expected a list of interfaces, such as [\"wlan0\"], got \"wlan0\"",
        "17:12: expected a whole number of 32 bits, got the number 1.5",
    ];
    assert_eq!(all, expected);
}

#[test]
fn rejects_inconsistent_chains() {
    for (keys, expected) in [
        (
            "hook = \"ingress\"\nselect = \"mark(1)\"\nactors = [{ pace = \"1mbit\" }]",
            &[
                "5:10: expected hook = \"egress\" for the selector mark, got \"ingress\"",
                "6:11: expected hook = \"egress\" for the actor pace, got \"ingress\"",
            ][..],
        ),
        (
            "hook = \"ingress\"\nselect = \"not cgroup(/a)\"\nactors = [{ mark = 1 }]",
            &[
                "5:10: expected hook = \"egress\" for the selector cgroup, got \"ingress\"",
                "6:11: expected hook = \"egress\" for the actor mark, got \"ingress\"",
            ],
        ),
        (
            "hook = \"egress\"\ninterfaces = []\nactors = []",
            &["5:14: expected at least one interface, got none"],
        ),
        (
            "hook = \"egress\"\nactors = []\n[[chains]]\nname = \"a\"\nhook = \"egress\"\nactors = []",
            &["7:8: expected a name that no other chain has, got \"a\" again"],
        ),
        (
            "hook = \"egress\"\nactors = [\"mark\", \"rate_limit\", { drop = 1 }, { redirect = \"*\" }, {}]",
            &[
                "5:11: expected { mark = 0x10 }, got \"mark\" alone",
                "5:19: expected { rate_limit = { rate = \"4mbit\" } } or { rate_limit = { window = \"64kB\" } }, got \
                 \"rate_limit\" alone",
                "5:42: expected \"drop\" alone, without parameters, got the number 1",
                "5:60: expected the name of an interface, got \"*\"",
                "5:67: expected one actor, { NAME = VALUE }, got 0 keys",
            ],
        ),
        (
            "hook = \"egress\"\nactors = [\"record\", \"record\", \"record\", \"record\", \"record\", \"record\", \
             \"record\", \"record\", \"drop\"]",
            &["5:91: expected at most 8 actors in a chain, got one more"],
        ),
    ] {
        assert_eq!(diagnostics(&chain(keys)), expected, "{keys}");
    }
}

#[test]
fn rejects_invalid_names() {
    let text = "name = \"a b\"\nchains = []\n[custom.drop]\nfile = \"x\"\n[custom.any]\nfile = \"x\"\n[custom.\"a-b\"]\nfile = \"x\"";
    let form =
        "expected a name that no built-in selector or actor has: 1 to 32 letters, digits or underscores, got";
    let expected = [
        "1:8: expected a name for the policy: 1 to 32 letters, digits, hyphens or underscores, got \"a b\""
            .into(),
        format!("7:9: {form} \"a-b\""),
        format!("5:9: {form} \"any\""),
        format!("3:9: {form} \"drop\""),
    ];
    assert_eq!(diagnostics(text), expected);
}

#[test]
fn a_hook_accepts_at_most_64_chains() {
    let chains = |hook: &str, count| -> String {
        (0..count)
            .map(|n| format!("[[chains]]\nname = \"{hook}-{n}\"\nhook = \"{hook}\"\nactors = []\n"))
            .collect()
    };
    let head = "interfaces = [\"wlan0\"]\n";
    let text = format!("{head}{}{}", chains("ingress", 64), chains("egress", 64));
    assert_eq!(Policy::parse(&text, "x.toml").expect("room for all").chains.len(), 128);
    let text = format!("{head}{}", chains("egress", 65));
    assert_eq!(diagnostics(&text), ["259:8: expected at most 64 chains at egress, got one more"]);
}

#[test]
fn reports_at_most_100_errors() {
    let chain = "[[chains]]\nname = \"a\"\nhook = \"up\"\nactors = []\n";
    assert_eq!(diagnostics(&chain.repeat(5_000)).len(), 100);
    let chain = "[[chains]]\nname = \"a\"\nhook = \"egress\"\nactors = []\n";
    let many = diagnostics(&format!("interfaces = [\"*\"]\n{}", chain.repeat(5_000)));
    assert!(many.contains(&"259:8: expected at most 64 chains at egress, got one more".to_owned()));
}

#[test]
fn reports_the_line_of_toml_syntax_errors() {
    let [diagnostic] = &diagnostics("name = \"a\"\nchains = [\n")[..] else {
        panic!("expected one diagnostic")
    };
    assert!(diagnostic.starts_with("2:") || diagnostic.starts_with("3:"), "{diagnostic}");
    let twice = diagnostics("name = \"a\"\nname = \"b\"\n");
    assert_eq!(twice, ["2:1: duplicate key"]);
}

#[test]
fn check_validates_policies_built_in_code() {
    let chain = Chain {
        name: "a".into(),
        hook: Hook::Ingress,
        interfaces: vec![Interface::Named("wlan 0".into())],
        priority: 0,
        select: Selector::Custom("urgent".into()),
        actors: vec![Actor::Custom("slow".into()), Actor::RateLimit(Limit::Window(0))],
    };
    let policy = Policy { name: "p".into(), custom: BTreeMap::new(), chains: vec![chain] };
    let wrong = policy.check().expect_err("much is wrong").to_string();
    let expected = "\
interfaces of chain 1: expected an interface name, \"trusted\", \"untrusted\" or \"*\", got \"wlan 0\"
selector of chain 1: expected a table [custom.urgent] with the file of urgent, got none
actor 1 of chain 1: expected a table [custom.slow] with the file of slow, got none
actor 2 of chain 1: expected a window of 1 to 2^30 bytes, got 0";
    assert_eq!(wrong, expected);
}

fn actors() -> impl Strategy<Value = Actor> {
    let rate = (1..1_000_000_000_000u64).prop_map(|bits| Rate::new(bits).expect("in range"));
    let announcement =
        (any::<std::net::IpAddr>(), prop::option::of(1..=u16::MAX), prop::option::of(1..=u8::MAX))
            .prop_map(|(address, port, id)| Announcement { address, port, id });
    prop_oneof![
        select(&[Actor::Drop, Actor::FallBack, Actor::GetSubflow, Actor::Record][..]),
        prop::option::of(any::<u8>()).prop_map(|address_id| Actor::SetBackup { address_id }),
        prop::option::of(any::<u8>()).prop_map(|address_id| Actor::ClearBackup { address_id }),
        rate.prop_map(|rate| Actor::RateLimit(Limit::Rate(rate))),
        (1..=1u32 << 30).prop_map(|bytes| Actor::RateLimit(Limit::Window(bytes))),
        any::<bool>().prop_map(|echo| Actor::BlockSubflow { echo }),
        any::<bool>().prop_map(|keys| Actor::GetConnection { keys }),
        prop::option::of(announcement).prop_map(Actor::AddSubflow),
        select(&[JoinRefusal::Drop, JoinRefusal::Reset][..]).prop_map(Actor::DenyJoin),
        any::<u32>().prop_map(|value| Actor::Mark(Mark { value, mask: u32::MAX })),
        Just(Actor::Redirect("eth0.7".into())),
    ]
}

fn chains() -> impl Strategy<Value = Chain> {
    let interfaces =
        select(vec![Interface::All, Interface::Role(Role::Trusted), Interface::Named("wlan0".into())]);
    (
        prop::collection::vec(interfaces, 1..3),
        any::<i32>(),
        selectors(),
        prop::collection::vec(actors(), 0..8),
    )
        .prop_map(|(interfaces, priority, select, actors)| Chain {
            name: String::new(),
            hook: Hook::Egress,
            interfaces,
            priority,
            select,
            actors,
        })
}

proptest! {
    #[test]
    fn display_round_trips(
        chains in prop::collection::vec(chains(), 0..4),
        file in "[^\0]{1,8}",
        function in prop::option::of("[a-z]{4,6}_"),
        parameters in prop::collection::vec(0..=i64::MAX as u64, 0..=4),
    ) {
        let program = CustomProgram { file: file.into(), function, parameters };
        let custom = ["urgent", "mine_2"].map(|name| (name.to_owned(), program.clone()));
        let mut policy = Policy { name: "p".into(), custom: custom.into(), chains };
        for (number, chain) in policy.chains.iter_mut().enumerate() {
            chain.name = format!("chain-{number}");
        }
        let text = policy.to_string();
        let read = Policy::parse(&text, "x").map_err(|error| TestCaseError::fail(format!("{text}\n{error}")))?;
        prop_assert_eq!(read, policy);
    }

    #[test]
    fn parsing_never_panics(text in "([a-z]{1,8} = [\"\\[{][a-z0-9(){}]{0,6}[\"\\]}]\n|\\[\\[chains\\]\\]\n){0,5}|.{0,30}") {
        let _ = Policy::parse(&text, "x").is_ok();
    }
}

#[test]
fn packet_kind_names_are_unique() {
    for kind in PacketKind::ALL {
        assert_eq!(PacketKind::from_name(kind.name()), Some(*kind));
    }
}
