//! Examples of every command, at the end of its `--help` and in its man page.

use std::fmt::Write as _;

use clap::Command;
use clap::builder::Styles;

/// A command line, and what it does.
pub(crate) struct Example(pub(crate) &'static str, pub(crate) &'static str);

/// By the path of the command below `plait`.
#[rustfmt::skip]
const EXAMPLES: &[(&str, &[Example])] = &[
    ("", &[
        Example("plait doctor", "Check what this host has and lacks"),
        Example("plait demo", "Protect a transfer over two emulated paths, and show what an eavesdropper gets"),
        Example("plait run --trusted eth0 -- curl -O http://server.example:8443/large",
                "Download over all paths, starting on eth0"),
    ]),
    ("run", &[
        Example("plait run --trusted eth0 -- curl -O http://server.example:8443/large",
                "Download over all paths, starting on eth0"),
        Example("plait run --require --trusted eth0 --user alice -- ssh -p 8443 server.example",
                "Connect as alice; fail if the server has no gateway"),
        Example("plait run --trusted eth0 --redundant 1000 -- ssh -p 8443 server.example",
                "Send keystrokes over two paths at once, if the server's gateway does so, too"),
    ]),
    ("serve", &[
        Example("plait serve --listen [::]:8443 --to 127.0.0.1:80",
                "Protect the connections to a web server; refuse clients without plait"),
        Example("plait serve --listen [::]:8443 --to unix:/run/app.sock --proxy-protocol v2",
                "Tell the service behind a unix socket the addresses of its clients"),
        Example("plait serve --listen [::]:8443 --config /etc/plait/plait.toml",
                "Protect the services in [[services]] of the file"),
        Example("plait serve --listen [::]:8443 --to 127.0.0.1:80 --require=false",
                "Forward the connections of other clients unprotected"),
    ]),
    ("proxy", &[
        Example("plait proxy --trusted eth0 --untrusted wlan0", "Accept programs of this host on 127.0.0.1:1080"),
        Example("plait proxy --config /etc/plait/proxy.toml --listen 192.168.1.1:1080 --credentials /etc/plait/users",
                "Accept other hosts that present one of these passwords"),
        Example("plait proxy --trusted eth0 --exit plait://server.example:8443#Z13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8 --datagram-scheduler redundant",
                "Send datagrams of SOCKS5 clients to an exit by all paths at once"),
    ]),
    ("router", &[
        Example("plait router --interface lan0 --config /etc/plait/plait.toml",
                "Send TCP, UDP and DNS of the hosts behind lan0 through the exit of this file"),
        Example("plait router --interface lan0 --config /etc/plait/plait.toml --datagram-scheduler bonded",
                "Spread their datagrams over all uplinks"),
        Example("plait router --interface lan0 --interface lan1 --exclude 10.9.0.0/16 --trusted eth0",
                "Protect connections to servers with plait; leave a network out"),
    ]),
    ("daemon", &[
        Example("plait daemon --config /etc/plait/plait.toml", "Do all that the file says; kill -HUP reloads it"),
        Example("plait daemon --config /etc/plait/plait.toml --replace", "Restart it without refusing a connection"),
    ]),
    ("up", &[
        Example("plait up plait://server.example:8443#Z13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8",
                "Send all connections of this host through an exit, over all uplinks"),
        Example("plait up plait://server.example:8443#Z13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8 --killswitch --exclude 10.0.0.0/8",
                "Let nothing else leave, but to these networks"),
    ]),
    ("down", &[
        Example("plait down", "Undo plait up, and remove a kill switch"),
    ]),
    ("exit", &[
        Example("plait exit init --name server.example", "Make this host an exit, and print the URL for a client"),
    ]),
    ("exit init", &[
        Example("plait exit init --name server.example", "Make this host an exit, and print the URL for a client"),
    ]),
    ("exit invite", &[
        Example("plait exit invite --name server.example", "Print the URL for one more client"),
    ]),
    ("exit join", &[
        Example("plait exit join plait://server.example:8443#Z13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8.4D887X2bbwTWViNAANKw0BGha0GZ2tzfpLg0T-Otv5w",
                "Have the exit admit this host; print the URL for `exit` in plait.toml"),
    ]),
    ("exit clients", &[
        Example("plait exit clients", "List who was admitted by invitations"),
    ]),
    ("exit remove", &[
        Example("plait exit remove plait-key:Z13VdO13iTELPS52gfN5C0ZsdzsVIf7PNld5WDcepS8", "Refuse a client from now on"),
    ]),
    ("identity", &[
        Example("plait identity", "Print this host's public key; create the key pair the first time"),
    ]),
    ("peers", &[
        Example("plait peers", "List the peers that were reached in mode sealed"),
    ]),
    ("peers forget", &[
        Example("plait peers forget server.example:8443", "Allow weaker modes for this server again"),
    ]),
    ("kmod", &[
        Example("plait kmod status", "Show whether the module is loaded, and its rules"),
    ]),
    ("kmod enable", &[
        Example("plait kmod enable --cgroup /sys/fs/cgroup/private --trusted eth0 --require",
                "Protect the programs of a control group, or refuse their connections"),
    ]),
    ("kmod status", &[
        Example("plait kmod status --json", "Print rules and counters as JSON"),
    ]),
    ("kmod disable", &[
        Example("plait kmod disable", "Stop the plait kmod enable of this network namespace"),
    ]),
    ("status", &[
        Example("plait status", "Show gateways, and mode, level and subflows of each connection"),
    ]),
    ("paths", &[
        Example("plait paths --trusted eth0", "Show which interfaces would be used, and as what"),
        Example("plait paths --config /etc/plait.toml", "Show which rules apply, and what is left of quotas"),
        Example("plait paths --to 192.0.2.7", "Show which interfaces have a route to an address, or how to add it"),
    ]),
    ("top", &[
        Example("plait top", "Watch all connections; ? lists the keys"),
        Example("plait top --once --json", "Print the rates of one second as JSON"),
    ]),
    ("web", &[
        Example("plait web --trusted eth0", "Show what paths carry, and who could read it, at http://127.0.0.1:9465/"),
        Example("plait web --captures captures", "Keep the captures that are started on the page"),
    ]),
    ("metrics", &[
        Example("plait metrics --listen 127.0.0.1:9464", "Serve http://127.0.0.1:9464/metrics"),
    ]),
    ("doctor", &[
        Example("plait doctor", "Check what this host has and lacks"),
        Example("plait doctor server.example:8443", "Find out why a connection has no subflow on some path"),
        Example("plait doctor --clean", "Remove what killed processes left behind"),
    ]),
    ("probe", &[
        Example("plait probe server.example", "Measure round trips, loss and MTU of each path"),
        Example("plait probe --listen [::]:5401", "Be the other end of the next example"),
        Example("plait probe --peer server.example:5401", "Also measure rates, and which TCP options arrive"),
    ]),
    ("capture", &[
        Example("plait capture -o run1 -- plait run --trusted eth0 -- curl -O http://server.example:8443/large",
                "Record a protected download"),
        Example("plait capture -o run2 -i eth0 -i wlan0 --duration 30s", "Record two interfaces for half a minute"),
    ]),
    ("analyze", &[
        Example("plait analyze run1", "Print the connections and subflows in a recorded directory"),
        Example("plait analyze eth0.pcapng wlan0.pcap.xz -o measured", "Also write JSON, tables, plots and the report"),
        Example("plait analyze --each captures -o measured", "Analyze many captures, each by itself"),
    ]),
    ("report", &[
        Example("plait report run1 -o report.html", "Write the report of a recorded directory"),
    ]),
    ("trace", &[
        Example("plait trace reassemble client.pcap -o streams.pcap", "Write MPTCP connections as TCP streams"),
    ]),
    ("trace reassemble", &[
        Example("plait trace reassemble client.pcap -o streams.pcap", "Write MPTCP connections as TCP streams"),
    ]),
    ("audit", &[
        Example("plait audit eth0.pcap wlan0.pcap", "Show what a listener on each path learns"),
        Example("plait audit run1 --ground-truth page.html --report audit.html", "Compare with what was sent"),
    ]),
    ("policy", &[
        Example("plait policy check drop.toml", "Check a policy"),
        Example("plait policy load drop.toml", "Apply it to this network namespace"),
        Example("plait policy stats --watch", "Print its counters every second"),
        Example("plait policy unload drop", "Remove it"),
    ]),
    ("policy check", &[
        Example("plait policy check policies/drop.toml", "Check a policy"),
    ]),
    ("policy load", &[
        Example("plait policy load --replace drop.toml", "Load a policy, or replace it without a gap"),
        Example("plait policy load --trusted eth0 offload.toml", "Load a policy that refers to roles of paths"),
    ]),
    ("policy list", &[
        Example("plait policy list", "Show which policies are loaded, and where"),
    ]),
    ("policy show", &[
        Example("plait policy show drop", "Print a loaded policy as TOML"),
    ]),
    ("policy stats", &[
        Example("plait policy stats drop --watch=5s", "Print the counters of a policy every five seconds"),
        Example("plait policy stats --timing", "Measure how long chains and actors take"),
    ]),
    ("policy trace", &[
        Example("plait policy trace drop", "Print the packets that the chains of a policy match"),
    ]),
    ("policy dry-run", &[
        Example("plait policy dry-run drop.toml client.pcap --local 10.0.0.1 -o passed.pcap",
                "Write what a policy would let pass"),
    ]),
    ("policy unload", &[
        Example("plait policy unload drop", "Remove a policy"),
        Example("plait policy unload --all", "Remove all policies"),
    ]),
    ("cc", &[
        Example("plait cc use lia", "Use LIA for new connections of this network namespace"),
        Example("plait cc show", "Show windows and round-trip times"),
        Example("plait cc disable", "Use the former algorithm again"),
    ]),
    ("cc list", &[
        Example("plait cc list", "Show the algorithms, and where they are enabled"),
    ]),
    ("cc load", &[
        Example("plait cc load olia", "Register plait_olia, for example for --congestion-control plait_olia"),
    ]),
    ("cc use", &[
        Example("plait cc use lia", "Use LIA for new connections of this network namespace"),
        Example("plait cc use balia --cgroup /sys/fs/cgroup/downloads", "Use BALIA for programs of a control group"),
    ]),
    ("cc disable", &[
        Example("plait cc disable --cgroup /sys/fs/cgroup/downloads", "Undo the last example of `plait cc use`"),
    ]),
    ("cc unload", &[
        Example("plait cc unload --all", "Unregister all algorithms"),
    ]),
    ("cc show", &[
        Example("plait cc show --json", "Print windows and round-trip times of all subflows as JSON"),
    ]),
    ("sched", &[
        Example("plait sched use ecf", "Use the earliest completion first for this network namespace"),
        Example("plait sched disable", "Undo that"),
    ]),
    ("sched list", &[
        Example("plait sched list", "Show the schedulers, and where they are enabled"),
    ]),
    ("sched load", &[
        Example("plait sched load weighted:wlan0=3,lte0=1", "Send three quarters by wlan0, once it is enabled"),
    ]),
    ("sched use", &[
        Example("plait sched use ecf", "Use the earliest completion first for this network namespace"),
        Example("plait sched use weighted:wlan0=3,lte0=1 --netns blue", "Send three quarters by wlan0 in a namespace"),
    ]),
    ("sched disable", &[
        Example("plait sched disable --netns blue", "Undo the last example of `plait sched use`"),
    ]),
    ("sched unload", &[
        Example("plait sched unload ecf", "Unregister a scheduler"),
    ]),
    ("lab", &[
        Example("plait lab up two-links.toml", "Build hosts, links and services"),
        Example("plait lab exec client curl http://10.77.1.2/", "Run a program on a host"),
        Example("plait lab down", "Remove them"),
    ]),
    ("lab up", &[
        Example("plait lab up two-links.toml", "Build hosts, links and services, and return"),
        Example("plait lab up two-links.toml --foreground --seed 7", "Keep them until Ctrl-C, with the losses of seed 7"),
    ]),
    ("lab exec", &[
        Example("plait lab exec client curl http://10.77.1.2/", "Run a program on a host"),
    ]),
    ("lab shell", &[
        Example("plait lab shell client", "Open a shell on a host"),
    ]),
    ("lab ps", &[
        Example("plait lab ps", "List labs, with the counters of their links"),
    ]),
    ("lab inject", &[
        Example("plait lab inject wlan blackhole", "Drop everything on a link"),
        Example("plait lab inject wlan adjust --set rate=1mbit --set loss=1%", "Make a link worse"),
    ]),
    ("lab down", &[
        Example("plait lab down --all", "Remove all labs"),
    ]),
    ("lab link", &[
        Example("plait lab link --a client:eth0 --b server:eth0 --rate 20mbit --delay 10ms",
                "Connect two namespaces until Ctrl-C"),
        Example("plait lab link --a client:eth0 --b server:eth0 --at 16s:blackhole --at 20s:restore --for 60s",
                "Cut the link for four seconds"),
    ]),
    ("lab run", &[
        Example("plait lab run experiments/kato-transfer.toml", "Run an experiment, and write out/kato-transfer"),
        Example("plait lab run experiments/kato-transfer.toml --quick --seed 7", "Run its short form, repeatably"),
    ]),
    ("lab traffic", &[
        Example("plait lab traffic serve", "Answer the examples of `flows` and `periodic`"),
    ]),
    ("lab traffic serve", &[
        Example("plait lab traffic serve --port 5400", "Answer until Ctrl-C"),
    ]),
    ("lab traffic flows", &[
        Example("plait lab traffic flows 10.77.1.2:5400 --sizes web-search --load 20mbit",
                "Open flows at random times, with published sizes"),
    ]),
    ("lab traffic periodic", &[
        Example("plait lab traffic periodic 10.77.1.2:5400 --interval 20ms --deadline 150ms",
                "Send messages as a call does, and count late ones"),
    ]),
    ("lab results", &[
        Example("plait lab results out/kato-transfer -o results", "Write the page of an experiment"),
    ]),
    ("demo", &[
        Example("plait demo", "Transfer 16 MB in each mode, and write out/demo"),
        Example("plait demo --size 1000000 --rate-wlan 10mbit --json", "Transfer less, and print JSON"),
    ]),
    ("codec", &[
        Example("plait codec xor64 --encode --seed 0123456789abcdef < page.html > scrambled", "Scramble a file"),
    ]),
    ("codec xor64", &[
        Example("plait codec xor64 --encode --seed 0123456789abcdef < page.html > scrambled", "Scramble a file"),
        Example("plait codec xor64 --decode --seed 0123456789abcdef < scrambled", "Unscramble it"),
    ]),
    ("codec stream", &[
        Example("plait codec stream --secrets keys.hex --cipher aes-256-ctr --from initiator < page.html > encrypted",
                "Encrypt what an initiator sends"),
    ]),
    ("codec sealed", &[
        Example("plait codec sealed --encode --key key.hex --cipher chacha20-poly1305 < page.html > records",
                "Seal a file into records"),
    ]),
    ("version", &[
        Example("plait version --json", "Print version, commit and date as JSON"),
    ]),
];

