//! Help: `plait --help` lists the commands in groups, and every command has examples.

use std::fmt::Write as _;

use clap::Command;

use crate::examples;

const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Protect connections",
        &["up", "down", "run", "serve", "proxy", "router", "daemon", "exit", "identity", "peers", "kmod"],
    ),
    ("Inspect this host", &["status", "paths", "top", "web", "metrics", "doctor", "probe"]),
    ("Record and analyze", &["capture", "analyze", "report", "trace", "audit"]),
    ("Control packets and rates", &["policy", "cc", "sched"]),
    ("Experiment", &["lab", "demo", "codec", "version"]),
];

/// Completes the help of the whole program and of each command.
pub(crate) fn complete(command: Command) -> Command {
    grouped(examples::add_to_help(command))
}

/// Replaces the flat list of commands in the help of the whole program.
fn grouped(command: Command) -> Command {
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut list = String::new();
    for (group, names) in GROUPS {
        // Writing to a String cannot fail.
        let _ = writeln!(list, "{header}{group}:{header:#}");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(list, "  {literal}{name:<9}{literal:#} {about}");
        }
        list.push('\n');
    }
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{list}{header}Options:{header:#}\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::Cli;

    #[test]
    fn every_command_is_in_one_group() {
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let command = Cli::command();
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        let mut commands: Vec<_> = shown.map(Command::get_name).collect();
        grouped.sort_unstable();
        commands.sort_unstable();
        assert_eq!(grouped, commands);
    }

    #[test]
    fn help_lists_commands_by_group_and_leaves_theirs_alone() {
        let mut command = grouped(Cli::command());
        let help = command.render_help().to_string();
        assert!(help.contains("Inspect this host:\n  status    Show running gateways"), "{help}");
        let serve = command.find_subcommand_mut("serve").expect("a command").render_help().to_string();
        assert!(!serve.contains("Inspect this host"), "{serve}");
    }
}
