//! Every mistake that a topology file can hold is told with its line, what was expected and what was found.

use plait_lab::Topology;

/// What is wrong with two hosts, a link between them, and these lines.
fn mistake(more: &str) -> String {
    let text = format!(
        "[hosts.client]\n[hosts.server]\n[[links]]\nname = \"lte\"\na = \"client\"\nb = \"server\"\n{more}"
    );
    Topology::parse(&text, "lab.toml").expect_err(more).to_string()
}

#[test]
fn print() {
    for more in CASES {
        println!("=== {more}\n{}", mistake(more));
    }
}

const CASES: &[&str] = &[
    "speed = 1",
    "each_way = { rate = \"fast\" }",
    "each_way = { bandwith = \"1mbit\" }",
    "mtu = 500",
    "mtu = \"big\"",
    "role = \"friend\"",
    "[[links]]\nname = \"x\"\na = \"client\"",
    "[[links]]\nname = \"x\"\na = \"client\"\nb = \"servr\"",
    "[[links]]\nname = \"x\"\na = \"client\"\nb = { host = \"server\", addreses = [] }",
    "[[links]]\nname = \"x\"\na = \"client\"\nb = 5",
    "[[links]]\nname = \"lte\"\na = \"client\"\nb = \"server\"",
    "[[links]]\nname = \"averylonginterface\"\na = \"client\"\nb = \"server\"",
    "[[links]]\nname = \"x\"\na = \"client\"\nb = { host = \"server\", addresses = [\"10.0.0.1/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", addresses = [\"10.0.0.1/24\"] }\nb = { host = \"server\", addresses = [\"10.0.1.1/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", addresses = [\"10.0.0.1/24\"] }\nb = { host = \"server\", addresses = [\"10.0.0.1/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", addresses = [\"10.77.1.3/24\"] }\nb = { host = \"server\", addresses = [\"10.77.1.4/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", addresses = [\"10.0.0.0/24\"] }\nb = { host = \"server\", addresses = [\"10.0.1.1/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", addresses = [5] }\nb = { host = \"server\", addresses = [\"10.0.1.1/24\"] }",
    "[[links]]\nname = \"x\"\na = { host = \"client\", interface = \"lte\" }\nb = \"server\"",
    "[[links]]\nname = \"x\"\na = \"client\"\nb = \"client\"",
    "[[links.events]]\nat = \"5\"\naction = \"blackhole\"",
    "[[links.events]]\nat = \"5s\"\naction = \"explode\"",
    "[[links.events]]\nat = \"5s\"\naction = \"restore\"",
    "[[links.events]]\nat = \"5s\"\naction = \"interface_down\"\n[[links.events]]\nat = \"4s\"\naction = \"interface_up\"",
    "[[links.events]]\nat = \"5s\"\naction = \"blackhole\"\nend = \"a\"",
    "[[links.events]]\nat = \"5s\"\naction = \"adjust\"",
    "[[links.events]]\nat = \"5s\"\naction = \"adjust\"\nset = { rate = 5 }",
    "[[links.events]]\naction = \"adjust\"\nset = { rate = 5 }",
    "[hosts.third]",
    "[hosts.\"a-b\"]",
    "[hosts.third]\n[[links]]\nname = \"x\"\na = \"third\"\nb = \"server\"",
    "[hosts.third]\nmptcp = { subflows = 9 }",
    "[hosts.third]\nmptcp = { subflow = 9 }",
    "[hosts.third]\nsysctls = { \"kernel.hostname\" = \"x\" }",
    "[hosts.third]\nsysctls = { net.ipv4.tcp_rmem = \"x\" }",
    "[[services]]\nname = \"web\"\nhost = \"serve\"\ncommand = [\"true\"]",
    "[[services]]\nname = \"web\"\nhost = \"server\"",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"apache\"",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"nginx\"",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"nginx\"\ndocument = 5",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"iperf3\"\ndocument = \"5MB\"",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"serve\"",
    "[[services]]\nname = \"web\"\nhost = \"server\"\ncommand = []",
    "[[services]]\nname = \"web\"\nhost = \"server\"\ncommand = [\"ping\", \"${server.wlan}\"]",
    "[[services]]\nname = \"web\"\nhost = \"server\"\ncommand = [\"ping\", \"${size}\"]",
    "[[services]]\nname = \"web\"\nhost = \"server\"\nkind = \"iperf3\"\n[[services]]\nname = \"web2\"\nhost = \"server\"\ncommand=[\"x\"]\nport=5201",
    "[[link]]\nname = \"x\"",
    "rate = = 5",
];