/// The examples of the command with this path; none if it has none.
pub(crate) fn of(path: &str) -> &'static [Example] {
    EXAMPLES.iter().find(|(command, _)| *command == path).map_or(&[], |(_, examples)| examples)
}

/// Ends the help of this command and of those below it with their examples.
pub(crate) fn add_to_help(command: Command) -> Command {
    // Commands below inherit the styles only when they are built.
    let styles = command.get_styles().clone();
    add_below(command, "", &styles)
}

fn add_below(command: Command, path: &str, styles: &Styles) -> Command {
    let help = [command.get_after_help().map(|help| help.ansi().to_string()), help(of(path), styles)];
    let help: Vec<_> = help.into_iter().flatten().collect();
    let command = if help.is_empty() { command } else { command.after_help(help.join("\n\n")) };
    command.mut_subcommands(|command| {
        let path = format!("{path} {}", command.get_name());
        add_below(command, path.trim_start(), styles)
    })
}

fn help(examples: &[Example], styles: &Styles) -> Option<String> {
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = format!("{header}Examples:{header:#}");
    for Example(line, purpose) in examples {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {literal}{line}{literal:#}\n      {purpose}");
    }
    (!examples.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::Cli;
    use crate::generate::commands;

    #[test]
    fn every_command_has_an_example_in_its_help() {
        let mut cli = add_to_help(Cli::command());
        for (path, _) in commands() {
            let examples = of(&path);
            assert!(!examples.is_empty(), "expected an example of `plait {path}` in {}", file!());
            let names = path.split_whitespace();
            let command =
                names.fold(&mut cli, |command, name| command.find_subcommand_mut(name).expect("a command"));
            // Help is wrapped.
            let help = command.render_help().to_string();
            let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
            for Example(line, purpose) in examples {
                assert!(help.contains(&format!("{line} {purpose}")), "plait {path}: {help}");
            }
        }
    }

    #[test]
    fn every_example_is_one_of_its_command_and_parses() {
        for (path, examples) in EXAMPLES {
            for Example(line, _) in *examples {
                assert!(
                    line.starts_with(format!("plait {path}").trim_end()),
                    "an example of {path:?}: {line}"
                );
                let arguments = line.split_whitespace().take_while(|word| !["<", ">", "|"].contains(word));
                if let Err(error) = Cli::try_parse_from(arguments) {
                    panic!("{line}: {error}");
                }
            }
        }
    }

    #[test]
    fn examples_belong_to_commands() {
        let commands = commands();
        for (path, _) in EXAMPLES {
            assert!(commands.iter().any(|(command, _)| command == path), "expected a command, got {path:?}");
        }
    }

    #[test]
    fn a_command_keeps_its_own_notes_before_the_examples() {
        let mut cli = add_to_help(Cli::command());
        let link = cli
            .find_subcommand_mut("lab")
            .and_then(|lab| lab.find_subcommand_mut("link"))
            .expect("a command");
        let help = link.render_help().to_string();
        let notes = help.find("PROPERTIES: NAME=VALUE").expect("notes");
        assert!(help.find("Examples:").is_some_and(|examples| examples > notes), "{help}");
    }
}
