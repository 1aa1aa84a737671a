//! The seeds of the fuzz targets `policy` and `selector` are up to date and pass the checks of the targets.

#[path = "../../../fuzz/checks/policy.rs"]
mod policy;
#[path = "../../../fuzz/seeds.rs"]
mod seeds;
#[path = "../../../fuzz/checks/selector.rs"]
mod selector;

/// A policy with every actor in every form.
const ACTORS: &str = r#"
name = "all"
interfaces = ["wlan0", "trusted"]

[custom.mine]
file = "mine.bpf.c"

[[chains]]
name = "out"
hook = "egress"
priority = -5
select = "mine and packet(data)"
actors = [{ mark = "0x10/0xff" }, { pace = "4mbit" }, { redirect = "eth1" }, "mine", "set_backup", "clear_backup"]

[[chains]]
name = "limits"
hook = "ingress"
interfaces = ["*"]
actors = ["record", { rate_limit = { rate = "2.5gbit" } }, { rate_limit = { window = "64KiB" } }, "drop", "fall_back"]

[[chains]]
name = "subflows"
hook = "ingress"
actors = [
    { block_subflow = { echo = true } },
    { add_subflow = { address = "fd00::7", port = 443, id = 9 } },
    { deny_join = "reset" },
    { set_backup = { address_id = 3 } },
    { clear_backup = { address_id = 0 } },
]

[[chains]]
name = "told"
hook = "egress"
actors = ["block_subflow", "add_subflow", "deny_join", "capable_flag", { get_connection = { keys = true } }, "get_subflow"]
"#;

const SELECTORS: &[(&str, &str)] = &[
    ("any", "any"),
    ("kinds", "packet(syn, mp_capable) or packet(data_fin, add_addr_echo, ipv6, mptcp)"),
    ("subflow", "subflow(src = 10.0.0.0/8, dst = fd00::/16, sport = 1-9, dport = 443)"),
    ("tuple", "src(10.0.0.1, 80) and dst(fd00::1) or ip_pair(10.0.0.0/8, 192.0.2.1)"),
    ("nested", "not (any and not (packet(ack) or (any)))"),
    ("path", "path(wlan0) or path(trusted) or path(*)"),
    ("connection", "connection(0x1a2b3c4d)"),
    ("sequence", "sequence(data = 4294967295-7) and sequence(subflow = 1-2)"),
    ("size", "size(100kB-) or size(0-1.5MB) or connection_size(1kB-2kB)"),
    ("mark", "mark(0x10/0xff) and mark(7)"),
    ("cgroup", "cgroup(/user.slice/a) and mine"),
];

#[test]
fn policy_seeds() {
    seeds::seed("policy", "actors", ACTORS.as_bytes());
    seeds::seed("policy", "never-on", include_bytes!("../../../policies/never-on.toml"));
    for (name, text) in SELECTORS {
        let chain = format!(
            "name = \"c\"\nhook = \"egress\"\ninterfaces = [\"*\"]\nselect = \"{text}\"\nactors = []\n"
        );
        seeds::seed("policy", name, format!("[custom.mine]\nfile = \"m.o\"\n[[chains]]\n{chain}").as_bytes());
    }
    seeds::replay("policy", policy::check);
}

#[test]
fn selector_seeds() {
    for (name, text) in SELECTORS {
        seeds::seed("selector", name, text.as_bytes());
    }
    seeds::replay("selector", selector::check);
}

/// A rejected seed would test nothing.
#[test]
fn corpus_seeds_parse() {
    assert_eq!(plait_policy::Policy::parse(ACTORS, "all.toml").expect("a policy").chains.len(), 4);
    for (name, text) in SELECTORS {
        text.parse::<plait_policy::Selector>().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
